"""
What a feature brings to the simulation: operations, faults, invariants and goals, each a value with a name.

A feature is a module of `tests/simulation/features` with a `FEATURE`, which stands in `features.table.FEATURES`. The
programs know nothing of it.
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
    """What a step is drawn from: the numbers of the plan, and what it has drawn before. `names` of pods made so far."""

    rng: random.Random
    nodes: tuple[str, ...]
    replicas: int
    names: list[tuple[str, str]] = field(default_factory=list)
    """Namespace and name of each pod that the plan creates."""
    made: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    """What features note of what the plan has created, for their own later steps."""
    count: int = 0

    def new(self, prefix: str) -> str:
        """A name that the plan has not used."""
        self.count += 1
        return f"{prefix}-{self.count}"


@dataclass(frozen=True, slots=True)
class Operation:
    """
    Something that a user or an administrator does. weight: how often, alongside the others.

    draw: its arguments; None where it makes no sense now. act: does it, on a task of its own.
    """

    name: str
    weight: float
    draw: Callable[[Draw], Arguments | None]
    act: Callable[[Run, Arguments], None]


LINGERS = 60.0


@dataclass(frozen=True, slots=True)
class Fault:
    """
    Something that breaks. `begin` returns what ends it, or None where there is nothing to end.

    seconds: how long it lasts, at least and at most. during, after: what holds while it lasts, and once it is over, and
    why not more; for `--table`. suspends: names of the invariants that need not hold meanwhile, and for `lingers`
    seconds afterwards. ends_terms: it names a program, and may end the term of one that leads.
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
    What holds after every commit of the store. `make` is called for each run, and returns the function that is called
    with each change; it gives what is wrong, or None. It must not wait.
    """

    name: str
    make: Callable[[Run], Callable[[Any], Violation | None]]


@dataclass(frozen=True, slots=True)
class Goal:
    """
    What holds once faults have ended and the cluster is quiet. `missing` gives what is still wrong, or nothing. last:
    it takes a while or disturbs, so it is asked where all others are reached.
    """

    name: str
    missing: Callable[[Run], list[Violation]]
    last: bool = False


@dataclass(frozen=True, slots=True)
class Feature:
    """
    All of it, under a name.

    knobs: flags of a program that the seed may choose, by program. components: of `manifests/components`, which a
    cluster has where the feature plays. options: documents of options of which it has one then. always: whether every
    plan may have its operations and knobs; plans have some of the others', so that few kinds of work meet more often.
    prepare: what it needs in the cluster before the first step.
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
