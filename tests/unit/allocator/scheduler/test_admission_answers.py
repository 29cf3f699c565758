"""What the allocator answers at admission, and what it reserves with the answer."""

from __future__ import annotations

import dataclasses

import pytest

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Policy
from allocator.scheduler.admission import NotReady
from allocator.scoring import estimator
from allocator.scoring.classes import Demanded, supply_of
from contract import names
from contract.encoding.protocol import Never, Placed, Wait
from contract.encoding.quantity import GIB, MIB
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.scheduling.filters import Limits
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

T4 = node("t4").gpus(2)
TRAIN = pod("train").generated("train-").asks("aliyun.com/gpu-mem", 5)
ALL_OF_IT = pod("big").asks("gpufraction.io/gpu-memory", "15109Mi")


def share(index: int, memory: int, cores: int = 0, *, at: str = "t4", of: int = 15109 * MIB) -> GpuShare:
    return GpuShare(f"GPU-{at}-{index}", index, memory, cores, of)


def allocation(identity: str, *shares: GpuShare, at: str = "t4") -> Allocation:
    return Allocation(identity, at, (ContainerAllocation("main", shares),))


def test_a_pod_that_fits_is_placed_and_its_share_is_reserved() -> None:
    harness = SchedulerHarness([T4])
    assert harness.controller.reserve(question(TRAIN)) == Placed(allocation("id-1", share(0, 5 * GIB)), "nodeName")
    assert harness.controller.reserve(question(TRAIN)) == Placed(allocation("id-2", share(0, 5 * GIB)), "nodeName")
    assert harness.controller.reserve(question(TRAIN)) == Placed(allocation("id-3", share(1, 5 * GIB)), "nodeName")
    harness.controller.check_invariants()


def test_a_dry_run_decides_and_reserves_nothing() -> None:
    harness = SchedulerHarness([node("t4").gpus(1)])
    for _ in range(3):
        answer = harness.controller.reserve(question(ALL_OF_IT, dry_run=True))
        assert isinstance(answer, Placed)
    assert harness.controller.look().assumed == 0


def test_a_second_pass_through_admission_gets_the_same_allocation() -> None:
    harness = SchedulerHarness([T4])
    first = harness.controller.reserve(question(TRAIN))
    assert harness.controller.reserve(question(TRAIN, held="id-1", uid="review-2")) == first
    assert harness.controller.look().assumed == 1


STALE = {
    "an id that nobody made": {"held": "forged"},
    "another namespace's reservation": {"namespace": "elsewhere"},
    "a reservation for something else": {"builder": pod("train").generated("train-").asks("aliyun.com/gpu-mem", 6)},
}


@pytest.mark.parametrize("case", STALE.values(), ids=STALE.keys())
def test_an_allocation_that_is_not_this_pods_is_replaced(case: dict[str, object]) -> None:
    harness = SchedulerHarness([T4])
    harness.controller.reserve(question(TRAIN))
    asked = question(case.get("builder", TRAIN), held=str(case.get("held", "id-1")))  # type: ignore[arg-type]
    asked = dataclasses.replace(asked, namespace=str(case.get("namespace", "default")))
    answer = harness.controller.reserve(asked)
    assert isinstance(answer, Placed)
    assert answer.allocation.id == "id-2"


def test_a_pod_that_runs_already_does_not_lend_its_allocation_to_a_copy() -> None:
    harness = SchedulerHarness([T4])
    placed = harness.controller.reserve(question(TRAIN))
    assert isinstance(placed, Placed)
    harness.controller.handle(
        pod_event(
            admitted(pod("train-x").asks("aliyun.com/gpu-mem", 5).uid("u1").on("t4"), allocation=placed.allocation)
        )
    )
    again = harness.controller.reserve(question(TRAIN, held="id-1"))
    assert isinstance(again, Placed)
    assert again.allocation.id == "id-2"


def test_no_room_now_is_reported_with_figures() -> None:
    harness = SchedulerHarness([T4, node("old").gpu(mib=8192).cordoned()])
    for _ in range(2):
        harness.controller.reserve(question(pod("p").generated("p-").asks("gpufraction.io/gpu-memory", "10000Mi")))
    answer = harness.controller.reserve(question(pod("late").asks("gpufraction.io/gpu-memory", "8Gi")))
    want = "0 of 2 GPU nodes fit: 1 short of memory (largest free 5109 MiB, wanted 8192), 1 cordoned"
    assert answer == Wait("Memory", want, {"main": 8 * GIB})


