"""Estimates in the core: learnt when pods end, shown in the condition of a waiting pod, and scored when it starts."""

from __future__ import annotations

from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.features.estimates import finished
from allocator.features.estimates.part import Estimated, EstimatesPart, PodFinished, Scored
from allocator.features.estimates.settings import EstimateSettings
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import BindSucceeded, PodDeleted, TickPhase
from contract.encoding import moments
from contract.encoding.protocol import Placed, Wait
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade

START = 1_900_000_000.0


class Bench(SchedulerHarness):
    """One card, and the feature's part."""

    def __init__(self) -> None:
        super().__init__([node("n1").gpu(mib=16384)], wall=START)
        self.serial = 0

    def _parts(self) -> Any:
        yield from super()._parts()
        yield self._estimates

    def _estimates(self, core: Any) -> Any:
        self.estimates = EstimatesPart(core, EstimateSettings(enabled=True))
        return self.estimates.part()

    def passes(self, seconds: float) -> list[Scored]:
        """Time passes, and the part looks."""
        self.now += seconds
        assert self.wall is not None
        self.wall += seconds
        return [each for each in self.controller.tick(TickPhase.UPKEEP) if isinstance(each, Scored)]

    def builder(self, name: str) -> PodBuilder:
        assert self.wall is not None
        return pod(name).uid(f"uid-{name}").created(moments.stamp(self.wall)).asks("gpufraction.io/gpu-memory", "10Gi")

    def runs(self, name: str) -> None:
        """A pod that is placed at its admission."""
        answer = self.controller.reserve(question(self.builder(name)))
        assert isinstance(answer, Placed), answer
        self.controller.handle(pod_event(admitted(self.builder(name), allocation=answer.allocation)))

    def waits(self, name: str) -> None:
        answer = self.controller.reserve(question(self.builder(name)))
        assert isinstance(answer, Wait), answer
        self.controller.handle(pod_event(admitted(self.builder(name), gated=True)))

    def ends(self, name: str) -> None:
        self.controller.handle(PodDeleted(f"uid-{name}"))

    def estimate(self) -> None:
        """Estimate as the feature's thread does."""
        asked = self.controller.locked(self.estimates.question)
        if asked is not None:
            self.controller.handle(asked.answer())

    def told(self) -> list[str]:
        """What waiting pods learn in the next cycle."""
        bindings, news = self.controller.schedule_pending()
        for binding in bindings:
            made = admitted(remade(binding), allocation=binding.allocation)
            self.controller.handle(BindSucceeded(binding, pod_event(made)))
        return [each.reason for each in news if isinstance(each, StatusUpdate)]


def learnt() -> Bench:
    """Three pods have run for ten minutes each, a fourth has run for one minute, and another one waits."""
    bench = Bench()
    for number in range(3):
        bench.runs(f"train-{number}")
        bench.passes(6)
        bench.passes(594)
        bench.ends(f"train-{number}")
        bench.passes(6)
    bench.runs("train-3")
    bench.passes(6)
    bench.passes(60)
    bench.waits("next")
    bench.told()
    bench.passes(61)  # a condition is renewed once a minute
    return bench


def test_a_waiting_pod_is_told_when_it_will_probably_start() -> None:
    bench = learnt()
    bench.estimate()
    [reason] = bench.told()
    assert "; probably starts at 20" in reason
    assert reason.endswith(" or sooner, when pod train-3 ends")


def test_where_nothing_is_known_it_is_told_so_and_once() -> None:
    bench = Bench()
    bench.runs("train-3")
    bench.passes(6)
    bench.waits("next")
    bench.told()
    bench.passes(61)
    bench.estimate()
    [reason] = bench.told()
    assert reason.endswith("; no estimate of its start: too little is known of how long the pods on these GPUs run")
    bench.passes(120)
    bench.estimate()
    assert bench.told() == []


def test_what_came_of_an_estimate_is_scored_when_the_pod_starts() -> None:
    bench = learnt()
    bench.estimate()
    bench.told()
    bench.passes(500)
    bench.ends("train-3")
    bench.told()
    assert bench.passes(6) == [Scored("by-then")]
    assert bench.passes(6) == []


def test_a_pod_that_is_deleted_is_forgotten() -> None:
    bench = learnt()
    bench.estimate()
    bench.ends("next")
    assert bench.passes(6) == []
    assert bench.estimates._scored == bench.estimates._said == {}


def test_a_forecast_that_comes_late_is_of_no_pod() -> None:
    bench = learnt()
    asked = bench.controller.locked(bench.estimates.question)
    assert asked is not None
    answer: Estimated = asked.answer()
    bench.ends("next")
    bench.controller.handle(answer)
    assert bench.estimates._said == {}


def test_a_follower_says_nothing() -> None:
    bench = learnt()
    bench.leads = False
    assert bench.controller.locked(bench.estimates.question) is None


def test_a_finished_pod_that_there_still_is_counts_once() -> None:
    bench = Bench()
    for _ in range(2):
        bench.controller.handle(PodFinished("u1", "default/train-1", 60.0))
    assert bench.estimates.history.size() == 1


def test_a_running_or_damaged_pod_is_no_finished_one() -> None:
    running = pod("a").uid("u").phase("Running").json()
    assert finished(running) is None
    assert finished({"status": {"phase": "Succeeded"}}) is None
    assert finished({}) is None
