"""
Detects nodes with silent agents: these have not written within their own interval, nor within the allowed time.

An agent's clock is not ours, so only changes of its time count, measured by our clock. Silence counts only while agents
could be heard: a caller that could not hear them restarts the count (`restart`). An agent that writes costs one entry
of a dictionary; each agent has one place in a heap, which is looked at when it is due. Pure: time is passed in.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from contract.nodes.heartbeat import Heartbeat


class Agents:
    """The agents of all nodes. Not thread-safe: one owner calls it. `patience`: seconds; 0 judges nobody."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._heard: dict[str, tuple[Heartbeat, float]] = {}
        self._due: list[tuple[float, str]] = []
        """The time of the next check of each agent, not later than the time from which it may be silent."""
        self._queued: set[str] = set()
        """The nodes that have a place in `_due`."""
        self.silent: set[str] = set()
        """The nodes whose agents are silent; other parts only read it."""

    def hear(self, node: str, beat: Heartbeat, now: float, *, listed: bool = False) -> bool:
        """
        A GPUNode is new or changed; `listed`: it came with a list, so the watch may have missed earlier changes. True
        if its agent was silent and no longer is.
        """
        before = self._heard.get(node)
        same = before is not None and before[0] == beat
        if same and (node in self.silent or not listed):
            return False
        self._heard[node] = (beat, now)
        self._wait(node, beat, now)
        spoke = node in self.silent
        self.silent.discard(node)
        return spoke

    def drop(self, node: str) -> bool:
        """A GPUNode was deleted. True if its agent was silent."""
        self._heard.pop(node, None)
        spoke = node in self.silent
        self.silent.discard(node)
        return spoke

    def restart(self, now: float) -> None:
        """No agent could be heard for a while: restart the count for every agent that is not silent."""
        for node, (beat, _) in self._heard.items():
            self._heard[node] = (beat, now)

    def take_silent(self, now: float) -> Mapping[str, float]:
        """The nodes whose agents have become silent since the last call, with the seconds of silence of each."""
        found: dict[str, float] = {}
        waits: list[tuple[str, Heartbeat]] = []
        while self._due and self._due[0][0] <= now:
            _, node = heapq.heappop(self._due)
            self._queued.discard(node)
            beat, heard = self._heard.get(node, (None, now))
            bound = beat.bound(self._patience) if beat is not None else None
            if beat is None or bound is None or node in self.silent:
                continue
            if now >= heard + bound:
                self.silent.add(node)
                found[node] = now - heard
            else:
                waits.append((node, beat))
        for node, beat in waits:
            self._wait(node, beat, now)
        return found

    def nodes(self) -> frozenset[str]:
        """Every node with a GPUNode."""
        return frozenset(self._heard)

    def _wait(self, node: str, beat: Heartbeat, now: float) -> None:
        bound = beat.bound(self._patience)
        if bound is None or node in self._queued:
            return
        _, heard = self._heard[node]
        # A shorter interval may come meanwhile, so no entry waits longer than the shortest bound.
        due = min(heard + bound, now + self._patience)
        heapq.heappush(self._due, (max(due, now), node))
        self._queued.add(node)
