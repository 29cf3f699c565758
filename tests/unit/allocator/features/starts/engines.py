"""Serving engines that start one at a time, on a small API server: the kubelet's part, and the engines' messages."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from allocator.queue.records import EventRecord
from contract import names, pods, starts
from contract.encoding import moments
from contract.reasons.pods import PodEventReason
from tests.builders import NodeBuilder, PodBuilder, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, passes
from tests.unit.allocator.harness import admitted

JSON = dict[str, Any]
EPOCH = 1_893_456_000.0
"""2030-01-01, when the small API server starts."""
BOUND = 300.0


def engine(name: str, *, mib: int = 4_000, alone: bool = True) -> PodBuilder:
    made = pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi")
    return made.annotated(names.START, names.ALONE) if alone else made


class PlayedEngines:
    """The cluster with one replica of the allocator; `lead` replaces it by another one, which has no memory."""

    def __init__(self, nodes: Iterable[NodeBuilder]) -> None:
        self.nodes = list(nodes)
        self.api = ApiServer()
        self.term = 0
        self.now = 1_000.0
        self.told: list[tuple[str, str]] = []
        self.lead()

    @property
    def wall(self) -> float:
        return EPOCH + self.now

    def lead(self) -> None:
        """A replica that has just started leads."""
        self.term += 1
        self.replica = Replica(self.api, self.nodes, term=self.term)
        self.api.events.clear()
        self._turn(0.0)

    def _turn(self, seconds: float) -> None:
        self.now += seconds
        harness = self.replica.harness
        harness.now, harness.wall = self.now, self.wall

    def passes(self, seconds: float = 1.0) -> None:
        """This many seconds pass, with two cycles at the end."""
        self.replica.catch_up()
        self._turn(seconds)
        passes(self.replica, 0.0)
        news = [each for each in self.replica.reports if isinstance(each, EventRecord)]
        self.told += [(each.key, each.once) for each in news if each.code == PodEventReason.START_OVERDUE]
        for each in news:
            self.replica.reports.remove(each)
        self._bind()

    def creates(self, *builders: PodBuilder) -> None:
        for each in builders:
            key = self.stores(admitted(each, gated=True))
            self.says(key, self._condition("PodScheduled", False, "SchedulingGated"))

    def stores(self, pod: JSON) -> str:
        """The pod is created now. Returns its `namespace/name`."""
        key = pods.key(self.api.create(pod))
        self.api.pods[key]["metadata"]["creationTimestamp"] = moments.stamp(self.wall)
        self.api.change(key)
        return key

    def _bind(self) -> None:
        """kube-scheduler's part."""
        for key, share in self.placed().items():
            if not any(each["type"] == "PodScheduled" and each["status"] == "True" for each in self._conditions(key)):
                self.api.pods[key]["spec"]["nodeName"] = share
                self.says(key, self._condition("PodScheduled", True), self._condition("Ready", False))
        self.replica.catch_up()

    def starts(self, key: str, *, restarts: int = 0) -> None:
        running = {"startedAt": moments.stamp(self.wall)}
        each = {"name": "main", "restartCount": restarts, "state": {"running": running}}
        self.api.change(key, containerStatuses=[each])

    def ready(self, key: str, holds: bool = True) -> None:
        self.says(key, self._condition("Ready", holds))

    def says(self, key: str, *conditions: JSON) -> None:
        told = {each["type"] for each in conditions}
        self.api.change(key, conditions=[*(c for c in self._conditions(key) if c["type"] not in told), *conditions])

    def placed(self) -> dict[str, str]:
        """The node of each pod that has a share."""
        found = {key: pods.carried_allocation(each) for key, each in self.api.pods.items()}
        return {key: share.node for key, share in found.items() if share is not None}

    def card(self, key: str) -> str:
        """UUID of the card on which the pod has its share; empty if it has none."""
        share = pods.carried_allocation(self.api.pods[key])
        return share.containers[0].shares[0].uuid if share is not None else ""

    def starting(self) -> set[str]:
        """The pods that start alone and are not ready, by their own status."""
        found = set()
        for key, each in self.api.pods.items():
            request = pods.holding(each) if pods.carried_allocation(each) is not None else None
            if request is not None and not pods.finished(each):
                found |= {key} if starts.starting_since(each, request, EPOCH) is not None else set()
        return found

    def waits(self, key: str) -> str:
        return self.replica.said().get(key, "")

    def _conditions(self, key: str) -> list[JSON]:
        return list((self.api.pods[key].get("status") or {}).get("conditions") or ())

    def _condition(self, kind: str, holds: bool, reason: str = "") -> JSON:
        status = "True" if holds else "False"
        return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": moments.stamp(self.wall)}
