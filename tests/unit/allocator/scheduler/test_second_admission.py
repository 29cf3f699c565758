"""Admission asks twice about one pod: the first answer is kept if nothing that it was based on has changed."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from contract import names
from contract.encoding.protocol import Answer, Never, Placed, Wait
from contract.model import PoolSharing
from contract.scheduling import node_pin
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, question

FIRST = (
    pod("train")
    .asks("aliyun.com/gpu-mem", 5)
    .needs(cpu="1", memory="1Gi")
    .spec(nodeSelector={"pool": "a"})
    .tolerates("dedicated", value="gpu", operator="Equal")
)
NODES = [
    node("a1").gpu(sharing=PoolSharing(limit_ratio=3.0)).labelled("pool", "a").tainted("dedicated", "gpu"),
    node("b1").gpus(1).labelled("pool", "b").tainted("dedicated", "gpu"),
]
ZONE_B = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["b"]}]}
PREFERS_A = {
    "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "preference": {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}]}}
        ]
    }
}
ELSEWHERE = FIRST.spec(nodeSelector={"pool": "b"})


def harness(placement: str = "auto") -> SchedulerHarness:
    return SchedulerHarness(NODES, options=chosen(placement=placement))


def asked_again(it: SchedulerHarness, changed: PodBuilder, **more: object) -> Answer:
    first = it.controller.reserve(question(FIRST))
    assert isinstance(first, Placed)
    assert (first.allocation.id, first.allocation.node) == ("id-1", "a1")
    return it.controller.reserve(dataclasses.replace(question(changed, held="id-1"), **more))  # type: ignore[arg-type]


STANDS: dict[str, PodBuilder] = {
    "nothing": FIRST,
    "a container beside it that needs nothing": FIRST.container("proxy"),
    "a label, an annotation and an environment": FIRST.labelled("a", "b").annotated("a", "b").env("A", "b"),
    "a preference": FIRST.spec(affinity={"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
}
CHANGES: dict[str, tuple[PodBuilder, tuple[str, str] | str]] = {
    "the selector": (ELSEWHERE, ("b1", "nodeName")),
    "required affinity": (FIRST.spec(nodeSelector={}).affinity(ZONE_B), ("b1", "nodeName")),
    "a preference between nodes": (FIRST.spec(affinity=PREFERS_A), ("a1", "nodeName")),
    "a selector that nothing has": (FIRST.spec(nodeSelector={"pool": "c"}), "Selector"),
    "the toleration": (FIRST.spec(tolerations=[]), "Taint"),
    "CPU": (FIRST.needs(cpu="31"), ("a1", "affinity")),
    "CPU that no node has": (FIRST.needs(cpu="33"), "CPU"),
    "memory that no node has": (FIRST.needs(memory="129Gi"), "MemoryOfNode"),
    "a container that needs CPU": (FIRST.container("proxy").needs(cpu="32"), "CPU"),
    "a host port": (FIRST.host_port(80), ("a1", "nodeName")),
    "the request": (
        pod("train").asks("aliyun.com/gpu-mem", 6).tolerates("dedicated"),
        ("a1", "nodeName"),
    ),
    "what only kube-scheduler can judge": (FIRST.spec(schedulerName="another"), ("a1", "affinity")),
    "the pin that is wanted": (FIRST.annotated(names.PLACEMENT, "affinity"), ("a1", "affinity")),
    "another system's gate": (FIRST.gated("kueue.x-k8s.io/admission"), "ForeignGate"),
    "the node that it names": (FIRST.spec(nodeSelector={}).on("b1"), ("b1", "nodeName")),
    "the runtime class": (FIRST.spec(runtimeClassName="nvidia"), ("a1", "nodeName")),
    "the isolation": (FIRST.annotated(names.ISOLATION, "driver"), "Isolation"),
    "a limit that no node enforces": (
        pod("train").asks(names.GPU_MEMORY, "5Gi").asks(names.GPU_MEMORY_LIMIT, "12Gi").tolerates("dedicated"),
        "LimitNotHeld",
    ),
    "the priority": (FIRST.spec(priority=10), ("a1", "nodeName")),
}


@pytest.mark.parametrize("placement", ["auto", "affinity"])
@pytest.mark.parametrize("changed", STANDS.values(), ids=STANDS.keys())
def test_what_nothing_depends_on_leaves_the_place(changed: PodBuilder, placement: str) -> None:
    it = harness(placement)
    again = asked_again(it, changed)
    assert isinstance(again, Placed)
    assert (again.allocation.id, again.pin) == ("id-1", "nodeName" if placement == "auto" else "affinity")
    assert it.controller.look().assumed == 1
    assert it.forgotten == []


@pytest.mark.parametrize(("changed", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_what_decided_it_is_decided_again(changed: PodBuilder, want: tuple[str, str] | str) -> None:
    it = harness()
    again = asked_again(it, changed)
    if isinstance(want, str):
        assert isinstance(again, Wait)
        assert (again.code, it.controller.look().assumed) == (want, 0)
    else:
        assert isinstance(again, Placed)
        assert (again.allocation.node, again.pin, again.allocation.id) == (*want, "id-2")
        assert it.controller.look().assumed == 1
    assert it.forgotten == ["changed"]
    it.controller.check_invariants()


def test_what_could_never_be_served_any_more_is_refused_and_leaves_nothing() -> None:
    it = harness()
    again = asked_again(it, pod("train").asks("aliyun.com/gpu-mem", 50).tolerates("dedicated"))
    assert isinstance(again, Never)
    assert it.controller.look().assumed == 0


def own_pin(builder: PodBuilder) -> PodBuilder:
    """The pod's author pins it in the same form as gpufraction, as a DaemonSet's controller does."""
    return builder.affinity({"matchFields": [node_pin.requirement("a1")]})


def test_removing_an_authors_requirement_that_reads_like_our_pin_is_harmless() -> None:
    it = harness("affinity")
    first = it.controller.reserve(question(own_pin(FIRST)))
    assert it.controller.reserve(question(FIRST, held="id-1")) == first
    assert it.forgotten == []


IGNORED: dict[str, Callable[[SchedulerHarness], Answer]] = {
    "a dry run": lambda it: asked_again(it, ELSEWHERE, dry_run=True),
    "another namespace": lambda it: asked_again(it, ELSEWHERE, namespace="elsewhere"),
    "another name": lambda it: asked_again(it, pod("other").asks("aliyun.com/gpu-mem", 5).tolerates("dedicated")),
}


@pytest.mark.parametrize("case", IGNORED.values(), ids=IGNORED.keys())
def test_whoever_is_not_the_pod_itself_takes_nothing_from_it(case: Callable[[SchedulerHarness], Answer]) -> None:
    it = harness()
    case(it)
    assert it.forgotten == []
    assert isinstance(it.controller.reserve(question(FIRST, held="id-1")), Placed)


def test_what_is_given_back_goes_to_whoever_waits_for_it() -> None:
    it = harness()
    woken = it.woken
    asked_again(it, ELSEWHERE)
    assert it.woken > woken
