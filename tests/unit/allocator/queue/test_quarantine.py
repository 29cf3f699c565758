"""
An error of ours that one pod causes affects only that pod: it gets a condition, is left alone, and delays no other pod.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.podinfo import made_of, pod_event
from allocator.queue.records import EventRecord, PodRecords, StatusUpdate
from allocator.scheduler.events import PodDeleted, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import SchedulingLoop
from contract import pods
from contract.encoding.protocol import Placed, Wait
from contract.encoding.quantity import MIB
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.reasons.pods import PodReason
from runtime.kubernetes.client import Kube
from runtime.supervision import Workers
from tests.builders import node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question
from tests.unit.allocator.one_gpu import ONE_GPU, keys, running, waiting, worker
from tests.unit.allocator.poison import Fuse, Picky, poisoned

JSON = dict[str, Any]
CODE = PodReason.INTERNAL_ERROR
MESSAGE = (
    "internal error of gpufraction (fault fault-1). The pod is tried again when its spec or annotations change, "
    "or after 10 min; the allocator's log has the fault"
)
ODD = 777
"""MiB for which the engine raises."""


HISTORIES: dict[str, tuple[list[tuple[float, str]], tuple[float, str], bool]] = {
    "a pod that does not change is left alone for ten minutes": ([(0, "x")], (599, "x"), True),
    "and is tried then": ([(0, "x")], (600, "x"), False),
    "one that changes is tried a second later": ([(0, "x")], (1, "y"), False),
    "and no sooner": ([(0, "x")], (0.9, "y"), True),
    "each error in a row doubles that": ([(0, "x"), (1, "y"), (3, "z")], (6, "w"), True),
    "until it is over": ([(0, "x"), (1, "y"), (3, "z")], (7, "w"), False),
    "and it never becomes more than for one that does not change": (
        [(float(i), str(i)) for i in range(30)],
        (629, "w"),
        False,
    ),
}


@pytest.mark.parametrize("case", HISTORIES.values(), ids=HISTORIES.keys())
def test_how_long_a_pod_is_left_alone(case: tuple[list[tuple[float, str]], tuple[float, str], bool]) -> None:
    errors, (now, label), held = case
    notes = PodRecords().quarantine
    for at, was in errors:
        notes.put("uid", was, "decision", "fault", at)
    notes.taken_in("uid", label)
    assert notes.holds("uid", now) == held


def test_what_we_write_to_touch_a_pod_and_its_status_are_no_change_of_it() -> None:
    labels, fence = {"a": "b"}, {"gpufraction.io/fence": "word"}
    before: JSON = {"metadata": {"labels": labels, "resourceVersion": "8"}, "spec": {}}
    metadata = {"labels": labels, "resourceVersion": "9", "annotations": fence}
    touched: JSON = {"metadata": metadata, "spec": {}, "status": {"conditions": []}}
    assert made_of(touched) == made_of(before)
    assert made_of({**touched, "spec": {"priority": 1}}) != made_of(before)


# -- reading ------------------------------------------------------------------------------------------------------


def test_one_bad_pod_in_a_list_spoils_nothing_for_the_others() -> None:
    harness = SchedulerHarness([ONE_GPU], faults=[])
    bad, bomb = poisoned(waiting(worker("bad")))
    harness.controller.handle(pods_listed([waiting(worker("a", mib=1000)), bad, waiting(worker("z", mib=1000))]))
    bindings, news = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/a", "default/z"]
    assert (harness.faults, harness.controller.look().quarantined) == ([("pod", "default/bad")], 1)
    assert news == [
        StatusUpdate(
            "default/bad", "uid-bad", False, PodReason.INTERNAL_ERROR, MESSAGE, warning=PodReason.INTERNAL_ERROR
        )
    ]
    harness.controller.handle(pod_event(bad))
    assert harness.faults == [("pod", "default/bad")], "it is said once"
    bomb.armed = False
    harness.controller.handle(pod_event(bad))
    assert harness.controller.look().quarantined == 0
    harness.controller.check_invariants()


def test_a_bad_pod_that_is_deleted_is_forgotten() -> None:
    harness = SchedulerHarness([ONE_GPU], faults=[])
    bad, _ = poisoned(waiting(worker("bad")))
    harness.controller.handle(pod_event(bad))
    harness.controller.handle(PodDeleted("uid-bad"))
    assert harness.controller.look().quarantined == 0
    harness.controller.handle(pod_event(bad))
    harness.controller.handle(pods_listed([]))
    assert harness.controller.look().quarantined == 0
    harness.controller.check_invariants()


def share(uuid: str, mib: int) -> Allocation:
    return Allocation("id", "t4", (ContainerAllocation("main", (GpuShare(uuid, 0, mib * MIB, 0, 15109 * MIB),)),))


def test_nobody_is_placed_beside_a_share_that_cannot_be_counted() -> None:
    """The pod arrived with its share when nothing could read it, so what it holds there is unknown."""
    harness = SchedulerHarness([ONE_GPU, node("other").gpus(1)], faults=[])
    bad, bomb = poisoned(running(worker("bad"), share("GPU-t4-0", 10_000)))
    harness.controller.handle(pod_event(bad))
    for name in ("a", "b"):
        harness.controller.handle(pod_event(waiting(worker(name, mib=15_000))))
    bindings, _ = harness.controller.schedule_pending()
    assert [binding.allocation.node for binding in bindings] == ["other"]
    bomb.armed = False
    harness.controller.handle(pod_event(bad))
    harness.controller.check_invariants()
    assert harness.controller.look().confirmed == 1
    harness.controller.schedule_pending()
    assert isinstance(harness.controller.reserve(question(worker("c", mib=15_000))), Wait)
    assert isinstance(harness.controller.reserve(question(worker("d", mib=5_000))), Placed)


def test_who_holds_a_share_and_cannot_be_read_any_more_goes_on_being_counted() -> None:
    harness = SchedulerHarness([ONE_GPU], faults=[])
    good = running(worker("bad"), share("GPU-t4-0", 10_000))
    harness.controller.handle(pod_event(good))
    harness.controller.schedule_pending()
    bad, _ = poisoned(good)
    harness.controller.handle(pod_event(bad))
    assert harness.controller.look().confirmed == 1
    assert isinstance(harness.controller.reserve(question(worker("c", mib=1000))), Wait), "the node is closed"
    assert harness.controller.schedule_pending()[1] == [
        EventRecord("Pod", "default/bad", "uid-bad", PodReason.INTERNAL_ERROR, MESSAGE)
    ]
    harness.controller.check_invariants()
    harness.controller.handle(PodDeleted("uid-bad"))
    assert harness.controller.look().confirmed == 0
    assert isinstance(harness.controller.reserve(question(worker("d", mib=15_000))), Placed)
    harness.controller.check_invariants()


# -- errors while a pod is handled --------------------------------------------------------------------------------


def odd_line(engine: Picky, **options: Any) -> SchedulerHarness:
    """Three pods in the queue. Every decision about the second one fails."""
    harness = SchedulerHarness([ONE_GPU], engine=engine, faults=[], options=chosen(**options))
    for name, mib in (("a", 1000), ("bad", ODD), ("z", 1000)):
        harness.controller.handle(pod_event(waiting(worker(name, mib=mib))))
    return harness


def test_a_pod_that_cannot_be_decided_keeps_nobody_from_being_placed() -> None:
    engine = Picky(ODD * MIB)
    harness = odd_line(engine)
    bindings, news = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/a", "default/z"]
    assert news == [
        StatusUpdate(
            "default/bad", "uid-bad", False, PodReason.INTERNAL_ERROR, MESSAGE, warning=PodReason.INTERNAL_ERROR
        )
    ]
    assert harness.controller.schedule_pending() == ([], [])
    assert (engine.looked, harness.faults) == (1, [("decision", "default/bad")]), "it is left alone"
    harness.controller.check_invariants()


def test_it_is_tried_again_when_it_changes_or_after_a_while() -> None:
    engine = Picky(ODD * MIB)
    harness = odd_line(engine)
    harness.controller.schedule_pending()
    harness.controller.handle(pod_event(waiting(worker("bad", mib=ODD).spec(nodeSelector={"a": "b"}))))
    for now, looked in ((100.5, 1), (101.5, 2), (700.0, 2), (702.0, 3)):
        harness.now = now
        harness.controller.tick(TickPhase.UPKEEP)
        harness.controller.schedule_pending()
        assert engine.looked == looked, now
    engine.memory, harness.now = 0, 1400.0
    harness.controller.handle(pod_event(waiting(worker("bad", mib=ODD))))
    harness.controller.tick(TickPhase.UPKEEP)
    bindings, _ = harness.controller.schedule_pending()
    assert (keys(bindings), harness.controller.look().quarantined) == (["default/bad"], 0)


def test_a_pod_that_cannot_be_decided_at_admission_reserves_nothing() -> None:
    harness = odd_line(Picky(ODD * MIB))
    with pytest.raises(Exception, match="main"):
        harness.controller.reserve(question(worker("x", mib=ODD)))
    assert harness.controller.look().assumed == 0


def test_no_node_is_kept_for_a_pod_of_which_an_error_comes() -> None:
    harness = odd_line(Picky(ODD * MIB), starvation_timeout=10.0)
    harness.controller.schedule_pending()
    harness.now += 60.0
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.look().reserved == 0


def test_no_victims_are_looked_for_a_pod_of_which_an_error_comes() -> None:
    engine = Picky(0)
    harness = SchedulerHarness([ONE_GPU], engine=engine, faults=[], options=chosen(preemption=True))
    harness.controller.handle(pod_event(running(worker("low"), share("GPU-t4-0", 10_000))))
    for name, mib in (("a-bad", 12_000), ("b-good", 10_000)):
        harness.controller.handle(pod_event(waiting(worker(name, mib=mib).spec(priority=5))))
    harness.controller.schedule_pending()
    engine.memory = 12_000 * MIB
    assert [order.key for order in harness.controller.preempt()] == ["default/low"]
    assert harness.faults == [("preemption", "default/a-bad")]


class Written:
    """The loop with an API server and two pods in the queue; `arm` is called between decision and write."""

    def __init__(self) -> None:
        self.harness, self.api = SchedulerHarness([ONE_GPU], faults=[]), ApiServer()
        self.woken = threading.Event()
        kube = Kube(self.api.wire)
        self.loop = SchedulingLoop(
            kube=kube,
            controller=self.harness.controller,
            recorder=EventRecorder(kube, clock=lambda: datetime.now(UTC)),
            woken=self.woken,
            now_ns=lambda: 0,
            decided=lambda: self.arm(True),
            faulted=self.harness._faulted,
            workers=Workers(),
        )
        stored = [
            self.api.create(admitted(pod(name).asks("gpufraction.io/gpu-memory", "1Gi"), gated=True))
            for name in ("bad", "good")
        ]
        bad = pods.trim(stored[0])
        self.fuse = bad["spec"]["schedulingGates"] = Fuse(bad["spec"]["schedulingGates"])
        self.harness.controller.handle(pod_event(bad))
        self.harness.controller.handle(pod_event(pods.trim(stored[1])))

    def arm(self, armed: bool) -> None:
        self.fuse.armed = armed


def test_a_placement_that_cannot_be_put_into_words_gives_its_share_back() -> None:
    written = Written()
    written.loop.once()
    assert [key for key, each in written.api.pods.items() if pods.allocation_id(each)] == ["default/good"]
    assert (written.harness.faults, written.harness.forgotten) == ([("write", "default/bad")], ["failed"])
    look = written.harness.controller.look()
    assert (look.assumed, look.confirmed, look.quarantined) == (0, 1, 1)
    written.harness.controller.check_invariants()


# -- nodes --------------------------------------------------------------------------------------------------------


class Choking(Picky):
    """An engine that cannot take one node in."""

    def put(self, node: Any) -> None:
        if node.name == "bad":
            raise ValueError(node.name)
        super().put(node)


def test_a_node_that_cannot_be_taken_in_is_none_and_others_are_placed_on() -> None:
    harness = SchedulerHarness([node("bad").gpus(4), ONE_GPU], engine=Choking(0), faults=[])
    answer = harness.controller.reserve(question(worker("x", mib=1000)))
    assert isinstance(answer, Placed)
    assert (answer.allocation.node, set(harness.faults or ())) == ("t4", {("node", "bad")})
    assert [state.name for state in harness.controller.nodes()] == ["t4"]
