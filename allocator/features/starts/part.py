"""
The feature's part of the core: it ends starts that take longer than the bound, and reports how many pods are starting.

Closed GPUs are part of the nodes' state (`Usage.starting`), so every decision considers them: at admission, in the
queue, for gangs, and for evictions. Pure; the shell holds the lock.
"""

from __future__ import annotations

from allocator.cache.starting import StartingPod
from allocator.features.starts.settings import StartSettings
from allocator.queue.records import EventRecord
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart
from contract.encoding import moments
from contract.reasons.pods import PodEventReason


class StartScheduling:
    """The pods that start alone."""

    def __init__(self, core: Core, settings: StartSettings) -> None:
        self._cache = core.state.cache
        self._records = core.state.records
        self._leadership = core.state.leadership
        self._trigger = core.state.trigger
        self._wall = core.wall
        self._within = settings.within

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(ticks={TickPhase.UPKEEP: self._end_overdue})

    def counts(self) -> tuple[int, int]:
        """The number of pods that are starting: within the bound, and for longer."""
        return self._cache.starting.counts()

    def _end_overdue(self, now: float) -> tuple[()]:
        """Reopen the GPUs of pods that have been starting for too long, and send an Event about each."""
        overdue = self._cache.end_starts(now, self._wall(), self._within)
        if overdue:
            self._trigger.requeue()
        if self._leadership.leads():
            for pod in overdue:
                self._tell(pod)
        return ()

    def _tell(self, pod: StartingPod) -> None:
        text = (
            f"the pod starts alone and has not been ready for {moments.duration(self._within)}: from now on, other "
            f"pods that start alone may start on its GPU"
        )
        # A new leader finds pods again for which the former leader has sent the Event.
        once = f"{pod.uid}/{pod.since}"
        self._records.note(EventRecord("Pod", pod.key, pod.uid, PodEventReason.START_OVERDUE, text, once=once))
        self._trigger.wake()
