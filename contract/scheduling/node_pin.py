"""
Tying a pod to one node by required node affinity, so that kube-scheduler still judges everything else.

The pin is the field requirement `metadata.name In [node]`, added to every term of the pod: terms are ORed, so a term
without it would be a way around the pin. A term without requirements matches no node (Kubernetes, "Assigning Pods to
Nodes"); it stays empty, since the pin would make it match. Requirements are appended, because that is the only change
that the API server allows on a gated pod. It is the name, and not a label such as `kubernetes.io/hostname`, because a
kubelet may change its node's labels.

Pure; arguments are never changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

JSON = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_SOME: list[JSON] = [{}]
"""Stands for any requirements, where only their existence matters."""


def requirement(node: str) -> JSON:
    """The field requirement that only this node satisfies."""
    return {"key": "metadata.name", "operator": "In", "values": [node]}


def pinned(spec: Mapping[str, Any], node: str) -> JSON:
    """The pod spec's `affinity` with the pin to the node; unchanged where it has the pin already."""
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
    """The pin as JSON patch operations (RFC 6902) on a gated pod."""
    path, found = "/spec", spec
    for key in ("affinity", "nodeAffinity", _REQUIRED):
        path, below = f"{path}/{key}", found.get(key)
        if below is None:
            return [{"op": "add", "path": path, "value": _below(key, pinned(spec, node))}]
        found = below
    return list(_term_operations(f"{path}/nodeSelectorTerms", found.get("nodeSelectorTerms") or [], node))


def outline(spec: Mapping[str, Any]) -> JSON:
    """
    The small part of a pod's spec that `pin_operations` reads, from which it makes the same operations.

    It has the terms, whether each is empty, and the pins that they have; nothing else of their requirements.
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
        # A term with two different pins matches no node, so another pin changes nothing.
        slim["matchFields"] = pins[:1] if all(pin == pins[0] for pin in pins) and pins else _SOME if fields else []
    return slim


def _is_pin(field: Mapping[str, Any]) -> bool:
    values = field.get("values") or []
    return len(values) == 1 and field == requirement(values[0])


def is_pinned(spec: Mapping[str, Any], node: str) -> bool:
    """Whether the spec's affinity allows this node only, or no node at all."""
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return False
    return all(not _open(term, node) for term in required.get("nodeSelectorTerms") or [])


def without_pin(spec: Mapping[str, Any], node: str) -> JSON | None:
    """
    The spec's `affinity` without the pin to `node`, which is known to be ours; None if nothing is left.

    Others may have added terms since. A term that was only the pin is removed, since an empty term matches no node.
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
    The spec's `affinity` without the pin to `node`; None if nothing is left.

    It is for an allocation that is no longer valid, such as a restored backup's, whose pin would exclude every other
    node. Only a pin in every term is removed; anything less was not written here.
    """
    affinity = dict(spec.get("affinity") or {})
    if not is_pinned(spec, node):
        return affinity or None
    node_affinity = dict(affinity["nodeAffinity"])
    before = node_affinity[_REQUIRED].get("nodeSelectorTerms") or []
    after = [_without(term, node) for term in before]
    if any(_empty(new) and not _empty(old) for old, new in zip(before, after, strict=True)):
        # A term that was only the pin accepts every node without it, and so do all terms together.
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
