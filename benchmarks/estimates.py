"""
`python -m benchmarks.estimates --trace FOLDER`: how often a waiting pod starts at its estimated time, on openb.

The trace with its own times, made hot as in `benchmarks.placement.departures`: every tenth node, and all running times
longer by one factor. Waiting pods are tried oldest first, and every one that fits starts. As a pod joins the queue it
gets an estimate by the allocator's own code, with what was learnt from the pods that ended before. The trace does not
say whose a pod is, so pods that request the same stand for one owner's. The answer is judged when the pod starts:
by-then, sooner (before half of the time had passed) or later. A pod that never starts is not judged.

The constant guess gives every pod the same wait. It is the one that would have been right most often, chosen
afterwards, so no constant guess does better on the same pods.
"""

from __future__ import annotations

import argparse
import heapq
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from allocator.features.estimates.forecast import MOST_WAITING, Estimate, NoEstimate, Waiting, forecast
from allocator.features.estimates.history import DurationHistory
from allocator.features.estimates.part import Outcome, outcome
from allocator.features.estimates.scale import Scale
from benchmarks.placement import trace
from benchmarks.placement.departures import Stay, heated, thinned
from benchmarks.placement.trace import Task
from contract.model import NodeState
from contract.reasons.nodes import Reason
from contract.scheduling import fit, nodeinfo
from contract.scheduling.demand import per_gpu, shares_of
from contract.scheduling.filters import DEFAULT_LIMITS, node_reason
from contract.scheduling.nodeinfo import AllocatedPod

OUTCOMES: tuple[Outcome, ...] = ("by-then", "sooner", "later")


@dataclass(frozen=True, slots=True)
class Told:
    """A pod that got the estimate `by` when it began to wait, and started."""

    at: float
    by: float
    started: float


@dataclass
class Replay:
    """The cluster, the queue, and the estimates of the pods."""

    nodes: dict[str, NodeState]
    holders: dict[str, dict[str, AllocatedPod]] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    queue: list[Stay] = field(default_factory=list)
    leaving: list[tuple[float, str, str]] = field(default_factory=list)
    history: DurationHistory = field(default_factory=DurationHistory)
    keys: dict[str, str] = field(default_factory=dict)
    families: dict[Task, str] = field(default_factory=dict)
    said: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    scale: Scale = field(default_factory=Scale)
    told: list[Told] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    silent: Counter[str] = field(default_factory=Counter)
    every: int = 1
    """One of this many pods that begin to wait gets an estimate; a forecast takes time."""
    came: int = 0

    def key(self, stay: Stay) -> str:
        """The pod as its owner would name it: one namespace for 16 kinds of requests."""
        number = int(self.families.setdefault(stay.task, str(len(self.families))))
        letters = "".join(chr(ord("a") + int(each)) for each in str(number))
        return f"team-{number // 16}/kind{letters}"

    def until(self, time: float) -> None:
        """Everything that happens until then."""
        while self.leaving and self.leaving[0][0] <= time:
            now, uid, name = heapq.heappop(self.leaving)
            pod = self.holders[name].pop(uid)
            on = [pod, *self.holders[name].values()]
            self.nodes[name] = nodeinfo.unbooked(self.nodes[name], on, [pod])
            self.history.ended(pod.key, now - self.since.pop(uid))
            failed: set[Task] = set()
            waiting = []
            for stay in self.queue:
                if stay.task in failed or not self.start(stay, now):
                    failed.add(stay.task)
                    waiting.append(stay)
            self.queue = waiting

    def start(self, stay: Stay, now: float) -> bool:
        """Start the pod on the fullest node that has room."""
        ask = stay.task.ask()
        best: tuple[int, str, fit.Fit] | None = None
        for name, node in self.nodes.items():
            if node_reason(node, ask.needs) is not None:
                continue
            found = fit.fit(node, ask.request, DEFAULT_LIMITS, fit.least_free)
            if not isinstance(found, Reason):
                free = sum(gpu.usable - used.memory for gpu, used in zip(node.gpus, node.usage, strict=True))
                best = min(best or (free, name, found), (free, name, found), key=lambda each: each[:2])
        if best is None:
            return False
        _, name, chosen = best
        given = fit.allocate(self.nodes[name], ask.request, chosen.chosen)
        self.nodes[name] = nodeinfo.booked(self.nodes[name], ask, given)
        demands = per_gpu(ask.request, shares_of(given))
        self.holders.setdefault(name, {})[stay.uid] = AllocatedPod(
            stay.uid, self.key(stay), name, 0, now, demands, ask.needs.compute
        )
        self.since[stay.uid] = now
        heapq.heappush(self.leaving, (now + stay.runs, stay.uid, name))
        if stay.comes < now:
            self.waits.append(now - stay.comes)
        if stay.uid in self.said:
            at, by, played = self.said.pop(stay.uid)
            self.scale.came(played - at, now - at)
            self.told.append(Told(at, by, now))
        return True

    def come(self, stay: Stay) -> None:
        """A pod arrives; if it must wait, it gets an estimate of the time."""
        now = float(stay.comes)
        if self.start(stay, now):
            return
        self.queue.append(stay)
        self.came += 1
        if self.came % self.every:
            return
        if len(self.queue) > MOST_WAITING:
            self.silent[NoEstimate.TOO_FAR] += 1
            return
        queue = [
            Waiting(each.uid, self.key(each), each.task.ask(), self.history.left(self.key(each))) for each in self.queue
        ]
        holders = {name: tuple(on.values()) for name, on in self.holders.items()}
        found = forecast(tuple(self.nodes.values()), holders, self.left(now), queue, DEFAULT_LIMITS, now)[stay.uid]
        if isinstance(found, Estimate):
            self.said[stay.uid] = now, now + self.scale.of(found.by - now), found.by
        else:
            self.silent[found] += 1

    def left(self, now: float) -> Callable[[AllocatedPod], Sequence[float]]:
        """For how long each pod may go on."""
        return lambda pod: self.history.left(pod.key, now - self.since.get(pod.uid, now))


