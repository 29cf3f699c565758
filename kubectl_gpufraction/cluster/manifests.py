"""
The pods that a manifest would make: of each object its pod templates, and how many pods each makes. Pure.

A kind that is not Kubernetes' own is searched for pod templates, so Jobs of training operators are read too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from contract.encoding import quantity

JSON = dict[str, Any]
_DEEP = 8
"""Levels of an unknown kind that are searched."""
_MOST = 10_000
"""Replicas of one template that are counted."""
PER_NODE = "it creates one pod for each node; one was tried"


@dataclass(frozen=True, slots=True)
class Template:
    """A pod that an object makes `replicas` times; none for an object that makes no pods. `name`: `Kind/name`."""

    name: str
    pod: JSON | None = None
    replicas: int = 1
    note: str = ""


def templates(documents: Iterable[Any], namespace: str) -> Iterator[Template]:
    """All templates of the manifest, in its order; objects that have no pods too."""
    for document in documents:
        if not isinstance(document, dict):
            continue
        kind, metadata = str(document.get("kind", "")), _object(document, "metadata")
        name = f"{kind}/{metadata.get('name') or metadata.get('generateName', '')}"
        if kind == "List":
            yield from templates(document.get("items") or [], namespace)
        elif kind == "Pod":
            yield Template(name, _pod(metadata, _object(document, "spec"), metadata, namespace))
        else:
            found = list(_of_workload(kind, document))
            for part, holder in found:
                template = _object(holder, "template")
                pod = _pod(_object(template, "metadata"), _object(template, "spec"), metadata, namespace)
                here = f"{name} {part}" if part and len(found) > 1 else name
                yield Template(here, pod, _replicas(kind, holder), PER_NODE if kind == "DaemonSet" else "")
            if not found:
                yield Template(name)


def _of_workload(kind: str, document: JSON) -> Iterator[tuple[str, JSON]]:
    """The objects inside it that hold a pod template, each with the name of its field."""
    if kind == "CronJob":
        document = _object(_object(document, "spec"), "jobTemplate")
    yield from _holders("", _object(document, "spec"), _DEEP)


def _holders(field: str, value: Any, deep: int) -> Iterator[tuple[str, JSON]]:
    if deep == 0 or not isinstance(value, dict | list):
        return
    if isinstance(value, list):
        for number, each in enumerate(value):
            named = str(each.get("name") or f"{field}[{number}]") if isinstance(each, dict) else field
            yield from _holders(named, each, deep - 1)
        return
    if isinstance(_object(_object(value, "template"), "spec").get("containers"), list):
        yield field, value
        return
    for key, each in value.items():
        yield from _holders(key, each, deep - 1)


def _replicas(kind: str, holder: JSON) -> int:
    """How many pods a template makes at once. A Job's pods are bounded by its completions."""
    if kind == "DaemonSet":
        return 1
    if kind in ("Job", "CronJob"):
        at_once = max(0, quantity.integer_or(holder.get("parallelism", 1), 1))
        completions = quantity.integer_or(holder.get("completions", at_once), at_once)
        return min(at_once, max(0, completions), _MOST)
    return min(max(0, quantity.integer_or(holder.get("replicas", 1), 1)), _MOST)


def _object(holder: JSON, key: str) -> JSON:
    found = holder.get(key)
    return found if isinstance(found, dict) else {}


def _pod(metadata: JSON, spec: JSON, owner: JSON, namespace: str) -> JSON:
    kept = {key: metadata[key] for key in ("labels", "annotations") if metadata.get(key)}
    # A generated name, since the API server refuses a dry run with a name that exists.
    named = {"generateName": f"{str(owner.get('name', 'pod'))[:50]}-", "namespace": owner.get("namespace") or namespace}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {**kept, **named}, "spec": spec}
