"""Sides take turns on their control planes, and a failing peer is left out while the others continue."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from benchmarks.throughput import sides
from benchmarks.throughput.sides import Bench, Side
from benchmarks.throughput.turns import Turns
from playground.waiting import NotInTime

OURS = sides.chosen(["nodeName", "affinity"])
PEERS = sides.chosen(["dra", "time-slicing"])


class _Planes:
    """Control planes without programs, and which of them were started and stopped."""

    def __init__(self, failing: str = "") -> None:
        self.started: list[str] = []
        self.stopped: list[str] = []
        self._failing = failing

    @contextlib.contextmanager
    def start(self, side: Side) -> Iterator[Bench]:
        if side.name == self._failing:
            raise NotInTime("its programs do not work")
        self.started.append(side.plane)
        try:
            yield object.__new__(Bench)
        finally:
            self.stopped.append(side.plane)


def test_sides_of_one_control_plane_share_it() -> None:
    planes = _Planes()
    with Turns([*OURS, *PEERS], planes.start) as turn:
        assert planes.started == [OURS[0].plane, "dra", "time-slicing"]
        assert [side.name for side, _ in turn.each("once", lambda bench, side: None, once=True)] == [
            "nodeName",
            "dra",
            "time-slicing",
        ]
    assert planes.stopped == planes.started[::-1]


def test_a_peer_that_does_not_start_is_left_out() -> None:
    planes = _Planes(failing="dra")
    with Turns([*OURS, *PEERS], planes.start) as turn:
        assert [side.name for side in turn.sides] == ["nodeName", "affinity", "time-slicing"]
    assert list(turn.failures()) == ["dra was not measured: its programs do not work"]


def test_a_peer_that_fails_in_a_round_has_no_further_turn() -> None:
    def work(bench: Bench, side: Side) -> str:
        if side.name == "dra":
            raise TimeoutError("no pod has a node")
        return side.name

    with Turns([*PEERS, *OURS], _Planes().start) as turn:
        for _ in range(2):
            assert [found for _, found in turn.each("work", work)] == ["time-slicing", "nodeName", "affinity"]
    assert list(turn.failures()) == ["dra was not measured: no pod has a node"]


def test_a_failure_of_ours_ends_the_run() -> None:
    planes = _Planes(failing="nodeName")
    with pytest.raises(NotInTime), Turns([*PEERS, *OURS], planes.start):
        pass
    assert planes.stopped == ["time-slicing", "dra"]
