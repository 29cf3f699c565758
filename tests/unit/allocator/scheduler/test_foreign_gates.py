"""A pod with a share that another system's gate holds: the share is returned, and the pod learns it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import EventRecord
from allocator.scheduler.events import PodDeleted, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import SchedulingLoop
from contract import names, pods
from contract.encoding.protocol import Placed
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.wires import Fate

JSON = dict[str, Any]
GATE = "kueue.x-k8s.io/admission"


class Gated:
    """One GPU that a pod behind another system's gate holds, and the loop that carries effects out."""

    def __init__(self, *, leads: bool = True, gate: str = GATE, annotations: Mapping[str, str] | None = None) -> None:
        self.api = ApiServer()
        self.harness = SchedulerHarness([node("n").gpu(mib=16384)], elected=True, term=1)
        self.harness.controller.handle(pods_listed([], term=1))
        self.harness.controller.handle(ClaimsListed("elasticgpus", (), term=1))
        kube = Kube(self.api.wire)
        self.loop = SchedulingLoop(
            kube=kube,
            controller=self.harness.controller,
            recorder=EventRecorder(kube, clock=lambda: datetime.now(UTC)),
            woken=threading.Event(),
            now_ns=lambda: 0,
            writers=1,
        )
        self.loop.carry_out(TickPhase.TAKE_OVER)
        answer = self.harness.controller.reserve(question(worker("gated")))
        assert isinstance(answer, Placed)
        made = admitted(worker("gated"), allocation=answer.allocation)
        made["spec"]["schedulingGates"] = [{"name": gate}] if gate else []
        made["metadata"]["annotations"].update(annotations or {})
        self.harness.leads, self.harness.term = leads, 1 if leads else None
        self.api.create(made)
        self.watch()

    def watch(self) -> None:
        while self.api.events:
            kind, seen = self.api.events.popleft()
            self.harness.controller.handle(
                pod_event(pods.trim(seen)) if kind == "put" else PodDeleted(pods.uid(seen)),
            )

    def turn(self) -> None:
        self.loop.carry_out(TickPhase.FOREIGN_GATES)
        self.watch()

    def holds(self) -> bool:
        return bool(pods.allocation_id(self.api.pods["default/gated"]))

    def reported(self) -> list[str]:
        return [each.code for each in self.harness.controller.schedule_pending()[1] if isinstance(each, EventRecord)]


def worker(name: str) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", "16Gi")


def test_the_share_goes_back_and_the_pod_learns_why() -> None:
    it = Gated()
    assert it.harness.controller.look().confirmed == 1
    it.turn()
    kept = set(pods.annotations_of(it.api.pods["default/gated"]))
    assert kept == {names.REQUEST}, "no container sees a card any more"
    assert (it.harness.controller.look().confirmed, it.reported()) == (0, ["GPUShareReturned"])
    assert isinstance(it.harness.controller.reserve(question(worker("other"))), Placed)
    it.harness.controller.check_invariants()


def test_our_annotations_against_scale_down_go_and_the_authors_stay() -> None:
    autoscaler, karpenter = "cluster-autoscaler.kubernetes.io/safe-to-evict", "karpenter.sh/do-not-disrupt"
    it = Gated(annotations={autoscaler: "false", karpenter: "true", names.PROTECTED: karpenter})
    it.turn()
    assert set(pods.annotations_of(it.api.pods["default/gated"])) == {names.REQUEST, autoscaler}


CASES = {
    "no gate holds the pod": {"gate": ""},
    "another replica leads": {"leads": False},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_share_stays(case: dict[str, Any]) -> None:
    it = Gated(**case)
    it.turn()
    assert (it.holds(), it.harness.controller.look().confirmed) == (True, 1)


def test_a_pod_that_its_gate_let_go_keeps_its_share() -> None:
    it = Gated()
    it.api.pods["default/gated"]["spec"]["schedulingGates"] = []
    it.api.change("default/gated")  # the watch has not delivered it
    it.loop.carry_out(TickPhase.FOREIGN_GATES)
    assert it.holds()
    it.watch()
    it.harness.now += 60
    it.turn()
    assert (it.holds(), it.reported()) == (True, [])


@pytest.mark.parametrize("fate", ["unreachable", "dropped", "refused"])
def test_a_write_that_failed_is_tried_again_after_a_pause(fate: Fate) -> None:
    it = Gated()
    it.api.wire.fates = [fate]
    it.turn()
    it.turn()
    assert it.holds(), "not at once"
    it.harness.now += 5
    it.turn()
    assert not it.holds()


def test_a_pod_that_is_deleted_is_forgotten() -> None:
    it = Gated()
    it.api.delete("default/gated")
    it.watch()
    assert it.harness.controller.tick(TickPhase.FOREIGN_GATES) == []
    it.harness.controller.check_invariants()
