"""
Nodes whose agents are silent: nothing new is placed there once the leader can know about it.

The GPUNodes that the store has committed show how long an agent was silent, by the simulation's own clock. A leader
starts to count again whenever it may have missed a write: at a change of the Lease, after a list, and after faults that
do not concern machines. So the invariant applies only if none of these happened since the agent's last write.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocator.features.elasticgpuclaims import objects
from contract import names, pods
from contract.nodes.heartbeat import PATIENCE, UNHEARD, Heartbeat, heartbeat_of
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.settings import parse_duration
from tests.simulation.feature import Feature, Invariant, Violation
from tests.simulation.features.cards import GPUNODES, SHARES, allocation_of
from tests.simulation.run import Run
from tests.simulation.world.network import Call

_DECIDED = 10.0
"""Seconds in which decisions from before the silence may still be written."""
_LINGERS = 60.0
"""Seconds after its end for which a step counts as one that may have kept the leader from hearing."""
_HARMLESS = ("pod.", "pods.", "claim.", "share.", "job.", "node.silent", "agent.", "card.", "cards.", "driver.")
"""Kinds of steps that do not keep a leader from hearing the agents that write."""
_FLAG = "--agent-silence="


class _Silences:
    """When each node's agent last wrote, and since when a leader has heard all of them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._wrote: dict[str, tuple[float, Heartbeat]] = {}
        self._heard_since = 0.0
        self._holder: object = None
        run.world.network.seen.append(self._answered)

    def holds(self, change: Change) -> Violation | None:
        """Take a change in. Returns what is wrong with it."""
        now = self._run.kernel.seconds()
        if change.resource == GPUNODES:
            self._note(change, now)
        elif change.resource.startswith("leases") and change.object["metadata"]["name"] == names.LEASE:
            self._note_lease(change, now)
        if not any(self._silent(node, now) for node in self._wrote):
            return None  # The content of a change is read only if it can be wrong, because there are many changes.
        node = _newly_on(change)
        return None if node is None else self._wrong(node, change.object, now)

    def _note(self, change: Change, now: float) -> None:
        name = change.object["metadata"]["name"]
        if change.type == "DELETED":
            self._wrote.pop(name, None)
            return
        beat = heartbeat_of(change.object)
        if name not in self._wrote or self._wrote[name][1] != beat:
            self._wrote[name] = (now, beat)

    def _note_lease(self, change: Change, now: float) -> None:
        spec = change.object.get("spec") or {}
        holder = None if change.type == "DELETED" else (spec.get("holderIdentity"), spec.get("leaseTransitions"))
        if holder != self._holder:
            self._holder, self._heard_since = holder, now

    def _answered(self, call: Call, status: int) -> None:
        listed = call.method == "GET" and not call.is_watch and call.path.endswith(f"/{names.GPUNODE_PLURAL}")
        if listed and call.program.startswith("allocator"):
            self._heard_since = self._run.kernel.seconds()

    def _silent(self, node: str, now: float) -> float:
        """For how many seconds the agent has been silent; 0 if a leader may not know it yet."""
        wrote, beat = self._wrote.get(node, (now, UNHEARD))
        silent = now - max(wrote, self._heard_since)
        bound = beat.bound(_patience(self._run))
        return silent if bound is not None and silent > bound + _DECIDED else 0.0

    def _wrong(self, node: str, placed: JSON, now: float) -> Violation | None:
        silent = self._silent(node, now)
        if not silent or self._disturbed(self._wrote[node][0]):
            return None
        return f"{pods.key(placed)} is placed on {node}, whose agent has been silent for {silent:.0f} s"

    def _disturbed(self, since: float) -> bool:
        """Whether a step may have kept the leader from hearing after that moment."""
        began = self._run.began / 1e9
        ends = (began + each.at + each.seconds + _LINGERS for each in self._run.plan.steps if not _harmless(each.kind))
        return any(end >= since for end in ends)


def _harmless(kind: str) -> bool:
    return kind.startswith(_HARMLESS)


def _patience(run: Run) -> float:
    """The patience that the administrator has set, in seconds."""
    flags = run.world.flags.get("allocator", ())
    chosen = [flag.removeprefix(_FLAG) for flag in flags if flag.startswith(_FLAG)]
    return parse_duration(chosen[-1]) if chosen else PATIENCE


def _newly_on(change: Change) -> str | None:
    """The node on which a pod or claim has just been placed. A claim's share is placed with the claim."""
    before, after = _node_of(change.resource, change.previous), _node_of(change.resource, change.object)
    return after if change.type in ("ADDED", "MODIFIED") and before is None else None


def _node_of(resource: str, value: JSON | None) -> str | None:
    if value is None or resource not in ("pods", SHARES):
        return None
    allocation = allocation_of(value) if resource == "pods" else objects.share(value).allocation
    return None if allocation is None or (resource == "pods" and allocation.claim) else allocation.node


def _make(run: Run) -> Callable[[Any], Violation | None]:
    return _Silences(run).holds


FEATURE = Feature("silence", invariants=(Invariant("nothing is placed on a node whose agent is silent", _make),))
