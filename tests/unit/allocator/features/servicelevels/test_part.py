"""Service levels in the core: only the leader checks, once a second, which pods wait and which hold a share."""

from __future__ import annotations

from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.features.servicelevels.levels import ServiceJudgement, Started
from allocator.features.servicelevels.part import ServiceLevelsPart
from allocator.features.servicelevels.settings import ServiceLevelSettings
from allocator.scheduler.events import TickPhase
from contract.encoding.protocol import Placed
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question


class Bench(SchedulerHarness):
    """One card, and the feature's part."""

    def _parts(self) -> Any:
        yield from super()._parts()
        yield lambda core: ServiceLevelsPart(core, ServiceLevelSettings(start_within=60)).part()

    def look(self, after: float = 1.0) -> list[Any]:
        self.now += after
        assert self.wall is not None
        self.wall += after
        return [each for each in self.controller.tick(TickPhase.UPKEEP) if isinstance(each, Started | ServiceJudgement)]


def bench() -> Bench:
    made = Bench([node("n1").gpu(mib=16384)], wall=1_900_000_000.0)
    assert made.look() == []
    return made


def test_a_pod_at_its_admission_and_one_that_waits_too_long() -> None:
    made = bench()
    first, second = (pod(name).uid(name).asks("gpufraction.io/gpu-memory", "10Gi") for name in ("a", "b"))
    answer = made.controller.reserve(question(first))
    assert isinstance(answer, Placed)
    made.controller.handle(pod_event(admitted(first, allocation=answer.allocation)))
    made.controller.handle(pod_event(admitted(second.created("2030-03-17T17:46:41Z"), gated=True)))
    assert made.look() == [Started("default", "normal", 0.0), ServiceJudgement(late=False)]
    assert made.look(61) == [ServiceJudgement(late=True)]
    assert made.look(61) == []


def test_a_follower_counts_nobody_and_twice_a_second_is_once() -> None:
    made = bench()
    made.leads = False
    assert made.look() == []
    made.leads = True
    assert made.look(0.1) == []
