"""
A real control plane around which the playground's kubelets live: kube-apiserver and etcd, started from a folder.

All modules here use it as any client does, over HTTPS with their own credentials. They do not know gpufraction.
"""
