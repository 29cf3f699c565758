"""What admissions may reserve before pods are stored: the limits, who must wait, and when a pod is not coming."""

from __future__ import annotations

import dataclasses

import pytest

from allocator.cache.podinfo import pod_event
from allocator.cache.unconfirmed import OVERDUE, PROBATION, Arrivals, Unconfirmed, weight
from allocator.scheduler.events import AssumedChecked, TickPhase
from contract import names
from contract.encoding.protocol import Answer, Never, Placed, Wait
from contract.encoding.quantity import GIB
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from contract.reasons.pods import AnswerReason
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, overdue, question

NODES = [node(name).gpus(4, mib=16 * 1024) for name in ("a", "b")]
"""Eight GPUs of 16 GiB: a quarter of them is two, half of them is four."""
SMALL, WHOLE = "1Gi", "16Gi"


def asks(size: str, namespace: str = "default") -> PodBuilder:
    return pod("p", namespace).generated("p-").asks("gpufraction.io/gpu-memory", size)


def harness(**options: object) -> SchedulerHarness:
    return SchedulerHarness(NODES, options=chosen(**{"max_unconfirmed": 6, **options}))


def verdicts(it: SchedulerHarness, *builders: PodBuilder) -> list[str]:
    return [_reason(it.controller.reserve(question(each))) for each in builders]


def _reason(answer: Answer) -> str:
    return answer.code if isinstance(answer, Wait | Never) else "placed"


GIVEN = ["placed"]
LATER = [AnswerReason.STORED_FIRST]
BOUNDS = {
    "so many of one namespace": ([asks(SMALL)] * 8, GIVEN * 6 + LATER * 2),
    "a quarter of the GPUs for one namespace": ([asks("15Gi")] * 3, GIVEN * 2 + LATER),
    "a sharer counts as a part of its GPU": ([asks("1Mi")] * 7, GIVEN * 6 + LATER),
    "one pod may be larger than that": (
        [asks(WHOLE).asks("gpufraction.io/gpu-count", 4), asks(SMALL)],
        GIVEN + LATER,
    ),
    "another namespace has its own": ([asks(WHOLE)] * 3 + [asks(WHOLE, "b")], GIVEN * 2 + LATER + GIVEN),
    "half of the GPUs for all together": (
        [asks(WHOLE, name) for name in "aabbcc"] + [asks(SMALL, "d")],
        GIVEN * 4 + LATER * 3,
    ),
}


@pytest.mark.parametrize(("builders", "want"), BOUNDS.values(), ids=BOUNDS.keys())
def test_the_bounds(builders: list[PodBuilder], want: list[str]) -> None:
    it = harness()
    assert verdicts(it, *builders) == want
    it.controller.check_invariants()


def test_without_a_bound_whatever_fits_is_placed() -> None:
    assert verdicts(harness(max_unconfirmed=0), *[asks(WHOLE)] * 8) == GIVEN * 8


def test_a_dry_run_gets_the_answer_as_if_nothing_else_were_under_way() -> None:
    it = harness(max_unconfirmed=1)
    assert verdicts(it, asks(SMALL)) == GIVEN
    assert isinstance(it.controller.reserve(question(asks(SMALL), dry_run=True)), Placed)


def test_a_pod_that_is_seen_is_not_unconfirmed() -> None:
    it = harness(max_unconfirmed=1)
    for number in range(5):
        answer = it.controller.reserve(question(asks(SMALL)))
        assert isinstance(answer, Placed)
        it.controller.handle(pod_event(admitted(named(f"p-{number}"), allocation=answer.allocation)))


def named(name: str, size: str = SMALL) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", size).uid(f"uid-{name}")


def test_a_pod_that_must_be_stored_first_gets_the_reason_and_is_counted() -> None:
    it = harness(max_unconfirmed=1)
    it.controller.reserve(question(asks(SMALL)))
    answers = "the pod is placed when it is stored: 1 pods of this namespace have a share and are not stored yet"
    assert it.controller.reserve(question(asks(SMALL))) == Wait(AnswerReason.STORED_FIRST, answers, {"main": GIB})


def test_a_namespace_whose_pod_does_not_come_must_store_its_pods_first() -> None:
    it = harness()
    assert verdicts(it, asks(SMALL)) == GIVEN
    it.now += OVERDUE + 0.1
    assert verdicts(it, asks(SMALL), asks(SMALL, "b")) == LATER + GIVEN
    it.now += 41
    it.controller.handle(AssumedChecked(overdue(it.controller), set()))
    assert it.controller.look().assumed == 0
    assert verdicts(it, asks(SMALL), asks(SMALL, "c")) == LATER + GIVEN
    it.now += PROBATION
    assert verdicts(it, asks(SMALL)) == GIVEN


