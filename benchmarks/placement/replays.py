"""
Every policy on the same arrivals and the same nodes, seed by seed: lists of the trace, made-up families, departures.

Each generator is lazy, so that what is requested is all that is computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np

from allocator.engine.reference import Policy
from allocator.scoring import tables
from allocator.scoring.classes import CARD, Supply, demanded, supply_of
from allocator.scoring.constants import HALF_LIFE
from allocator.scoring.estimator import Learner
from allocator.scoring.tables import Tables, Target
from benchmarks.placement import departures, families, peers, trace
from benchmarks.placement.baselines import SCORES, Baseline
from benchmarks.placement.defragmenting import NOBODY_MOVES, Defragmenter, rules_of
from benchmarks.placement.departures import Served
from benchmarks.placement.families import Drawn
from benchmarks.placement.replaying import LIMITS, Chooser, Engines, Given, Run, Watched, run
from benchmarks.placement.results import Results
from benchmarks.placement.trace import Task
from contract.model import NodeState

DEPARTING = ("best-fit", "hami", "binpack", "fragmentation", "value")
PEERS = ("fragmentation", "fragmentation-online", "value", "value-known")
"""Both policies that learn, knowing the list beforehand, as FGD was published, and learning it online from nothing."""
SYSTEMS = tuple(peers.PEERS)
"""The defaults of other schedulers: see `benchmarks.placement.peers`."""
POLICIES = (*SCORES, *SYSTEMS, "binpack", "spread", *PEERS)
FEWER_SEEDS = frozenset(("fragmentation-online", "value-known"))
"""Policies that are shown alongside the others, by fewer seeds."""
IN_FAMILIES = ("binpack", "spread", *SYSTEMS, *PEERS)
KNOWING = {"value-known": "value"}
LEARNING = {"fragmentation-online": "fragmentation", "value": "value"}
NOTHING = Results(None)


def known(policy: str) -> bool:
    """Whether there is a policy of this name."""
    return policy in POLICIES or policy in KNOWING or policy in LEARNING


def replay(
    folder: Path,
    name: str,
    policies: Sequence[str],
    seeds: Sequence[int],
    half_life: int = HALF_LIFE,
    results: Results = NOTHING,
) -> Iterator[tuple[int, str, Run]]:
    """One list, or one that changes (see `trace.ordered`). Raises `trace.NoTrace`."""
    machines, target = trace.machines(folder), trace.target_of(folder, name)
    capacity = sum(machine.cards for machine in machines) * CARD
    for seed in seeds:
        missing = [policy for policy in policies if results.get((name, seed, policy, half_life)) is None]
        if missing:
            rng = np.random.default_rng(seed)
            arriving, nodes = trace.ordered(folder, name, capacity, rng), trace.nodes(machines, rng)
            supply = supply_of({node.name: node for node in nodes}, LIMITS)
            measure = tables.fragmentation(target, supply)
        for policy in policies:
            done = results.get((name, seed, policy, half_life))
            if done is None:
                chooser: Chooser[Task]
                own = np.random.default_rng(seed)
                if policy in SYSTEMS:
                    chooser = peers.Peer(peers.PEERS[policy], nodes, own, measure=measure)
                elif policy in SCORES:
                    chooser = Baseline(policy, machines, own, measure=measure, supply=supply)
                else:
                    chooser = _engine(policy, nodes, target, supply, measure, half_life)
                done = run(chooser, arriving, capacity)
                results.put((name, seed, policy, half_life), done)
            yield seed, policy, done


def replay_family(
    name: str, policies: Sequence[str], seeds: Sequence[int], results: Results = NOTHING
) -> Iterator[tuple[int, str, Run]]:
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
            key = (name, seed, policy, HALF_LIFE)
            done = results.get(key)
            if done is None:
                chooser: Chooser[Drawn]
                if policy in SYSTEMS:
                    own = np.random.default_rng(seed)
                    chooser = peers.Peer(peers.PEERS[policy], nodes, own, measure=measure)
                else:
                    chooser = _engine(policy, nodes, target, supply, measure, HALF_LIFE)
                done = run(chooser, arriving, families.capacity(supply))
                results.put(key, done)
            yield seed, policy, done


def replay_departures(
    folder: Path, name: str, policies: Sequence[str], seeds: Sequence[int], moves: Sequence[str] = (NOBODY_MOVES,)
) -> Iterator[tuple[int, str, Served]]:
    """
    One list with the trace's own times (see `benchmarks.placement.departures`). Raises `trace.NoTrace`.

    `moves`: the rules of defragmentation (see `defragmenting.rules_of`), each with our engine's policies.
    """
    machines, listed = trace.machines(folder), trace.tasks(folder, name)
    for seed in seeds:
        rng = np.random.default_rng(seed)
        some = departures.thinned(machines, rng)
        stays = departures.heated(listed, trace.times(folder, name), sum(machine.cards for machine in some))
        nodes, target = trace.nodes(some, rng), trace.target(listed)
        supply = supply_of({node.name: node for node in nodes}, LIMITS)
        measure = tables.fragmentation(target, supply)
        for policy, text in product(policies, moves):
            rules = rules_of(text)
            if policy in SCORES and rules is not None:
                continue
            own = np.random.default_rng(seed)
            yard: departures.Yard = (
                Baseline(policy, some, own, measure=measure, supply=supply)
                if policy in SCORES
                else _engine(policy, nodes, target, supply, measure, HALF_LIFE)
            )
            mover = Defragmenter(rules, LIMITS) if rules is not None else None
            label = policy if rules is None else f"{policy}, moves {text}"
            yield seed, label, departures.live(yard, stays, departures.Guard(yard, LIMITS), mover)


def _engine(
    policy: str, nodes: Sequence[NodeState], target: Target, supply: Supply, measure: Tables, half_life: int
) -> Engines:
    base = LEARNING.get(policy) or KNOWING.get(policy, policy)
    informed = policy not in LEARNING and base in tables.BUILDERS
    watched: Watched | None = Given(target) if policy in KNOWING else None
    if policy in LEARNING:
        watched = Learner(half_life=half_life)
    return Engines(
        nodes,
        Policy(base, "spread" if base == "spread" else "binpack"),
        measure=measure,
        tables=tables.BUILDERS[base](target, supply) if informed else None,
        learner=watched,
    )