def test_a_share_by_percent_that_waits_has_the_least_it_may_become_as_its_floor() -> None:
    harness = SchedulerHarness([node("a").gpus(2, mib=10_000).cordoned(), node("b").gpu(mib=20_000).cordoned()])
    answer = harness.controller.reserve(question(pod("p").asks("nano-gpu/gpu-percent", 20)))
    assert isinstance(answer, Wait)
    assert answer.floor == {"main": 2000 * MIB}


def test_what_no_gpu_could_ever_serve_is_denied_with_the_largest_that_could() -> None:
    harness = SchedulerHarness([T4, node("v100").gpu("V100", mib=32768)])
    answer = harness.controller.reserve(question(pod("p").asks("gpufraction.io/gpu-memory", "40Gi")))
    assert answer == Never(
        "Memory",
        "no GPU of this cluster can ever serve it, even when free: 0 of 2 GPU nodes fit: "
        "2 short of memory (largest 32768 MiB, wanted 40960)",
    )


def test_a_pod_that_wants_a_missing_model_gets_a_list_of_the_models() -> None:
    harness = SchedulerHarness([T4, node("v100").gpu("V100", mib=32768)])
    wishes = pod("p").asks("gpufraction.io/gpu-memory", "4Gi").annotated("gpufraction.io/gpu-models", "H100")
    answer = harness.controller.reserve(question(wishes))
    assert answer == Never(
        "Model",
        "no GPU of this cluster can ever serve it, even when free: 0 of 2 GPU nodes fit: "
        "2 without the requested GPU model; the models of this cluster: Tesla T4, V100",
    )


def test_the_administrator_may_let_the_impossible_wait() -> None:
    harness = SchedulerHarness([T4], options=chosen(unsatisfiable="wait"))
    answer = harness.controller.reserve(question(pod("p").asks("gpufraction.io/gpu-memory", "40Gi")))
    assert isinstance(answer, Wait)


def test_a_cluster_whose_gpu_nodes_are_still_to_come_lets_wait() -> None:
    harness = SchedulerHarness([])
    answer = harness.controller.reserve(question(TRAIN))
    assert answer == Wait("NoGPUs", "no GPU node has reported its GPUs yet", {"main": 5 * GIB})


def test_a_pod_held_by_somebody_elses_gate_takes_no_share_yet() -> None:
    harness = SchedulerHarness([T4])
    answer = harness.controller.reserve(question(TRAIN.gated("kueue.x-k8s.io/admission")))
    text = "the pod is held by the scheduling gate kueue.x-k8s.io/admission first"
    assert answer == Wait("ForeignGate", text, {"main": 5 * GIB})
    assert harness.controller.look().assumed == 0


def test_before_the_first_lists_nothing_is_decided() -> None:
    harness = SchedulerHarness([T4], synced=False)
    with pytest.raises(
        NotReady, match=r"still listing configmaps, elasticgpuclaims, .*, gpunodes, namespaces, nodes, pods"
    ):
        harness.controller.reserve(question(TRAIN))


MIXED = [node("a").gpus(2, mib=10_000), node("b").gpu("V100", mib=20_000)]
PERCENT = pod("p").asks("nano-gpu/gpu-percent", 20)
ELSEWHERE = "the leading allocator places the pod shortly"
BY_A_FOLLOWER: dict[str, tuple[PodBuilder, Wait | Never]] = {
    "a share by bytes": (TRAIN, Wait("NotLeading", ELSEWHERE, {"main": 5 * GIB})),
    "a percentage: the least that it may become": (PERCENT, Wait("NotLeading", ELSEWHERE, {"main": 2000 * MIB})),
    "a whole GPU": (pod("p").asks("nvidia.com/gpu", 1), Wait("NotLeading", ELSEWHERE, {"main": 10_000 * MIB})),
    "of one model": (
        PERCENT.annotated("nvidia.com/use-gputype", "v100"),
        Wait("NotLeading", ELSEWHERE, {"main": 2000 * MIB}),
    ),
    "behind somebody else's gate": (
        PERCENT.gated("others/gate"),
        Wait("ForeignGate", "the pod is held by the scheduling gate others/gate first", {"main": 2000 * MIB}),
    ),
    "on a node that has no room": (
        TRAIN.on("gone"),
        Wait("NodeName", "0 of 2 GPU nodes fit: 2 not the node that the pod names", {"main": 5 * GIB}),
    ),
    "never": (
        pod("p").asks("gpufraction.io/gpu-memory", "40Gi"),
        Never(
            "Memory",
            "no GPU of this cluster can ever serve it, even when free: 0 of 2 GPU nodes fit: "
            "2 short of memory (largest 20000 MiB, wanted 40960)",
        ),
    ),
}


