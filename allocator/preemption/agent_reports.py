"""
What follows from the reports of the nodes' agents: an Event on the pod, and its eviction where the agent requests it.

An agent is not trusted. So a report counts only if the pod, by its uid, holds the named share on the agent's own node.
It is a code from a closed list with figures, so no text of the agent reaches a pod. A node's Events and evictions are
limited over time. A lying agent thus harms only pods of its own node, which it could end by itself.

Every replica takes the reports in, and the one that leads acts on them. A new leader finds them in the GPUNodes and
acts once more: an Event's name follows from its report, so that it is written once, and a pod is evicted by its uid.

Pure; the shell holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from allocator.cache.cache import Cache
from allocator.queue.records import EventRecord, Eviction, PodRecords
from contract.backoff import backoff
from contract.nodes import reports
from contract.nodes.reports import EVICTING, PodReport
from contract.reasons.gpunodes import NodeEventReason
from contract.scheduling.nodeinfo import AllocatedPod

_PER_TICK, _NODE_PER_TICK = 32, 8
"""Events and evictions in one tick, which comes about once a second, of all nodes and of one; the nodes take turns."""
_NODE_BURST, _NODE_EVERY = 64, 1.0
_POD_BURST, _POD_EVERY = 6, 300.0
"""How many at once, and then one in how many seconds, for a node and for a pod. Honest agents stay far below."""
_FIRST, _LONGEST = 10.0, 300.0
"""Seconds until an eviction is requested again while the pod is still there."""
_STRANGE_AFTER, _STRANGE_EVERY = 60.0, 3600.0
"""Seconds for which a report must name a pod without that share until the Node's Event, and between two of these."""


@dataclass(slots=True)
class _Bucket:
    """What is left of an allowance at a time."""

    left: float
    at: float

    def has(self, now: float, burst: int, every: float) -> bool:
        self.left = min(float(burst), self.left + max(0.0, now - self.at) / every)
        self.at = now
        return self.left >= 1.0


@dataclass(slots=True)
class _Retry:
    """Evictions of one pod that were requested, and when the next one is due."""

    tries: int
    due: float


