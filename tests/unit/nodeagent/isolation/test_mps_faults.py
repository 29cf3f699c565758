"""The pods for which an MPS server's fault is reported."""

from __future__ import annotations

from contract.nodes.reports import PodReport
from contract.reasons.pods import PodEventReason
from nodeagent.isolation.effects import Faults
from nodeagent.isolation.mps import MpsState
from nodeagent.mps.exchange import GpuReport, Report
from tests.unit.nodeagent.sharing.test_usage_and_overuse import P, Q

FAULTED = Report(0.0, {"GPU-0": GpuReport("serving"), "GPU-1": GpuReport("faulted", taking=False)})
WELL = Report(0.0, {"GPU-1": GpuReport("serving")})


def test_everybody_on_the_gpu_is_reported_while_the_fault_lasts() -> None:
    faults = Faults()
    looks = ((1, WELL), (2, FAULTED), (3, FAULTED), (4, WELL), (5, FAULTED))
    first, second = (PodReport(since, "uid-p", PodEventReason.MPS_FAULT, 0, "GPU-1") for since in (2, 5))
    found = [faults.reports(MpsState(report).effects, (P, Q), now) for now, report in looks]
    assert found == [frozenset(), {first}, {first}, frozenset(), {second}]
