"""
A Kubernetes API server of one process, kept in memory, for tests, the demo and benchmarks.

`api.Api` is the server itself, called in process; `http.server.HttpsServer` puts it on a TLS port for kubectl and other
programs. Both go through the same code. Nothing here knows about GPUs: a real kube-apiserver does the same as this
package, with the same messages.
"""
