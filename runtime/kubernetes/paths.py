"""
Where the objects that we use live on the Kubernetes API.

`path` builds every path; a resource below only fixes group, version and plural. Must not do any I/O or discovery: these
paths are stable API.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote


def path(
    group_version: str,
    plural: str,
    namespace: str | None = None,
    name: str | None = None,
    sub: str | None = None,
) -> str:
    """The URL path of a collection (no name), an object, or a subresource of an object.

    group_version: "v1" for the core group, otherwise "group/version".

    >>> path("v1", "pods", "default", "train-0", "eviction")
    '/api/v1/namespaces/default/pods/train-0/eviction'
    >>> path("coordination.k8s.io/v1", "leases")
    '/apis/coordination.k8s.io/v1/leases'
    """
    if sub is not None and name is None:
        raise ValueError(f"subresource {sub!r} of {plural} needs a name")
    parts = ["apis" if "/" in group_version else "api", *group_version.split("/")]
    if namespace is not None:
        parts += ["namespaces", namespace]
    parts.append(plural)
    parts += [part for part in (name, sub) if part is not None]
    for part in parts:
        # An empty segment would silently address the collection: deleting "" must not delete all.
        if not part or part in (".", ".."):
            raise ValueError(f"path segment {part!r} in {parts}: expected a name")
    return "/" + "/".join(quote(part, safe=":") for part in parts)


@dataclass(frozen=True, slots=True)
class NamespacedResource:
    """The paths of a resource with namespaces; without a namespace the collection of all namespaces."""

    group_version: str
    plural: str

    def __call__(self, namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
        return path(self.group_version, self.plural, namespace, name, sub)


@dataclass(frozen=True, slots=True)
class ClusterResource:
    """The paths of a resource without namespaces."""

    group_version: str
    plural: str

    def __call__(self, name: str | None = None, sub: str | None = None) -> str:
        return path(self.group_version, self.plural, None, name, sub)


pods = NamespacedResource("v1", "pods")
events = NamespacedResource("v1", "events")
secrets = NamespacedResource("v1", "secrets")
configmaps = NamespacedResource("v1", "configmaps")
resourcequotas = NamespacedResource("v1", "resourcequotas")
resourceclaims = NamespacedResource("resource.k8s.io/v1", "resourceclaims")
leases = NamespacedResource("coordination.k8s.io/v1", "leases")
deployments = NamespacedResource("apps/v1", "deployments")
jobs = NamespacedResource("batch/v1", "jobs")
poddisruptionbudgets = NamespacedResource("policy/v1", "poddisruptionbudgets")
namespaces = ClusterResource("v1", "namespaces")
nodes = ClusterResource("v1", "nodes")
priorityclasses = ClusterResource("scheduling.k8s.io/v1", "priorityclasses")
runtimeclasses = ClusterResource("node.k8s.io/v1", "runtimeclasses")
mutatingwebhookconfigurations = ClusterResource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
validatingadmissionpolicies = ClusterResource("admissionregistration.k8s.io/v1", "validatingadmissionpolicies")
customresourcedefinitions = ClusterResource("apiextensions.k8s.io/v1", "customresourcedefinitions")
gpunodes = ClusterResource("gpufraction.io/v1alpha1", "gpunodes")
