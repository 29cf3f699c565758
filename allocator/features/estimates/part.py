"""
The feature's part of the core: it learns from pods that end, provides the input of a forecast, and adds the result to
the reasons of waiting pods. The forecast itself runs without the lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from allocator.features.estimates import forecast, words
from allocator.features.estimates.forecast import Estimate, Forecast, NoEstimate, Waiting
from allocator.features.estimates.history import DurationHistory
from allocator.features.estimates.scale import Scale
from allocator.features.estimates.settings import EstimateSettings
from allocator.queue.queue import namespace_of
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart
from contract.encoding import moments
from contract.model import NodeState
from contract.scheduling.filters import Limits
from contract.scheduling.nodeinfo import AllocatedPod

_EVERY = 5.0
"""Seconds between two checks of the holders of shares."""
_MOST_SCORED = 1_000
"""The number of pods whose first estimate is kept for comparison with the outcome."""
_MOST_ENDED = 4_096
Outcome = Literal["by-then", "sooner", "later"]
"""The outcome of an estimate; sooner: before half of the estimated time."""


@dataclass(frozen=True, slots=True)
class PodFinished:
    """A finished pod that still exists: how long it held its share, in seconds."""

    uid: str
    key: str
    ran: float


@dataclass(frozen=True, slots=True)
class Estimated:
    """A forecast is made, by uid."""

    found: Mapping[str, Forecast]


@dataclass(frozen=True, slots=True)
class Scored:
    """The outcome of the first estimate that a pod was shown."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class ForecastQuestion:
    """The input of a forecast: frozen values."""

    nodes: tuple[NodeState, ...]
    holders: Mapping[str, tuple[AllocatedPod, ...]]
    left: Mapping[str, tuple[float, ...]]
    queue: tuple[Waiting, ...]
    behind: tuple[str, ...]
    """The uids of the pods behind those."""
    limits: Limits
    now: float

    def answer(self) -> Estimated:
        """Compute the forecast. Call this without the lock."""
        found = forecast.forecast(
            self.nodes, self.holders, lambda pod: self.left.get(pod.uid, ()), self.queue, self.limits, self.now
        )
        return Estimated({**found, **dict.fromkeys(self.behind, NoEstimate.TOO_FAR)})


@dataclass(frozen=True, slots=True)
class _Told:
    at: float
    by: float
    raw: float
    """As simulated, before it was scaled."""


class EstimatesPart:
    """The known durations, and the last estimates."""

    def __init__(self, core: Core, settings: EstimateSettings) -> None:
        self._core = core
        self._state = core.state
        self._cache = core.state.cache
        self._wall = core.wall
        self.history = DurationHistory()
        self.scale = Scale()
        self._holders: dict[str, tuple[str, float]] = {}
        """Key and start of each pod that holds a share, by uid."""
        self._finished: OrderedDict[str, None] = OrderedDict()
        self._said: dict[str, Forecast] = {}
        self._scored: OrderedDict[str, _Told] = OrderedDict()
        self._next = float("-inf")

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(
            handlers={PodFinished: self._pod_finished, Estimated: self._estimated},
            ticks={TickPhase.UPKEEP: self._look},
            adds=self._adds,
        )

    # -- learning -------------------------------------------------------------------------------------------------

    def _pod_finished(self, event: PodFinished, now: float) -> None:
        if event.uid not in self._holders and event.uid not in self._finished:
            self._note_finished(event.uid)
            self.history.ended(event.key, event.ran)

    def _note_finished(self, uid: str) -> None:
        self._finished[uid] = None
        if len(self._finished) > _MOST_ENDED:
            self._finished.popitem(last=False)

    def _look(self, now: float) -> Iterable[Scored]:
        """Detect pods that got a share, and pods whose share ended."""
        if now < self._next:
            return ()
        self._next = now + _EVERY
        wall, holders = self._wall(), self._cache.allocated
        scored: list[Scored] = []
        for uid in holders.uids() - self._holders.keys():
            pod = holders.get(uid)
            if pod is not None:
                scored += self._starts(pod, wall)
        for uid in self._holders.keys() - holders.uids():
            key, since = self._holders.pop(uid)
            self._note_finished(uid)
            self.history.ended(key, wall - since)
        waiting = self._state.queue
        for uid in [uid for uid in self._scored if waiting.pod(uid) is None]:
            del self._scored[uid]
        for uid in [uid for uid in self._said if waiting.pod(uid) is None]:
            del self._said[uid]
        return scored if self._state.leadership.holds() else ()

    def _starts(self, pod: AllocatedPod, wall: float) -> Iterable[Scored]:
        held = self._cache.ledger.holding(pod.uid)
        since = held.held_since if held is not None and held.held_since else wall
        self._holders[pod.uid] = pod.key, min(since, wall)
        told = self._scored.pop(pod.uid, None)
        if told is not None:
            self.scale.came(told.raw - told.at, wall - told.at)
            yield Scored(outcome(told.at, told.by, wall))

    # -- asking ---------------------------------------------------------------------------------------------------

    def question(self) -> ForecastQuestion | None:
        """The current input of a forecast; None if no pod waits or another replica leads."""
        state, wall = self._state, self._wall()
        if not state.leadership.holds() or not len(state.queue):
            return None
        holders = self._cache.allocated.by_node()
        left = {
            pod.uid: self.history.left(pod.key, wall - self._holders.get(pod.uid, ("", wall))[1])
            for on in holders.values()
            for pod in on
        }
        order = list(state.order.in_order())
        first, rest = order[: forecast.MOST_WAITING], order[forecast.MOST_WAITING :]
        queue = tuple(
            Waiting(
                entry.uid,
                entry.key,
                entry.ask,
                self.history.left(entry.key),
                bool(entry.foreign or entry.ask.request.claim or entry.rules.constrained),
            )
            for entry in first
        )
        behind = tuple(entry.uid for entry in rest)
        nodes = tuple(self._cache.snapshot.values())
        return ForecastQuestion(nodes, holders, left, queue, behind, self._cache.engine.limits, wall)

    def _estimated(self, event: Estimated, now: float) -> None:
        wall, changed = self._wall(), False
        for uid, played in event.found.items():
            if self._state.queue.pod(uid) is None:
                continue
            found = played
            if isinstance(played, Estimate):
                found = replace(played, by=wall + self.scale.of(played.by - wall))
                if uid not in self._scored and len(self._scored) < _MOST_SCORED:
                    self._scored[uid] = _Told(wall, words.rounded(found.by), played.by)
            before = self._said.get(uid)
            if before is None or _differs(before, found, wall):
                self._said[uid] = found
                changed = True
        if changed:
            self._state.trigger.retell()
            self._state.trigger.wake()

    def _adds(self, uid: str) -> str:
        found, entry = self._said.get(uid), self._state.queue.pod(uid)
        if found is None or entry is None:
            return ""
        at = moments.at(words.rounded(found.by)) if isinstance(found, Estimate) else ""
        return words.said(found, namespace_of(entry), at)


def outcome(told: float, by: float, started: float) -> Outcome:
    """The outcome of an estimate that was made at `told`."""
    if started > by:
        return "later"
    return "by-then" if started - told >= (by - told) / 2 else "sooner"


def _differs(before: Forecast, found: Forecast, now: float) -> bool:
    """Whether it is worth a write: its kind differs, or the time has passed or differs by more than a tenth."""
    if isinstance(before, Estimate) and isinstance(found, Estimate):
        off = abs(found.by - before.by)
        return now > words.rounded(before.by) or off > max(words.STEP, (before.by - now) / 10)
    return before != found
