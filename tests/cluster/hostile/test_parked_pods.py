"""More waiting pods than fit into the leader's memory, although each is within every limit for one pod."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest

from contract import names
from contract.reasons.pods import PodReason
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import DELAY, TENANT, Hostile
from tests.cluster.hostile.test_large_pods import placed

pytestmark = [pytest.mark.hostile, pytest.mark.storm, pytest.mark.timeout(1800)]
PODS = {"Real": 1_450, "Embedded": 400}
"""
By control plane. A pod takes 180 KiB of memory, so a namespace's budget has room for less than half of 400. The
embedded API server is Python and takes a quarter of an hour for 1,450.
"""
CLIENTS = 4
TOLERATIONS = 980
SETTLED = 600.0
WAITING, PARKED = "gpufraction_waiting_pods", "gpufraction_parked_pods"


def large(number: int) -> PodBuilder:
    """A pod unlike any other, for which there is no node. A program that keeps it needs some hundred KiB for it."""
    made = pod(f"large-{number}").asks(str(names.GPU_MEMORY), "1Mi")
    tolerations = [{"key": f"pod{number}-{at}", "operator": "Exists"} for at in range(TOLERATIONS)]
    return made.spec(tolerations=tolerations, nodeSelector={"example.com/nowhere": "yes"})


def most(hostile: Hostile, figure: str) -> int:
    return int(max(hostile.figures(replica).get(figure, 0) for replica in (0, 1)))


def served(hostile: Hostile, times: int = 5) -> float:
    """Seconds until a neighbour's pod is placed: the median, because the machine has other work too."""
    return median(hostile.neighbour_is_served(SETTLED) for _ in range(times))


def test_more_waiting_pods_than_fit_are_parked_and_delay_nobody_else(hostile: Hostile) -> None:
    number, alone = PODS[type(hostile.cluster.control_plane).__name__], served(hostile)
    with ThreadPoolExecutor(CLIENTS) as clients:
        list(clients.map(hostile.create, map(large, range(number))))
    wait_for(lambda: most(hostile, WAITING) >= number, lambda: f"{most(hostile, WAITING)} wait", SETTLED)
    parked = most(hostile, PARKED)
    while_they_wait = served(hostile)
    last = paths.pods(TENANT, f"large-{number - 1}")
    wait_for(lambda: bool(scenarios.waits(hostile.kube.get(last))), "the last one does not know why it waits", SETTLED)
    reported = [each for each in hostile.pods() if is_parked(each)]
    hostile.create(pod("small").asks(str(names.GPU_MEMORY), "1Mi"))
    placed(hostile, "small", SETTLED)  # of the same namespace: its turn comes
    peaks = {name: f"{peak >> 20} MiB" for name, peak in hostile.footprint.peaks.items()}
    print(
        "parked:",
        parked,
        "told:",
        len(reported),
        "seconds:",
        round(alone, 2),
        round(while_they_wait, 2),
        "peaks:",
        peaks,
    )
    assert hostile.footprint.killed == []
    assert parked > number // 3
    assert reported
    assert while_they_wait <= alone + DELAY
    scenarios.delete_pods(hostile.kube, TENANT)
    wait_for(lambda: most(hostile, WAITING) == 0, lambda: f"{most(hostile, WAITING)} still wait", SETTLED)
    assert most(hostile, PARKED) == 0


def is_parked(made: dict[str, object]) -> bool:
    status = made.get("status")
    conditions = status.get("conditions") or [] if isinstance(status, dict) else []
    return any(c.get("type") == names.ALLOCATED_CONDITION and c.get("reason") == PodReason.PARKED for c in conditions)
