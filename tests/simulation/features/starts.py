"""
Engines that start one at a time: several are created at once, and each takes seconds or minutes until it is ready.

The checks use what the API server has. When the leader gives a share to a pod that starts alone, no other such pod that
got its share shortly before is still starting on that card.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from contract import names, pods, starts
from playground.api.store.store import Change
from playground.machinery.kubelet.podrun import START_SECONDS
from tests.simulation.feature import Arguments, Draw, Feature, Invariant, Operation, Violation
from tests.simulation.features import workload
from tests.simulation.run import Run

_SHORTLY = 200.0
"""Seconds. This is below the bound by more than drifting clocks can add."""
_BLIND = ("clock.", "watches.", "etcd.", "rights.")
"""Faults that make the leader see other times than the pods', or see a pod long after it was stored."""


def _engines(draw: Draw) -> Arguments:
    """A few engines with small shares, so that several fit on a card."""
    made = []
    for _ in range(draw.rng.randint(2, 5)):
        limits = {str(names.GPU_MEMORY): draw.rng.choice(("1Gi", "2Gi", "5000Mi"))}
        annotations = {str(names.START): names.ALONE, START_SECONDS: str(draw.rng.choice((0, 2, 15, 60, 400)))}
        made.append({**workload.pod_of(draw), "limits": limits, "annotations": annotations})
    return {"pods": [{key: each[key] for key in _PLAIN if key in each} for each in made]}


_PLAIN = ("namespace", "name", "limits", "annotations", "runs", "priority")


class _Start(NamedTuple):
    key: str
    cards: frozenset[tuple[str, str]]
    """The node and the UUID of each."""
    at: float


class OneAtATime:
    """Checks each placement of a pod that starts alone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._starting: dict[str, _Start] = {}
        self._placed: set[str] = set()
        self._judges = not any(step.kind.startswith(_BLIND) for step in run.plan.steps)

    def holds(self, change: Change) -> Violation | None:
        """Take the change in. Returns what is wrong with it, or None."""
        if change.resource != "pods" or not self._judges:
            return None
        pod: dict[str, Any] = change.object
        uid = pods.uid(pod)
        request, share = pods.holding(pod), pods.carried_allocation(pod)
        starting = request is not None and share is not None and names.GATE not in pods.gates(pod)
        starting = starting and change.type != "DELETED" and not pods.finished(pod)
        if request is None or share is None or not starting or starts.starting_since(pod, request, 1.0) is None:
            self._starting.pop(uid, None)
            return None
        if uid in self._placed:
            return None
        self._placed.add(uid)
        now = self._run.kernel.seconds()
        cards = frozenset((share.node, each.uuid) for given in share.containers for each in given.shares)
        found = _Start(pods.key(pod), cards, now)
        others = [each.key for each in self._starting.values() if each.cards & cards and now - each.at < _SHORTLY]
        self._starting[uid] = found
        return f"{found.key} starts on a card on which {others[0]} is starting" if others else None


FEATURE = Feature(
    "starts",
    operations=(Operation("engines.create", 4, _engines, workload.create_many),),
    invariants=(Invariant("engines start one at a time", lambda run: OneAtATime(run).holds),),
)
