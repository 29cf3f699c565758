"""
Where the objects that we use live on the Kubernetes API.

`path` builds every path; a resource below only fixes group, version and plural. Must not do any I/O or discovery: these
paths are stable API.

A name that another one can be read from is refused and not quoted: the API server resolves a path after it has undone
the quoting, so `a%2Fb` is another path to it. The same holds for what stands in a field selector.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.kubernetes.errors import KubeBadName

_SEGMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,252}")
"""Names of namespaces and objects, groups, versions and resources; `:` is in names of RBAC."""
_PATH = re.compile(r"(/[A-Za-z0-9._:~-]+)+/?")
_SHOWN = 64


def segment(what: str, text: str) -> str:
    """
    The text as one part of a path or a value of a field selector, where it stands only for itself.

    Raises `KubeBadName`, which names `what` this is, for anything else: empty, `.` and `..`, and any of the characters
    that separate, quote or end a path or a selector.
    """
    if not _SEGMENT.fullmatch(text):
        raise KubeBadName(
            f"{what} {text[:_SHOWN]!a}: expected a name of at most 253 letters, digits, '-', '.' and ':', "
            "which begins with a letter or digit"
        )
    return text


def checked(path: str) -> str:
    """A whole path from any source. Raises `KubeBadName` if the server may read a different one from it."""
    if not _PATH.fullmatch(path) or any(part in (".", "..") for part in path.split("/")):
        raise KubeBadName(f"path {path[:_SHOWN]!a}: expected names between slashes, without quoting or query")
    return path


def fields(selected: Mapping[str, str]) -> str:
    """
    A field selector: every one of these fields has this value. Raises `KubeBadName` for a value that would be more.

    >>> fields({"involvedObject.kind": "Pod", "involvedObject.name": "train-0"})
    'involvedObject.kind=Pod,involvedObject.name=train-0'
    """
    return ",".join(f"{field}={segment(field, value)}" for field, value in selected.items())


def path(
    group_version: str,
    plural: str,
    namespace: str | None = None,
    name: str | None = None,
    sub: str | None = None,
) -> str:
    """The URL path of a collection (no name), an object, or a subresource of an object.

    group_version: "v1" for the core group, otherwise "group/version". Raises `KubeBadName`: see `segment`.

    >>> path("v1", "pods", "default", "train-0", "eviction")
    '/api/v1/namespaces/default/pods/train-0/eviction'
    >>> path("coordination.k8s.io/v1", "leases")
    '/apis/coordination.k8s.io/v1/leases'
    """
    if sub is not None and name is None:
        raise ValueError(f"subresource {sub!r} of {plural} needs a name")
    group, slash, version = group_version.rpartition("/")
    parts = ["apis", segment("group", group)] if slash else ["api"]
    parts.append(segment("version", version))
    if namespace is not None:
        parts += ["namespaces", segment("namespace", namespace)]
    parts.append(segment("resource", plural))
    # An empty name would silently address the collection: deleting "" must not delete all.
    if name is not None:
        parts.append(segment("name", name))
    if sub is not None:
        parts.append(segment("subresource", sub))
    return "/" + "/".join(parts)


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
resourceclaimtemplates = NamespacedResource("resource.k8s.io/v1", "resourceclaimtemplates")
leases = NamespacedResource("coordination.k8s.io/v1", "leases")
deployments = NamespacedResource("apps/v1", "deployments")
daemonsets = NamespacedResource("apps/v1", "daemonsets")
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
