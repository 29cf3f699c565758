"""
The actual outcome according to the recording: how long pods waited, how many cards were in use, which cards were
overcommitted.

If a system does not report a pod's card, its node's cards are counted as if the pods were packed onto as few cards
as can hold them. So savings are never overstated. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from contract.model import MOST_ON_NODE, WHOLE
from shadow.recording.records import NodeGone, NodeSeen
from shadow.replay.demand import DemandWindow, PodDemand
from shadow.replay.outcome import Fates, PodFate, UseMeter
from shadow.systems.base import HeldPart, Parts, SeenCard

MOST_REPORTED = 10_000
"""Overcommitted cards that are reported, at most."""


@dataclass(frozen=True, slots=True)
class Overcommitted:
    """
    A card on which pods held more than it has. `since`, `seconds`: when that was first seen, and for how long in all.
    `memory`, `cores`: the most that was held at once; `of`: the bytes that the card has. `scaled`: the system gives out
    more memory than the card has.
    """

    node: str
    uuid: str
    since: float
    seconds: float
    memory: int
    of: int
    cores: int
    pods: tuple[str, ...]
    scaled: bool = False


@dataclass(frozen=True, slots=True)
class ActualRun:
    """The outcome. `unknown`: pods whose card their system does not name. `stray`: pods with cards that no node has."""

    fates: Fates
    overcommitted: tuple[Overcommitted, ...]
    unknown: int = 0
    stray: int = 0


@dataclass
class _Card:
    """A card, and the amounts that are held of it now, by uid."""

    node: str
    seen: SeenCard
    held: dict[str, HeldPart] = field(default_factory=dict)
    worst: Overcommitted | None = None
    over_since: float | None = None

    @property
    def memory(self) -> int:
        return sum(_bytes(part, self.seen) for part in self.held.values())

    @property
    def cores(self) -> int:
        return sum(part.cores for part in self.held.values())


def _bytes(part: HeldPart, card: SeenCard) -> int:
    return part.memory or card.memory * part.percent // WHOLE


@dataclass
class _Node:
    cards: dict[str, _Card] = field(default_factory=dict)
    replicas: int = 1
    parts: dict[str, Parts] = field(default_factory=dict)
    """The holdings of pods on cards that are not named, or are named by a group."""


class _Actual:
    def __init__(self, window: DemandWindow) -> None:
        self._window = window
        self._nodes: dict[str, _Node] = {}
        self._cards: dict[str, _Card] = {}
        self._names = {pod.uid: f"{pod.namespace}/{pod.name}" for pod in window.pods}
        self._meter = UseMeter(window.begin)
        self._used: dict[str, int] = {}
        self._gone: list[Overcommitted] = []
        self._unknown: set[str] = set()
        self._stray: set[str] = set()
        self._on: dict[str, tuple[str, Parts]] = {}

    def run(self) -> ActualRun:
        for at, happened in _history(self._window):
            self._meter.until(max(at, self._window.begin))
            if isinstance(happened, NodeSeen | NodeGone):
                self._node(happened)
            else:
                uid, node, held = happened
                self._move(uid, node, held, max(at, self._window.begin))
        end = self._window.end
        self._meter.until(end)
        for card in self._cards.values():
            self._close(card, end)
        found = sorted(self._gone, key=lambda each: (-each.seconds, each.node, each.uuid))
        fates = {pod.uid: _fate(pod, self._window) for pod in self._window.asking}
        return ActualRun(
            Fates(fates, self._meter.result()), tuple(found[:MOST_REPORTED]), len(self._unknown), len(self._stray)
        )

    def _node(self, change: NodeSeen | NodeGone) -> None:
        known = self._nodes.setdefault(change.name, _Node())
        seen = {card.uuid: card for card in change.cards} if isinstance(change, NodeSeen) else {}
        self._meter.cards += len(seen) - len(known.cards)
        self._meter.memory += sum(card.real for card in seen.values())
        self._meter.memory -= sum(card.seen.real for card in known.cards.values())
        for uuid in [uuid for uuid in known.cards if uuid not in seen]:
            card = known.cards.pop(uuid)
            self._close(card, change.at)
            if self._cards.get(uuid) is card:
                del self._cards[uuid]
        for uuid, each in seen.items():
            if uuid in known.cards:
                known.cards[uuid].seen = each
            else:
                known.cards[uuid] = self._cards[uuid] = _Card(change.name, each)
        known.replicas = max((card.replicas for card in seen.values()), default=1)
        self._take_up(change.name, max(change.at, self._window.begin))
        self._again(change.name)

    def _take_up(self, name: str, at: float) -> None:
        """Count the holdings of pods on cards that were not known yet: a starting recorder lists older pods."""
        known = self._nodes[name]
        for uid, parts in list(known.parts.items()):
            if any(part.uuid in self._cards for part in parts):
                del known.parts[uid]
                self._stray.discard(uid)
                for part in parts:
                    self._take(uid, name, part, at, back=False)

    def _move(self, uid: str, node: str, held: Parts, at: float) -> None:
        """The pod holds these parts from now on; none once it has ended."""
        before, parts = self._on.pop(uid, ("", ()))
        for part in parts:
            self._take(uid, before, part, at, back=True)
        if held:
            self._on[uid] = (node, held)
        for part in held:
            self._take(uid, node, part, at, back=False)
        for name in {before, node} - {""}:
            self._again(name)

    def _take(self, uid: str, node: str, part: HeldPart, at: float, *, back: bool) -> None:
        card, known = self._cards.get(part.uuid), self._nodes.setdefault(node, _Node())
        if back:
            known.parts.pop(uid, None)  # its card may have become known since
        if card is None:
            if not back:
                known.parts[uid] = (*known.parts.get(uid, ()), part)
                if not part.uuid:
                    self._unknown.add(uid)
                elif "/" not in part.uuid:
                    self._stray.add(uid)
            return
        if back:
            card.held.pop(uid, None)
        else:
            mine = card.held.get(uid)
            card.held[uid] = part if mine is None else _sum(mine, part, card.seen)
        self._judge(card, at)

    def _judge(self, card: _Card, at: float) -> None:
        """Whether more is held of the card than it has."""
        memory, cores = card.memory, card.cores
        over = memory > card.seen.real or cores > WHOLE
        if not over:
            self._rest(card, at)
            return
        if card.over_since is None:
            card.over_since = at
        worst = card.worst
        if worst is None or (memory, cores) > (worst.memory, worst.cores):
            pods = tuple(sorted(self._names.get(uid, uid) for uid in card.held))[:16]
            since, spent = (worst.since, worst.seconds) if worst is not None else (at, 0.0)
            scaled = card.seen.physical > 0
            card.worst = Overcommitted(
                card.node, card.seen.uuid, since, spent, memory, card.seen.real, cores, pods, scaled
            )

    def _rest(self, card: _Card, at: float) -> None:
        if card.over_since is not None and card.worst is not None:
            card.worst = replace(card.worst, seconds=card.worst.seconds + max(0.0, at - card.over_since))
        card.over_since = None

    def _close(self, card: _Card, at: float) -> None:
        self._rest(card, at)
        if card.worst is not None:
            self._gone.append(card.worst)
            card.worst = None

    def _again(self, name: str) -> None:
        """Count the cards of a node that are in use."""
        node = self._nodes[name]
        named = sum(bool(card.held) for card in node.cards.values())
        groups = {part.uuid for parts in node.parts.values() for part in parts if part.uuid}
        single = sum(not part.uuid for parts in node.parts.values() for part in parts)
        used = named + len(groups) + -(-single // node.replicas)
        used = min(used, len(node.cards) or used, MOST_ON_NODE)
        self._meter.used += used - self._used.get(name, 0)
        self._used[name] = used


def _sum(one: HeldPart, other: HeldPart, card: SeenCard) -> HeldPart:
    memory = _bytes(one, card) + _bytes(other, card)
    return replace(one, memory=memory, percent=0, cores=one.cores + other.cores)


def _history(window: DemandWindow) -> Iterator[tuple[float, NodeSeen | NodeGone | tuple[str, str, Parts]]]:
    """All that happened, in the order of time; of one moment nodes first, and ends before beginnings."""
    found: list[tuple[float, int, int, NodeSeen | NodeGone | tuple[str, str, Parts]]] = []
    for number, change in enumerate(window.nodes):
        found.append((change.at, 0, number, change))
    for number, pod in enumerate(window.asking):
        for at, node, held in pod.moves:
            found.append((max(at, window.begin), 2, number, (pod.uid, node, held)))
        if pod.ended is not None:
            found.append(
                (
                    max(pod.ended, window.begin),
                    3 if pod.moves and pod.ended <= pod.moves[-1][0] else 1,
                    number,
                    (pod.uid, "", ()),
                )
            )
    for at, _, _, happened in sorted(found, key=lambda each: each[:3]):
        yield at, happened


def _fate(pod: PodDemand, window: DemandWindow) -> PodFate:
    until = pod.on if pod.on is not None else (pod.ended if pod.ended is not None else window.end)
    return PodFate(
        pod.uid,
        pod.namespace,
        waited=max(0.0, until - max(pod.created, 0.0)),
        placed=pod.on is not None,
        fresh=pod.created >= window.begin,
    )


def actual(window: DemandWindow) -> ActualRun:
    """The outcome in the cluster that was recorded."""
    return _Actual(window).run()