class AgentReports:
    """The reports of all nodes. Not thread-safe: one owner calls it."""

    def __init__(
        self, cache: Cache, records: PodRecords, *, holds: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        """`holds`: whether this replica may decide. `wake` is called when there is an Event to write."""
        self._cache = cache
        self._records = records
        self._holds = holds
        self._wake = wake
        self._nodes: dict[str, tuple[PodReport, ...]] = {}
        """Only those that report something; the node whose turn is next comes first."""
        self._recorded: dict[str, set[PodReport]] = {}
        """By node: the reports whose Event is written."""
        self._retries: dict[str, _Retry] = {}
        self._by_node: dict[str, _Bucket] = {}
        self._by_pod: dict[str, _Bucket] = {}
        self._strange: dict[str, float] = {}
        """By node: since when it reports about pods that have no such share there, or when that is next reported."""

    def seen(self, reported: Mapping[str, tuple[PodReport, ...]], *, listed: bool = False) -> None:
        """What GPUNodes report, by node; `listed`: these are all GPUNodes that there are."""
        if listed:
            for node in self._nodes.keys() - reported.keys():
                self._forget(node)
        for node, found in reported.items():
            if not found:
                self._forget(node)
                continue
            self._nodes[node] = found
            self._recorded[node] = self._recorded.get(node, set()) & set(found)

    def _forget(self, node: str) -> None:
        self._nodes.pop(node, None)
        self._recorded.pop(node, None)
        self._strange.pop(node, None)

    def tick(self, now: float) -> list[Eviction]:
        """The evictions that are due; the Events go to the records."""
        if not self._holds():
            return []
        self._tidy(now)
        evictions: list[Eviction] = []
        left = _PER_TICK
        for node in tuple(self._nodes):
            if left <= 0:
                break
            found, acts = self._of(node, min(left, _NODE_PER_TICK), now)
            evictions += found
            left -= acts
            if acts:
                self._nodes[node] = self._nodes.pop(node)  # the others come first next time
        return evictions

    def _of(self, node: str, most: int, now: float) -> tuple[list[Eviction], int]:
        """The effects of one node's reports, and how many acts of at most `most` they took."""
        evictions: list[Eviction] = []
        acts = 0
        recorded, strange = self._recorded.setdefault(node, set()), False
        for report in self._nodes[node]:
            held = self._held(node, report)
            if held is None:
                strange = True
                continue
            pod, text = held
            if pod.ending is not None:
                continue
            if report not in recorded:
                if acts >= most or not self._may(node, pod.uid, now):
                    continue
                acts += 1
                recorded.add(report)
                self._records.note(EventRecord("Pod", pod.key, pod.uid, report.code, text, once=_name(report)))
                self._wake()
            if report.evict and acts < most and self._due(node, pod.uid, now):
                acts += 1
                evictions.append(Eviction(pod.key, pod.uid, None, EVICTING[report.code], text))
        self._see_strange(node, strange, now)
        return evictions, acts

    def _held(self, node: str, report: PodReport) -> tuple[AllocatedPod, str] | None:
        """The pod that is reported about, and the Event's message; None if it has no such share on the node."""
        pod, holding = self._cache.allocated.get(report.pod), self._cache.ledger.holding(report.pod)
        if pod is None or holding is None or pod.node != node or holding.allocation.node != node:
            return None
        share = report.share(holding.allocation)
        if share is None:
            return None
        return pod, reports.words(report, holding.allocation.containers[report.container].container, share)

    def _may(self, node: str, uid: str, now: float) -> bool:
        """Whether the node, and the pod, may have one more act."""
        pod = self._by_pod.setdefault(uid, _Bucket(_POD_BURST, now))
        whole = self._by_node.setdefault(node, _Bucket(_NODE_BURST, now))
        if not (pod.has(now, _POD_BURST, _POD_EVERY) and whole.has(now, _NODE_BURST, _NODE_EVERY)):
            return False
        pod.left = pod.left - 1.0
        whole.left = whole.left - 1.0
        return True

    def _due(self, node: str, uid: str, now: float) -> bool:
        """Whether the pod's eviction is to be requested now; if so, the next time is later."""
        retry = self._retries.get(uid)
        if retry is not None and now < retry.due:
            return False
        whole = self._by_node.setdefault(node, _Bucket(_NODE_BURST, now))
        if not whole.has(now, _NODE_BURST, _NODE_EVERY):
            return False
        whole.left -= 1.0
        tries = retry.tries + 1 if retry is not None else 1
        self._retries[uid] = _Retry(tries, now + backoff(tries, _FIRST, _LONGEST))
        return True

    def _see_strange(self, node: str, strange: bool, now: float) -> None:
        """Write an Event on the Node if its agent keeps reporting pods that have no such share there."""
        if not strange:
            if self._strange.get(node, 0.0) <= now:
                self._strange.pop(node, None)
            return
        due = self._strange.setdefault(node, now + _STRANGE_AFTER)
        if now >= due:
            self._strange[node] = now + _STRANGE_EVERY
            self._records.note(EventRecord("Node", node, node, NodeEventReason.REPORT_IGNORED, _IGNORED))
            self._wake()

    def _tidy(self, now: float) -> None:
        """Forget pods that no longer hold anything, and allowances that are full again."""
        for uid in [uid for uid in (*self._retries, *self._by_pod) if self._cache.allocated.get(uid) is None]:
            self._retries.pop(uid, None)
            self._by_pod.pop(uid, None)
        whole = _NODE_BURST * _NODE_EVERY
        for node in [node for node, each in self._by_node.items() if node not in self._nodes and now - each.at > whole]:
            del self._by_node[node]

    def counts(self) -> Mapping[str, int]:
        """How many reports each node has, for tests."""
        return {node: len(found) for node, found in self._nodes.items()}


def _name(report: PodReport) -> str:
    """The key by which one report makes one Event, no matter which replica writes it."""
    parts = (report.code, report.pod, report.container, report.gpu, report.since, "evict" if report.evict else "warn")
    return "|".join(map(str, parts))


_IGNORED = (
    "the agent of this node reports pods that hold no such share on this node; such reports are ignored. If this "
    "continues, someone else may be using the agent's token"
)
