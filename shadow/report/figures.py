"""
The report of a recording: the actual outcome, the replayed one, and the difference. Values only; `text` prints them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shadow.recording.records import NodeSeen
from shadow.replay.actual import ActualRun, Overcommitted, actual
from shadow.replay.cluster import ClusterChoices, replayed
from shadow.replay.demand import DemandWindow, PodDemand
from shadow.replay.outcome import CardUse, Fates, PodFate, percentile

SOON = 5.0
"""Seconds within which a pod counts as placed at once, because a scheduler takes a moment."""
MOST_NAMED = 20
"""Pods that would have waited that are named, the longest first."""


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """How long pods waited, in seconds. `never`: pods that did not start; `refused`: that admission refuses."""

    pods: int = 0
    waited: int = 0
    mean: float = 0.0
    high: float = 0.0
    longest: float = 0.0
    never: int = 0
    refused: int = 0


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """One namespace: as it was, and as it would have been."""

    namespace: str
    before: WaitFigures
    after: WaitFigures


@dataclass(frozen=True, slots=True)
class WaitingPodFigures:
    """A pod that would have waited longer than it did; `why` is empty if it was placed later."""

    namespace: str
    name: str
    before: float
    after: float
    placed: bool
    why: str


@dataclass(frozen=True, slots=True)
class ShadowReport:
    """The whole report."""

    window: DemandWindow
    systems: tuple[tuple[str, int, int], ...]
    """Systems with the nodes and cards that they served at some time."""
    before: CardUse
    after: CardUse
    waits: tuple[WaitFigures, WaitFigures]
    namespaces: tuple[NamespaceFigures, ...]
    longer: tuple[WaitingPodFigures, ...]
    refused: tuple[tuple[str, str, str, int], ...]
    """Workloads that admission refuses: namespace, workload, words, and pods."""
    overcommitted: tuple[Overcommitted, ...]
    unknown: int = 0
    stray: int = 0
    faults: int = 0
    crowded: int = 0
    """Pods that were there when the recording began, and that find no room at first."""

    @property
    def saved(self) -> tuple[float, float]:
        """Cards fewer in use, in the mean and at the busiest time."""
        return self.before.mean - self.after.mean, float(self.before.most - self.after.most)


def reported(window: DemandWindow, choices: ClusterChoices) -> ShadowReport:
    """The report of a recording by these choices."""
    was, would = actual(window), replayed(window, choices)
    by_uid = {pod.uid: pod for pod in window.asking}
    return ShadowReport(
        window,
        _systems(window),
        was.fates.use,
        would.use,
        (waits(was.fates.fresh), waits(would.fresh)),
        tuple(_namespaces(was.fates, would)),
        tuple(_longer(was, would, by_uid)),
        tuple(_refused(would, by_uid)),
        was.overcommitted,
        was.unknown,
        was.stray,
        would.faults,
        sum(not fate.fresh and not fate.refused and fate.waited > SOON for fate in would.pods.values()),
    )


def waits(fates: Iterable[PodFate]) -> WaitFigures:
    """The figures of these pods."""
    found = list(fates)
    served = [fate for fate in found if not fate.refused]
    waited = [fate.waited for fate in served if fate.waited > SOON]
    return WaitFigures(
        len(found),
        len(waited),
        sum(fate.waited for fate in served) / len(served) if served else 0.0,
        percentile([fate.waited for fate in served], 0.95),
        max(waited, default=0.0),
        sum(not fate.placed for fate in served),
        len(found) - len(served),
    )


def _systems(window: DemandWindow) -> tuple[tuple[str, int, int], ...]:
    last: dict[str, NodeSeen] = {}
    for change in window.nodes:
        if isinstance(change, NodeSeen):
            last[change.name] = change
    kinds: dict[str, list[int]] = {}
    for seen in last.values():
        sliced = any(card.replicas > 1 for card in seen.cards)
        figures = kinds.setdefault("time-slicing" if sliced else seen.system, [0, 0])
        figures[0] += 1
        figures[1] += len(seen.cards)
    return tuple((name, nodes, cards) for name, (nodes, cards) in sorted(kinds.items()))


def _namespaces(was: Fates, would: Fates) -> Iterable[NamespaceFigures]:
    before, after = _by_namespace(was.fresh), _by_namespace(would.fresh)
    for namespace in sorted({*before, *after}):
        yield NamespaceFigures(namespace, waits(before.get(namespace, ())), waits(after.get(namespace, ())))


def _by_namespace(fates: Iterable[PodFate]) -> Mapping[str, list[PodFate]]:
    found: dict[str, list[PodFate]] = {}
    for fate in fates:
        found.setdefault(fate.namespace, []).append(fate)
    return found


def _longer(was: ActualRun, would: Fates, pods: Mapping[str, PodDemand]) -> Iterable[WaitingPodFigures]:
    before = was.fates.pods
    found = [
        fate
        for fate in would.fresh
        if not fate.refused and fate.waited > SOON and fate.waited > before[fate.uid].waited + SOON
    ]
    found.sort(key=lambda fate: (before[fate.uid].waited - fate.waited, fate.uid))
    for fate in found[:MOST_NAMED]:
        pod = pods[fate.uid]
        yield WaitingPodFigures(pod.namespace, pod.name, before[fate.uid].waited, fate.waited, fate.placed, fate.why)


def _refused(would: Fates, pods: Mapping[str, PodDemand]) -> Iterable[tuple[str, str, str, int]]:
    found: dict[tuple[str, str, str], int] = {}
    for fate in would.pods.values():
        if fate.refused:
            kind, name = pods[fate.uid].workload
            key = (fate.namespace, f"{kind}/{name}", fate.refused)
            found[key] = found.get(key, 0) + 1
    return [(*key, number) for key, number in sorted(found.items(), key=lambda each: (-each[1], each[0]))][:200]