@pytest.mark.parametrize(("asked", "want"), BY_A_FOLLOWER.values(), ids=BY_A_FOLLOWER.keys())
def test_a_replica_that_does_not_lead_says_what_it_sees_and_reserves_nothing(
    asked: PodBuilder, want: Wait | Never
) -> None:
    harness = SchedulerHarness(MIXED, leads=False)
    assert harness.controller.reserve(question(asked)) == want
    assert harness.controller.look().assumed == 0


def test_a_follower_confirms_no_allocation() -> None:
    harness = SchedulerHarness([T4])
    harness.controller.reserve(question(TRAIN))
    harness.leads = False
    answer = harness.controller.reserve(question(TRAIN, held="id-1"))
    assert isinstance(answer, Wait)
    assert answer.code == "NotLeading"


@pytest.mark.parametrize(
    ("wishes", "want"),
    [
        ({"nvidia.com/use-gpuuuid": "GPU-b-0"}, 4000),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a-0"}, 2000),
        ({"nvidia.com/nouse-gpuuuid": "GPU-a-0,GPU-a-1"}, 4000),
        ({"nvidia.com/use-gpuuuid": "GPU-nowhere"}, 0),
    ],
)
def test_the_floor_is_that_of_the_gpus_that_are_wished_for(wishes: dict[str, str], want: int) -> None:
    """Otherwise its author could name a large card, and have a small one counted."""
    asked = pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem-percentage", 20).gated("others/gate")
    for key, value in wishes.items():
        asked = asked.annotated(key, value)
    answer = SchedulerHarness(MIXED).controller.reserve(question(asked))
    assert isinstance(answer, Wait)
    assert answer.floor == {"main": want * MIB}


def test_the_pods_own_word_on_pinning_counts() -> None:
    harness = SchedulerHarness([T4])
    answer = harness.controller.reserve(question(TRAIN.annotated(names.PLACEMENT, "affinity")))
    assert isinstance(answer, Placed)
    assert answer.pin == "affinity"


def test_limits_are_the_administrators() -> None:
    harness = SchedulerHarness([node("t4").gpus(1)], limits=Limits(max_sharers=1))
    harness.controller.reserve(question(TRAIN))
    answer = harness.controller.reserve(question(TRAIN))
    assert isinstance(answer, Wait)
    assert answer.reason == "0 of 1 GPU nodes fit: 1 with 1 pods on every GPU already"


def test_pods_go_by_what_was_learnt_once_it_is_taken_over() -> None:
    """Best fit takes the card with 5 GiB left, which is all that the seen requests need; 8 minus 3 leave that too."""
    harness = SchedulerHarness([node("t4").gpus(2, mib=15 * 1024)], policy=Policy("value"))
    for gib in (10, 7):
        harness.controller.reserve(
            question(pod("before").generated("before-").asks("gpufraction.io/gpu-memory", f"{gib}Gi"))
        )
    asked = question(pod("train").asks("gpufraction.io/gpu-memory", "3Gi"), dry_run=True)
    by_best_fit = harness.controller.reserve(asked)
    supply = supply_of({state.name: state for state in harness.controller.nodes()}, harness.limits)
    learnt = estimator.make("value", {Demanded(0, memory=5 * GIB): 1.0}, supply)
    assert learnt is not None
    harness.controller.adopt(learnt)
    by_worth = harness.controller.reserve(asked)
    assert isinstance(by_best_fit, Placed)
    assert isinstance(by_worth, Placed)
    assert [p.allocation.containers[0].shares[0].index for p in (by_best_fit, by_worth)] == [0, 1]
