"""
The idle shares of a cluster, from its GPUNodes and pods: since when, on which cards, and whether they give way.

Pure. A GPUNode names pods by uid, so a user sees those of the pods that the user may list.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from contract import names, pods
from contract.encoding import moments
from contract.encoding.quantity import mib
from contract.nodes.idle import IdleReport, idle_from_object
from contract.scheduling.consent import idle_after
from contract.scheduling.demand import usage_of
from kubectl_gpufraction.cluster.state import pod_of
from kubectl_gpufraction.output.wording import many

JSON = dict[str, Any]
Row = Mapping[str, Any]


def rows(gpunodes: Iterable[JSON], listed: Iterable[JSON], labels: Mapping[str, str] | None) -> list[Row]:
    """
    The idle ones of these pods, those with the longest idle time first.

    `labels`: the namespaces' labels of consent, by name; None where the user may not see them.
    """
    reports = {str(each["metadata"]["name"]): idle_from_object(each) for each in gpunodes}
    found = (_row(pod, reports, labels) for pod in listed)
    return sorted((row for row in found if row is not None), key=lambda row: (row["since"], row["namespace"]))


def _row(pod: JSON, reports: Mapping[str, IdleReport], labels: Mapping[str, str] | None) -> Row | None:
    held = pod_of(pod)
    if held is None or held.allocation is None:
        return None
    report = reports.get(held.allocation.node)
    since = report.shares.get(pods.uid(pod)) if report is not None else None
    if since is None:
        return None
    shares = [share for each in held.allocation.containers for share in each.shares]
    taken, (after, by) = usage_of(held.shares().values()), _consent(pod, held.namespace, labels)
    return {
        "namespace": held.namespace,
        "name": held.name,
        "since": moments.stamp(since),
        "node": held.allocation.node,
        "gpus": sorted({share.index for share in shares}),
        "memoryMiB": mib(taken.memory),
        "cores": taken.cores,
        "givesWayAfter": after,
        "consent": by,
        "priority": held.priority,
        "uuids": sorted({share.uuid for share in shares}),
    }


def _consent(pod: JSON, namespace: str, labels: Mapping[str, str] | None) -> tuple[str, str]:
    """The time after which the pod gives way, as it is written, empty for never; and where that is written."""
    own = pods.annotations_of(pod).get(names.IDLE_AFTER)
    if own is not None:
        return (own if idle_after(own) else ""), "pod"
    if labels is None:
        return "", "unknown"
    word = labels.get(namespace)
    return (word if word is not None and idle_after(word) else ""), "namespace" if word is not None else "none"


def gives_way(row: Row) -> str:
    """The cell of a person's table."""
    if row["consent"] == "unknown":
        return "unknown"
    return f"after {row['givesWayAfter']}" if row["givesWayAfter"] else "no"


def totals(found: Iterable[Row]) -> str:
    """How many idle pods hold how much memory, and how many of them consented to eviction."""
    listed = list(found)
    agreed = sum(bool(row["givesWayAfter"]) for row in listed)
    held = sum(row["memoryMiB"] for row in listed)
    return f"{many(len(listed), 'idle pod holds', 'idle pods hold')} {held} MiB; {agreed} consented to eviction"
