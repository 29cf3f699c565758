"""
Where the objects that we use live on the Kubernetes API.

One function builds every path; the named ones below only fix group, version and plural. Must not do any
I/O or discovery: these paths are stable API.
"""

from __future__ import annotations

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


def pods(namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """Pods; without a namespace those of all namespaces."""
    return path("v1", "pods", namespace, name, sub)


def events(namespace: str | None = None, name: str | None = None) -> str:
    """Events of the core group."""
    return path("v1", "events", namespace, name)


def secrets(namespace: str | None = None, name: str | None = None) -> str:
    """Secrets."""
    return path("v1", "secrets", namespace, name)


def configmaps(namespace: str | None = None, name: str | None = None) -> str:
    """ConfigMaps."""
    return path("v1", "configmaps", namespace, name)


def resourcequotas(namespace: str | None = None, name: str | None = None) -> str:
    """ResourceQuotas."""
    return path("v1", "resourcequotas", namespace, name)


def namespaces(name: str | None = None) -> str:
    """Namespaces."""
    return path("v1", "namespaces", None, name)


def nodes(name: str | None = None, sub: str | None = None) -> str:
    """Nodes."""
    return path("v1", "nodes", None, name, sub)


def leases(namespace: str | None = None, name: str | None = None) -> str:
    """Leases, of leader election and of node heartbeats."""
    return path("coordination.k8s.io/v1", "leases", namespace, name)


def deployments(namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """Deployments."""
    return path("apps/v1", "deployments", namespace, name, sub)


def jobs(namespace: str | None = None, name: str | None = None, sub: str | None = None) -> str:
    """Jobs."""
    return path("batch/v1", "jobs", namespace, name, sub)


def poddisruptionbudgets(namespace: str | None = None, name: str | None = None) -> str:
    """PodDisruptionBudgets."""
    return path("policy/v1", "poddisruptionbudgets", namespace, name)


def priorityclasses(name: str | None = None) -> str:
    """PriorityClasses."""
    return path("scheduling.k8s.io/v1", "priorityclasses", None, name)


def runtimeclasses(name: str | None = None) -> str:
    """RuntimeClasses."""
    return path("node.k8s.io/v1", "runtimeclasses", None, name)


def mutatingwebhookconfigurations(name: str | None = None) -> str:
    """MutatingWebhookConfigurations."""
    return path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", None, name)


def validatingadmissionpolicies(name: str | None = None) -> str:
    """ValidatingAdmissionPolicies."""
    return path("admissionregistration.k8s.io/v1", "validatingadmissionpolicies", None, name)


def customresourcedefinitions(name: str | None = None) -> str:
    """CustomResourceDefinitions."""
    return path("apiextensions.k8s.io/v1", "customresourcedefinitions", None, name)


def gpunodes(name: str | None = None, sub: str | None = None) -> str:
    """GPUNodes: our own cluster-scoped kind, with a status subresource."""
    return path("gpufraction.io/v1alpha1", "gpunodes", None, name, sub)
