"""How a pod is pinned to its node: the whole table."""

from __future__ import annotations

import dataclasses

import pytest

from allocator.cache.cache import Cache, Pending
from allocator.cache.podinfo import pod_event, read_pod
from allocator.engine import pinning
from allocator.engine.engine import Engine
from allocator.scheduler.events import PodDeleted
from contract import pods
from contract.encoding.protocol import Placed, Question
from contract.encoding.quantity import GIB
from contract.model import Compute
from contract.scheduling.clusterfilters.left_open import NOTHING, LeftOpen, OpenRule
from contract.scheduling.needs import needs_of
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, question

A_NODE = node("n").gpus(1)
PLAIN = pod("p").asks("gpufraction.io/gpu-memory", "1Gi").needs(cpu="1", memory="1Gi")
CASES: dict[str, tuple[str, PodBuilder, object, str]] = {
    "all that matters was checked here": ("auto", PLAIN, A_NODE, "nodeName"),
    "a word that is no mode counts as auto": ("sideways", PLAIN, A_NODE, "nodeName"),
    "asked for by name": ("nodeName", PLAIN, A_NODE.requested(pods=109), "nodeName"),
    "asked for by name, and another scheduler judges it": (
        "nodeName",
        PLAIN.spec(schedulerName="volcano"),
        A_NODE,
        "affinity",
    ),
    "asked for affinity": ("affinity", PLAIN, A_NODE, "affinity"),
    "the pod names its node itself": ("affinity", PLAIN.on("n"), A_NODE, "nodeName"),
    "another scheduler": ("auto", PLAIN.spec(schedulerName="volcano"), A_NODE, "affinity"),
    "an emptyDir is nobody's business": (
        "auto",
        PLAIN.spec(volumes=[{"name": "v", "emptyDir": {}}]),
        A_NODE,
        "nodeName",
    ),
    "a resource of which nodes have few": ("auto", PLAIN.asks("rdma/hca", 1), A_NODE, "affinity"),
    "little CPU is left": ("auto", PLAIN, A_NODE.requested(cpu=30_000), "affinity"),
    "the last pod slot": ("auto", PLAIN, A_NODE.requested(pods=109), "affinity"),
    "three quarters are taken with it": ("auto", PLAIN, A_NODE.requested(cpu=23_000), "nodeName"),
    "more than that": ("auto", PLAIN, A_NODE.requested(cpu=23_001), "affinity"),
    "little memory is left": ("auto", PLAIN, A_NODE.requested(memory=96 * GIB), "affinity"),
}
PENDING: dict[str, tuple[str, PodBuilder, Compute, str]] = {
    "little waits": ("auto", PLAIN, Compute(cpu=23_000, memory=95 * GIB, storage=1, pods=108), "nodeName"),
    "CPU": ("auto", PLAIN, Compute(cpu=23_001), "affinity"),
    "memory": ("auto", PLAIN, Compute(memory=96 * GIB), "affinity"),
    "storage": ("auto", PLAIN, Compute(storage=201 * GIB), "affinity"),
    "pods": ("auto", PLAIN, Compute(pods=109), "affinity"),
    "who asked for it by name has it": ("nodeName", PLAIN, Compute(cpu=64_000), "nodeName"),
    "the pod names its node itself": ("auto", PLAIN.on("n"), Compute(cpu=64_000), "nodeName"),
}


OPEN = {
    "nothing is left open": ("auto", NOTHING, "nodeName"),
    "a volume is bound at binding": ("auto", LeftOpen(binding=True), "affinity"),
    "and the pod asked for nodeName": ("nodeName", LeftOpen(binding=True), "affinity"),
    "a claim that is not allocated": ("auto", LeftOpen(frozenset({OpenRule.CLAIM}), binding=True), "affinity"),
    "other pods may change the answer": ("auto", LeftOpen(changing=True), "affinity"),
    "and the pod asked for nodeName all the same": ("nodeName", LeftOpen(changing=True), "affinity"),
}


@pytest.mark.parametrize(("mode", "left", "want"), OPEN.values(), ids=OPEN.keys())
def test_the_pin_of_a_pod_about_which_something_is_left_open(mode: str, left: LeftOpen, want: str) -> None:
    needs = needs_of(PLAIN.json())
    assert pinning.choose(mode, False, needs, A_NODE.state(), left_open=left) == want
    assert pinning.choose(mode, False, dataclasses.replace(needs, node_name="n"), A_NODE.state(), left_open=left) == (
        "nodeName"
    )


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_pin(case: tuple[str, PodBuilder, object, str]) -> None:
    mode, builder, at, want = case
    made = builder.json()
    left = pinning.only_scheduler_can_judge(made)
    assert pinning.choose(mode, left, needs_of(made), at.state()) == want  # type: ignore[attr-defined]


