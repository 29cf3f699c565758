"""
`make simulate` with `--enumerate`: every point of every reference run.

For each reference run a process brings the cluster up once. Its forks then play the run without a fault, to learn its
points, and every point. The start is much of a short run's time, so this saves most of that time. A point's command
plays its plan from the start, and gives the same run.
"""

from __future__ import annotations

import faulthandler
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.simulation import plan as plans
from tests.simulation import pool, story
from tests.simulation.enumeration import points, strikes, writes
from tests.simulation.enumeration.points import Learned
from tests.simulation.enumeration.references import BY_NAME, REFERENCES, UNREACHED, Reference
from tests.simulation.feature import Feature
from tests.simulation.plan import Plan
from tests.simulation.run import Outcome, Run

_LONGEST = 3600.0
"""Seconds of real time for all points of one reference run."""


@dataclass
class Row:
    """
    The result of a reference run. points: how many were struck. missed: points whose write did not happen. violations:
    the plan of each point that violates something, as text, and the violation.
    """

    reference: str
    learned: Learned = field(default_factory=Learned)
    broken: str = ""
    """What the run violates without a fault."""
    points: int = 0
    by_kind: dict[str, int] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    violations: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    """In simulated time."""


Chosen = Callable[[Plan], bool]


def _all(point: Plan) -> bool:
    return True


def title(point: Plan) -> str:
    """A point in words."""
    strike = point.steps[0]
    what = strike.arguments
    if strike.kind == "crash-at":
        how = f"{what['moment']}, away {what['away']:.0f} s"
    else:
        how = f"{what['way']}: {what['reader']} of {what['resource']}"
    return f"{what['write']} #{what['nth']} {how}"


def learn(features: Sequence[Feature], references: Sequence[Reference], *, jobs: int) -> Iterator[Row]:
    """Play the runs without a fault. Returns rows that have no points yet."""

    def play(which: Plan) -> Outcome:
        return _rehearsed(Run(which, features), which)

    rehearsals = [points.rehearsal(each) for each in references]
    for which, outcome in pool.run_all(rehearsals, play, jobs=jobs):
        if outcome.violation:
            yield Row(which.seed, broken=outcome.violation)
        else:
            yield Row(which.seed, points.learned(outcome.notes))


def strike(features: Sequence[Feature], found: Sequence[Row], *, jobs: int, chosen: Chosen = _all) -> Iterator[Row]:
    """Play the chosen points of runs that were learned."""
    learned = {row.reference: row.learned for row in found if not row.broken}
    shares = points.shared_out(learned)

    def play(which: Plan) -> Outcome:
        reference = BY_NAME[which.seed]
        every = points.of(reference, learned[which.seed], shares[which.seed])
        return Outcome(notes=asdict(_struck(reference, features, filter(chosen, every))))

    plain = [BY_NAME[name].plan() for name in learned]
    for which, outcome in pool.run_all(plain, play, jobs=jobs, longest=_LONGEST):
        if outcome.violation:
            yield Row(which.seed, broken=outcome.violation)
            continue
        violations = [(text, what) for text, what in outcome.notes["violations"]]
        yield Row(**{**outcome.notes, "violations": violations, "learned": learned[which.seed]})


def _struck(reference: Reference, features: Sequence[Feature], every: Iterable[Plan]) -> Row:
    """Runs in its own process, which brings the cluster up."""
    faulthandler.cancel_dump_traceback_later()  # a fork waits forever for its parent's timer
    run = Run(reference.plan(), features)
    run.boot()
    row = Row(reference.name)
    for which, outcome in pool.run_all(every, run.play, jobs=1):
        row.seconds += outcome.seconds
        kind = which.steps[0].arguments["write"]
        if not outcome.notes.get(strikes.STRUCK) and not outcome.violation:
            row.missed.append(title(which))
            continue
        row.points += 1
        row.by_kind[kind] = row.by_kind.get(kind, 0) + 1
        if outcome.violation:
            row.violations.append((plans.to_text(which), outcome.violation))
    return row


def _rehearsed(run: Run, which: Plan) -> Outcome:
    run.boot()
    told = points.listener(run)
    outcome = run.play(which)
    outcome.notes |= told()
    return outcome


