"""Pods that leave: what is served and how long the others wait, by hand; and what a cluster gets back."""

from __future__ import annotations

import numpy as np
import pytest

from allocator.engine.reference import Placement, decide
from allocator.scoring.classes import CARD
from benchmarks.placement import departures
from benchmarks.placement.departures import Stay
from benchmarks.placement.replaying import unbooked
from benchmarks.placement.trace import Machine, Task
from contract.scheduling import nodeinfo
from contract.scheduling.needs import SchedulingRequest

WHOLE, HALF = Task(1000, 1024, 1, CARD), Task(1000, 1024, 1, 500)
HOUR = 3600


class OneCard:
    """A cluster of one card."""

    def __init__(self) -> None:
        self.free = CARD
        self._last = WHOLE

    def place(self, task: Task) -> bool:
        if task.volume > self.free:
            return False
        self.free -= task.volume
        self._last = task
        return True

    def last(self) -> Task:
        return self._last

    def leave(self, placed: object) -> None:
        assert isinstance(placed, Task)
        self.free += placed.volume


def test_who_finds_no_room_waits_and_starts_when_somebody_leaves() -> None:
    stays = [
        Stay(WHOLE, 0, 2 * HOUR),
        Stay(WHOLE, HOUR, 5 * HOUR),  # waits an hour, and runs for two of its five until the end
        Stay(HALF, HOUR, HOUR),  # never finds room until the end
        Stay(WHOLE, 4 * HOUR, HOUR),
    ]
    served = departures.live(OneCard(), stays)
    assert served.hours == 2 + 2
    assert served.offered == 2 + 3 + 0.5
    assert served.mean_wait == pytest.approx((0 + 1 + 3 + 0) / 4)


def test_a_smaller_one_behind_may_start_first() -> None:
    stays = [Stay(HALF, 0, 9 * HOUR), Stay(WHOLE, HOUR, HOUR), Stay(HALF, 2 * HOUR, HOUR), Stay(HALF, 3 * HOUR, HOUR)]
    served = departures.live(OneCard(), stays)
    # until the last one came: three hours of the first half, one of the second; the whole one of them waited for two
    assert (served.hours, served.mean_wait) == (1.5 + 0.5, 0.5)
    assert served.p95_wait == pytest.approx(1.7)


def test_running_times_are_stretched_until_the_cluster_is_hot() -> None:
    times = [(at, at + 10) for at in range(1000)]
    stays = departures.heated([WHOLE] * 1000, times, 50)
    window = stays[-1].comes - stays[0].comes
    asked = sum(stay.runs for stay in stays) / window / 50
    assert asked == pytest.approx(departures.OFFERED, rel=1e-3)
    assert len(stays) == 950


def test_a_tenth_of_the_nodes_is_left() -> None:
    machines = [Machine(1000, 1024, 1, str(number)) for number in range(100)]
    some = departures.thinned(machines, np.random.default_rng(1))
    assert len(some) == len(set(some)) == 10


@pytest.mark.parametrize("task", [WHOLE, HALF, Task(500, 10, 2, CARD)])
def test_what_was_booked_is_given_back(task: Task) -> None:
    node = Machine(8000, 4096, 4, "T4").state("n")
    ask: SchedulingRequest = task.ask()
    found = decide({"n": node}, ask)
    assert isinstance(found, Placement)
    assert unbooked(nodeinfo.booked(node, ask, found.containers), ask, found) == node
