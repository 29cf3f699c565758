"""
The requests to an API server, from its own metric `apiserver_request_total`: writes of pods and Events by kind.

Pure: the text of `/metrics` in, counts out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

METRIC = "apiserver_request_total"
CREATE, BINDING, PATCH, STATUS, EVENTS, OTHER, READS = (
    "create",
    "binding",
    "patch",
    "status",
    "events",
    "other",
    "reads",
)
KINDS = (CREATE, BINDING, PATCH, STATUS, EVENTS, OTHER)
"""Kinds of writes. `other`: writes of other objects, such as leases, and of pods by other subresources."""
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_WRITES = frozenset(("POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"))
_READS = frozenset(("GET", "LIST"))
_OF_PODS = {
    ("POST", ""): CREATE,
    ("POST", "binding"): BINDING,
    ("PATCH", ""): PATCH,
    ("PUT", ""): PATCH,
    ("PATCH", "status"): STATUS,
    ("PUT", "status"): STATUS,
}


def counted(text: str) -> Counter[str]:
    """Requests so far, by kind; requests that were refused count too. Watches do not count."""
    found: Counter[str] = Counter()
    for line in text.splitlines():
        if line.startswith(f"{METRIC}{{"):
            labels, _, value = line.rpartition(" ")
            kind = _kind(dict(_LABEL.findall(labels)))
            if kind:
                found[kind] += int(float(value))
    return found


def a_pod(before: Mapping[str, int], after: Mapping[str, int], pods: int) -> dict[str, float]:
    """Requests for each of so many pods between two counts, by kind."""
    return {kind: (after.get(kind, 0) - before.get(kind, 0)) / pods for kind in (*KINDS, READS)}


def _kind(labels: Mapping[str, str]) -> str:
    verb, resource, sub = labels.get("verb", ""), labels.get("resource", ""), labels.get("subresource", "")
    if verb in _READS:
        return READS
    if verb not in _WRITES:
        return ""
    if resource == "pods":
        return _OF_PODS.get((verb, sub), OTHER)
    return EVENTS if resource == "events" else OTHER
