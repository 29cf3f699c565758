"""
One mutant against plans, in a process of its own: `python -m tests.simulation.mutants.trial NAME PLANS`.

It loads the programs with the mutant's change and runs the kept plans, the mutant's own and then drawn ones, until one
fails. It prints a `Verdict` as a line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.simulation.kernel import loader
from tests.simulation.mutants.table import MUTANTS, Mutant

KEPT = Path(__file__).resolve().parents[1] / "kept"
LONGEST = 60.0
"""Seconds of real time for one run."""
_UP = "is up"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant. `plan` and `violation` are empty where all plans passed it."""

    mutant: str
    plans: int
    """How many were run."""
    plan: str = ""
    """The one that failed."""
    violation: str = ""
    came_up: bool = True
    """Whether the cluster had come up before: a mutant that keeps it from that proves little."""


def tried(mutant: Mutant, drawn: int) -> Verdict:
    """
    Run the plans. `drawn`: how many drawn ones at most.

    It may be called once in a process, before any program is imported. Raises `loader.NotThere` where the table does
    not fit the code.
    """
    loader.install((mutant.mutation,))
    # After the loader, since all of these import the programs.
    from tests.simulation import draw, plan, pool
    from tests.simulation.features.table import FEATURES
    from tests.simulation.run import Run

    def plans() -> Iterator[plan.Plan]:
        for path in sorted(KEPT.glob("*.json")):
            yield plan.from_text(path.read_text())
        if mutant.plan is not None:
            yield mutant.plan
        for number in range(1, drawn + 1):
            yield draw.plan(str(number), FEATURES)

    count = 0
    for each, outcome in pool.run_all(plans(), lambda p: Run(p, FEATURES).play(), jobs=1, longest=LONGEST):
        count += 1
        if outcome.violation:
            came_up = any(line.action == _UP for line in outcome.lines)
            return Verdict(mutant.name, count, each.seed, outcome.violation, came_up or not outcome.lines)
    return Verdict(mutant.name, count)


if __name__ == "__main__":
    chosen = next(each for each in MUTANTS if each.name == sys.argv[1])
    print(json.dumps(asdict(tried(chosen, int(sys.argv[2])))))