def constant(told: Sequence[Told]) -> tuple[float, Counter[Outcome]]:
    """The one wait that would have been right for most of these pods, and its results."""
    waited = np.array([each.started - each.at for each in told])
    best = max(np.unique(waited), key=lambda guess: int(((waited <= guess) & (waited >= guess / 2)).sum()))
    return float(best), Counter(outcome(0, float(best), float(each)) for each in waited)


def replay(folder: Path, name: str, seed: int, every: int = 1) -> Replay:
    """One list of the trace on one choice of nodes. Raises `NoTrace`."""
    rng = np.random.default_rng(seed)
    machines = thinned(trace.machines(folder), rng)
    tasks, times = trace.tasks(folder, name), trace.times(folder, name)
    with_cards = [at for at, task in enumerate(tasks) if task.cards]
    cards = sum(machine.cards for machine in machines)
    made = heated([tasks[at] for at in with_cards], [times[at] for at in with_cards], cards)
    play = Replay({node.name: node for node in trace.nodes(machines, rng)}, every=every)
    largest = max(machine.cards for machine in machines)
    models = {machine.model for machine in machines}
    for stay in made:
        if stay.task.cards > largest or (stay.task.models and models.isdisjoint(stay.task.models)):
            continue  # it would wait forever on these nodes
        play.until(stay.comes)
        play.come(stay)
    play.until(float(made[-1].comes))
    return play


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimates", description="Judge estimates on the trace.")
    parser.add_argument("--trace", type=Path, required=True, metavar="FOLDER", help="folder of the openb trace")
    parser.add_argument("--lists", default="default,cpu100,gpuspec20", help="lists of the trace that have times")
    parser.add_argument("--seeds", default="42", help="numbers by which nodes are chosen, with commas")
    parser.add_argument(
        "--every", type=int, default=3, help="make an estimate for one of this many pods that begin to wait"
    )
    given = parser.parse_args(arguments)
    heads = ("list", "seed", "waited", "told", *OUTCOMES, "constant guess", *OUTCOMES, "half waited")
    print(f"| {' | '.join(heads)} |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|")
    for name in given.lists.split(","):
        for seed in map(int, given.seeds.split(",")):
            play = replay(given.trace, name, seed, given.every)
            total = len(play.told)
            if not total:
                print(f"| {name} | {seed} | {len(play.waits)} | 0 |" + " |" * 8)
                continue
            ours = Counter(outcome(each.at, each.by, each.started) for each in play.told)
            guess, theirs = constant(play.told)
            parts = [f"{100 * ours[each] / total:.0f} %" for each in OUTCOMES]
            beside = [f"{100 * theirs[each] / total:.0f} %" for each in OUTCOMES]
            cells = [name, seed, len(play.waits), total, *parts, f"{guess / 3600:.1f} h", *beside]
            half = float(np.median([each.started - each.at for each in play.told]))
            print(f"| {' | '.join(map(str, [*cells, f'{half / 3600:.1f} h']))} |", flush=True)
            print(f"{name} {seed}: no estimate: {dict(play.silent)}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
