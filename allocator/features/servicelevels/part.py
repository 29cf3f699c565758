"""
The feature's part of the core: once a second it checks which pods wait and which hold a share.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocator.features.servicelevels.levels import Levels, ObservedWait, ServedPod, ServiceJudgement, Started
from allocator.features.servicelevels.settings import ServiceLevelSettings
from allocator.queue.queue import namespace_of
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart

_EVERY = 1.0
"""Seconds; times are whole seconds anyway, since objects have no finer ones."""


class ServiceLevelsPart:
    """The waiting pods and the holders of shares, as input of `Levels`."""

    def __init__(self, core: Core, settings: ServiceLevelSettings) -> None:
        self._queue = core.state.queue
        self._holders = core.state.cache.allocated
        self._leadership = core.state.leadership
        self._wall = core.wall
        self._levels = Levels(settings.start_within)
        self._next = float("-inf")

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(ticks={TickPhase.UPKEEP: self._look})

    def _look(self, now: float) -> Iterable[Started | ServiceJudgement]:
        if not self._leadership.holds():
            self._levels.reset()
            return ()
        if now < self._next:
            return ()
        self._next = now + _EVERY
        holders = self._holders.uids()
        came = (self._holders.get(uid) for uid in self._levels.new(holders))
        return tuple(
            self._levels.look(
                (
                    ObservedWait(each.uid, namespace_of(each), each.priority, each.created, bool(each.foreign))
                    for each in self._queue.in_any_order()
                ),
                holders,
                (ServedPod(pod.uid, pod.key.split("/", 1)[0], pod.priority) for pod in came if pod is not None),
                self._wall(),
                self._queue.knows,
            )
        )
