"""
`python -m benchmarks.decisions`: how long decisions take, measured inside one process, raw figures out.

Prints one JSON object on standard output, with every single latency in it; `benchmarks` starts this with one
cluster size at a time, so that each has a process and a memory of its own, and makes the tables. Asserts nothing.

The cluster stays as full as it was: every placement is followed by the release of a pod picked at random. Nothing is
warmed up: the first question, which finds every cache empty, and the first of each shape are among the figures. The
report has both processor time and elapsed time, because the two differ on a shared machine.

Where the policy learns, it starts from nothing. A lesson, which production makes on another thread, and taking over its
tables, during which production decides nothing, are counted apart; the decisions after it find all costs forgotten.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allocator.__main__ import GC_THRESHOLDS
from allocator.engine import reference
from allocator.engine.reference import Placement
from allocator.settings import PlacementSettings
from benchmarks.decisions import mix
from benchmarks.decisions.world import World
from contract.scheduling.needs import SchedulingRequest

JSON = dict[str, Any]
_UPDATE_EVERY, _REPLACE_EVERY = 5, 50
"""Decisions between two changes of a node, and between two nodes that leave and come back."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions", description=__doc__.split("\n\n")[0])
    parser.add_argument("--nodes", type=int, default=1000, help="nodes of 8 GPUs")
    parser.add_argument("--sharers", type=int, default=16_000, help="pods that hold a share at the start")
    parser.add_argument("--decisions", type=int, default=3000, help="requests that find room")
    parser.add_argument("--refusals", type=int, default=20, help="number of each kind of request that finds no room")
    parser.add_argument("--plain", type=int, default=5, help="decisions also asked of the plain engine")
    parser.add_argument(
        "--policy", default=PlacementSettings().node_policy, help="node policy if the tenant chose none"
    )
    parser.add_argument(
        "--no-choice", type=int, default=0, help="1: no tenant chooses a policy; 0: a third of the shapes"
    )
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    gc.set_threshold(*GC_THRESHOLDS)
    rng = random.Random(given.seed)
    world = World(nodes=given.nodes, sharers=given.sharers, rng=rng, policy=given.policy)
    result: JSON = {"nodes": given.nodes, "sharers": given.sharers, "policy": given.policy}
    result["rss_loaded"] = _memory("VmRSS")
    shapes = mix.shapes(rng)
    result |= _placements(world, mix.left_to_the_default(shapes) if given.no_choice else shapes, given.decisions, rng)
    result["refusals"] = _refusals(world, given.refusals)
    result |= {"rss": _memory("VmRSS"), "rss_peak": _memory("VmHWM")}
    result["plain_ns"] = _plain(world, mix.shapes(random.Random(given.seed)), given.plain)
    json.dump(result, sys.stdout)
    print()
    return 0


def _placements(world: World, shapes: list[SchedulingRequest], decisions: int, rng: random.Random) -> JSON:
    decide, seen = world.cluster.engine.decide, set[SchedulingRequest]()
    took: list[int] = []
    worked: list[int] = []
    first: list[int] = []
    booked: list[int] = []
    lessons: list[int] = []
    adopted: list[int] = []
    refused = 0
    started = time.perf_counter()
    for number in range(decisions):
        ask = rng.choice(shapes)
        if world.lesson_due(ask):
            cpu = time.thread_time_ns()
            made = world.lesson()
            lessons.append(time.thread_time_ns() - cpu)
            cpu = time.thread_time_ns()
            world.cluster.engine.adopt(made)
            adopted.append(time.thread_time_ns() - cpu)
        before, cpu = time.perf_counter_ns(), time.thread_time_ns()
        decision = decide(ask)
        cpu, decided = time.thread_time_ns() - cpu, time.perf_counter_ns()
        took.append(decided - before)
        worked.append(cpu)
        if ask not in seen:
            seen.add(ask)
            first.append(decided - before)
        if isinstance(decision, Placement):
            world.book(ask, decision)
            booked.append(time.perf_counter_ns() - before)
            world.release_one()
        else:
            refused += 1
        if number % _UPDATE_EVERY == 0:
            world.update_a_node()
        if number % _REPLACE_EVERY == _REPLACE_EVERY - 1:
            world.replace_a_node()
    seconds = time.perf_counter() - started
    return {
        "decisions": decisions,
        "decide_ns": took,
        "cpu_ns": worked,
        "first_ns": first,
        "booked_ns": booked,
        "lesson_cpu_ns": lessons,
        "adopt_cpu_ns": adopted,
        "refused": refused,
        "shapes": len(seen),
        "churn_seconds": seconds,
    }


def _refusals(world: World, times: int) -> list[JSON]:
    """A "no" is timed with the check whether it is permanent, which the allocator always makes after it."""
    found = []
    for refused in mix.unplaceable():
        took, placed = [], 0
        for _ in range(times):
            before = time.perf_counter_ns()
            placed += isinstance(world.cluster.engine.decide(refused.ask), Placement)
            world.cluster.engine.could_ever(refused.ask)
            took.append(time.perf_counter_ns() - before)
            world.release_one()
        found.append({"what": refused.what, "ns": took, "placed": placed})
    return found


def _plain(world: World, shapes: list[SchedulingRequest], times: int) -> list[int]:
    """The specification on the same cluster; its answers must be the fast engine's."""
    took = []
    for ask in shapes[:times]:
        fast = world.cluster.engine
        before = time.perf_counter_ns()
        decision = reference.decide(world.cluster.snapshot, ask, policy=fast.policy, tables=fast.tables)
        took.append(time.perf_counter_ns() - before)
        if decision != fast.decide(ask):
            raise AssertionError(f"the two engines differ on {ask}")
    return took


def _memory(field: str) -> int:
    """A figure of this process in bytes, from proc(5); 0 where there is no such file."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:")), 0)


if __name__ == "__main__":
    sys.exit(main())
