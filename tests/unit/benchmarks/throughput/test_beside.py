"""The tables that compare all sides, and what they say about sides that cannot be compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from benchmarks.throughput import beside, kills, requests, sides
from benchmarks.throughput.kills import Killed
from benchmarks.throughput.sides import Measured, Work

_ASKED = dict.fromkeys((*requests.KINDS, requests.READS), 0.5)
_MEMORY = {"kube-apiserver": 400 << 20, "etcd": 100 << 20, "kube-scheduler": 60 << 20, "webhook": 40 << 20}
_EVERY = (*sides.SIDES, *sides.BESIDE)


def measured(side: str, seconds: float = 2.0, *, known: Sequence[float] = (), pods: int = 10) -> Measured:
    return Measured(side, pods, None, Work(seconds, {"etcd": 0.1}, 0.1, _ASKED), known, _MEMORY)


def killed(*, counted: bool = True, ever: Mapping[tuple[str, str], int] | None = None) -> Killed:
    return Killed(300, [0.5, 1.5, 0.75], 20, ever or {}, {}, 2, 1, counted)


def test_a_sides_figures_are_medians_of_its_rounds() -> None:
    rounds = [measured("dra", seconds, known=[0.1, 0.3]) for seconds in (1.0, 2.0, 5.0)]
    one = beside.Beside.of(rounds, [0.02, 0.04, 0.01])
    assert (one.placed, one.rate, one.writes) == (10, 5.0, 3.0)
    assert one.cpu_ms == pytest.approx(10.0)
    assert (one.known, one.single) == ((0.1, 0.3), 0.02)


def test_memory_of_programs_that_every_cluster_has_is_not_a_sides_own() -> None:
    one = beside.Beside.of([measured("dra")], ())
    assert (one.own_mib, one.mib) == (40.0, 100.0)


def test_where_no_card_is_known_the_table_has_no_times() -> None:
    assert beside.Beside.of([measured("time-slicing")], ()).cells()[-3:] == ("-", "-", "-")


def test_pods_that_were_not_placed_in_time_show() -> None:
    assert beside.Beside.of([measured("dra"), measured("dra", pods=7)], ()).cells()[0] == "7"


def test_the_table_has_every_side_with_cards_and_fits_a_terminal() -> None:
    found = {side.name: [measured(side.name, known=[0.25])] for side in _EVERY}
    text = "\n".join(beside.report(5000, 1000, _EVERY, found, {"dra": [0.05]}))
    compared = ("nodeName", "affinity", *(side.name for side in sides.BESIDE))
    assert [line.split()[2] for line in text.splitlines() if line.startswith("bench peers")] == [
        f"side={name}" for name in compared
    ]
    assert "single_s=0.050" in text


def test_without_a_side_that_has_cards_there_is_no_table() -> None:
    found = {sides.KUBE_SCHEDULER.name: [measured("kube-scheduler")]}
    assert not list(beside.report(10, 10, [sides.KUBE_SCHEDULER], found, {}))


def test_the_table_of_kills_tells_cards_that_were_ever_overcommitted() -> None:
    found = {side.title: killed(ever={("n1", "0"): 1, ("n1", "1"): 1}) for side in _EVERY}
    row = kills.report(5000, 10, found).splitlines()[-1].split()
    assert row[-9:] == ["3", "300", "0.8", "1.5", "20", "2", "0", "2", "1"]


def test_where_memory_is_not_counted_the_table_of_kills_says_so() -> None:
    assert "not counted" in kills.report(10, 10, {"time-slicing": killed(counted=False)})
    assert kills.line(10, sides.BESIDE[0], killed(counted=False)).endswith(" ever=- given_up=1")


def test_a_line_for_programs_tells_how_long_each_recovery_took() -> None:
    line = kills.line(10, sides.BESIDE[0], killed())
    assert " kills=3 bound=300 back_s=0.5,1.5,0.8 checks=20 ever=0 end=0 no_card=2 given_up=1" in line