NOT_EVALUATED = {
    "a pod of which everything is evaluated": (PLAIN.spec(schedulerName="default-scheduler"), ()),
    "all that is not": (
        PLAIN.asks("rdma/hca", 1).spec(schedulerName="volcano", resourceClaims=[{"name": "c"}]),
        ("scheduler", "claims"),
    ),
    "claims of ours": (
        PLAIN.spec(resourceClaims=[{"name": "gpufraction", "resourceClaimName": "gpufraction.io-1"}]),
        (),
    ),
    "what filters evaluate": (PLAIN.spec(topologySpreadConstraints=[{}]), ()),
}


@pytest.mark.parametrize("case", NOT_EVALUATED.values(), ids=NOT_EVALUATED.keys())
def test_what_is_evaluated_nowhere(case: tuple[PodBuilder, tuple[str, ...]]) -> None:
    assert pinning.not_evaluated(case[0].json()) == case[1]


@pytest.mark.parametrize("case", PENDING.values(), ids=PENDING.keys())
def test_what_is_about_to_be_placed_counts_on_every_node(case: tuple[str, PodBuilder, Compute, str]) -> None:
    mode, builder, pending, want = case
    made = builder.json()
    left = pinning.only_scheduler_can_judge(made)
    assert pinning.choose(mode, left, needs_of(made), A_NODE.state(), pending) == want


def test_recent_pods_without_a_node_count_twice_as_pending() -> None:
    pending = Pending()
    pending.put("a", Compute(cpu=1000, pods=1), 100.0)
    pending.put("b", Compute(cpu=500, pods=1), 101.5)
    assert pending.total(101.5) == Compute(cpu=3000, pods=4)
    pending.drop("a")
    assert pending.total(101.5) == Compute(cpu=2000, pods=3), "more like it may come"
    pending.put("b", Compute(cpu=700, pods=1), 102.0)
    assert pending.total(103.0) == Compute(cpu=1200, pods=2)
    assert pending.total(104.0) == Compute(cpu=700, pods=1)
    pending.drop("b")
    pending.drop("unknown")
    assert (pending.total(110.0), pending.uids()) == (Compute(), frozenset())
    pending.check_invariants()


ON_ITS_WAY = {
    "kube-scheduler is about to place it": (pod("p"), True),
    "it was said to fit nowhere, and may in a moment": (pod("p").phase("Pending"), True),
    "a gate holds it": (pod("p").gated("others/gate"), False),
    "our gate holds it": (pod("p").gated(), False),
    "it has a node": (pod("p").on("n"), False),
    "it has finished": (pod("p").phase("Failed"), False),
}


@pytest.mark.parametrize(("made", "want"), ON_ITS_WAY.values(), ids=ON_ITS_WAY.keys())
def test_who_is_pending(made: PodBuilder, want: bool) -> None:
    cluster = Cache(engine=Engine())
    cluster.put_pod(read_pod(pods.trim(made.uid("u").json())), 1.0)
    assert ("u" in cluster.pending, "u" in cluster.pod_uids() or not want) == (want, True)
    cluster.put_pod(read_pod(pods.trim(pod("p").uid("u").on("n").json())), 2.0)
    assert "u" not in cluster.pending
    cluster.put_pod(read_pod(pods.trim(pod("q").uid("v").json())), 2.0)
    cluster.drop_pod("v")
    assert cluster.pending.uids() == frozenset()
    cluster.check_invariants()


def test_a_pod_is_bound_by_kube_scheduler_while_others_wait_for_it() -> None:
    harness = SchedulerHarness([A_NODE])
    asked = question(PLAIN.generated("p-"))
    assert _pin(harness, asked) == "nodeName"
    for number in range(30):
        harness.controller.handle(pod_event(pods.trim(pod(f"other-{number}").uid(f"u{number}").needs(cpu="1").json())))
    assert _pin(harness, asked) == "affinity"
    for number in range(30):
        harness.controller.handle(PodDeleted(f"u{number}"))
    assert _pin(harness, asked) == "affinity", "more may be on their way"
    harness.now += 3
    assert _pin(harness, asked) == "nodeName"


def _pin(harness: SchedulerHarness, asked: Question) -> str:
    answer = harness.controller.reserve(dataclasses.replace(asked, dry_run=True))
    assert isinstance(answer, Placed)
    return answer.pin
