"""
Pods that make room for others: for a higher priority, or so that a larger pod can start (defragmentation).

The leader's log names each evicted pod and the cause. The checks compare that with the pods on the API server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from contract import names, pods
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.simulation.feature import Arguments, Draw, Feature, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.run import Run

PREEMPTS = "--preemption=true"
MOVES = "--defragmentation-evictions-per-hour=20"
_ASKED = {"preemption": PREEMPTS, "defragmentation": MOVES, "repair": "--repair=evict", "unbound": "--unbound=delete"}
"""For each cause of an eviction, the flag that enables it."""
_WAITED = 60.0
"""Seconds after its last wait for which a pod still counts as one that room was made for."""


def _urgent(draw: Draw) -> Arguments:
    return {**workload.pod_of(draw), "priority": "sim-high"}


def _small(draw: Draw) -> Arguments:
    made = [
        {**workload.pod_of(draw), "limits": {"gpufraction.io/gpu-memory": "4Gi"}, "priority": "sim-low"}
        for _ in range(draw.rng.randint(3, 8))
    ]
    return {"pods": [{key: value for key, value in each.items() if key in _PLAIN} for each in made]}


_PLAIN = frozenset(("namespace", "name", "limits", "priority", "runs"))


def _agreed(draw: Draw) -> Arguments:
    return {"namespace": draw.rng.choice(workload.NAMESPACES), "on": draw.rng.random() < 0.7}


def _agree(run: Run, arguments: Arguments) -> None:
    """The label by which a namespace agrees that its pods are moved."""
    run.tell("administrator", f"lets pods of {arguments['namespace']} be moved: {arguments['on']}")
    value = "allowed" if arguments["on"] else None
    path = paths.path("v1", "namespaces", None, arguments["namespace"])
    try:
        run.user.patch_merge(path, {"metadata": {"labels": {names.DEFRAGMENT: value}}})
    except KubeNotFound:
        return


class Evictions:
    """Checks each eviction against what the API server had when the leader decided."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._waited: dict[str, tuple[int, float]] = {}
        """
        For each uid, the priority of a pod that waits or waited, and until when it waited; infinite if it still waits.
        """
        self._here: dict[str, JSON] = {}
        self._agreed: set[str] = set()
        """Namespaces that ever agreed that their pods are moved."""
        self._wrong: list[Violation] = []
        run.heard.append(self._heard)

    def holds(self, change: Change) -> Violation | None:
        """Take the change in. Returns what an eviction before it did wrong, or None."""
        self.take(change)
        return self._wrong.pop() if self._wrong else None

    def take(self, change: Change) -> None:
        """Take the change in."""
        if change.resource == "namespaces":
            if (change.object["metadata"].get("labels") or {}).get(names.DEFRAGMENT) == "allowed":
                self._agreed.add(change.object["metadata"]["name"])
            return
        if change.resource != "pods":
            return
        pod, now = change.object, self._run.kernel.seconds()
        uid, priority = pods.uid(pod), priority_of(pod)
        self._here[pods.key(pod)] = pod
        if names.GATE in pods.gates(pod) and change.type != "DELETED":
            self._waited[uid] = priority, float("inf")
        elif self._waited.get(uid, (0, 0.0))[1] == float("inf"):
            self._waited[uid] = priority, now

    def _heard(self, host: str, text: str, fields: Mapping[str, Any]) -> None:
        if text == "evicted" and host.startswith("allocator") and "cause" in fields:
            found = self.judged(str(fields["pod"]), str(fields["cause"]))
            if found is not None:
                self._wrong.append(found)

    def judged(self, key: str, cause: str) -> Violation | None:
        """What is wrong with the eviction of that pod for that cause."""
        flag, victim = _ASKED.get(cause), self._here.get(key)
        if flag is not None and not _chosen(self._run, flag):
            return f"{key} is evicted for {cause}, and nobody switched that on"
        if victim is None:
            return f"{key} is evicted for {cause}, and was never there"
        if cause == "defragmentation" and victim["metadata"]["namespace"] not in self._agreed:
            return f"{key} is moved, and its namespace never agreed"
        if cause != "preemption":
            return None
        since = self._run.kernel.seconds() - _WAITED
        best = max((priority for priority, until in self._waited.values() if until >= since), default=None)
        if best is None:
            return f"{key} is evicted for a pod, and none waits"
        if best <= priority_of(victim):
            return f"{key} of priority {priority_of(victim)} is evicted, and no pod waits of more than {best}"
        return None


def priority_of(pod: JSON) -> int:
    """The pod's priority as a number."""
    return int(pod["spec"].get("priority") or 0)


def _chosen(run: Run, flag: str) -> bool:
    """Whether the plan ever gives the allocators this flag."""
    given = run.plan.shape.get("flags", {}).get("allocator", ())
    rolled = (each for step in run.plan.steps for each in step.arguments.get("flags") or ())
    return flag in given or flag in rolled


FEATURE = Feature(
    "preemption",
    operations=(
        Operation("pod.urgent", 5, _urgent, workload.create),
        Operation("pods.small", 2, _small, workload.create_many),
        Operation("namespace.agrees", 2, _agreed, _agree),
    ),
    invariants=(Invariant("nobody is evicted who may stay", lambda run: Evictions(run).holds),),
    knobs={
        "allocator": (
            (PREEMPTS,),
            (PREEMPTS,),
            (MOVES, "--defragmentation-rest=1s", "--defragmentation-interval=1s"),
            (PREEMPTS, MOVES, "--defragmentation-rest=10s", "--defragmentation-interval=5s"),
            (PREEMPTS, "--repair=evict"),
        )
    },
    components=("allocator-eviction",),
)
