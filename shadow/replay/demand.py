"""
A recording as demand: which cards existed at which times, and which pods wanted some, from when until when.

Lines come in the order in which they were written, from one file or from several; a later file repeats what was there
when it began. What is missing stays missing: a pod that ended while no recorder ran counts as ended when the recorder
was back. Pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from shadow.recording.records import (
    LOST,
    Begin,
    LeftOut,
    Listed,
    NodeGone,
    NodeSeen,
    PodEnded,
    PodOn,
    PodSeen,
    Record,
    TemplateSeen,
    decode,
)
from shadow.recording.trimming import PLAIN
from shadow.systems.base import Parts

JSON = dict[str, Any]
MOST_PODS = 100_000
"""Pods of a recording that are read: of a longer one the last that ended, and the window begins after those before.
One takes about 1 KiB of memory, and 10 to 25 ms to replay."""
_MOST_MOVES = 64
"""Changes of what one pod holds that are read."""


@dataclass(frozen=True, slots=True)
class PodDemand:
    """
    One pod. `created`, `on`, `ended`: seconds since 1970, `on` when it had its node; None where that was not seen.
    `how`: how it ended. `moves`: where it was since when, and what it held.
    """

    uid: str
    namespace: str
    name: str
    created: float
    pod: JSON
    moves: tuple[tuple[float, str, Parts], ...] = ()
    ended: float | None = None
    how: str = ""

    @property
    def on(self) -> float | None:
        return self.moves[0][0] if self.moves else None

    @property
    def node(self) -> str:
        return self.moves[-1][1] if self.moves else ""

    @property
    def held(self) -> Parts:
        return self.moves[-1][2] if self.moves else ()

    @property
    def besides(self) -> list[int] | None:
        """The resources that a pod without a GPU takes of its node; None for a pod that requests a GPU."""
        found = self.pod.get(PLAIN)
        fits = isinstance(found, list) and len(found) == 3 and all(isinstance(each, int) for each in found)
        return found if fits else ([0, 0, 0] if PLAIN in self.pod else None)

    @property
    def workload(self) -> tuple[str, str]:
        """Kind and name of its creator."""
        owner = self.pod.get("owner")
        return (str(owner[0]), str(owner[1])) if isinstance(owner, list) and len(owner) == 2 else ("Pod", self.name)


@dataclass(frozen=True, slots=True)
class DemandWindow:
    """
    The records between `begin` and `end`. `nodes`: `NodeSeen` and `NodeGone` in the order of their times.
    `paused`: seconds in which no recorder ran. `left_out`: pods that were not recorded, by namespace. `unread`: lines
    that could not be read.
    """

    begin: float
    end: float
    nodes: tuple[NodeSeen | NodeGone, ...] = ()
    pods: tuple[PodDemand, ...] = ()
    paused: float = 0.0
    left_out: tuple[tuple[str, int], ...] = ()
    unread: int = 0

    @property
    def length(self) -> float:
        return max(0.0, self.end - self.begin)

    @property
    def asking(self) -> tuple[PodDemand, ...]:
        """The pods that ask for GPUs."""
        return tuple(pod for pod in self.pods if pod.besides is None)


@dataclass
class _Reading:
    most: int
    begin: float | None = None
    last: float = 0.0
    templates: dict[int, JSON] = field(default_factory=dict)
    nodes: list[NodeSeen | NodeGone] = field(default_factory=list)
    known: dict[str, NodeSeen] = field(default_factory=dict)
    live: dict[str, PodDemand] = field(default_factory=dict)
    done: deque[PodDemand] = field(default_factory=deque)
    before: set[str] = field(default_factory=set)
    """Pods that were there before a recorder began again, and were not listed since."""
    nodes_before: set[str] = field(default_factory=set)
    paused: float = 0.0
    left_out: Counter[str] = field(default_factory=Counter)
    unread: int = 0


def demand_of(lines: Iterable[str], *, most: int = MOST_PODS) -> DemandWindow:
    """The demand of a recording, of at most this many pods. Never raises for the content of its lines."""
    reading = _Reading(most)
    for line in lines:
        record = decode(line)
        if record is None:
            reading.unread += 1
        elif reading.begin is not None or isinstance(record, Begin):
            _take(reading, record)
    begin = reading.begin or 0.0
    pods = sorted((*reading.done, *reading.live.values()), key=lambda each: (each.created, each.uid))
    return DemandWindow(
        begin,
        max(reading.last, begin),
        _since(reading.nodes, begin),
        tuple(pods),
        reading.paused,
        tuple(sorted(reading.left_out.items())),
        reading.unread,
    )


def last_of(window: DemandWindow, length: float) -> DemandWindow:
    """The last so many seconds of it. Pods that ended before are left out."""
    begin = max(window.begin, window.end - length)
    kept = tuple(pod for pod in window.pods if pod.ended is None or pod.ended >= begin)
    return replace(window, begin=begin, nodes=_since(window.nodes, begin), pods=kept)


def _since(nodes: Sequence[NodeSeen | NodeGone], begin: float) -> tuple[NodeSeen | NodeGone, ...]:
    """The changes of nodes from this time on, after the nodes as they were then."""
    last = {change.name: change for change in nodes if change.at <= begin}
    there = (change for change in last.values() if isinstance(change, NodeSeen))
    return (*(replace(change, at=begin) for change in there), *(change for change in nodes if change.at > begin))


def _take(reading: _Reading, record: Record) -> None:
    if isinstance(record, Begin):
        _begins(reading, record.at, record.first)
    elif isinstance(record, TemplateSeen):
        reading.templates[record.number] = record.pod
    elif isinstance(record, PodSeen):
        _pod_seen(reading, record)
    else:
        reading.last = max(reading.last, record.at)
        _happened(reading, record)


def _happened(reading: _Reading, record: NodeSeen | NodeGone | PodOn | PodEnded | Listed | LeftOut) -> None:
    match record:
        case NodeSeen():
            if _differs(reading.known.get(record.name), record):
                reading.known[record.name] = record
                reading.nodes.append(record)
            reading.nodes_before.discard(record.name)
        case NodeGone(at, name):
            _node_gone(reading, at, name)
        case PodOn(at, uid, node, held):
            known = reading.live.get(uid)
            if known is not None and _moves(known, node, held):
                reading.live[uid] = replace(known, moves=(*known.moves, (max(at, known.created), node, held)))
        case PodEnded(at, uid, how):
            _ended(reading, uid, at, how)
        case Listed(at):
            _listed(reading, at)
        case LeftOut(_, namespace, number):
            reading.left_out[namespace] += number


def _moves(known: PodDemand, node: str, held: Parts) -> bool:
    """Whether this is a change of what a pod holds that is read."""
    return len(known.moves) < _MOST_MOVES and (not known.moves or known.moves[-1][1:] != (node, held))


def _pod_seen(reading: _Reading, record: PodSeen) -> None:
    reading.before.discard(record.uid)
    template = reading.templates.get(record.template)
    if template is None:
        reading.unread += 1
    elif record.uid not in reading.live:
        reading.live[record.uid] = PodDemand(record.uid, record.namespace, record.name, record.at, template)
        reading.last = max(reading.last, record.at)


def _listed(reading: _Reading, at: float) -> None:
    """Objects from before the recorder began again that were not listed since are gone."""
    for uid in sorted(reading.before):
        _ended(reading, uid, at, LOST)
    for name in sorted(reading.nodes_before):
        _node_gone(reading, at, name)
    reading.before, reading.nodes_before = set(), set()


def _begins(reading: _Reading, at: float, first: bool) -> None:
    reading.templates = {}
    if reading.begin is None:
        reading.begin = reading.last = at
        return
    if first:
        reading.paused += max(0.0, at - reading.last)
        reading.before, reading.nodes_before = set(reading.live), set(reading.known)
    reading.last = max(reading.last, at)


def _differs(known: NodeSeen | None, record: NodeSeen) -> bool:
    return known is None or (known.system, known.cards, known.node) != (record.system, record.cards, record.node)


def _node_gone(reading: _Reading, at: float, name: str) -> None:
    if reading.known.pop(name, None) is not None:
        reading.nodes.append(NodeGone(at, name))


def _ended(reading: _Reading, uid: str, at: float, how: str) -> None:
    known = reading.live.pop(uid, None)
    reading.before.discard(uid)
    if known is not None:
        reading.done.append(replace(known, ended=max(at, known.created), how=how))
        if len(reading.done) > reading.most:
            first = reading.done.popleft()
            reading.begin = max(reading.begin or 0.0, first.ended or 0.0)
