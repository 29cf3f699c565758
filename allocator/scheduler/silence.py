"""
Nodes with silent agents take no new pods, and an Event reports each silence once.

Only a deciding replica judges silence, and counts from when it began to decide: before, it or the agents may have been
cut off from the API server. So an outage of the API server closes no node. Pure; the shell holds the lock.
"""

from __future__ import annotations

from allocator.queue.records import EventRecord
from allocator.scheduler.events import AgentsHeard
from allocator.scheduler.leadership import SchedulerState
from contract.reasons.gpunodes import NodeEventReason

_MESSAGE = "its agent has not reported for {} s: the node accepts no new pods until it does; running pods stay"


class SilentAgents:
    """Handles nodes whose agents do not write."""

    def __init__(self, state: SchedulerState) -> None:
        self._cache = state.cache
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self._judges = False
        """Whether this replica decided at the last tick, without a pause since."""

    def heard(self, event: AgentsHeard, now: float) -> None:
        """GPUNodes are new, changed or deleted."""
        if event.listed:
            self._cache.retain_agents(event.beats)
        helped = [self._cache.hear(node, beat, now, listed=event.listed) for node, beat in event.beats.items()]
        if any(helped):
            self._trigger.requeue_helped()

    def tick(self, now: float) -> None:
        """Close the nodes whose agents have become silent."""
        judged, self._judges = self._judges, self._leadership.holds()
        if self._judges and not judged:
            self._cache.restart_silence(now)
        if not self._judges:
            return
        found = self._cache.take_silent(now)
        for node, seconds in found.items():
            text = _MESSAGE.format(round(seconds))
            self._records.note(EventRecord("Node", node, node, NodeEventReason.AGENT_SILENT, text))
        if found:
            # Pods get a new reason, and nothing else happens to them.
            self._trigger.retell()
            self._trigger.wake()
