"""
A replica that starts after the leader ended counts what was held meanwhile from the times that pods and nodes report.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.ledger import CardsChanged
from allocator.features.metering.meter import Counted, Meter, Span
from contract import names
from contract.model import Allocation, ContainerAllocation, Gpu, GpuShare
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]
NODE = node("n").gpu(mib=16384)
[CARD] = NODE.inventory().gpus
LAST_RENEWED, NOW = 1000.0, 1100.0
"""By the clock of the tests, which also counts seconds since 1970."""


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def whole(gpu: Gpu) -> int:
    return gpu.memory


@dataclass
class Case:
    """A pod with half of the card, as the list shows it. `held`: seconds of the card since the last renewal."""

    held: float
    created: float
    conditions: dict[str, tuple[str, float]] = field(default_factory=dict)
    phase: str = "Running"


ALLOCATED = str(names.ALLOCATED_CONDITION)
CASES = {
    "a pod from before the leader ended": Case(50.0, created=500, conditions={"PodScheduled": ("True", 501)}),
    "a pod placed at its creation": Case(20.0, created=1060),
    "a pod that waited, then was placed and bound": Case(
        15.0, created=900, conditions={ALLOCATED: ("True", 1070), "PodScheduled": ("True", 1071)}
    ),
    "a pod that was told late of its share by another leader": Case(
        15.0, created=900, conditions={ALLOCATED: ("True", 1090), "PodScheduled": ("True", 1070)}
    ),
    "a pod of which only that it waits is known counts from now": Case(
        0.0, created=900, conditions={"PodScheduled": ("False", 900)}
    ),
    "a pod that finished meanwhile": Case(
        15.0, created=500, conditions={"PodScheduled": ("True", 501), "Ready": ("False", 1030)}, phase="Succeeded"
    ),
    "a pod that came and finished meanwhile": Case(
        10.0, created=1010, conditions={"PodScheduled": ("True", 1010), "Ready": ("False", 1030)}, phase="Failed"
    ),
    "a pod that finished before": Case(
        0.0, created=500, conditions={"PodScheduled": ("True", 501), "Ready": ("False", 900)}, phase="Succeeded"
    ),
    "a finished pod whose times contradict each other": Case(
        0.0, created=500, conditions={"PodScheduled": ("True", 1080), "Ready": ("False", 1030)}, phase="Succeeded"
    ),
    "a finished pod that does not tell when it ended": Case(0.0, created=500, phase="Failed"),
}


def listed(case: Case) -> JSON:
    share = GpuShare(CARD.uuid, 0, 8192 << 20, 0, CARD.memory)
    allocation = Allocation("id", "n", (ContainerAllocation("main", (share,)),))
    made = admitted(pod("p").uid("uid").asks("gpufraction.io/gpu-memory", "8192Mi"), allocation=allocation)
    made["metadata"]["creationTimestamp"] = stamp(case.created)
    made["spec"]["nodeName"] = "n"
    conditions = [
        {"type": kind, "status": status, "lastTransitionTime": stamp(at)}
        for kind, (status, at) in case.conditions.items()
    ]
    made["status"] = {"phase": case.phase, "conditions": conditions}
    return made


def counted(case: Case, times: int = 1) -> Counted:
    """What a replica counts that lists the pods this many times at once."""
    harness = SchedulerHarness([NODE], now=NOW, synced=False)
    for _ in range(times):
        harness.sync([listed(case)])
    changes, settled = harness.controller.take_changes()
    assert settled
    # The node's own time is unknown here, so the node counts as present.
    changes = [(LAST_RENEWED if isinstance(change, CardsChanged) else at, change) for at, change in changes]
    meter = Meter(whole)
    meter.advance(changes, Span(LAST_RENEWED, NOW))
    return meter.counted()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_held_between_two_leaders_by(case: Case) -> None:
    assert sum(counted(case).held.values()) == pytest.approx(case.held, abs=0.01)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_second_list_counts_nothing_twice(case: Case) -> None:
    assert counted(case, times=2) == counted(case)
