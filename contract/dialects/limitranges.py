"""
The resources of a pod that a LimitRange of its namespace wrote.

The API server's LimitRanger gives every container without an amount of a resource the LimitRange's `default`, or its
`max` where there is no default, and lists these in an annotation. It runs before webhooks, and again after a webhook
has changed the pod, so a resource that admission removes comes back. So the amounts of a LimitRange count only where
they belong to the dialect in which the tenant asks. If the tenant requests nothing, an older system's resources come
first, and then our own, which are meant as bounds of shares rather than as requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract.scheduling import needs

RANGE_ANNOTATION = "kubernetes.io/limit-ranger"
_RANGE_PREFIX = "LimitRanger plugin set: "
_RANGE_REQUEST = " request for "
_LONGEST_RANGE = 256 << 10

RangedRequests = Mapping[str, frozenset[str]]
"""The resources of which a LimitRange wrote the request, by container."""
NO_RANGE: RangedRequests = {}


def ranged_requests(pod: Mapping[str, Any]) -> RangedRequests:
    """
    The resources that a LimitRange wrote. A pod that forges the annotation requests less, and gets less.

    Only requests are read: where the author wrote the limit or the request of a resource, the API server writes the
    other one, and LimitRanger neither.
    """
    metadata = pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(RANGE_ANNOTATION) if isinstance(annotations, Mapping) else None
    if not isinstance(text, str) or not text.startswith(_RANGE_PREFIX) or len(text) > _LONGEST_RANGE:
        return NO_RANGE
    found: dict[str, frozenset[str]] = {}
    for part in text.removeprefix(_RANGE_PREFIX).split("; "):
        resources, of_requests, container = part.rpartition(_RANGE_REQUEST)
        kind, separated, name = container.removeprefix("init ").partition(" ")
        if of_requests and kind == "container" and separated and name and " " not in name:
            found[name] = frozenset(resources.split(", "))
    return found


def without(pod: Mapping[str, Any], dropped: RangedRequests) -> Mapping[str, Any]:
    """A copy of the pod without these resources."""
    spec = pod.get("spec")
    if not any(dropped.values()) or not isinstance(spec, Mapping):
        return pod
    return {**pod, "spec": needs.with_containers(spec, lambda each: _container_without(each, dropped))}


def _container_without(container: Any, dropped: RangedRequests) -> Any:
    removed = dropped.get(container.get("name", ""), frozenset()) if isinstance(container, Mapping) else frozenset()
    resources = container.get("resources") if removed else None
    if not isinstance(resources, Mapping):
        return container
    left = {
        kind: {name: amount for name, amount in amounts.items() if name not in removed}
        for kind, amounts in resources.items()
        if isinstance(amounts, Mapping)
    }
    return {**container, "resources": {**resources, **left}}
