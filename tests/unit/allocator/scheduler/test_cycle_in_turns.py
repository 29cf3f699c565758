"""A long queue is evaluated in turns: threads that wait for the lock get it in between, and nothing is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import PodDeleted
from contract.encoding.protocol import Placed, Wait
from tests.builders import PodBuilder
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import keys, occupied, waiting, worker


def long_line(harness: SchedulerHarness, length: int = 30) -> None:
    """Waiting pods that all have different shapes, none of which fits."""
    for i in range(length):
        harness.controller.handle(pod_event(waiting(worker(f"w{i:02}", mib=12_000 + i))))


def test_a_long_queue_is_evaluated_in_turns_and_releases_the_lock_in_between() -> None:
    harness, _ = occupied()
    long_line(harness)
    seen: list[int] = []
    harness.give_way = lambda: seen.append(harness.controller.look().waiting)
    bindings, news = harness.controller.schedule_pending()
    assert (bindings, len(news), seen) == ([], 30, [30, 30])


@pytest.mark.parametrize("late", [worker("late", mib=1000), worker("late", mib=1000).on("t4")], ids=["", "bound"])
def test_who_comes_between_two_turns_is_not_placed_before_the_line(late: PodBuilder) -> None:
    harness, _ = occupied()
    long_line(harness)
    answers: list[object] = []
    harness.give_way = lambda: answers.append(harness.controller.reserve(question(late)))
    harness.controller.schedule_pending()
    assert [type(answer) for answer in answers] == [Wait, Wait]
    assert isinstance(harness.controller.reserve(question(worker("later", mib=1000))), Placed)


def test_what_comes_back_between_two_turns_is_for_those_that_were_tried_already() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("a-first", created="2029-01-01T00:00:00Z", mib=12_000))))
    long_line(harness)
    deleted: list[str] = []

    def free() -> None:
        if not deleted:
            deleted.append("uid-first")
            harness.controller.handle(PodDeleted("uid-first"))

    harness.give_way = free
    bindings, _ = harness.controller.schedule_pending()
    assert (keys(bindings), deleted) == ([], ["uid-first"])
    bindings, _ = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/a-first"]
    harness.controller.check_invariants()


@given(first=st.integers(0, 14), rest=st.lists(st.booleans(), max_size=8), at=st.integers(0, 2), named=st.booleans())
def test_what_comes_back_at_any_moment_is_for_the_first_whom_it_helps(
    first: int, rest: list[bool], at: int, named: bool
) -> None:
    """Neither pods that a long cycle has not tried yet, nor a new pod that names its node, get it first."""
    harness, _ = occupied()
    for i, fits in enumerate([*[False] * first, True, *rest]):
        harness.controller.handle(pod_event(waiting(worker(f"w{i:02}", mib=(9_000 if fits else 16_000) + i))))
    late, answers = worker("late", mib=9_900), list[object]()

    def pause() -> None:
        if len(answers) == at:
            harness.controller.handle(PodDeleted("uid-first"))
        answers.append(harness.controller.reserve(question(late.on("t4") if named else late)))

    harness.give_way = pause
    bindings, _ = harness.controller.schedule_pending()
    harness.controller.handle(PodDeleted("uid-first"))
    bindings += harness.controller.schedule_pending()[0]
    assert keys(bindings) == [f"default/w{first:02}"]
    assert {type(answer) for answer in answers} <= {Wait}


def test_a_pod_that_changes_or_goes_between_two_turns_is_taken_as_it_is() -> None:
    harness, _ = occupied()
    long_line(harness)
    labelled, deleted = worker("z-labelled", mib=1000), worker("z-gone", mib=1000)
    for each in (labelled, deleted):
        harness.controller.handle(pod_event(waiting(each)))

    def change() -> None:
        harness.controller.handle(pod_event(waiting(labelled.labelled("a", "b"))))
        harness.controller.handle(PodDeleted("uid-z-gone"))

    harness.give_way = change
    [binding], _ = harness.controller.schedule_pending()
    assert (binding.pod.key, binding.pod.pod["metadata"]["labels"]) == ("default/z-labelled", {"a": "b"})
    harness.controller.check_invariants()


def test_who_leads_no_more_after_a_turn_decides_no_more() -> None:
    harness, _ = occupied()
    long_line(harness)
    harness.controller.handle(pod_event(waiting(worker("z-last", mib=1000))))

    def lose() -> None:
        harness.leads = False

    harness.give_way = lose
    assert harness.controller.schedule_pending() == ([], [])
    harness.leads, harness.give_way = True, lambda: None
    bindings, _ = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/z-last"]


def test_a_share_that_comes_back_between_two_turns_is_for_the_next_pass() -> None:
    harness, _ = occupied()
    long_line(harness)
    harness.give_way = lambda: harness.controller.handle(PodDeleted("uid-first"))
    bindings, _ = harness.controller.schedule_pending()
    assert harness.woken > 0
    more, _ = harness.controller.schedule_pending()
    assert len([*bindings, *more]) == 1, "the card has room for one"
    harness.controller.check_invariants()
