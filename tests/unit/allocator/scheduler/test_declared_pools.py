"""Pods that only a new node of a declared pool can serve: they wait, say so, and count as what they will get."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.provisioning.part import NodesExpected
from allocator.features.provisioning.wishes import Expectation
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import InventoryChanged, NodeChanged, PoolsDeclared
from contract.encoding.protocol import Never, Placed, Wait
from contract.encoding.quantity import MIB
from contract.nodes.attributes import facts, trim
from tests.builders import NodeBuilder, PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

T4 = node("t4").gpus(2, mib=16_000)
A100 = node("a100").labelled("pool", "a100").gpus(2, "A100", mib=80_000)
"""An empty node of the pool `a100`."""
PERCENT = pod("p").asks("nano-gpu/gpu-percent", 20)
WHOLE = pod("p").asks("nvidia.com/gpu", 1)
LARGE = pod("p").asks("gpufraction.io/gpu-memory", f"{40_000}Mi")
NOON = 1_767_614_400.0
"""2026-01-05T12:00:00Z."""
ONLY_THERE = "no node of this cluster can serve it; a node of pool a100 would"


def scheduler(
    *nodes: NodeBuilder, pools: tuple[NodeBuilder, ...] = (A100,), learned: frozenset[str] = frozenset()
) -> SchedulerHarness:
    """With these nodes, and these empty nodes of pools."""
    harness = SchedulerHarness(nodes)
    harness.controller.handle(PoolsDeclared(tuple(each.state() for each in pools), learned))
    return harness


def answer(harness: SchedulerHarness, builder: PodBuilder) -> Wait:
    found = harness.controller.reserve(question(builder))
    assert isinstance(found, Wait)
    return found


FUTURE: dict[str, tuple[tuple[NodeBuilder, ...], PodBuilder]] = {
    "a larger card than any present": ((T4,), LARGE),
    "more such cards than a node has": (
        (node("one").gpu("A100", mib=80_000),),
        pod("p").asks("gpufraction.io/gpu-memory", f"{80_000}Mi").asks("gpufraction.io/gpu-count", 2),
    ),
    "a whole card where there is no GPU node": ((), WHOLE),
    "a percentage where there is no GPU node": ((), PERCENT),
    "an amount where there is no GPU node": ((), pod("p").asks("gpufraction.io/gpu-memory", "8Gi")),
    "a selector of the pool": (
        (T4,),
        pod("p").asks("gpufraction.io/gpu-memory", "8Gi").spec(nodeSelector={"pool": "a100"}),
    ),
}


@pytest.mark.parametrize(("nodes", "builder"), FUTURE.values(), ids=FUTURE.keys())
def test_what_only_a_new_node_would_serve_waits_and_says_so(
    nodes: tuple[NodeBuilder, ...], builder: PodBuilder
) -> None:
    assert answer(scheduler(*nodes), builder).reason == ONLY_THERE


@pytest.mark.parametrize("following", [False, True], ids=["the leader", "a replica that does not lead"])
def test_every_replica_lets_wait(following: bool) -> None:
    harness = scheduler(T4)
    harness.leads = not following
    assert answer(harness, LARGE).reason == ONLY_THERE


def test_what_no_pool_would_serve_either_is_still_refused() -> None:
    harness = scheduler(T4)
    larger = pod("p").asks("gpufraction.io/gpu-memory", f"{90_000}Mi")
    assert isinstance(harness.controller.reserve(question(larger)), Never)
    harness.controller.handle(PoolsDeclared(()))
    assert isinstance(harness.controller.reserve(question(LARGE)), Never)


UNCERTAIN: dict[str, tuple[NodeBuilder, PodBuilder]] = {
    "its taint is not tolerated": (A100.tainted("gpu"), LARGE),
    "its other labels are not wanted": (A100, LARGE.spec(nodeSelector={"zone": "a"})),
    "its CPU does not do": (A100.allocatable(cpu=1_000), LARGE.needs(cpu=2)),
}


@pytest.mark.parametrize(("pool", "builder"), UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_a_pod_is_not_promised_a_node_that_does_not_take_it(pool: NodeBuilder, builder: PodBuilder) -> None:
    found = answer(scheduler(T4, pools=(pool,)), builder)
    assert found.reason.startswith("0 of 1 GPU nodes fit: "), "its GPUs would do, so it waits, as for any such node"


def test_a_pod_that_an_existing_node_serves_later_is_referred_to_that_node() -> None:
    busy = node("busy").gpu("A100", mib=80_000, used_mib=79_000)
    full = scheduler(busy.cordoned())
    assert answer(full, LARGE).reason == "0 of 1 GPU nodes fit: 1 cordoned"


FLOORS: dict[str, tuple[tuple[NodeBuilder, ...], frozenset[str], int]] = {
    "of a GPU that was only declared an eighth may be missing": ((), frozenset(), 14_000),
    "a GPU of nodes that were seen is known": ((), frozenset(("a100",)), 16_000),
    "a smaller GPU that is there": ((node("t4").gpu(mib=10_000).cordoned(),), frozenset(("a100",)), 2_000),
    "a larger GPU that is there": ((node("h").gpu(mib=90_000).cordoned(),), frozenset(("a100",)), 16_000),
}


@pytest.mark.parametrize(("nodes", "learned", "mib"), FLOORS.values(), ids=FLOORS.keys())
def test_a_percentage_counts_as_that_of_the_smallest_existing_or_possible_gpu(
    nodes: tuple[NodeBuilder, ...], learned: frozenset[str], mib: int
) -> None:
    assert answer(scheduler(*nodes, learned=learned), PERCENT).floor == {"main": mib * MIB}


def test_a_pod_in_the_queue_expects_the_node_too_and_runs_when_it_comes() -> None:
    harness = scheduler(T4)
    harness.controller.handle(pod_event(admitted(LARGE.uid("u1"), gated=True)))
    bindings, reports = harness.controller.schedule_pending()
    assert (bindings, [report.reason for report in reports]) == ([], [f"waiting: {ONLY_THERE}"])
    come = replace(A100, name="n1")
    harness.controller.handle(NodeChanged(facts(trim(come.json()))))
    harness.controller.handle(InventoryChanged(come.inventory()))
    [binding], _ = harness.controller.schedule_pending()
    assert binding.allocation.node == "n1"
    harness.controller.check_invariants()


def test_a_pool_that_is_declared_later_updates_waiting_pods() -> None:
    harness = scheduler(T4, pools=())
    harness.controller.handle(pod_event(admitted(LARGE.uid("u1"), gated=True)))
    _, [before] = harness.controller.schedule_pending()
    harness.controller.handle(PoolsDeclared((A100.state(),)))
    harness.now += 60
    _, [after] = harness.controller.schedule_pending()
    assert ("short of memory" in before.reason, after.reason) == (True, f"waiting: {ONLY_THERE}")


def test_a_node_without_its_pods_keeps_those_that_every_node_has() -> None:
    harness = SchedulerHarness([T4.allocatable(cpu=8_000)])
    owners = {"DaemonSet": "agent", "Node": "static", "ReplicaSet": "app"}
    for kind, name in owners.items():
        made = pod(name, "kube-system").uid(name).container("main").needs(cpu=1).host_port(len(name)).on("t4").json()
        made["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
        harness.controller.handle(pod_event(made))
    placed = harness.controller.reserve(question(pod("p").needs(cpu=2).asks("gpufraction.io/gpu-memory", "8Gi")))
    assert isinstance(placed, Placed)
    [busy], [idle] = harness.controller.nodes(), harness.controller.idle_nodes()
    assert (busy.requested.cpu, idle.requested.cpu, idle.requested.pods) == (5_000, 2_000, 2)
    assert {usage.memory for usage in idle.usage} == {0}
    assert {port for _, _, port in idle.host_ports} == {len("agent"), len("static")}


REQUESTED = Expectation("a100", NOON)
LATER = Expectation("a100", None, until=NOON + 60, most=3, failed="too-late")
ONLY = "no node of this cluster can serve it"
MESSAGES: dict[str, tuple[Expectation, str, str, str]] = {
    "a node was asked for": (
        REQUESTED,
        "NodeRequested",
        "",
        "a node of pool a100 was requested at 2026-01-05T12:00:00Z",
    ),
    "a node has come": (
        replace(REQUESTED, node="n7"),
        "NodeRequested",
        "",
        "node n7 of pool a100 has joined and is not ready yet",
    ),
    "no node came": (
        LATER,
        "NodeNotBrought",
        "NodeNotBrought",
        "no node of pool a100 joined in time; another is requested at 2026-01-05T12:01:00Z",
    ),
    "the autoscaler refused": (
        replace(LATER, failed="refused"),
        "NodeNotBrought",
        "NodeNotBrought",
        "the autoscaler could not add a node of pool a100; another is requested at 2026-01-05T12:01:00Z",
    ),
    "a node came without GPUs": (
        replace(LATER, failed="without-gpus"),
        "NodeNotBrought",
        "NodeNotBrought",
        "a node of pool a100 joined and reported no GPUs; another is requested at 2026-01-05T12:01:00Z",
    ),
    "the pool is full": (
        replace(LATER, until=0.0),
        "PoolFull",
        "",
        "pool a100 already has its maximum number of nodes (3)",
    ),
}


@pytest.mark.parametrize(("expectation", "code", "warning", "text"), MESSAGES.values(), ids=MESSAGES.keys())
@pytest.mark.parametrize("full", [False, True], ids=["only a new node would serve it", "the present nodes are full"])
def test_the_message_of_a_pod_names_the_node_to_expect(
    expectation: Expectation, code: str, warning: str, text: str, full: bool
) -> None:
    harness = scheduler(node("busy").gpu("A100", mib=80_000, used_mib=79_000).cordoned() if full else T4)
    harness.controller.handle(pod_event(admitted(LARGE.uid("u1"), gated=True)))
    harness.controller.handle(NodesExpected({"u1": expectation}))
    _, [report] = harness.controller.schedule_pending()
    assert isinstance(report, StatusUpdate)
    base = "0 of 1 GPU nodes fit: 1 cordoned" if full else ONLY
    assert (report.code, report.warning or "", report.reason) == (code, warning, f"waiting: {base}; {text}")


def test_a_node_request_is_an_event_and_giving_it_up_is_a_warning() -> None:
    harness = scheduler(T4)
    harness.controller.handle(pod_event(admitted(LARGE.uid("u1"), gated=True)))
    reported = []
    for expected in ({}, {"u1": REQUESTED}, {"u1": replace(REQUESTED, node="n7")}, {"u1": LATER}, {}):
        harness.controller.handle(NodesExpected(expected))
        reported += harness.controller.schedule_pending()[1]
        harness.now += 1
    reports = [each for each in reported if isinstance(each, StatusUpdate)]
    assert [(each.code, each.warning or "") for each in reports if each.event] == [
        (reports[0].code, ""),
        ("NodeRequested", ""),
        ("NodeNotBrought", "NodeNotBrought"),
        (reports[0].code, ""),
    ]


def test_the_queue_is_tried_at_once_when_an_expectation_changes() -> None:
    harness = scheduler(T4)
    harness.controller.handle(NodesExpected({"u1": REQUESTED}))
    before = harness.woken
    harness.controller.handle(NodesExpected({"u1": replace(REQUESTED, requested=NOON + 1)}))
    assert harness.woken == before, "the same word: the figures are refreshed with all others"
    harness.controller.handle(NodesExpected({"u1": LATER}))
    assert harness.woken == before + 1
