"""
A real control plane around which the playground's kubelets live: kube-apiserver and etcd, started from a folder.

Everything here speaks to it as any client does, over HTTPS with credentials of its own. Nothing here knows gpufraction.
"""
