"""
Places for pods that start together, on a trial: all of them or none.

Each pod goes where the engine puts it, with the earlier ones counted. What is left for the last pod depends on where
the first ones went. If they do not all fit, other ways are tried: the largest pods first, and then a search that takes
back one placement after the other and puts the pod on another card or node. The search is bounded (`STEPS`), so it may
miss a way. If all pods request one share of the same kind, the first answer is final, and nothing is searched.

Pure: the caller owns the trial.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from allocator.cache.reserved import Requester
from allocator.cache.trial import Trial
from allocator.engine.reference import Decision, Placement, Unschedulable
from contract.model import FractionRequest
from contract.reasons.nodes import Code, Reason
from contract.scheduling.needs import SchedulingRequest

STEPS = 256
"""Placements that the search tries for one gang, alongside those that its pods need."""
_ELSEWHERE = Reason(Code.RESERVED)
"""The reason for a node that the search has tried for the pod; no message shows it."""


@dataclass(frozen=True, slots=True)
class Member:
    """One of the pods."""

    ask: SchedulingRequest
    who: Requester
    out: dict[str, Reason] = field(default_factory=dict, compare=False)
    """Nodes that it cannot use, even if they have room."""


@dataclass(frozen=True, slots=True)
class Arranged:
    """All fit: the place of each, in their order. They stay on the trial."""

    placements: tuple[Placement, ...]


@dataclass(frozen=True, slots=True)
class FellShort:
    """The most members that fit, and why the next one does not; `member` is its position. None is on the trial."""

    placed: int
    member: int
    decision: Unschedulable


def arrange(
    trial: Trial,
    members: Sequence[Member],
    *,
    steps: int = STEPS,
    give_way: Callable[[], None] = lambda: None,
) -> Arranged | FellShort:
    """The places for these pods. `steps`: 0 tries one way only. `give_way` is called before each placement."""
    order = list(range(len(members)))
    first = _in_order(trial, members, order, give_way)
    if isinstance(first, Arranged) or not steps or _is_conclusive(trial, members):
        return first
    order.sort(key=lambda position: _size(members[position].ask), reverse=True)
    second = _in_order(trial, members, order, give_way)
    if isinstance(second, Arranged):
        return second
    search = _Search(trial, members, order, steps, give_way)
    if search.run(0):
        return Arranged(tuple(search.chosen[position] for position in range(len(members))))
    return max(first, second, key=lambda short: short.placed)


def _in_order(
    trial: Trial, members: Sequence[Member], order: Iterable[int], give_way: Callable[[], None]
) -> Arranged | FellShort:
    mark, chosen = trial.mark(), dict[int, Placement]()
    for position in order:
        give_way()
        member = members[position]
        decision = trial.place(member.ask, member.who, member.out)
        if not isinstance(decision, Placement):
            trial.undo(mark)
            return FellShort(len(chosen), position, decision)
        chosen[position] = decision
    return Arranged(tuple(chosen[position] for position in range(len(members))))


def _is_conclusive(trial: Trial, members: Sequence[Member]) -> bool:
    """
    Whether no other way would place more of them: each requests the same share of one card, so the order makes no
    difference for a card, and no other pod matters.
    """
    one = members[0].ask
    containers = one.request.containers
    return (
        len(containers) == 1
        and containers[0].count == 1
        and all(member.ask == one and not member.out and not trial.concerns(member.who.rules) for member in members)
    )


def _size(ask: SchedulingRequest) -> tuple[int, int, int, int]:
    """The size of a pod for sorting: cards of its own, cards, then memory and cores."""
    request = ask.request
    amounts = [(each, each.count * max(each.memory >> 20, each.percent, 1)) for each in request.containers]
    return (
        sum(each.count for each in request.containers if each.exclusive),
        max((each.count for each in request.containers), default=0),
        sum(memory for _, memory in amounts),
        sum(each.count * each.cores for each in request.containers) + ask.needs.compute.cpu,
    )


class _Search:
    """Takes back one placement after the other, the last first, and puts the pod elsewhere."""

    def __init__(
        self,
        trial: Trial,
        members: Sequence[Member],
        order: Sequence[int],
        steps: int,
        give_way: Callable[[], None],
    ) -> None:
        self._trial = trial
        self._members = members
        self._order = order
        self._left = steps + len(members)
        self._give_way = give_way
        self.chosen: dict[int, Placement] = {}

    def run(self, at: int) -> bool:
        """Whether the members from this position on have places; they are then on the trial."""
        if at == len(self._order):
            return True
        position = self._order[at]
        ask, who, out = self._start(at)
        while self._left > 0:
            self._left -= 1
            self._give_way()
            mark = self._trial.mark()
            decision: Decision = self._trial.place(ask, who, out)
            if not isinstance(decision, Placement):
                return False
            self.chosen[position] = decision
            if self.run(at + 1):
                return True
            self._trial.undo(mark)
            ask, out = _elsewhere(ask, out, decision)
        return False

    def _start(self, at: int) -> tuple[SchedulingRequest, Requester, dict[str, Reason]]:
        member = self._members[self._order[at]]
        return member.ask, member.who, dict(member.out)


def _elsewhere(
    ask: SchedulingRequest, out: dict[str, Reason], found: Placement
) -> tuple[SchedulingRequest, dict[str, Reason]]:
    """The same pod without its last card; without the whole node if it has several cards."""
    fractions = ask.request.containers
    if len(fractions) > 1 or fractions[0].count > 1:
        return ask, {**out, found.node: _ELSEWHERE}
    uuid = found.containers[0].shares[0].uuid
    return replace(ask, request=replace(ask.request, containers=(_without(fractions[0], uuid),))), out


def _without(fraction: FractionRequest, uuid: str) -> FractionRequest:
    wishes = fraction.wishes
    return replace(fraction, wishes=replace(wishes, avoid_uuids=(*wishes.avoid_uuids, uuid)))


def only_on(ask: SchedulingRequest, cards: dict[str, tuple[str, ...]]) -> SchedulingRequest:
    """The same request for these very cards, by container."""
    fractions = tuple(
        replace(each, wishes=replace(each.wishes, use_uuids=cards[each.container])) if each.container in cards else each
        for each in ask.request.containers
    )
    return replace(ask, request=replace(ask.request, containers=fractions))
