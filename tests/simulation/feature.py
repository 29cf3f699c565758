"""
What a feature brings to the simulation: operations, faults, invariants and goals, each a value with a name.

A feature is a module of `tests/simulation/features` with a `FEATURE` that is listed in `features.table.FEATURES`. The
programs do not know about it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.simulation.plan import Plan

if TYPE_CHECKING:
    from tests.simulation.run import Run

Arguments = Mapping[str, Any]
Violation = str
"""What is wrong, as a sentence."""


@dataclass
class Draw:
    """
    What a step is drawn from: the plan's random numbers, and what was drawn before. `names`: of the pods drawn so far.
    """

    rng: random.Random
    nodes: tuple[str, ...]
    replicas: int
    names: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and name of each pod that the plan creates."""
    made: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What features note about what the plan has created, for their own later steps."""
    count: int = 0

    def new(self, prefix: str) -> str:
        """A name that the plan has not used."""
        self.count += 1
        return f"{prefix}-{self.count}"


@dataclass(frozen=True, slots=True)
class Operation:
    """
    Something that a user or an administrator does. weight: how often, relative to the others.

    draw: its arguments; None if it makes no sense now. act: does it, on its own task.
    """

    name: str
    weight: float
    draw: Callable[[Draw], Arguments | None]
    act: Callable[[Run, Arguments], None]


LINGERS = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """
    Something that breaks. `begin` returns a function that ends it, or None if there is nothing to end.

    seconds: how long it lasts, at least and at most. during, after: what holds while it lasts and once it is over, and
    why no more than that; for `--table`. suspends: names of the invariants that may be broken while it lasts and for
    `lingers` seconds afterwards. ends_terms: the fault names a program, and may end the term of a leading one.
    """

    name: str
    weight: float
    draw: Callable[[Draw], Arguments | None]
    begin: Callable[[Run, Arguments], Callable[[], None] | None]
    seconds: tuple[float, float] = (0.0, 0.0)
    during: str = "all invariants hold"
    after: str = "everything that fits is placed"
    suspends: frozenset[str] = frozenset()
    lingers: float = LINGERS
    ends_terms: bool = False


@dataclass(frozen=True, slots=True)
class Invariant:
    """
    What holds after every commit of the store. `make` is called for each run, and returns a function that is called
    with each change. That function returns what is wrong, or None, and must not wait.
    """

    name: str
    make: Callable[[Run], Callable[[Any], Violation | None]]


@dataclass(frozen=True, slots=True)
class Goal:
    """
    What holds once faults have ended and the cluster is quiet. `missing` returns what is still wrong, or nothing. last:
    the check is slow or disturbs the cluster, so it runs after all others hold.
    """

    name: str
    missing: Callable[[Run], list[Violation]]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Feature:
    """
    The operations, faults, invariants and goals of a feature, under a name.

    knobs: flags of a program that the seed may choose, by program. components: components of `manifests/components`
    that the cluster has if the plan has the feature. options: documents of options; the cluster then has one of them.
    always: whether every plan may have its operations and knobs. Each plan has only some of the other features, so that
    few kinds of work coincide more often. prepare: sets up what the feature needs in the cluster before the first step.
    """

    name: str
    operations: tuple[Operation, ...] = ()
    faults: tuple[Fault, ...] = ()
    invariants: tuple[Invariant, ...] = ()
    goals: tuple[Goal, ...] = ()
    knobs: Mapping[str, tuple[tuple[str, ...], ...]] = field(default_factory=dict)
    components: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    always: bool = False
    prepare: Callable[[Run], None] = lambda run: None


Planned = Callable[[str], Plan]
