"""A long line is gone down in turns: who waits for the lock has it in between, and nothing is lost by it."""

from __future__ import annotations

import pytest

from allocator.cache.podinfo import pod_event
from allocator.scheduler.events import PodDeleted
from contract.encoding.protocol import Placed, Wait
from tests.builders import PodBuilder
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import keys, occupied, waiting, worker


def long_line(desk: SchedulerHarness, length: int = 30) -> None:
    """Pods of as many shapes as there are pods, none of which fits."""
    for i in range(length):
        desk.controller.handle(pod_event(waiting(worker(f"w{i:02}", mib=12_000 + i))))


def test_a_long_line_is_gone_down_in_turns_and_others_have_the_state_in_between() -> None:
    desk, _ = occupied()
    long_line(desk)
    seen: list[int] = []
    desk.give_way = lambda: seen.append(desk.controller.look().waiting)
    bindings, news = desk.controller.schedule_pending()
    assert (bindings, len(news), seen) == ([], 30, [30, 30])


@pytest.mark.parametrize("late", [worker("late", mib=1000), worker("late", mib=1000).on("t4")], ids=["", "bound"])
def test_who_comes_between_two_turns_is_not_placed_before_the_line(late: PodBuilder) -> None:
    desk, _ = occupied()
    long_line(desk)
    answers: list[object] = []
    desk.give_way = lambda: answers.append(desk.controller.reserve(question(late)))
    desk.controller.schedule_pending()
    assert [type(answer) for answer in answers] == [Wait, Wait]
    assert isinstance(desk.controller.reserve(question(worker("later", mib=1000))), Placed)


def test_what_comes_back_between_two_turns_is_for_those_that_were_tried_already() -> None:
    desk, _ = occupied()
    desk.controller.handle(pod_event(waiting(worker("a-first", created="2029", mib=12_000))))
    long_line(desk)
    gone: list[str] = []

    def free() -> None:
        if not gone:
            gone.append("uid-first")
            desk.controller.handle(PodDeleted("uid-first"))

    desk.give_way = free
    bindings, _ = desk.controller.schedule_pending()
    assert (keys(bindings), gone) == ([], ["uid-first"])
    bindings, _ = desk.controller.schedule_pending()
    assert keys(bindings) == ["default/a-first"]
    desk.controller.check_invariants()


def test_a_pod_that_changes_or_goes_between_two_turns_is_taken_as_it_is() -> None:
    desk, _ = occupied()
    long_line(desk)
    labelled, gone = worker("z-labelled", mib=1000), worker("z-gone", mib=1000)
    for each in (labelled, gone):
        desk.controller.handle(pod_event(waiting(each)))

    def change() -> None:
        desk.controller.handle(pod_event(waiting(labelled.labelled("a", "b"))))
        desk.controller.handle(PodDeleted("uid-z-gone"))

    desk.give_way = change
    [binding], _ = desk.controller.schedule_pending()
    assert (binding.pod.key, binding.pod.pod["metadata"]["labels"]) == ("default/z-labelled", {"a": "b"})
    desk.controller.check_invariants()


def test_who_leads_no_more_after_a_turn_decides_no_more() -> None:
    desk, _ = occupied()
    long_line(desk)
    desk.controller.handle(pod_event(waiting(worker("z-last", mib=1000))))

    def lose() -> None:
        desk.leads = False

    desk.give_way = lose
    assert desk.controller.schedule_pending() == ([], [])
    desk.leads, desk.give_way = True, lambda: None
    bindings, _ = desk.controller.schedule_pending()
    assert keys(bindings) == ["default/z-last"]


def test_a_share_that_comes_back_between_two_turns_is_for_the_next_pass() -> None:
    desk, _ = occupied()
    long_line(desk)
    desk.give_way = lambda: desk.controller.handle(PodDeleted("uid-first"))
    bindings, _ = desk.controller.schedule_pending()
    assert desk.woken > 0
    more, _ = desk.controller.schedule_pending()
    assert len([*bindings, *more]) == 1, "the card has room for one"
    desk.controller.check_invariants()
