"""
The fields that the server sets before it stores an object: system fields, a subresource's fields, generation.

The rules are those of the `PrepareForCreate` and `PrepareForUpdate` strategies of a real API server.
"""

import random
import uuid
from collections.abc import Callable, Mapping

from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON, timestamp

_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"  # without vowels and similar digits: no accidental words
_KEPT = ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "namespace")
_STATUS_AT_CREATE = ("nodes",)
"""Kinds that may be created with a status: a kubelet registers its node with one."""
_OWN_LABELS_ON_STATUS = ("apps", "batch")


def generated_name(prefix: str) -> str:
    """A name for `generateName`: at most 58 characters of the prefix and five random ones."""
    return prefix[:58] + "".join(random.choices(_ALPHABET, k=5))


def fill_system_fields(
    kind: Kind, value: JSON, namespace: str, now: float, taken: Callable[[str], bool] = lambda _: False
) -> None:
    """Identity and time of a new object. A generated name that is `taken` is generated again."""
    meta = value["metadata"]
    if kind.namespaced:
        meta["namespace"] = namespace
    else:
        meta.pop("namespace", None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = generated_name(meta["generateName"])
        while taken(meta["name"]):
            meta["name"] = generated_name(meta["generateName"])
    meta["uid"] = str(uuid.uuid4())
    meta["creationTimestamp"] = timestamp(now)
    for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "resourceVersion", "selfLink", "managedFields"):
        meta.pop(field, None)
    meta.pop("generation", None)
    if kind.generation or kind.custom is not None:
        meta["generation"] = 1


def prepare_create(kind: Kind, value: JSON) -> None:
    """Reset the fields that a creator may not set."""
    if kind.status and kind.key not in _STATUS_AT_CREATE:
        value.pop("status", None)
        if kind.custom is None:
            value["status"] = {}
    if initial := _INITIAL.get(kind.key):
        initial(value)


def _pod(value: JSON) -> None:
    status: JSON = {"phase": "Pending", "qosClass": qos_class(value["spec"])}
    if value["spec"].get("schedulingGates"):
        status["conditions"] = [
            {
                "type": "PodScheduled",
                "status": "False",
                "reason": "SchedulingGated",
                "message": "Scheduling is blocked due to non-empty scheduling gates",
            }
        ]
    value["status"] = status
    _without_empty(value["spec"])


def _without_empty(spec: JSON) -> None:
    """Remove empty lists, so that a pod whose last scheduling gate was removed has no field for gates."""
    for field in [field for field, part in spec.items() if part == [] and field != "containers"]:
        del spec[field]


def _namespace(value: JSON) -> None:
    value["spec"] = {"finalizers": ["kubernetes"]}
    value["status"] = {"phase": "Active"}
    value["metadata"].setdefault("labels", {})
    value["metadata"]["labels"]["kubernetes.io/metadata.name"] = value["metadata"].get("name", "")


def _claim(value: JSON) -> None:
    value["status"] = {"phase": "Pending"}


def _service(value: JSON) -> None:
    value["status"] = {"loadBalancer": {}}
    spec = value["spec"]
    if spec.get("type") != "ExternalName" and not spec.get("clusterIP"):
        spec["clusterIP"] = f"10.96.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    if spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [spec["clusterIP"]])


_INITIAL: Mapping[str, Callable[[JSON], None]] = {
    "pods": _pod,
    "namespaces": _namespace,
    "persistentvolumeclaims": _claim,
    "services": _service,
}


def qos_class(spec: JSON) -> str:
    """The QoS class that kubelet and `kubectl describe` show."""
    requests_seen, guaranteed = False, True
    for container in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for resource in ("cpu", "memory"):
            requests_seen = requests_seen or resource in requests or resource in limits
            if resource not in limits or requests.get(resource, limits[resource]) != limits[resource]:
                guaranteed = False
    if not requests_seen:
        return "BestEffort"
    return "Guaranteed" if guaranteed else "Burstable"


def prepare_update(kind: Kind, subresource: str, old: JSON, new: JSON) -> JSON:
    """The state to store: `new` as far as this (sub)resource may change it. Shares parts with `old`."""
    result = _OF_SUBRESOURCE.get(subresource, _main)(kind, old, new)
    meta = dict(result["metadata"])
    for field in _KEPT:
        meta.pop(field, None)
        if field in old["metadata"]:
            meta[field] = old["metadata"][field]
    meta["name"] = old["metadata"]["name"]
    meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    meta.pop("managedFields", None)
    result["metadata"] = meta
    if kind.key == "pods" and result.get("spec") is not old.get("spec"):
        result["spec"] = dict(result["spec"])
        _without_empty(result["spec"])
    if "generation" in meta and _desired(kind, result) != _desired(kind, old):
        meta["generation"] = old["metadata"]["generation"] + 1
    return result


_NO_METADATA_ON_STATUS = ("resourceclaims.resource.k8s.io",)
"""Built-in kinds of which a write to the status changes no metadata, finalizers included."""


def _status_only(kind: Kind, old: JSON, new: JSON) -> JSON:
    result = {**old, "metadata": dict(new["metadata"])}
    if "status" in new:
        result["status"] = new["status"]
    else:
        result.pop("status", None)
    if kind.custom is not None or kind.key in _NO_METADATA_ON_STATUS:
        result["metadata"] = dict(old["metadata"])
    elif kind.group in _OWN_LABELS_ON_STATUS:
        result["metadata"]["labels"] = old["metadata"].get("labels")
        if result["metadata"]["labels"] is None:
            del result["metadata"]["labels"]
    return result


def _ephemeral_only(kind: Kind, old: JSON, new: JSON) -> JSON:
    containers = new["spec"].get("ephemeralContainers") or []
    return {**old, "metadata": dict(new["metadata"]), "spec": {**old["spec"], "ephemeralContainers": containers}}


def _main(kind: Kind, old: JSON, new: JSON) -> JSON:
    result = {**new, "metadata": new["metadata"]}
    if kind.status:
        result.pop("status", None)
        if "status" in old:
            result["status"] = old["status"]
    return result


_OF_SUBRESOURCE: Mapping[str, Callable[[Kind, JSON, JSON], JSON]] = {
    "status": _status_only,
    "ephemeralcontainers": _ephemeral_only,
}


def _desired(kind: Kind, value: JSON) -> JSON:
    """The part of an object whose changes `metadata.generation` counts."""
    if kind.custom is None and "spec" in value:
        return {"spec": value["spec"]}
    ignored = {"metadata", "status"} if kind.status else {"metadata"}
    return {key: part for key, part in value.items() if key not in ignored}
