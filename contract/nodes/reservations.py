"""
The nodes that the leading allocator reserves for waiting pods, as a readable annotation of its Lease.

The annotation names pods by their uids, so a reader of the Lease learns no pod's name from it. Nothing decides by it.
An unreadable annotation counts as absent. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from contract import names
from contract.encoding.plain import NAME, plain

_MOST_NODES = 64
_MOST_TEXT = 64 << 10


def annotation(reservations: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The annotation for these pairs of a node and a pod's uid; empty if there are none."""
    found: dict[str, list[str]] = {}
    for node, uid in sorted(set(reservations)):
        found.setdefault(node, []).append(uid)
    kept = dict(list(found.items())[:_MOST_NODES])
    return {str(names.RESERVED_NODES): json.dumps(kept, separators=(",", ":"))} if kept else {}


def reserved_nodes(lease: object) -> Mapping[str, tuple[str, ...]]:
    """The uids of the pods for which each node is reserved, as a Lease says. Never raises."""
    metadata = lease.get("metadata") if isinstance(lease, Mapping) else None
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(names.RESERVED_NODES) if isinstance(annotations, Mapping) else None
    try:
        found = json.loads(text) if isinstance(text, str) and len(text) <= _MOST_TEXT else {}
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {
        plain(node, NAME): tuple(uid for uid in uids if isinstance(uid, str))
        for node, uids in list(found.items())[:_MOST_NODES]
        if isinstance(uids, list)
    }
