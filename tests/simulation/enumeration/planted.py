"""
Two defects that the enumeration must find, and how to look for them.

    python -m tests.simulation.enumeration.planted DEFECT [--drawn 50]

Each is a change of one line, made as the module is loaded. It prints what violates an invariant. Exit status: 0 where
the defect is found, 1 where it is not.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from tests.simulation.kernel import loader
from tests.simulation.kernel.loader import Mutation


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect and the reference run that shows it. `kind`: of the writes that are struck."""

    mutation: Mutation
    reference: str
    kind: str


DEFECTS: Mapping[str, Defect] = {
    "a new leader does not list pods again": Defect(
        Mutation(
            "allocator.scheduler.leadership",
            "return terms.pop() if len(terms) == 1 else None",
            "return self._term() if self._term is not None else None",
        ),
        "one-leads-after-another",
        "store: pods ADDED",
    ),
    "a new leader does not fence what the leader before has sent": Defect(
        Mutation("allocator.scheduler.succession", "if not entry.foreign}", "if False}"),
        "waits-then-placed",
        "allocator: pod placed",
    ),
}


def main() -> int:
    """Look for a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("defect", choices=DEFECTS)
    parser.add_argument("--drawn", type=int, default=0, help="look by so many drawn plans without strikes instead")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    defect = DEFECTS[options.defect]
    loader.install([defect.mutation])
    found = _drawn(options.drawn, options.jobs) if options.drawn else _enumerated(defect, options.jobs)
    print("\n".join(found) or "nothing violates an invariant")
    return int(not found)


def _enumerated(defect: Defect, jobs: int) -> list[str]:
    """What the points at writes of that kind violate."""
    from tests.simulation import plan
    from tests.simulation.enumeration import campaign
    from tests.simulation.enumeration.references import BY_NAME
    from tests.simulation.features.table import FEATURES

    def chosen(point: plan.Plan) -> bool:
        return point.steps[0].arguments["write"] == defect.kind

    known = [*campaign.learn(FEATURES, [BY_NAME[defect.reference]], jobs=jobs)]
    found = [*campaign.strike(FEATURES, known, jobs=jobs, chosen=chosen)]
    return [
        f"{campaign.title(plan.from_text(text))}: {violation.splitlines()[0]}"
        for row in found
        for text, violation in row.violations
    ]


def _drawn(plans: int, jobs: int) -> list[str]:
    """What so many drawn plans violate, which have all features but these."""
    from tests.simulation import draw, pool
    from tests.simulation.enumeration import operations, strikes
    from tests.simulation.features.table import FEATURES
    from tests.simulation.run import Run

    others = [each for each in FEATURES if each not in (operations.FEATURE, strikes.FEATURE)]
    every = (draw.plan(str(number), others) for number in range(1, plans + 1))
    outcomes = pool.run_all(every, lambda which: Run(which, others).play(), jobs=jobs)
    return [
        f"seed {which.seed}: {outcome.violation.splitlines()[0]}" for which, outcome in outcomes if outcome.violation
    ]


if __name__ == "__main__":
    sys.exit(main())
