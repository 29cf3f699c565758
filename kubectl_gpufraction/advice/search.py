"""
The smallest set of evictions after which a pod starts, or whole GPUs are free.

It compares, in this order: the number of pods; whether their successors could return to the node before the waiting pod
gets there (an evicted pod holds its share until it has ended, and its controller does not wait for that); the
priorities, the lowest first; the memory, the least first. It never contains a pod of higher priority, a pod that must
stay (see `hosts`), or more pods of a PodDisruptionBudget than it allows. It contains a pod of the same priority only if
that pod finds another place at once; for free GPUs without a waiting pod this holds for every pod. All evictions are on
one node, since room on several nodes helps no pod.

Pure. The search is exact up to `MOST` evictions within its steps. If it ran out of them, the set found still has the
fewest pods, but another of that size may be better; with `Nothing.exhausted` there may be a set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from contract.model import FREE, WHOLE, FractionRequest, Gpu, NodeState, PodRequest, Usage
from contract.scheduling.demand import Demand, demand_of
from contract.scheduling.filters import DEFAULT_LIMITS, gpu_reason, shortage
from contract.scheduling.fit import GpuChoice
from contract.scheduling.needs import PodNeeds
from kubectl_gpufraction.cluster import room
from kubectl_gpufraction.cluster.room import NodeWithPods, RoomRequest, ShareHolder

MOST = 6
"""Evictions in one advice; to move more pods, drain a node."""
MOST_STEPS = 100_000
"""Sets that the search looks at, which takes a few seconds."""
_ENDLESS = 1 << 30


@dataclass(frozen=True, slots=True)
class AdvisedEviction:
    """
    A pod to evict. `to`: the node that then has room for it, empty if it would wait. `returns`: its own node has room
    for its successor even while it ends.
    """

    holder: ShareHolder
    to: str
    returns: bool = False


@dataclass(frozen=True, slots=True)
class Advice:
    """Evictions on `node`, and the indexes of the GPUs that are then used or free. Empty: none is needed."""

    node: str
    gpus: tuple[int, ...]
    evictions: tuple[AdvisedEviction, ...] = ()


@dataclass(frozen=True, slots=True)
class Nothing:
    """No set of this few evictions helps. `exhausted`: the search did not look at all sets."""

    exhausted: bool


def whole_gpus(count: int) -> RoomRequest:
    """This many whole GPUs of one node, without a waiting pod."""
    fraction = FractionRequest("free", count, percent=WHOLE, cores=WHOLE, exclusive=True)
    return RoomRequest(PodRequest("native", (fraction,)), PodNeeds(), bare=True)


def advise(
    hosts: Sequence[NodeWithPods],
    wanted: RoomRequest,
    allowed: Mapping[str, int],
    *,
    priority: int | None = None,
    steps: int = MOST_STEPS,
) -> Advice | Nothing:
    """The evictions for what is wanted at this priority; None, without a waiting pod, is below all priorities."""
    return _Search(hosts, wanted, allowed, priority, steps).run()


@dataclass(slots=True)
class _Search:
    hosts: Sequence[NodeWithPods]
    wanted: RoomRequest
    allowed: Mapping[str, int]
    priority: int | None
    steps: int
    _places: dict[RoomRequest, list[NodeWithPods]] = field(default_factory=dict)
    _returning: dict[str, bool] = field(default_factory=dict)

    def run(self) -> Advice | Nothing:
        for host in self.hosts:
            chosen = room.takes(host.without(()), self.wanted)
            if chosen is not None:
                return Advice(host.name, _indexes(host, chosen))
        bounds = [(host, self._least(host, ())) for host in self.hosts if self._ever(host)]
        for size in range(1, MOST + 1):
            found = [
                (self._rank(host, evicted), host, evicted)
                for host, bound in bounds
                if bound <= size
                for evicted in self._sets(host, self._able(host), (), size)
            ]
            for _, host, evicted in sorted(found, key=lambda each: each[0]):
                advice = self._valid(host, evicted)
                if advice is not None:
                    return advice
            if self.steps <= 0:
                return Nothing(exhausted=True)
        return Nothing(exhausted=False)

    # -- which sets make room -------------------------------------------------------------------------------------

    def _able(self, host: NodeWithPods) -> tuple[ShareHolder, ...]:
        return tuple(
            each
            for each in host.holders
            if not each.stays and (self.priority is None or each.pod.priority <= self.priority)
        )

    def _ever(self, host: NodeWithPods) -> bool:
        evicted_uids = {each.uid for each in self._able(host)}
        return room.takes(host.without(evicted_uids), self.wanted) is not None

    def _sets(
        self, host: NodeWithPods, able: Sequence[ShareHolder], evicted: tuple[ShareHolder, ...], size: int
    ) -> Iterator[tuple[ShareHolder, ...]]:
        """Sets of exactly `size` pods that make room, and need every one of their pods for it."""
        self.steps -= 1
        if self.steps <= 0:
            return
        missing = size - len(evicted)
        if missing == 0:
            if self._fits(host, evicted) and not any(
                self._fits(host, tuple(each for each in evicted if each is not left)) for left in evicted
            ):
                yield evicted
            return
        if self._least(host, evicted) > missing or self._fits(host, evicted):
            return
        for at, each in enumerate(able):
            if len(able) - at < missing:
                return
            yield from self._sets(host, able[at + 1 :], (*evicted, each), size)

    def _fits(self, host: NodeWithPods, evicted: Sequence[ShareHolder]) -> bool:
        return room.takes(host.without({each.uid for each in evicted}), self.wanted) is not None

    def _least(self, host: NodeWithPods, evicted: Sequence[ShareHolder]) -> int:
        """
        A lower bound of the further evictions: each removes one pod from each of its GPUs.
        """
        evicted_uids = {each.uid for each in evicted}
        state, staying = host.without(evicted_uids), [each for each in host.holders if each.uid not in evicted_uids]
        span = max((len(each.shares) for each in host.holders), default=1)
        most = 0
        for fraction in self.wanted.request.containers:
            needed = sorted(
                _needed(gpu, used, fraction, [h.shares[gpu.uuid] for h in staying if gpu.uuid in h.shares])
                for gpu, used in zip(state.gpus, state.usage, strict=True)
            )
            if len(needed) < fraction.count:
                return _ENDLESS
            fewest = needed[: fraction.count]
            most = max(most, fewest[-1], -(-sum(fewest) // max(span, 1)))
        return most

    def _rank(self, host: NodeWithPods, evicted: Sequence[ShareHolder]) -> tuple[object, ...]:
        returning = sum(self._returns(each, host) for each in evicted)
        priorities = sorted((each.pod.priority for each in evicted), reverse=True)
        memory = sum(each.memory for each in evicted)
        return returning, priorities, memory, host.name, sorted(each.pod.key for each in evicted)

    def _returns(self, holder: ShareHolder, host: NodeWithPods) -> bool:
        if holder.uid not in self._returning:
            self._returning[holder.uid] = room.takes(host.without(()), holder.wanted) is not None
        return self._returning[holder.uid]

    # -- which of them may be -------------------------------------------------------------------------------------

    def _valid(self, host: NodeWithPods, evicted: Sequence[ShareHolder]) -> Advice | None:
        """The advice, unless it breaks a budget or a pod of the same priority would find no other place."""
        counted: dict[str, int] = {}
        for each in evicted:
            for budget in each.budgets:
                counted[budget] = counted.get(budget, 0) + 1
        if any(count > self.allowed.get(budget, 0) for budget, count in counted.items()):
            return None
        left = host.without({each.uid for each in evicted})
        chosen = room.takes(left, self.wanted)
        assert chosen is not None, "the set makes room"
        states = {host.name: room.booked(left, self.wanted, chosen)}
        evictions = []
        for each in sorted(evicted, key=lambda one: (-one.pod.priority, -one.memory, one.pod.key)):
            to = self._again(each, host, states)
            if not to and (self.priority is None or each.pod.priority >= self.priority):
                return None
            evictions.append(AdvisedEviction(each, to, self._returns(each, host)))
        return Advice(host.name, _indexes(host, chosen), tuple(evictions))

    def _again(self, holder: ShareHolder, own: NodeWithPods, states: dict[str, NodeState]) -> str:
        """The node that takes the pod again, which is then booked there; empty if none does."""
        for host in (*self._elsewhere(holder.wanted), own):
            state = states.get(host.name) or host.without(())
            chosen = room.takes(state, holder.wanted)
            if chosen is not None:
                states[host.name] = room.booked(state, holder.wanted, chosen)
                return host.name
        return ""

    def _elsewhere(self, wanted: RoomRequest) -> list[NodeWithPods]:
        """
        Nodes with room for a pod like this one: enough even if every other evicted pod takes one, and without counting
        the search's own node.
        """
        if wanted not in self._places:
            found: list[NodeWithPods] = []
            for host in self.hosts:
                if room.takes(host.without(()), wanted) is not None:
                    found.append(host)
                    if len(found) > MOST:
                        break
            self._places[wanted] = found
        return self._places[wanted]


def _needed(gpu: Gpu, used: Usage, fraction: FractionRequest, shares: Sequence[Demand]) -> int:
    """The least number of these shares that must leave the GPU for the new one to fit."""
    if gpu_reason(gpu, used, fraction, DEFAULT_LIMITS) is None:
        return 0
    if gpu_reason(gpu, FREE, fraction, DEFAULT_LIMITS) is not None:
        return _ENDLESS
    if fraction.exclusive:
        return len(shares)
    if used.exclusive:
        return 1
    memory, cores, _, in_all = shortage(gpu, used, demand_of(fraction, gpu.usable), DEFAULT_LIMITS)
    by_memory = _fewest(memory, sorted((each.memory for each in shares), reverse=True))
    by_limits = _fewest(in_all, sorted((each.memory + each.burst for each in shares), reverse=True))
    return max(by_memory, by_limits, _fewest(cores, sorted((each.cores for each in shares), reverse=True)))


def _fewest(lack: int, amounts: Sequence[int]) -> int:
    count = 0
    while lack > 0:
        if count == len(amounts):
            return _ENDLESS
        lack -= amounts[count]
        count += 1
    return count


def _indexes(host: NodeWithPods, chosen: GpuChoice) -> tuple[int, ...]:
    return tuple(sorted({host.state.gpus[at].index for positions in chosen for at in positions}))
