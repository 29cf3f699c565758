"""
Pods that keep a waiting pod off a node are evicted like those that take its room, and none is evicted without effect.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allocator.features.defragmentation import moves as defragmentation
from allocator.features.defragmentation.moves import Home, Larger, Movable
from allocator.preemption.planner import PreemptionRequest
from allocator.scheduler.events import EvictionAnswered, PodDeleted
from contract.model import Compute, Usage
from contract.scheduling.demand import Demand
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import request_of
from tests.unit.allocator.preemption.test_preemption import Bench, worker

JSON = dict[str, Any]
ON = chosen(preemption=True)
HOST, ZONE = "kubernetes.io/hostname", "zone"


def term(app: str, key: str) -> JSON:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}


def rule(kind: str, app: str, key: str) -> JSON:
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term(app, key)]}}


def spreading(builder: PodBuilder, app: str) -> PodBuilder:
    constraint = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    selector = {"labelSelector": {"matchLabels": {"app": app}}}
    return builder.labelled("app", app).spec(topologySpreadConstraints=[{**constraint, **selector}])


def small(name: str, app: str, *, priority: int = 0, apart: str = "", size: str = "1Gi") -> PodBuilder:
    made = worker(name, size, priority=priority).labelled("app", app)
    return made.spec(affinity=rule("podAntiAffinity", apart, HOST)) if apart else made


def vip(*, apart: str = "", key: str = HOST, beside: str = "", size: str = "1Gi") -> PodBuilder:
    made = worker("vip", size, priority=10).labelled("app", "vip")
    apart_from = rule("podAntiAffinity", apart, key) if apart else {}
    return made.spec(affinity={**apart_from, **(rule("podAffinity", beside, HOST) if beside else {})})


def bench(*running: PodBuilder, nodes: int = 1) -> Bench:
    made = [node(f"n{i}").labelled(HOST, f"n{i}").labelled(ZONE, f"z{i}").gpu(mib=16384) for i in range(nodes)]
    harness = Bench(made, options=ON)
    for each in running:
        harness.run(each)
    return harness


def victims(harness: Bench) -> list[str]:
    return [order.uid for order in harness.controller.preempt() or []]


OPENED: dict[str, tuple[list[PodBuilder], PodBuilder, int, list[str]]] = {
    "the waiting pod's anti-affinity": ([small("web", "web")], vip(apart="web"), 1, ["uid-web"]),
    "the victim's own anti-affinity": ([small("web", "web", apart="vip")], vip(), 1, ["uid-web"]),
    "only those in the way": ([small("web", "web"), small("db", "db")], vip(apart="web"), 1, ["uid-web"]),
    "one in the way, and one whose room is needed": (
        [small("web", "web"), small("db", "db", size="10Gi")],
        vip(apart="web", size="8Gi"),
        1,
        ["uid-web", "uid-db"],
    ),
    "the room of the one in the way is enough": (
        [small("web", "web", size="10Gi"), small("db", "db", size="6Gi")],
        vip(apart="web", size="8Gi"),
        1,
        ["uid-web"],
    ),
    "the node with the fewest in the way": (
        [small("w1", "web"), small("w2", "web", apart="w"), small("w3", "web").selects(zone="z1")],
        vip(apart="web"),
        2,
        ["uid-w3"],
    ),
    "one of higher priority stays": ([small("web", "web", priority=20)], vip(apart="web"), 1, []),
    "one of equal priority stays": ([small("web", "web", priority=10)], vip(apart="web"), 1, []),
    "the pod that it must be beside": ([small("db", "db", size="16Gi")], vip(beside="db"), 1, []),
    "another than the one that it must be beside": (
        [small("db", "db", size="8Gi"), small("web", "web", size="8Gi")],
        vip(beside="db", size="4Gi"),
        1,
        ["uid-web"],
    ),
    "affinity that nobody's end brings": ([small("web", "web")], vip(beside="db"), 1, []),
}


@pytest.mark.parametrize("case", OPENED.values(), ids=OPENED.keys())
def test_victims_by_rules_between_pods(case: tuple[list[PodBuilder], PodBuilder, int, list[str]]) -> None:
    running, waiting, nodes, want = case
    harness = bench(*running, nodes=nodes)
    harness.wait(waiting)
    assert sorted(victims(harness)) == sorted(want)


def test_the_pod_is_placed_once_the_one_in_its_way_has_ended_and_not_before() -> None:
    harness = bench()
    web = harness.run(small("web", "web"))
    harness.wait(vip(apart="web"))
    [order] = harness.controller.preempt()
    harness.controller.handle(EvictionAnswered(order, "evicted"))
    harness.second()
    harness.end(web)
    assert harness.placed() == [], "it is still ending"
    harness.controller.handle(PodDeleted("uid-web"))
    assert harness.placed() == ["default/vip"]


def test_a_pod_that_ends_anyway_is_waited_for_and_nobody_is_evicted() -> None:
    harness = bench()
    web = harness.run(small("web", "web"))
    harness.wait(vip(apart="web"))
    harness.end(web)
    harness.second()
    assert (victims(harness), harness.kept) == ([], "n0 for uid-vip")


def test_an_eviction_makes_a_zone_the_one_with_the_fewest() -> None:
    harness = bench(nodes=2)
    harness.run(worker("filler", "15Gi", priority=20).selects(zone="z0"))
    harness.run(spreading(worker("a", "1Gi", priority=20), "web").selects(zone="z0"))
    harness.run(spreading(worker("b", "1Gi"), "web").selects(zone="z1"))
    harness.run(spreading(worker("c", "1Gi", at="2030-01-01T00:00:01Z"), "web").selects(zone="z1"))
    harness.wait(spreading(worker("vip", "1Gi", priority=10), "web"))
    assert victims(harness) == ["uid-c"]


def test_a_pod_moves_to_no_node_where_another_refuses_it() -> None:
    a, b = (node(name).gpu(mib=16384).state() for name in ("a", "b"))
    half = Demand(8 << 30, 0, exclusive=False)
    a = replace(a, usage=(Usage(half.memory, 0, 1),))
    b = replace(b, usage=(Usage(1 << 30, 0, 1),))
    there = AllocatedPod("u", "team/u", "a", 0, 1, {a.gpus[0].uuid: half}, Compute())
    whole = PreemptionRequest(wants("16Gi"), 0, DEFAULT_LIMITS)
    larger = Larger(whole, cards=1.0, could=1e9, most=4)
    free = Movable(wants("8Gi"), cards=0.5, work=1.0)
    homes: dict[Home, bool] = {}
    moves = [
        defragmentation.choose([a, b], {"a": [there]}, larger, {"u": each}, homes)
        for each in (free, replace(free, refused=frozenset({"b"})))
    ]
    assert [move and dict(move.places) for move in moves] == [{"u": "b"}, None]


def wants(memory: str) -> SchedulingRequest:
    return SchedulingRequest(request_of(pod("p").asks("gpufraction.io/gpu-memory", memory).json()), PodNeeds())
