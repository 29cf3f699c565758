"""
The RBAC roles of the components of a cluster, under the names that Kubernetes gives them.

Each component acts as its own user, so that admission policies and the audit log see which one wrote an object. These
roles allow its writes and little more. In a real cluster, the Node authorizer limits each kubelet to its own node. Here
kubelets get their rights from their group, so a kubelet is not limited to its node. Pure data.
"""

from collections.abc import Iterator, Mapping

from playground.api.kinds.values import JSON
from playground.machinery.client.client import Resource

CLUSTER_ROLES = Resource("rbac.authorization.k8s.io/v1", "clusterroles", "ClusterRole", namespaced=False)
BINDINGS = Resource("rbac.authorization.k8s.io/v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)

_GROUP = "rbac.authorization.k8s.io"
_READ = ("get", "list", "watch")


def _rule(group: str, resources: str, *verbs: str) -> JSON:
    return {"apiGroups": [group], "resources": resources.split(), "verbs": list(verbs)}


_EVENTS = _rule("", "events", "create", "patch", "update")
_PODS = _rule("", "pods", *_READ, "create", "delete", "patch")

_ROLES: Mapping[str, tuple[JSON, ...]] = {
    "system:controller:deployment-controller": (
        _rule("apps", "deployments", *_READ, "update", "patch"),
        _rule("apps", "deployments/status deployments/finalizers", "update", "patch"),
        _rule("apps", "replicasets", *_READ, "create", "update", "patch", "delete"),
        _EVENTS,
    ),
    "system:controller:replicaset-controller": (
        _rule("apps", "replicasets", *_READ, "update", "patch"),
        _rule("apps", "replicasets/status replicasets/finalizers", "update", "patch"),
        _PODS,
        _EVENTS,
    ),
    "system:controller:statefulset-controller": (
        _rule("apps", "statefulsets", *_READ, "update", "patch"),
        _rule("apps", "statefulsets/status statefulsets/finalizers", "update", "patch"),
        _PODS,
        _EVENTS,
    ),
    "system:controller:job-controller": (
        _rule("batch", "jobs", *_READ, "update", "patch", "delete"),
        _rule("batch", "jobs/status jobs/finalizers", "update", "patch"),
        _PODS,
        _EVENTS,
    ),
    "system:controller:resource-claim-controller": (
        _rule("resource.k8s.io", "resourceclaims", *_READ, "create", "delete", "patch"),
        _rule("resource.k8s.io", "resourceclaims/status resourceclaims/binding", "patch"),
        _rule("resource.k8s.io", "resourceclaimtemplates", *_READ),
        _rule("", "pods", *_READ),
        _rule("", "pods/status", "patch"),
        _EVENTS,
    ),
    "system:kube-scheduler": (
        _rule("", "nodes", *_READ),
        _rule("", "pods", *_READ, "delete"),
        _rule("", "pods/binding bindings", "create"),
        _rule("", "pods/status", "patch", "update"),
        _rule("resource.k8s.io", "resourceclaims", *_READ),
        _EVENTS,
    ),
    "system:node": (
        _rule("", "nodes", *_READ, "create", "patch", "update"),
        _rule("", "nodes/status", "patch", "update"),
        _rule("", "pods", *_READ, "create", "delete"),
        _rule("", "pods/status", "patch", "update"),
        _rule("", "configmaps secrets", *_READ),
        _rule("resource.k8s.io", "resourceclaims", "get"),
        _EVENTS,
    ),
}


def _subject(role: str) -> JSON:
    if role.startswith("system:controller:"):
        return {"kind": "ServiceAccount", "name": role.rpartition(":")[2], "namespace": "kube-system"}
    if role == "system:node":
        return {"kind": "Group", "name": "system:nodes", "apiGroup": _GROUP}
    return {"kind": "User", "name": role, "apiGroup": _GROUP}


def objects(*, prefix: str = "") -> Iterator[tuple[Resource, JSON]]:
    """
    Every role and its binding, to be created in this order.

    A real API server has roles of these names already, with what the real components need: they update where ours
    patch. There a `prefix` keeps the names apart.
    """
    for name, rules in _ROLES.items():
        called = f"{prefix}{name}"
        reference = {"kind": "ClusterRole", "name": called, "apiGroup": _GROUP}
        yield CLUSTER_ROLES, {"metadata": {"name": called}, "rules": list(rules)}
        yield BINDINGS, {"metadata": {"name": called}, "subjects": [_subject(name)], "roleRef": reference}
