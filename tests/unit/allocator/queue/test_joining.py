"""A pod joins the queue: it alone is tried if nothing else has changed, and its message is current."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allocator.cache.podinfo import PodEvent, pod_event
from allocator.engine.engine import Engine
from allocator.engine.reference import NOWHERE, Decision, Prefer
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import PodDeleted
from contract import names, pods
from contract.reasons.nodes import Reason
from contract.scheduling.needs import SchedulingRequest
from tests.builders import node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question


class CountingEngine(Engine):
    """Counts its calls."""

    decisions = 0

    def decide(
        self, ask: SchedulingRequest, refused: Mapping[str, Reason] = NOWHERE, prefer: Prefer | None = None
    ) -> Decision:
        self.decisions += 1
        return super().decide(ask, refused, prefer)


def waiting(name: str, mib: int) -> PodEvent:
    found = admitted(pod(name).uid(f"uid-{name}").asks(names.GPU_MEMORY, f"{mib}Mi"), gated=True)
    return pod_event(pods.trim(found))


def harness(**more: Any) -> tuple[SchedulerHarness, CountingEngine]:
    """A cluster with one free GPU and 20 waiting pods, of which one has got nearly all of the GPU."""
    engine = CountingEngine()
    made = SchedulerHarness([node("n1").gpu("Tesla T4", mib=16_000, used_mib=0)], engine=engine, **more)
    for number in range(20):
        made.controller.handle(waiting(f"large-{number}", 15_900 - number))
    made.controller.schedule_pending()
    made.controller.schedule_pending()
    engine.decisions = 0
    return made, engine


def message(made: SchedulerHarness, name: str) -> str:
    _, reports = made.controller.schedule_pending()
    found = [each for each in reports if isinstance(each, StatusUpdate) and each.uid == f"uid-{name}"]
    return found[-1].reason if found else ""


def test_the_other_pods_are_not_tried_again() -> None:
    made, engine = harness()
    for number in range(5):
        made.controller.handle(waiting(f"late-{number}", 9_000 + number))
        assert "short of memory" in message(made, f"late-{number}")
    assert engine.decisions == 5


def test_a_pod_gets_the_figures_of_the_moment_at_which_it_joins() -> None:
    made, _ = harness()
    made.controller.handle(waiting("early", 9_000))
    before = message(made, "early")
    made.controller.reserve(question(pod("other").asks(names.GPU_MEMORY, "50Mi")))
    made.controller.handle(waiting("late", 9_000))
    after = message(made, "late")
    assert before
    assert after not in ("", before)


def test_in_the_fair_order_all_are_tried() -> None:
    made, engine = harness(options=chosen(queue_order="fair"))
    made.controller.handle(waiting("late", 9_000))
    message(made, "late")
    assert engine.decisions > 1


def test_all_are_tried_after_a_while_though_pods_join_all_the_time() -> None:
    made, engine = harness()
    for number in range(20):
        made.now += 1.0
        made.controller.handle(waiting(f"late-{number}", 9_000 + number))
        message(made, f"late-{number}")
    assert engine.decisions > 20 + 10


def test_a_pod_that_left_the_queue_and_joins_again_is_tried() -> None:
    made, _ = harness()
    for _ in range(3):
        made.controller.handle(PodDeleted("uid-large-7"))
        made.controller.handle(waiting("large-7", 15_893))
        assert "short of memory" in message(made, "large-7")


def test_a_pod_that_fits_is_placed_when_it_joins() -> None:
    made, _ = harness()
    made.controller.handle(waiting("small", 10))
    bindings, _ = made.controller.schedule_pending()
    assert [each.pod.uid for each in bindings] == ["uid-small"]
