"""
The points of a reference run, as plans. The run itself shows which writes it has and which programs read them.

A point is a step that comes before all others in the run's plan. So it can be written to a file, shrunk and repeated
like any other plan.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from playground.api.store.store import Change
from tests.simulation.enumeration import operations, strikes, writes
from tests.simulation.enumeration.references import Reference
from tests.simulation.plan import Plan, Step
from tests.simulation.run import Run
from tests.simulation.world.network import Call

NEVER = 1 << 30
"""The number of a write that no run reaches."""
EVERYWHERE = frozenset({"allocator: pod placed", "allocator: Lease taken", "allocator: ElasticGPU created"})
"""Kinds of writes that are struck in every reference run, because later decisions depend on them."""
_RUNS = 2
"""In how many reference runs each of the other kinds is struck."""
_EACH = 5
"""If a run has at most this many writes of a kind, each is struck; otherwise the first and the last."""
READERS: Mapping[str, tuple[str, ...]] = {"allocator": ("leader", "follower"), "nodeagent": ("nodeagent",)}
"""Whose watches are held back, for each program that reads."""


@dataclass(frozen=True, slots=True)
class Learned:
    """
    What a reference run has. writes: how many of each kind. readers: which programs watch which resource, as pairs.
    end: the lines of `operations.end_of`.
    """

    writes: Mapping[str, int] = field(default_factory=dict)
    readers: tuple[tuple[str, str], ...] = ()
    end: tuple[str, ...] = ()


def listener(run: Run) -> Callable[[], dict[str, Any]]:
    """Learns from the run that begins. Call the result at the end of the run to get the fields of `Learned`."""
    counts: dict[str, int] = {}
    readers: set[tuple[str, str]] = set()

    def count(kind: str | None) -> None:
        """Points strike only while the run plays."""
        if kind is not None and run.phase == "playing":
            counts[kind] = counts.get(kind, 0) + 1

    def rule(call: Call) -> None:
        count(writes.kind_of(call))

    def committed(change: Change) -> None:
        count(strikes.commit_kind(change))

    def look() -> None:
        readers.update((writes.program_of(s.host.name), s.kind) for s in run.world.network.streams)

    run.world.network.rules.append(rule)
    run.world.observers.append(committed)
    look()

    def told() -> dict[str, Any]:
        look()
        return {"writes": counts, "readers": sorted(readers), "end": operations.end_of(run)}

    return told


def learned(notes: Mapping[str, Any]) -> Learned:
    """What `listener` returned, after conversion to JSON and back."""
    return Learned(notes["writes"], tuple((a, b) for a, b in notes["readers"]), tuple(notes["end"]))


def rehearsal(reference: Reference) -> Plan:
    """The reference run with a strike that never happens. It shows where real strikes would happen."""
    return _struck(reference, "crash-at", {"write": "", "nth": NEVER, "moment": "before", "away": 0.0}, None)


def shared_out(found: Mapping[str, Learned]) -> dict[str, frozenset[str]]:
    """Which kinds are struck in which run: `EVERYWHERE` in all runs that have them, others in the first runs."""
    taken: dict[str, int] = {}
    shares = {}
    for name, each in found.items():
        mine = {kind for kind in each.writes if kind in EVERYWHERE or taken.get(kind, 0) < _RUNS}
        taken.update({kind: taken.get(kind, 0) + 1 for kind in mine})
        shares[name] = frozenset(mine)
    return shares


def of(reference: Reference, found: Learned, kinds: Container[str]) -> Iterator[Plan]:
    """Every point of the run for these kinds of writes."""
    for kind, count in found.writes.items():
        if kind in kinds:
            for nth in _numbers(kind, count):
                yield from _of_write(reference, found, kind, nth, last=nth == count)


def _numbers(kind: str, count: int) -> list[int]:
    return sorted({1, count} | (set(range(1, count + 1)) if kind in EVERYWHERE and count <= _EACH else set()))


def _of_write(reference: Reference, found: Learned, kind: str, nth: int, *, last: bool) -> Iterator[Plan]:
    if not kind.startswith(strikes.COMMITTED):
        for moment in strikes.MOMENTS:
            for away in _away(kind, first=nth == 1, last=last):
                arguments = {"write": kind, "nth": nth, "moment": moment, "away": away}
                yield _struck(reference, "crash-at", arguments, found.end)
    if kind in EVERYWHERE and not (nth == 1 or last):
        return
    resource = strikes.resource_of(kind)
    for program, watched in found.readers:
        if watched == resource:
            for reader in READERS[program]:
                for way in _ways(reader):
                    arguments = {"write": kind, "nth": nth, "reader": reader, "resource": resource, "way": way}
                    yield _struck(reference, "hide-at", arguments, found.end)


def _away(kind: str, *, first: bool, last: bool) -> Iterable[float]:
    """For how many seconds the writer is away: long enough for another allocator to lead, and too short for that."""
    if not kind.startswith("allocator"):
        return (2.0,)
    return (30.0, 1.0) if first and last else (1.0,) if last else (30.0,)


def _ways(reader: str) -> list[str]:
    """Only a follower takes over, so `taken-over` is for followers only."""
    return [way for way in strikes.WAYS if way != "taken-over" or reader == "follower"]


def _struck(reference: Reference, kind: str, arguments: Mapping[str, Any], end: Iterable[str] | None) -> Plan:
    """The plan with this strike. `end`: None before it is known."""
    plan = reference.plan()
    strike = Step(0.0, kind, arguments, reference.lasts)
    ends = (Step(0.0, operations.ENDS, {"lines": None if end is None else list(end)}),) if reference.determined else ()
    return replace(plan, steps=(strike, *plan.steps, *ends))