def test_when_shares_are_for_stored_pods_nothing_is_reserved_at_admission() -> None:
    it = harness(when="stored")
    answer = it.controller.reserve(question(asks(SMALL)))
    assert isinstance(answer, Wait)
    assert (answer.code, it.controller.look().assumed) == (AnswerReason.STORED_FIRST, 0)
    assert isinstance(it.controller.reserve(question(asks(SMALL), dry_run=True)), Wait)
    assert _reason(it.controller.reserve(question(asks("17Gi")))) == "Memory"
    it.controller.handle(pod_event(admitted(named("p"), gated=True)))
    bindings, _ = it.controller.schedule_pending()
    assert len(bindings) == 1


# -- one name ----------------------------------------------------------------------------------------------------------


def test_a_second_creation_of_a_name_has_the_place_of_the_first() -> None:
    it = harness()
    first = it.controller.reserve(question(named("x")))
    assert it.controller.reserve(question(named("x"))) == first
    assert it.controller.look().assumed == 1


def test_a_second_creation_with_another_request_takes_nothing_of_the_first() -> None:
    """The first one may already be stored if the watch is late, so its share must not go to others."""
    it = harness()
    first = it.controller.reserve(question(named("x")))
    second = it.controller.reserve(question(named("x", "2Gi")))
    assert isinstance(second, Wait)
    assert (second.code, it.controller.look().assumed) == (AnswerReason.STORED_FIRST, 1)
    assert it.controller.reserve(question(named("x"))) == first


def test_a_second_creation_that_the_webhook_refuses_takes_nothing_of_the_first() -> None:
    it = harness()
    it.controller.reserve(question(named("x")))
    assert isinstance(it.controller.reserve(dataclasses.replace(question(named("x")), refused=True)), Never)
    assert it.controller.look().assumed == 1


def test_a_name_does_not_hold_its_place_by_being_created_again_and_again() -> None:
    it = harness()
    it.controller.reserve(question(named("x")))
    answers = []
    for _ in range(50):
        it.now += 1
        answers += verdicts(it, named("x"))
        it.controller.handle(AssumedChecked(overdue(it.controller), set()))
    assert answers == GIVEN * 2 + LATER * 48
    assert it.controller.look().assumed == 0


def test_a_pod_of_the_name_that_carries_another_place_frees_what_was_reserved() -> None:
    it = harness()
    it.controller.reserve(question(named("x")))
    it.controller.handle(pod_event(admitted(named("x"), gated=True)))
    assert it.controller.look().assumed == 0
    assert it.forgotten == ["replaced"]


def test_the_name_of_a_pod_that_was_there_before_frees_nothing() -> None:
    """The pod is deleted and created again: the old one is still seen for a moment."""
    it = harness()
    old = it.controller.reserve(question(named("x")))
    assert isinstance(old, Placed)
    stored = admitted(named("x"), allocation=old.allocation)
    it.controller.handle(pod_event(stored))
    it.controller.reserve(question(named("x")))
    it.controller.handle(
        pod_event({**stored, "metadata": {**stored["metadata"], "deletionTimestamp": "2030-01-01T00:00:00Z"}})
    )
    assert it.controller.look().assumed == 1


def test_a_pod_that_waits_after_all_names_the_place_that_it_gives_back() -> None:
    it = harness()
    it.controller.reserve(question(asks(SMALL)))
    it.controller.reserve(question(asks(SMALL, "b")))
    waits = admitted(named("p-1").annotated(names.RETURNED, "id-1"), gated=True)
    it.controller.handle(pod_event(waits))
    assert it.controller.look().assumed == 1
    others = admitted(named("p-2").annotated(names.RETURNED, "id-2"), gated=True)
    it.controller.handle(pod_event(others))
    assert it.controller.look().assumed == 1, "a namespace gives back its own only"


# -- a pod that the webhook refuses -----------------------------------------------------------------------------------


