"""
The trace with its own times: pods come, run, and leave; who finds no room waits in line.

As recorded the cluster is almost empty, so it is made hot: every `THINNED`th node only, and all running times longer by
one factor, so that over the time in which pods come `OFFERED` times the cluster's cards are asked for. A pod whose time
would be longer than that whole time runs that long. Waiting pods are tried oldest first whenever somebody came or left,
and whoever fits starts, as the allocator does it. Counted until the last pod came: card hours served, and how long pods
waited, where a pod that still waits has waited until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from allocator.scoring.classes import CARD
from benchmarks.placement.trace import Machine, Task

THINNED = 10
OFFERED = 1.1


class Yard(Protocol):
    """A policy with a cluster from which pods can leave again."""

    def place(self, task: Task) -> bool:
        """Put one pod somewhere; False if it fits nowhere."""

    def last(self) -> object:
        """What `leave` needs to take off the pod that was placed last."""

    def leave(self, placed: object) -> None:
        """That pod is gone."""


@dataclass(frozen=True, slots=True)
class Stay:
    """A pod with the time when it comes and how long it runs, in seconds."""

    task: Task
    comes: int
    runs: float


@dataclass(frozen=True, slots=True)
class Served:
    """What came of one policy: card hours until the last pod came, and pods' waits in hours."""

    hours: float
    offered: float
    mean_wait: float
    p95_wait: float


def heated(tasks: Sequence[Task], times: Sequence[tuple[int, int]], cards: int) -> list[Stay]:
    """
    The pods in the order in which they come, with times (creation, deletion) that make so many cards hot.

    The first twentieth of the pods came in a time ten times as long as all others and is left out.
    """
    order = sorted(range(len(tasks)), key=lambda at: (times[at][0], at))[len(tasks) // 20 :]
    first, last = times[order[0]][0], times[order[-1]][0]
    window = float(last - first)
    lengths = np.array([times[at][1] - times[at][0] for at in order], np.float64)
    volumes = np.array([tasks[at].volume / CARD for at in order])
    low, high = 1.0, 1e9
    for _ in range(60):  # the capped volume grows with the factor, so halving finds it
        factor = (low * high) ** 0.5
        asked = float((np.minimum(lengths * factor, window) * volumes).sum()) / window / cards
        low, high = (factor, high) if asked < OFFERED else (low, factor)
    runs = np.minimum(lengths * low, window)
    return [Stay(tasks[at], times[at][0] - first, float(run)) for at, run in zip(order, runs, strict=True)]


def thinned(machines: Sequence[Machine], rng: np.random.Generator) -> list[Machine]:
    """Every `THINNED`th node of a random order."""
    return [machines[int(at)] for at in rng.permutation(len(machines))[::THINNED]]


def live(yard: Yard, stays: Sequence[Stay]) -> Served:
    """Play it."""
    end = float(stays[-1].comes)
    leaving: list[tuple[float, int, object]] = []
    line: list[Stay] = []
    hours = 0.0
    waits: list[float] = []

    def start(stay: Stay, now: float) -> bool:
        nonlocal hours
        if not yard.place(stay.task):
            return False
        heapq.heappush(leaving, (now + stay.runs, len(waits), yard.last()))
        waits.append(now - stay.comes)
        hours += min(stay.runs, end - now) * stay.task.volume / CARD / 3600
        return True

    for stay in stays:
        while leaving and leaving[0][0] <= stay.comes:
            now = leaving[0][0]
            while leaving and leaving[0][0] == now:
                yard.leave(heapq.heappop(leaving)[2])
            line = _pass(line, now, start)
        if not start(stay, stay.comes):
            line.append(stay)
    waits.extend(end - stay.comes for stay in line)
    offered = sum(min(stay.runs, end - stay.comes) * stay.task.volume for stay in stays) / CARD / 3600
    in_hours = np.array(waits) / 3600
    return Served(hours, offered, float(in_hours.mean()), float(np.percentile(in_hours, 95)))


class _Starts(Protocol):
    def __call__(self, stay: Stay, now: float) -> bool: ...


def _pass(line: list[Stay], now: float, start: _Starts) -> list[Stay]:
    """Down the line once; room only shrinks meanwhile, so what did not fit once is not tried again."""
    failed: set[Task] = set()
    waiting = []
    for stay in line:
        if stay.task in failed or not start(stay, now):
            failed.add(stay.task)
            waiting.append(stay)
    return waiting
