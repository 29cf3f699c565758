"""Pods that end: what is served and how long the others wait, computed by hand; and what a cluster gets back."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from allocator.cache.reserved import HeldNode
from allocator.engine.reference import Placement, Policy, decide
from allocator.scoring import tables
from allocator.scoring.classes import CARD, supply_of
from allocator.settings import Settings
from benchmarks.placement import departures
from benchmarks.placement.baselines import Baseline
from benchmarks.placement.defragmenting import Defragmenter, Rules, rules_of
from benchmarks.placement.departures import Guard, Served, Stay, Yard
from benchmarks.placement.replaying import LIMITS, Engines, unbooked
from benchmarks.placement.trace import Machine, Task
from contract.model import NodeState
from contract.scheduling import nodeinfo
from contract.scheduling.needs import SchedulingRequest
from tests.unit.allocator.chosen import chosen

WHOLE, HALF = Task(1000, 1024, 1, CARD), Task(1000, 1024, 1, 500)
HOUR = 3600


class OneCard:
    """A cluster of one card."""

    def __init__(self) -> None:
        self.free = CARD
        self._last = WHOLE
        self.informed: list[list[int]] = []
        """For how many cards pods waited, at each change of the queue."""

    def place(self, task: Task, uid: str = "") -> bool:
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

    def states(self) -> dict[str, NodeState]:
        return {}

    def reserve(self, reservation: HeldNode | None) -> None:
        raise AssertionError("nothing is reserved without a guard")

    def spare(self, cards: Collection[int]) -> None:
        self.informed.append(sorted(cards))


def test_who_finds_no_room_waits_and_starts_when_somebody_leaves() -> None:
    stays = [
        Stay(WHOLE, 0, 2 * HOUR),
        Stay(WHOLE, HOUR, 5 * HOUR),  # waits an hour, and runs for two of its five hours before the end
        Stay(HALF, HOUR, HOUR),  # never finds room before the end
        Stay(WHOLE, 4 * HOUR, HOUR),
    ]
    served = departures.live(OneCard(), stays)
    assert served.hours == 2 + 2
    assert served.offered == 2 + 3 + 0.5
    assert served.mean_wait == pytest.approx((0 + 1 + 3 + 0) / 4)


def test_the_policy_learns_how_many_cards_pods_wait_for() -> None:
    two, yard = Task(1000, 1024, 2, CARD), OneCard()
    stays = [Stay(HALF, 0, HOUR), Stay(WHOLE, 1, HOUR), Stay(two, 2, HOUR), Stay(HALF, 2 * HOUR, HOUR)]
    departures.live(yard, stays)
    # the whole one waits, then the pair with it; the whole one starts after an hour, and the pair waits forever
    assert yard.informed == [[1], [1, 2], [2], [2]]


def test_a_smaller_one_behind_may_start_first() -> None:
    stays = [Stay(HALF, 0, 9 * HOUR), Stay(WHOLE, HOUR, HOUR), Stay(HALF, 2 * HOUR, HOUR), Stay(HALF, 3 * HOUR, HOUR)]
    served = departures.live(OneCard(), stays)
    # until the last one arrived: three hours of the first half, one of the second; the whole one waited for two of them
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


@pytest.mark.parametrize("policy", ["binpack", "best-fit"])
@pytest.mark.parametrize(
    ("options", "waited"),
    [
        (None, 1.5 + 1),  # the node is reserved at two hours, and the pod that arrives then waits until the end
        (chosen(starvation_timeout=0), 2),  # the starving pod waits until the end
    ],
    ids=["reserved", "not reserved"],
)
def test_a_node_is_reserved_for_a_starving_pod(policy: str, options: Settings | None, waited: float) -> None:
    """
    Pods of one card arrive every hour and run for one and a half, so both cards of the node are never free at once.
    """
    pair, machine = Task(1000, 1024, 2, CARD), Machine(64_000, 65_536, 2, "T4")
    singles = [Stay(WHOLE, HOUR * hour, 1.5 * HOUR, f"single-{hour}") for hour in range(4)]
    stays = sorted([*singles, Stay(pair, HOUR + 1, HOUR, "pair")], key=lambda stay: stay.comes)
    node = machine.state("node-00000")
    supply = supply_of({node.name: node}, LIMITS)
    measure = tables.fragmentation({}, supply)
    yard: Yard = (
        Engines([node], Policy(policy), measure=measure)
        if policy == "binpack"
        else Baseline(policy, [machine], np.random.default_rng(1), measure=measure, supply=supply)
    )
    served = departures.live(yard, stays, Guard(yard, LIMITS, options))
    assert served.mean_wait * len(stays) == pytest.approx(waited, abs=0.001)


def test_a_baseline_shows_its_nodes_as_the_allocator_knows_them() -> None:
    machine = Machine(64_000, 65_536, 2, "T4")
    node = machine.state("node-00000")
    supply = supply_of({node.name: node}, LIMITS)
    measure = tables.fragmentation({}, supply)
    ours = Engines([node], Policy("binpack"), measure=measure)
    theirs = Baseline("best-fit", [machine], np.random.default_rng(1), measure=measure, supply=supply)
    for task in (HALF, WHOLE):
        assert ours.place(task) == theirs.place(task) is True
        assert ours.states() == theirs.states()
    for yard in (ours, theirs):
        yard.leave(yard.last())
    assert ours.states() == theirs.states()


# -- defragmentation --------------------------------------------------------------------------------------------------


def fragmented(rules: Rules | None, *, late: float = 8 * HOUR) -> tuple[Served, Defragmenter | None]:
    """0.4 of a card runs on each of two nodes for a long time. After an hour a pod needs a whole card."""
    stays = [
        *(
            Stay(Task(1000, 1024, 1, parts), 0, runs, f"{parts}-{number}")
            for number in range(2)
            for parts, runs in ((600, HOUR / 2), (400, 20 * HOUR))
        ),
        Stay(WHOLE, HOUR, 10 * HOUR, "whole"),
        Stay(Task(1000, 1024, 0, 0), int(late), HOUR, "last"),
    ]
    nodes = [Machine(64_000, 65_536, 1, "T4").state(f"node-{number}") for number in range(2)]
    supply = supply_of({node.name: node for node in nodes}, LIMITS)
    yard = Engines(nodes, Policy("binpack"), measure=tables.fragmentation({}, supply))
    mover = Defragmenter(rules, LIMITS) if rules is not None else None
    return departures.live(yard, stays, Guard(yard, LIMITS, chosen(starvation_timeout=0)), mover), mover


def test_a_pod_moves_so_that_a_larger_one_starts_and_its_work_is_lost() -> None:
    still, _ = fragmented(None)
    assert still.hours == pytest.approx(2 * 0.4 * 8 + 2 * 0.6 / 2)
    moved, mover = fragmented(rules_of("2"))
    # After an hour of waiting the whole card has missed more than the other pod has computed in two hours.
    assert mover is not None
    assert (mover.moves, moved.evictions) == (1, 1)
    assert moved.hours == pytest.approx(still.hours - 2 * 0.4 + 6)
    assert [moved.lost, moved.mean_wait * 6] == pytest.approx([2 * 0.4, 1])


def test_work_that_is_kept_is_not_lost() -> None:
    kept, _ = fragmented(rules_of("2:kept"))
    assert [kept.lost, kept.hours] == pytest.approx([0, 2 * 0.4 * 8 + 2 * 0.6 / 2 + 6])


@pytest.mark.parametrize("text", ["0", "2:1h", "2:x0.01"])
def test_nobody_moves_where_the_rules_forbid_it(text: str) -> None:
    served, mover = fragmented(rules_of(text))
    assert mover is not None
    assert (mover.moves, served) == (0, fragmented(None)[0])


def test_how_rules_are_written() -> None:
    assert rules_of("off") is None
    assert rules_of("3:kept:any:6h") == Rules(3, worth=float("inf"), starts_over=False, youngest=6 * HOUR)
    assert rules_of("1:x0.5") == Rules(1, worth=0.5)
    with pytest.raises(ValueError, match="many"):
        rules_of("many")
