"""
For whom a node is kept: the first in line that has waited past the bound and that some node could serve.

The bound counts from when this process first saw the pod wait, and past it a pod need not have been at the head all
that time: of many large pods, each has its turn as soon as the one before it is placed. Pure over the cluster and the
line's notes.
"""

from __future__ import annotations

from collections.abc import Callable

from allocator import keeping
from allocator.cluster import Cluster
from allocator.keeping import Kept
from allocator.line import Line
from allocator.queue import Waiting

_TRIES = 8
"""Pods in line that are looked at; each costs a look at every GPU, and most often the first one has it."""


def still_kept(cluster: Cluster, line: Line) -> Kept | None:
    """What is kept, unless its pod has left the line or is being written; the first, where more is."""
    for kept in cluster.kept:
        if cluster.queue.pod(kept.uid) is not None and not line.is_writing(kept.uid):
            return Kept(kept.node, kept.uid, kept.priority)
    return None


def worth_keeping(
    cluster: Cluster, line: Line, after: float, now: float, failed: Callable[[Waiting], None]
) -> Kept | None:
    """
    Which node to keep for whom; None where nobody has waited for `after` seconds, or `after` is 0.

    `failed` is told of a pod for which an error came up, as it is handled; the next one in line is looked at.
    """
    kept, asked = still_kept(cluster, line), 0
    for entry in cluster.queue.in_order() if after else ():
        if (
            entry.foreign
            or entry.ask.request.claim
            or line.is_writing(entry.uid)
            or line.quarantine.holds(entry.uid, now)
            or now - line.waits(entry.uid, now) < after
        ):
            continue
        before = kept.node if kept is not None and kept.uid == entry.uid else ""
        try:
            node = keeping.soonest(cluster.snapshot.values(), entry.ask, cluster.engine.limits, before)
        except Exception:
            failed(entry)
            continue
        if node is not None:
            return Kept(node, entry.uid, entry.priority)
        asked += 1
        if asked == _TRIES:
            break
    return None
