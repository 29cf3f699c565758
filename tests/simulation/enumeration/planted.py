"""
Two defects that the enumeration must find, and how to look for them.

    python -m tests.simulation.enumeration.planted DEFECT [--drawn 50]

Each is a change of one line, applied while the module is loaded; `none` changes nothing. The command prints what
violates an invariant. Exit status: 0 if there is a violation, 1 if there is none.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.simulation.kernel import loader
from tests.simulation.kernel.loader import Mutation


@dataclass(frozen=True, slots=True)
class Defect:
    """A defect and what reveals it: points of this reference run that strike writes of this kind in this way."""

    mutation: Mutation
    reference: str
    kind: str
    how: str


DEFECTS: Mapping[str, Defect] = {
    "a new leader does not list pods again": Defect(
        Mutation(
            "allocator.scheduler.leadership",
            "return terms.pop() if len(terms) == 1 else None",
            "return self._term() if self._term is not None else None",
        ),
        "one-leads-after-another",
        "store: pods ADDED",
        "taken-over",
    ),
    "a new leader does not fence what the leader before has sent": Defect(
        Mutation("allocator.scheduler.succession", "if not entry.foreign}", "if False}"),
        "waits-then-placed",
        "allocator: pod placed",
        "late",
    ),
}


def main() -> int:
    """Look for a defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("defect", choices=(*DEFECTS, "none"))
    parser.add_argument("--drawn", type=int, default=0, help="look by so many drawn plans without strikes instead")
    parser.add_argument(
        "--twice", action="store_true", help="compare points with the same from their beginning instead"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    planted = [each for name, each in DEFECTS.items() if name == options.defect]
    loader.install([each.mutation for each in planted])
    if options.twice:
        return _twice()
    found = _drawn(options.drawn, options.jobs) if options.drawn else _enumerated(planted, options.jobs)
    print("\n".join(found) or "nothing violates an invariant")
    return int(not found)


def _chosen(point: Any) -> bool:
    """Whether it is one of the points that reveal a defect of the table."""
    strike = point.steps[0].arguments
    how = strike.get("moment", strike.get("way"))
    return (point.seed, strike["write"], how) in {(each.reference, each.kind, each.how) for each in DEFECTS.values()}


def _enumerated(planted: Sequence[Defect], jobs: int) -> list[str]:
    """The violations at the points that reveal these defects; without a defect, at the points that reveal any."""
    from tests.simulation import plan
    from tests.simulation.enumeration import campaign
    from tests.simulation.enumeration.references import BY_NAME
    from tests.simulation.features.table import FEATURES

    names = sorted({each.reference for each in planted or DEFECTS.values()})
    known = list(campaign.learn(FEATURES, [BY_NAME[name] for name in names], jobs=jobs))
    found = [*known, *campaign.strike(FEATURES, known, jobs=jobs, chosen=_chosen)]
    return [
        *(f"{row.reference}: {row.broken.splitlines()[0]}" for row in found if row.broken),
        *(
            f"{campaign.title(plan.from_text(text))}: {violation.splitlines()[0]}"
            for row in found
            for text, violation in row.violations
        ),
    ]


def _twice() -> int:
    """Whether a point has the same trace with and without a fork of its process after the start."""
    from tests.simulation import pool
    from tests.simulation.enumeration import points
    from tests.simulation.enumeration.references import REFERENCES
    from tests.simulation.features.table import FEATURES
    from tests.simulation.run import Run

    which = points.rehearsal(REFERENCES[0])
    booted = Run(REFERENCES[0].plan(), FEATURES)
    booted.boot()
    outcomes = [*pool.run_all([which], booted.play, jobs=1)]
    outcomes += pool.run_all([which], lambda each: Run(each, FEATURES).play(), jobs=1)
    hashes = [f"{outcome.trace:08x} {outcome.effects:08x} {outcome.violation}" for _, outcome in outcomes]
    print("\n".join(hashes))
    return int(len(set(hashes)) > 1)


def _drawn(plans: int, jobs: int) -> list[str]:
    """The violations of this many drawn plans with all features except these."""
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