def test_a_pod_that_the_webhook_refuses_gives_its_place_back_at_once() -> None:
    it = harness()
    it.controller.reserve(question(asks(SMALL)))
    builders = dataclasses.replace(
        question(asks(SMALL), held="id-1"), refused=True, pod={"metadata": {"generateName": "p-"}}
    )
    for stranger in (
        dataclasses.replace(builders, namespace="elsewhere"),
        dataclasses.replace(builders, held="id-7"),
        dataclasses.replace(builders, held=""),
    ):
        assert isinstance(it.controller.reserve(stranger), Never)
        assert it.controller.look().assumed == 1
    assert isinstance(it.controller.reserve(builders), Never)
    assert it.controller.look().assumed == 0
    assert it.forgotten == ["denied"]


# -- how long a reservation waits for its pod --------------------------------------------------------------------------


def test_how_long_a_pod_is_waited_for() -> None:
    arrivals = Arrivals(40.0)
    assert arrivals.within("a") == 40, "nothing is known yet"
    for _ in range(8):
        arrivals.came("a", 0.01)
    assert arrivals.within("a") == arrivals.within("b") == 5
    arrivals.came("b", 3.0)
    assert arrivals.within("a") == 12, "what one namespace meets another may"
    arrivals.came("b", 30.0)
    assert arrivals.within("b") == 40, "no longer than an API server works at a creation"
    for _ in range(300):
        arrivals.came("a", 0.01)
    assert (arrivals.within("a"), arrivals.within("b")) == (5, 40), "a namespace is remembered longer than all"


def test_a_pod_that_comes_after_all_teaches_too() -> None:
    arrivals = Arrivals(40.0)
    for _ in range(8):
        arrivals.came("a", 0.01)
    arrivals.given_back("id-1", "b", since=100.0)
    arrivals.came_late("id-1", now=107.0)
    arrivals.came_late("id-1", now=139.0)
    arrivals.came_late("unknown", now=139.0)
    assert arrivals.within("b") == 28


def test_names_that_a_stranger_makes_up_are_not_kept_for_ever() -> None:
    arrivals, unconfirmed = Arrivals(40.0), Unconfirmed(4)
    for number in range(10_000):
        arrivals.came(f"n{number}", 1.0)
        arrivals.given_back(f"id-{number}", "n", 1.0)
        unconfirmed.ended(f"n{number}", 1.0)
    sizes = (len(arrivals._of), len(arrivals._given_back), len(unconfirmed._ended))
    assert sizes == (4096, 4096, 4096)


def test_once_pods_come_quickly_here_one_that_does_not_is_given_up_sooner() -> None:
    it = harness()
    for number in range(8):
        answer = it.controller.reserve(question(asks(SMALL)))
        assert isinstance(answer, Placed)
        it.controller.handle(pod_event(admitted(named(f"p-{number}"), allocation=answer.allocation)))
    it.controller.reserve(question(asks(SMALL)))
    it.now += 4.9
    assert overdue(it.controller) == ()
    it.now += 0.2
    late = overdue(it.controller)
    assert [holding.key for holding in late] == ["id-9"]
    it.controller.handle(AssumedChecked(late, {"id-9"}))
    assert it.controller.look().assumed == 1, "the API server has it, the watch is late"


def test_a_pod_that_comes_when_its_place_was_given_up_has_it_if_it_is_free() -> None:
    it = harness()
    answer = it.controller.reserve(question(asks(SMALL)))
    assert isinstance(answer, Placed)
    it.now += 41
    it.controller.handle(AssumedChecked(overdue(it.controller), set()))
    it.controller.handle(pod_event(admitted(named("p-1"), allocation=answer.allocation)))
    assert it.controller.tick(TickPhase.LATE_PODS) == []
    assert it.controller.look().confirmed == 1


WEIGHTS = {
    "memory": (FractionRequest("main", memory=4 * GIB), GpuShare("u", 0, 4 * GIB, 0, 16 * GIB), 25),
    "cores": (FractionRequest("main", memory=1, cores=60), GpuShare("u", 0, 1, 60, 16 * GIB), 60),
    "a slot": (FractionRequest("main", memory=1), GpuShare("u", 0, 1, 0, 16 * GIB), 3),
    "all of it": (FractionRequest("main", percent=1, exclusive=True), GpuShare("u", 0, 1, 0, 16 * GIB), 100),
}


@pytest.mark.parametrize(("fraction", "share", "want"), WEIGHTS.values(), ids=WEIGHTS.keys())
def test_what_a_share_weighs(fraction: FractionRequest, share: GpuShare, want: int) -> None:
    allocation = Allocation("id", "n", (ContainerAllocation("main", (share, share)),))
    assert weight(PodRequest("native", (fraction,)), allocation, 48) == 2 * want
