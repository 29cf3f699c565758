"""Who is told of an MPS server's fault."""

from __future__ import annotations

from nodeagent.isolation.mps import Faults
from nodeagent.mps.exchange import GpuReport, Report
from nodeagent.sharing.overuse import OveruseMonitor, Rules
from nodeagent.sharing.overuse_events import OveruseReporter
from tests.unit.nodeagent.builders import card, observation
from tests.unit.nodeagent.sharing.test_usage_and_overuse import P, Q, on_cluster, warnings

FAULTED = Report(0.0, {"GPU-0": GpuReport("serving"), "GPU-1": GpuReport("faulted", taking=False)})
WELL = Report(0.0, {"GPU-1": GpuReport("serving")})


def test_everybody_on_the_gpu_is_told_once_for_each_fault() -> None:
    faults = Faults()
    found = [faults.steps(report, (P, Q)) for report in (WELL, FAULTED, FAULTED, WELL, FAULTED)]
    [step] = found[1]
    assert (step.resident, step.reason, step.evict, "GPU GPU-1" in step.message) == (P, "MpsFault", False, True)
    assert found == [(), (step,), (), (), (step,)]


def test_the_telling_is_an_event_on_the_pod() -> None:
    cluster, residents = on_cluster()
    faults = Faults()
    guard = OveruseReporter(
        cluster.kube,
        residents,
        OveruseMonitor(Rules()),
        node="n1",
        more=lambda: faults.steps(FAULTED, residents.all()),
        cgroup_of=lambda pid: "",
        clock=lambda: 0.0,
    )
    guard.step(observation(card(0)))
    guard.step(observation(card(0)))
    assert [(event["reason"], event["involvedObject"]["name"]) for event in warnings(cluster)] == [("MpsFault", "p")]
