"""
The cost of other pods and volumes: memory, and decisions with and without the filters that look beyond one node.

Both decide about the same request in the same state, in turn, so that other work on the machine affects both.
`python -m benchmarks.decisions.neighbours` is the process that measures, and prints one JSON object; `neighbours` makes
the table of it.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from allocator.__main__ import GC_THRESHOLDS
from allocator.cache import reserved
from allocator.cache.podinfo import read_pod
from allocator.cache.reserved import Requester
from allocator.engine.reference import Placement
from benchmarks import others, processes
from benchmarks.decisions import mix
from benchmarks.decisions.world import World
from benchmarks.figures import MIB, MICROSECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import pods
from contract.scheduling.clusterfilters.objects import PodRules
from contract.scheduling.needs import SchedulingRequest

JSON = dict[str, Any]
_TOP = Path(__file__).resolve().parents[2]
_TIMEOUT = 900.0
NODES, SHARERS, OTHERS, DECISIONS = 5_000, 20_000, 80_000, 3_000
_CONSTRAINED = 10
"""Decisions about a pod that other pods affect, for each about a pod that they do not affect."""


def neighbours() -> Iterator[str]:
    """One run at the size of the goals."""
    flags = {"nodes": NODES, "sharers": SHARERS, "others": OTHERS, "decisions": DECISIONS}
    say(f"decisions beside {OTHERS} other pods at {NODES} nodes")
    command = [sys.executable, "-m", "benchmarks.decisions.neighbours"]
    command += [f"--{key}={value}" for key, value in flags.items()]
    done = subprocess.run(command, cwd=_TOP, stdout=subprocess.PIPE, timeout=_TIMEOUT, check=True, text=True)
    result = json.loads(done.stdout)
    rows, values = [], dict[str, object](flags)
    for what, found in result["asking"].items():
        off, on = Spread.of(found["off"]), Spread.of(found["on"])
        rows.append((what, *off.cells(MICROSECOND, 0)[:2], *on.cells(MICROSECOND, 0)[:2], f"{on.p50 / off.p50:.3f}"))
        key = what.replace(" ", "_").replace("-", "_")
        values |= {f"{key}_off_p50_us": f"{off.p50 / MICROSECOND:.0f}", f"{key}_ratio": f"{on.p50 / off.p50:.3f}"}
    yield table(
        f"One decision, us of processor time, at {NODES} nodes x 8 GPUs beside {SHARERS + OTHERS} pods, in turns",
        ("a pod with", "off p50", "off p99", "on p50", "on p99", "on / off"),
        rows,
    )
    memory = [(what, f"{result[key] / MIB:.0f}") for what, key in _MEMORY]
    yield table("Resident memory of the process, MiB", ("after", "MiB"), memory)
    values |= {key: f"{result[key] / MIB:.0f}" for _, key in _MEMORY}
    yield machine_line("neighbours", values)


_MEMORY = (
    ("nodes, GPUs and shares", "rss_shares"),
    ("all other pods", "rss_pods"),
    ("claims, volumes and attachments", "rss_volumes"),
    ("all decisions", "rss"),
)


def main(arguments: list[str] | None = None) -> int:
    """Measure; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions.neighbours")
    for name, number in (("nodes", NODES), ("sharers", SHARERS), ("others", OTHERS), ("decisions", DECISIONS)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    gc.set_threshold(*GC_THRESHOLDS)
    rng = random.Random(given.seed)
    world = World(nodes=given.nodes, sharers=given.sharers, rng=rng)
    result: JSON = {"rss_shares": _rss()}
    _add_others(world, given.others)
    result["rss_pods"] = _rss()
    for plural, found in others.stored(given.others, [*map(mix.node_name, range(given.nodes))]).items():
        world.cluster.neighbours.storage.listed(plural, found)
    world.cluster.neighbours.storage.objects()
    result["rss_volumes"] = _rss()
    gc.collect()
    gc.freeze()  # as the allocator does once it has read the cluster
    shapes = mix.left_to_the_default(mix.shapes(rng))
    asked = others.asking(given.others)
    result["asking"] = {
        what: _in_turns(world, shapes, rules, given.decisions // (_CONSTRAINED if number else 1), rng)
        for number, (what, rules) in enumerate(asked.items())
    }
    result["rss"] = _rss()
    json.dump(result, sys.stdout)
    print()
    return 0


def _add_others(world: World, number: int) -> None:
    """Pods without a share, spread over the nodes, read as the watch brings them."""
    world.cluster.hold()
    for each in range(number):
        made = others.pod(each, mix.node_name(others.place(each, world.nodes)))
        made["metadata"]["uid"] = f"00000000-0000-0000-0001-{each:012x}"
        # The text of an object of the API is its own; what the cache keeps of it must not keep all of it.
        world.cluster.put_pod(read_pod(pods.trim(json.loads(json.dumps(made)))), 0.0)
    world.cluster.catch_up()


def _in_turns(
    world: World, shapes: list[SchedulingRequest], rules: PodRules, decisions: int, rng: random.Random
) -> dict[str, list[int]]:
    """Nanoseconds of each decision without these filters, and with them."""
    cluster = world.cluster
    who, nobody = Requester(namespace=rules.namespace, rules=rules), Requester(namespace=rules.namespace)

    def within(ask: SchedulingRequest) -> object:
        return cluster.decide(ask, who)

    def without(ask: SchedulingRequest) -> object:
        cluster.prepare()
        return reserved.decide(cluster.engine, cluster.snapshot, cluster.reservations, ask, nobody)

    ways = {"off": without, "on": within}
    took: dict[str, list[int]] = {name: [] for name in ways}
    for number in range(decisions):
        ask = rng.choice(shapes)
        decision: object = None
        for name in sorted(ways, reverse=bool(number % 2)):
            before = time.thread_time_ns()
            decision = ways[name](ask)
            took[name].append(time.thread_time_ns() - before)
        if isinstance(decision, Placement):
            world.book(ask, decision)
            world.release_one()
    return took


def _rss() -> int:
    return processes.rss(os.getpid())


if __name__ == "__main__":
    sys.exit(main())
