"""
The feature's part of the core: the pods that fit on no node, and what pods may expect of requested nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from allocator.features.provisioning import messages
from allocator.features.provisioning.wishes import Expectation, Unserved
from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler.parts import Core, Explanation, FeaturePart
from contract.reasons.nodes import Code
from contract.scheduling.clusterfilters.objects import PodRules
from contract.scheduling.fairness import own_order
from contract.scheduling.needs import SchedulingRequest

_LOOKED_AT = 256
"""The number of pods that one turn checks."""


@dataclass(frozen=True, slots=True)
class NodesExpected:
    """What waiting pods may expect of the pools of the options, by uid, for all pools."""

    expectations: Mapping[str, Expectation]


class ProvisioningPart:
    """The core's state of requested nodes."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._state = core.state
        self._expected: Mapping[str, Expectation] = {}

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(handlers={NodesExpected: self._nodes_expected}, explains=self._explains)

    def _nodes_expected(self, event: NodesExpected, now: float) -> None:
        """Store what pods may now expect of pools; their messages follow soon."""
        before, after = (_codes(expected) for expected in (self._expected, event.expectations))
        if before != after:
            self._state.trigger.retell()
            self._state.trigger.wake()
        self._expected = event.expectations

    def _explains(self, uid: str) -> Explanation | None:
        expectation = self._expected.get(uid)
        return messages.expected(expectation) if expectation is not None else None

    def unserved(self, after: float) -> UnservedPods:
        """The pods that have waited this many seconds and fit on no existing node."""
        return UnservedPods(self, after)

    def settled(self) -> bool:
        """Whether the queue was tried, within its budget, since the last change that may help a pod."""
        trigger = self._state.trigger
        return self._state.leadership.holds() and not trigger.requeued and not trigger.running

    def waiting(self) -> tuple[QueuedPodInfo, ...] | None:
        """The queue; None while it is not settled."""
        return tuple(self._state.queue.in_any_order()) if self.settled() else None

    def is_unserved(self, entry: QueuedPodInfo, after: float) -> bool:
        """
        Whether a pod has waited this many seconds and fits on no existing node, while the queue is settled.

        This excludes pods with a claim, pods for which evictions make room, and pods that wait for the start of a
        neighbour, which takes less time than a node.
        """
        now, records = self._core.clock(), self._state.records
        return (
            not entry.foreign
            and not entry.ask.request.claim
            and (self._core.rounds.has_tried(entry.uid) or entry.uid in self._expected)
            and not self._core.preemptor.preemptions.serves(entry.uid)
            and Code.NEIGHBOUR_STARTING not in self._core.rounds.lacked(entry.uid)
            and records.is_schedulable(entry.uid, now)
            and now - records.waits(entry.uid, now) >= after
        )

    def of(self, entry: QueuedPodInfo, groups: dict[PodRules, int]) -> Unserved:
        """
        The pod, and the rules of other pods and volumes for it on a node that does not exist yet.

        `groups`: a number for each kind of pods that exclude each other; the pod's own is added. The number decides
        among equally good plans, so it must be the same in each process, which a hash is not.
        """
        cache = self._state.cache
        closed = cache.closed_pools(entry.ask, entry.rules, self._core.pools.nodes)
        repels = cache.neighbours.repels_itself(entry.rules)
        apart = groups.setdefault(entry.rules, len(groups)) if repels else None
        return Unserved(entry.uid, _one_after_the_other(entry.ask), closed, apart)


class UnservedPods:
    """A search for pods that fit on no node, in turns between which others get the lock."""

    def __init__(self, part: ProvisioningPart, after: float) -> None:
        self._part = part
        self._after = after
        self.found: tuple[Unserved, ...] | None = None
        """
        The pods in the order of the queue, after the last turn. None if unknown: something has changed, and the queue
        was not tried since.
        """

    def turns(self) -> Iterator[None]:
        """Search, one turn at a time."""
        waiting = self._part.waiting()
        if waiting is None:
            return
        entries: list[QueuedPodInfo] = []
        for start in range(0, len(waiting), _LOOKED_AT):
            some = waiting[start : start + _LOOKED_AT]
            entries.extend(entry for entry in some if self._part.is_unserved(entry, self._after))
            yield
        by_age = sorted(entries, key=lambda entry: entry.order)
        judged: dict[tuple[SchedulingRequest, PodRules], Unserved] = {}
        groups: dict[PodRules, int] = {}
        for entry in by_age:
            if (entry.ask, entry.rules) not in judged:
                judged[entry.ask, entry.rules] = self._part.of(entry, groups)
                yield
        if self._part.settled():
            in_order = own_order(by_age, lambda entry: entry.place)
            self.found = tuple(replace(judged[entry.ask, entry.rules], uid=entry.uid) for entry in in_order)


def _one_after_the_other(ask: SchedulingRequest) -> SchedulingRequest:
    """Pods that start alone still share a card, once the first of them has started."""
    if not ask.request.alone:
        return ask
    containers = tuple(replace(each, alone=False) for each in ask.request.containers)
    return replace(ask, request=replace(ask.request, containers=containers))


def _codes(expected: Mapping[str, Expectation]) -> dict[str, str]:
    return {uid: messages.expected_code(each) for uid, each in expected.items()}
