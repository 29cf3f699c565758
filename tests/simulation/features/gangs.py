"""
Pods that start together: gangs are created while leaders are killed between two writes.

The checks use what the API server has. No pod of a gang is placed before as many pods as start together exist, and none
is placed at admission. In the end no pod waits for its gang while another pod of the gang has its share.
"""

from __future__ import annotations

from typing import Any

from contract import gangs, names, pods
from contract.gangs import GangKey
from contract.reasons.pods import PodReason
from playground.api.store.store import Change
from tests.simulation.feature import Arguments, Draw, Feature, Goal, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.run import Run

_AS_A_WHOLE = (PodReason.GANG_INCOMPLETE, PodReason.GANG_DOES_NOT_FIT)


_ASKS = ("limits", "requests", "more")
"""The arguments of `pod.create` by which a pod requests its share."""


def _gang(draw: Draw) -> Arguments:
    """A few pods that start together, most often of one kind. Sometimes they are fewer or more than they declare."""
    name, size = draw.new("gang"), draw.rng.randint(2, 5)
    minimum = max(2, size + draw.rng.choice((0, 0, 0, 0, -1, 1)))
    first = workload.pod_of(draw)
    made = [first, *(workload.pod_of(draw) for _ in range(size - 1))]
    alike = draw.rng.random() < 0.7
    written = {str(names.GANG): name, str(names.GANG_MINIMUM): str(minimum)}
    members = []
    for each in made:
        asks: dict[str, Any] = (
            {key: first[key] for key in ("limits", "requests", "more") if key in first} if alike else {}
        )
        base: dict[str, Any] = {
            key: value for key, value in each.items() if not (alike and key in ("limits", "requests", "more"))
        }
        said: dict[str, str] = (first if alike else each).get("annotations") or {}
        annotations = {**said, **written}
        members.append({**base, **asks, "namespace": first["namespace"], "annotations": annotations})
    for each, member in zip(made, members, strict=True):
        draw.names.remove((each["namespace"], each["name"]))
        draw.names.append((member["namespace"], member["name"]))
    return {"pods": members}


_SEEN = "pods that gangs have had"


class Starts:
    """Checks each placement of a pod of a gang."""

    def __init__(self, run: Run) -> None:
        self._run = run
        # Includes pods that a restored store no longer has: the allocator writes its last decisions a moment after the
        # restore.
        self._seen: dict[GangKey, set[str]] = run.notes.setdefault(_SEEN, {})
        self._placed: set[str] = set()

    def holds(self, change: Change) -> Violation | None:
        """Take the change in. Returns what is wrong with it, or None."""
        if change.resource != "pods" or change.type == "DELETED":
            return None
        pod: dict[str, Any] = change.object
        gang, uid = gangs.gang_of(pod), pods.uid(pod)
        if gang is None or names.REQUEST not in pods.annotations_of(pod):
            return None
        there = self._seen.setdefault(gang.key, set())
        there.add(uid)
        has = names.ALLOCATION in pods.annotations_of(pod) and names.GATE not in pods.gates(pod)
        if not has or uid in self._placed:
            return None
        self._placed.add(uid)
        if change.type == "ADDED":
            return f"{pods.key(pod)} of {gang.shown} is placed at its admission"
        if len(there) < gang.minimum:
            return f"{pods.key(pod)} is placed, and {gang.shown} has had {len(there)} of {gang.minimum} pods"
        return None


def _halves(run: Run) -> list[Violation]:
    """Pods that wait for a gang that has begun."""
    placed: dict[GangKey, str] = {}
    waiting: list[tuple[GangKey, str]] = []
    for pod in run.world.api.store.scan("pods"):
        gang = gangs.gang_of(pod)
        if gang is None or pods.finished(pod) or pod["metadata"].get("deletionTimestamp"):
            continue
        if names.GATE not in pods.gates(pod):
            if pods.carried_allocation(pod) is not None:
                placed[gang.key] = pods.key(pod)
        elif _reason(pod) in _AS_A_WHOLE:
            waiting.append((gang.key, pods.key(pod)))
    halves = [(key, placed[gang]) for gang, key in waiting if gang in placed]
    return [f"{key} waits for its gang, and {other} of it has its share" for key, other in halves]


def _reason(pod: dict[str, Any]) -> str:
    conditions = (pod.get("status") or {}).get("conditions") or ()
    return next((str(each.get("reason")) for each in conditions if each.get("type") == names.ALLOCATED_CONDITION), "")


FEATURE = Feature(
    "gangs",
    operations=(Operation("gang.create", 5, _gang, workload.create_many),),
    invariants=(Invariant("a gang starts as a whole", lambda run: Starts(run).holds),),
    goals=(Goal("no gang is left in halves", _halves),),
)
