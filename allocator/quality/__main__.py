"""
`python -m allocator.quality --trace DIR`: how much of a cluster's GPUs each policy gives away.

Runs the published protocol (see `allocator.quality.trace`) and prints one table per list, then the gains. `--plot FILE`
draws the gains and the curves of the first list as SVG. Every figure is a mean over the seeds that the table counts.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from allocator.policies import tables
from allocator.policies.kinds import CARD, Supply, demanded, supply_of
from allocator.policies.learning import HALF_LIFE, Learner
from allocator.policies.tables import Tables, Target
from allocator.quality import departures, families, report, trace
from allocator.quality.baselines import SCORES, Baseline
from allocator.quality.departures import Served
from allocator.quality.replaying import LIMITS, LOADS, Chooser, Engines, Run, at, run
from allocator.quality.trace import Task
from allocator.scores import Policy
from contract.model import NodeState

POLICIES = (*SCORES, "binpack", "spread", "fragmentation", "value")
"""`fragmentation` knows the list beforehand, as published; `value` learns it online from nothing."""
DEPARTING = ("best-fit", "hami", "binpack", "fragmentation", "value")
IN_FAMILIES = ("binpack", "spread", "fragmentation", "value")
KNOWING = {"value-known": "value"}
LEARNING = {"fragmentation-online": "fragmentation", "value": "value"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; the exit status."""
    given = _parser().parse_args(arguments)
    found: dict[str, dict[str, dict[int, Run]]] = {}
    try:
        for name in given.lists.split(","):
            policies = given.policies.split(",") if name == given.lists.split(",")[0] else given.others.split(",")
            runs = found[name] = {policy: {} for policy in policies}
            for seed, policy, done in replay(given.trace, name, policies, _seeds(given.seeds), given.half_life):
                runs[policy][seed] = done
                if given.verbose:
                    curve = " ".join(f"{load}:{at(done, load):.2f}" for load in LOADS)
                    print(f"{name} seed {seed} {policy} {curve}", file=sys.stderr, flush=True)
            print(report.table(name, runs), end="\n\n", flush=True)
        for name in filter(None, given.families.split(",")):
            made: dict[str, dict[int, Run]] = {policy: {} for policy in IN_FAMILIES}
            for seed, policy, done in replay_family(name, IN_FAMILIES, _seeds(given.seeds)):
                made[policy][seed] = done
            print(report.table(f"{name} (made up)", made), end="\n\n", flush=True)
        if given.departures:
            stayed: dict[str, list[Served]] = {policy: [] for policy in DEPARTING}
            for _, policy, served in replay_departures(given.trace, "default", DEPARTING, _seeds(given.departures)):
                stayed[policy].append(served)
            print(report.departures(stayed), end="\n\n", flush=True)
    except trace.NoTrace as error:
        print(error, file=sys.stderr)
        return 2
    print(report.summary(found))
    if given.plot:
        from allocator.quality import plot

        plot.draw(found, given.plot)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m allocator.quality", description=__doc__.split("\n\n")[0])
    parser.add_argument("--trace", type=Path, required=True, help="folder of the openb trace")
    parser.add_argument("--lists", default=",".join(trace.LISTS), help="pod lists, with commas")
    parser.add_argument("--policies", default=",".join(POLICIES), help="policies for the first list, with commas")
    parser.add_argument("--others", default="fragmentation,value", help="policies for the other lists")
    parser.add_argument("--families", default=",".join(families.FAMILIES), help="made-up clusters, with commas")
    parser.add_argument(
        "--departures", default="42-44", help="seeds of the replay with departures; empty leaves it out"
    )
    parser.add_argument("--seeds", default="42-51", help="first and last seed, or one")
    parser.add_argument("--half-life", type=int, default=HALF_LIFE, help="requests after which one counts half")
    parser.add_argument("--plot", type=Path, help="SVG file to write (needs matplotlib)")
    parser.add_argument("--verbose", action="store_true", help="each run on standard error")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def replay(
    folder: Path, name: str, policies: Sequence[str], seeds: Sequence[int], half_life: int = HALF_LIFE
) -> Iterator[tuple[int, str, Run]]:
    """Every policy on the same arrivals and the same nodes, seed by seed. Raises `trace.NoTrace`."""
    machines, listed = trace.machines(folder), trace.tasks(folder, name)
    capacity = sum(machine.cards for machine in machines) * CARD
    for seed in seeds:
        rng = np.random.default_rng(seed)
        arriving, nodes = trace.arrivals(listed, capacity, rng), trace.nodes(machines, rng)
        supply = supply_of({node.name: node for node in nodes}, LIMITS)
        target = trace.target(listed)
        measure = tables.fragmentation(target, supply)
        for policy in policies:
            chooser: Chooser[Task]
            if policy in SCORES:
                own = np.random.default_rng(seed)
                chooser = Baseline(policy, machines, own, measure=measure, supply=supply)
            else:
                chooser = _engine(policy, nodes, target, supply, measure, half_life)
            yield seed, policy, run(chooser, arriving, capacity)


def replay_family(name: str, policies: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[int, str, Run]]:
    """The same on a made-up cluster."""
    family = families.FAMILIES[name]
    for seed in seeds:
        rng = np.random.default_rng(seed)
        nodes = families.nodes(family, rng)
        supply = families.supply(nodes)
        arriving = families.arrivals(family, supply, rng)
        target = Counter(each for pod in arriving for each in demanded(pod.request, pod.cpu))
        measure = tables.fragmentation(target, supply)
        for policy in policies:
            chooser = _engine(policy, nodes, target, supply, measure, HALF_LIFE)
            yield seed, policy, run(chooser, arriving, families.capacity(supply))


def replay_departures(
    folder: Path, name: str, policies: Sequence[str], seeds: Sequence[int]
) -> Iterator[tuple[int, str, Served]]:
    """Every policy on the trace's own times (see `allocator.quality.departures`). Raises `trace.NoTrace`."""
    machines, listed = trace.machines(folder), trace.tasks(folder, name)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        some = departures.thinned(machines, rng)
        stays = departures.heated(listed, trace.times(folder, name), sum(machine.cards for machine in some))
        nodes, target = trace.nodes(some, rng), trace.target(listed)
        supply = supply_of({node.name: node for node in nodes}, LIMITS)
        measure = tables.fragmentation(target, supply)
        for policy in policies:
            own = np.random.default_rng(seed)
            yard: departures.Yard = (
                Baseline(policy, some, own, measure=measure, supply=supply)
                if policy in SCORES
                else _engine(policy, nodes, target, supply, measure, HALF_LIFE)
            )
            yield seed, policy, departures.live(yard, stays)


def _engine(
    policy: str, nodes: Sequence[NodeState], target: Target, supply: Supply, measure: Tables, half_life: int
) -> Engines:
    base = LEARNING.get(policy) or KNOWING.get(policy, policy)
    known = policy not in LEARNING and base in tables.BUILDERS
    return Engines(
        nodes,
        Policy(base, "spread" if base == "spread" else "binpack"),
        measure=measure,
        tables=tables.BUILDERS[base](target, supply) if known else None,
        learner=Learner(half_life=half_life) if policy in LEARNING else None,
    )


if __name__ == "__main__":
    sys.exit(main())
