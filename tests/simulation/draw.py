"""Draws plans: what happens, and when, from a seed alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

from tests.simulation.feature import Draw, Fault, Feature, Operation
from tests.simulation.plan import Plan, Step

NODES = ("n1", "n2", "n3")
_LASTS = 5.0
"""Seconds of a fault during which a term may end."""
_COMPONENTS = ("claims", "unhealthy-lists")
_CARDS = ("2 x Tesla T4 15109MiB", "4 x Tesla T4 15109MiB", "1 x Tesla V100-PCIE-32GB 32768MiB")


def plan(seed: str, features: Iterable[Feature]) -> Plan:
    """The plan of that seed."""
    rng = random.Random(seed)
    features = tuple(features)
    nodes = NODES[: rng.randint(1, 3)]
    replicas = rng.choice((2, 2, 2, 3))
    draw = Draw(rng, nodes, replicas)
    length = rng.choice((20.0, 40.0, 80.0))
    playing = tuple(f for f in features if f.always or rng.random() < 0.4)
    operations = [each for f in playing for each in f.operations]
    faults = _some([each for f in features for each in f.faults], rng)
    # In the order of their times, so that a step about a pod comes after the step that creates it.
    times = sorted(rng.uniform(0, length) for _ in range(rng.randint(5, 40)))
    steps = [_operation(draw, operations, at) for at in times]
    struck = [
        _fault(draw, faults, rng.uniform(0, length)) for _ in range(rng.choice((0, 1, 2, 3, 5, 8)) if faults else 0)
    ]
    ending = [each for f in features for each in f.faults if each.ends_terms]
    steps += [*struck, *(_term_ends(draw, ending, each) for each in struck if each is not None and ending)]
    shape = {
        "cards": {node: rng.choice(_CARDS) for node in nodes},
        "replicas": replicas,
        "flags": _knobs(playing, rng),
        "components": tuple(dict.fromkeys((*_COMPONENTS, *(name for f in playing for name in f.components)))),
        "options": next((rng.choice(f.options) for f in playing if f.options), ""),
        "latency": rng.choice(((0.0005, 0.005), (0.0005, 0.02), (0.001, 0.1), (0.001, 0.5))),
    }
    found = sorted(filter(None, steps), key=lambda step: step.at)
    return Plan(seed, tuple(found), shape, preempt=rng.choice((0.0, 0.02, 0.1)))


def _some(faults: list[Fault], rng: random.Random) -> list[Fault]:
    """Some kinds of faults for each plan, not all kinds in every plan: few kinds coincide more often."""
    kept = [each for each in faults if rng.random() < 0.4]
    return kept or faults[:1]


def _operation(draw: Draw, operations: list[Operation], at: float) -> Step | None:
    chosen = draw.rng.choices(operations, [each.weight for each in operations])[0]
    arguments = chosen.draw(draw)
    return None if arguments is None else Step(round(at, 3), chosen.name, arguments)


def _fault(draw: Draw, faults: list[Fault], at: float) -> Step | None:
    chosen = draw.rng.choices(faults, [each.weight for each in faults])[0]
    arguments = chosen.draw(draw)
    if arguments is None:
        return None
    return replace(Step(round(at, 3), chosen.name, arguments), seconds=round(draw.rng.uniform(*chosen.seconds), 3))


def _term_ends(draw: Draw, ending: list[Fault], during: Step) -> Step | None:
    """
    The leader's term ends during another fault, or not. At such times the next leader may lack information, or the
    previous one may still have writes in progress. Two faults that are drawn independently seldom coincide like this.
    """
    if during.seconds < _LASTS or draw.rng.random() < 0.5:
        return None
    found = _fault(draw, ending, during.at + draw.rng.uniform(0.1, 0.7) * during.seconds)
    return None if found is None else replace(found, arguments={**found.arguments, "program": "leader"})


def _knobs(features: Iterable[Feature], rng: random.Random) -> dict[str, tuple[str, ...]]:
    """Settings of the programs: for each knob of a feature, one of its choices."""
    flags: dict[str, tuple[str, ...]] = {}
    for feature in features:
        for program, choices in feature.knobs.items():
            flags[program] = (*flags.get(program, ()), *rng.choice(choices))
    return flags
