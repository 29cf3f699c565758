"""
Runs programs with or without a defect against plans, in its own process: `... .trial ORDER`. The order and the printed
result are values of this module as JSON.

It loads the programs with the mutant's change and runs plans until one fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.kernel import loader
from tests.simulation.mutants.table import MUTANTS
from tests.simulation.plan import Plan, from_text

KEPT = Path(__file__).resolve().parents[1] / "kept"
LONGEST = 90.0
"""Seconds of real time for one run."""
_UP = "is up"


@dataclass(frozen=True, slots=True)
class Order:
    """
    What to try. mutant: its name; empty for the unchanged programs. drawn: the maximum number of drawn plans.

    skipped: seeds of plans that are not run. only: the seed of the one plan that is run; empty for all.
    """

    mutant: str = ""
    drawn: int = 0
    skipped: tuple[str, ...] = ()
    only: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result for the mutant. `plan` and `violation` are empty if it passed all plans."""

    mutant: str
    plans: int
    """How many plans were run."""
    plan: str = ""
    """The seed of the plan that failed."""
    violation: str = ""
    came_up: bool = True
    """Whether the cluster had come up before: a mutant that prevents this proves little."""


def tried(order: Order) -> Verdict:
    """
    Run the plans. This can be called once in a process, before any program is imported.

    Raises `loader.NotThere` if the table does not match the code.
    """
    loader.install([each.mutation for each in MUTANTS if each.name == order.mutant])
    # After the loader, because these modules import the programs.
    from tests.simulation import pool
    from tests.simulation.features.table import FEATURES
    from tests.simulation.run import Run

    count = 0
    for each, outcome in pool.run_all(_plans(order), lambda p: Run(p, FEATURES).play(), jobs=1, longest=LONGEST):
        count += 1
        if outcome.violation:
            came_up = any(line.action == _UP for line in outcome.lines) or not outcome.lines
            return Verdict(order.mutant, count, each.seed, outcome.violation, came_up)
    return Verdict(order.mutant, count)


def _plans(order: Order) -> Iterator[Plan]:
    """
    The mutant's own plan, the kept plans, and then drawn plans, as the order says. The own plan comes first because it
    is the most specific: another plan may fail only because the mutant changes the time of something.
    """
    for each in _all(order):
        if each.seed not in order.skipped and order.only in ("", each.seed):
            yield each


def _all(order: Order) -> Iterator[Plan]:
    from tests.simulation import draw
    from tests.simulation.features.table import FEATURES

    own = {each.plan.seed: each.plan for each in MUTANTS if each.plan and order.mutant in ("", each.name)}
    yield from own.values()
    for path in sorted(KEPT.glob("*.json")):
        yield from_text(path.read_text())
    for number in range(1, order.drawn + 1):
        yield draw.plan(str(number), FEATURES)


if __name__ == "__main__":
    print(json.dumps(asdict(tried(Order(**json.loads(sys.argv[1]))))))
