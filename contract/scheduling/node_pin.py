"""
Tying a pod to one node by required node affinity, so that kube-scheduler still judges everything else.

The pin is `metadata.name In [node]` as a field requirement, ANDed into every term that the pod has: terms are ORed, so
a term left out would be a way around the pin. A term without requirements matches no node (Kubernetes, "Assigning Pods
to Nodes"); it is left alone, since a pin put into it would make it match. Requirements are appended, because that is
the one change that the API server allows on a gated pod.

Pure; arguments are never changed. `spec.nodeName` needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

JSON = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SOME: list[JSON] = [{}]
"""Stands for requirements of which it only matters that there are some."""


def requirement(node: str) -> JSON:
    """The field requirement that only the node of this name satisfies."""
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def pinned(spec: Mapping[str, Any], node: str) -> JSON:
    """The pod spec's `affinity` with the node pinned; as it is where it was pinned to this node already."""
    affinity = dict(spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    required = node_affinity.get(_REQUIRED)
    if required is None:
        required = {"nodeSelectorTerms": [{"matchFields": [requirement(node)]}]}
    else:
        terms = [_with(term, node) for term in required.get("nodeSelectorTerms") or []]
        required = {**required, "nodeSelectorTerms": terms}
    node_affinity[_REQUIRED] = required
    affinity["nodeAffinity"] = node_affinity
    return affinity


def pin_operations(spec: Mapping[str, Any], node: str) -> list[JSON]:
    """The pin as JSON patch operations (RFC 6902) on a pod that waits behind a scheduling gate."""
    path, found = "/spec", spec
    for key in ("affinity", "nodeAffinity", _REQUIRED):
        path, below = f"{path}/{key}", found.get(key)
        if below is None:
            return [{"op": "add", "path": path, "value": _below(key, pinned(spec, node))}]
        found = below
    return list(_term_operations(f"{path}/nodeSelectorTerms", found.get("nodeSelectorTerms") or [], node))


def outline(spec: Mapping[str, Any]) -> JSON:
    """
    Of a pod's spec as much as `pin_operations` reads: the operations are the same, and the outline is small.

    Which terms there are, which of them are empty, and which are pinned to one node already; nothing of what they ask.
    """
    affinity = spec.get("affinity")
    if affinity is None:
        return {}
    of_nodes = affinity.get("nodeAffinity")
    if of_nodes is None:
        return {"affinity": {}}
    required = of_nodes.get(_REQUIRED)
    if required is None:
        return {"affinity": {"nodeAffinity": {}}}
    terms = [_term_outline(term) for term in required.get("nodeSelectorTerms") or []]
    return {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": terms}}}}


def _term_outline(term: Mapping[str, Any]) -> JSON:
    fields, slim = term.get("matchFields"), {}
    if term.get("matchExpressions"):
        slim["matchExpressions"] = _SOME
    if fields is not None:
        pins = [field for field in fields if _is_pin(field)]
        # A term with two different pins matches no node; one more of ours changes nothing there.
        slim["matchFields"] = pins[:1] if all(pin == pins[0] for pin in pins) and pins else _SOME if fields else []
    return slim


def _is_pin(field: Mapping[str, Any]) -> bool:
    values = field.get("values") or []
    return len(values) == 1 and field == requirement(values[0])


def is_pinned(spec: Mapping[str, Any], node: str) -> bool:
    """Whether the spec's own affinity lets the pod onto this node only (or onto none at all)."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return False
    return all(not _open(term, node) for term in required.get("nodeSelectorTerms") or [])


def without_pin(spec: Mapping[str, Any], node: str) -> JSON | None:
    """
    The spec's `affinity` without the pin to `node`, which is known to be ours; None where nothing is left of it.

    Others may have added terms since: a term that was the pin alone goes, since without the pin it would match every
    node or, empty, none.
    """
    affinity = dict(spec.get("affinity") or {})
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None or is_pinned(spec, node):
        return unpinned(spec, node)
    terms = required.get("nodeSelectorTerms") or []
    kept = [_without(term, node) for term in terms if _empty(term) or not _empty(_without(term, node))]
    return {
        **affinity,
        "nodeAffinity": {**affinity["nodeAffinity"], _REQUIRED: {**required, "nodeSelectorTerms": kept}},
    }


def unpinned(spec: Mapping[str, Any], node: str) -> JSON | None:
    """
    The spec's `affinity` without the pin to `node`, None where nothing is left of it.

    For an allocation that no longer counts, such as a restored backup's: its pin would forbid every other node. Only a
    pin in every term is taken out; anything less was not made here.
    """
    affinity = dict(spec.get("affinity") or {})
    if not is_pinned(spec, node):
        return affinity or None
    node_affinity = dict(affinity["nodeAffinity"])
    before = node_affinity[_REQUIRED].get("nodeSelectorTerms") or []
    after = [_without(term, node) for term in before]
    if any(_empty(new) and not _empty(old) for old, new in zip(before, after, strict=True)):
        # A term that was the pin alone accepts every node without it, and so do all terms together.
        del node_affinity[_REQUIRED]
    else:
        node_affinity[_REQUIRED] = {**node_affinity[_REQUIRED], "nodeSelectorTerms": after}
    affinity["nodeAffinity"] = node_affinity
    if not node_affinity:
        del affinity["nodeAffinity"]
    return affinity or None


def _empty(term: Mapping[str, Any]) -> bool:
    return not term.get("matchExpressions") and not term.get("matchFields")


def _open(term: Mapping[str, Any], node: str) -> bool:
    """Whether the term could match another node."""
    return not _empty(term) and requirement(node) not in (term.get("matchFields") or [])


def _with(term: Mapping[str, Any], node: str) -> JSON:
    if not _open(term, node):
        return dict(term)
    return {**term, "matchFields": [*(term.get("matchFields") or []), requirement(node)]}


def _without(term: Mapping[str, Any], node: str) -> JSON:
    fields = [field for field in term.get("matchFields") or [] if field != requirement(node)]
    rest = {key: value for key, value in term.items() if key != "matchFields"}
    return {**rest, "matchFields": fields} if fields else rest


def _below(key: str, affinity: JSON) -> JSON:
    value = affinity
    for step in ("affinity", "nodeAffinity", _REQUIRED):
        value = value if step == "affinity" else value[step]
        if step == key:
            return value
    raise KeyError(key)


def _term_operations(path: str, terms: list[JSON], node: str) -> Iterator[JSON]:
    for position, term in enumerate(terms):
        if not _open(term, node):
            continue
        if term.get("matchFields") is None:
            yield {"op": "add", "path": f"{path}/{position}/matchFields", "value": [requirement(node)]}
        else:
            yield {"op": "add", "path": f"{path}/{position}/matchFields/-", "value": requirement(node)}
