"""
What a namespace's LimitRange wrote into a pod, which its author did not: the API server says so in an annotation.

The API server's LimitRanger gives every container that names no amount of a resource the LimitRange's `default`, and a
`max` is a default too where there is none. It runs before webhooks, and again after one has changed the pod, so that
what admission takes out of a pod comes back. So what it wrote counts only as far as it goes with what the pod asks
for otherwise: a tenant's own words come first, then an older system's words, then our own, which bound shares rather
than ask for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

ANNOTATION = "kubernetes.io/limit-ranger"
_PREFIX = "LimitRanger plugin set: "
_PART = re.compile(r"(?P<resources>\S.*) request for (?:init )?container (?P<container>\S+)")
_LONGEST = 256 << 10

Written = Mapping[str, frozenset[str]]
"""By container, the resources of which a LimitRange wrote the request."""
NOTHING: Written = {}


def written(pod: Mapping[str, Any]) -> Written:
    """
    What a LimitRange wrote. Whoever forges the annotation asks for less than what is in the resources, and gets less.

    Requests alone are looked at: of a resource whose limit or request its author wrote, the API server writes the
    other one, and LimitRanger none.
    """
    metadata = pod.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(ANNOTATION) if isinstance(annotations, Mapping) else None
    if not isinstance(text, str) or not text.startswith(_PREFIX) or len(text) > _LONGEST:
        return NOTHING
    found: dict[str, frozenset[str]] = {}
    for part in text.removeprefix(_PREFIX).split("; "):
        match = _PART.fullmatch(part)
        if match is not None:
            found[match["container"]] = frozenset(match["resources"].split(", "))
    return found


def without(pod: Mapping[str, Any], dropped: Written) -> Mapping[str, Any]:
    """The pod whose containers do not name these resources; `pod` is not changed."""
    spec = pod.get("spec")
    if not any(dropped.values()) or not isinstance(spec, Mapping):
        return pod
    kinds = {
        kind: [_container(each, dropped) for each in spec[kind]]
        for kind in ("initContainers", "containers")
        if isinstance(spec.get(kind), list)
    }
    return {**pod, "spec": {**spec, **kinds}}


def _container(container: Any, dropped: Written) -> Any:
    gone = dropped.get(container.get("name", ""), frozenset()) if isinstance(container, Mapping) else frozenset()
    resources = container.get("resources") if gone else None
    if not isinstance(resources, Mapping):
        return container
    left = {
        kind: {name: amount for name, amount in amounts.items() if name not in gone}
        for kind, amounts in resources.items()
        if isinstance(amounts, Mapping)
    }
    return {**container, "resources": {**resources, **left}}


def said(wrote: Written) -> tuple[str, ...]:
    """One line for each container that has a share from a LimitRange."""
    return tuple(
        f"container {container}: {', '.join(sorted(names))} was set by a LimitRange of the namespace"
        for container, names in wrote.items()
    )