# -- what is printed --------------------------------------------------------------------------------------------------


def never_written(found: Iterable[Row]) -> list[str]:
    """Kinds of writes in the table that no reference run did."""
    seen = {kind for row in found for kind in row.learned.writes}
    return [each.key for each in writes.KINDS if each.key not in seen and each.key not in UNREACHED]


def unknown(found: Iterable[Row]) -> list[str]:
    """Writes of our programs that are not in the table."""
    seen = {kind for row in found for kind in row.learned.writes}
    return sorted(kind for kind in seen if f": {writes.ANY} " in kind)


def table(found: Sequence[Row], took: float) -> str:
    """A line for each reference run, and the sum."""
    lines = [f"{'reference run':<22} {'kinds':>5} {'watched':>7} {'points':>6} {'missed':>6} {'violations':>10}"]
    for row in found:
        ours = sum(kind in writes.BY_KEY for kind in row.learned.writes)
        lines.append(
            f"{row.reference:<22} {ours:>5} {len(row.learned.readers):>7} {row.points:>6} {len(row.missed):>6}"
            f" {len(row.violations):>10}" + (f"  broken: {row.broken.splitlines()[0]}" if row.broken else "")
        )
    kinds = {kind for row in found for kind in row.learned.writes if kind in writes.BY_KEY}
    readers = {reader for row in found for reader in row.learned.readers}
    simulated = sum(row.seconds for row in found)
    lines.append(
        f"{len(kinds)} kinds of writes, {len(readers)} pairs of program and watched resource,"
        f" {sum(row.points for row in found)} points; {simulated / 3600:.1f} h simulated in {took:.0f} s"
    )
    by_kind: Counter[str] = Counter()
    for row in found:
        by_kind.update(row.by_kind)
    lines += [f"  {count:>5} points at {kind}" for kind, count in sorted(by_kind.items())]
    return "\n".join(lines)


def each_of(every: int) -> Chosen:
    """Choose one point in every `every`, starting with the first of each run."""
    numbers: Counter[str] = Counter()

    def chosen(point: Plan) -> bool:
        numbers[point.seed] += 1
        return numbers[point.seed] % every == 1 % every

    return chosen


def main(
    features: Sequence[Feature],
    folder: Path,
    *,
    jobs: int,
    names: Iterable[str] = (),
    every: int = 1,
    only_learn: bool = False,
) -> int:
    """
    Run all points, those of some runs, or one in `every`; print the results, and return the exit status.

    Only all runs together can show that every kind of write is done, so this is not checked if `names` selects some.
    """
    began, wanted = time.monotonic(), frozenset(names)
    chosen = [each for each in REFERENCES if not wanted or each.name in wanted]
    known = sorted(learn(features, chosen, jobs=jobs), key=lambda row: list(BY_NAME).index(row.reference))
    if only_learn:
        print(json.dumps({row.reference: dict(row.learned.writes) for row in known}))
    found = [row for row in known if row.broken]
    for row in () if only_learn else strike(features, known, jobs=jobs, chosen=each_of(every)):
        found.append(row)
        print(f"{row.reference}: {row.points} points, {len(row.violations)} violations", flush=True)
        for number, (text, violation) in enumerate(row.violations):
            _told(text, violation, folder / f"{row.reference}-{number}.json", features, first=number == 0)
        for each in row.missed:
            print(f"  its write did not come: {each}")
    if not only_learn:
        print(table(found, time.monotonic() - began))
    lacking = [*(never_written(known) if not wanted else ()), *unknown(known)]
    for each in lacking:
        print(f"no reference run has, or no table knows: {each}")
    return int(bool(lacking) or any(row.violations or row.broken for row in found))


def _told(text: str, violation: str, path: Path, features: Sequence[Feature], *, first: bool) -> None:
    """Write the plan to a file. For the first plan of a reference run print the story, for the others a line."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    which = plans.from_text(text)
    print(f"  {title(which)}\n    {violation.splitlines()[0][:300]}\n    {path}", flush=True)
    if first:
        (_, outcome), *_ = pool.run_all([which], lambda each: Run(each, features).play(), jobs=1)
        print(story.told(which, outcome, f"python -m tests.simulation --plan {path} --story"))
