"""
`make simulate`: run drawn plans until one fails, then shrink that plan and report what happened.

Exit status: 0 if all invariants held, 1 if one did not, 2 for wrong arguments.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.simulation.kernel import loader

loader.install()

from tests.simulation import draw, faulttable, plan, pool, shrink, story  # noqa: E402  (after the loader)
from tests.simulation.enumeration import campaign  # noqa: E402
from tests.simulation.features.table import FEATURES  # noqa: E402
from tests.simulation.plan import Plan  # noqa: E402
from tests.simulation.run import Outcome, Run  # noqa: E402

TOP = Path(__file__).resolve().parents[2]
FOLDER = TOP / ".simulation"


_FEW = 2
"""This many plans take less time than a warm-up for them."""
_WARM: list[Run] = []
"""Runs of this process. They are kept, because dropping one would run the `finally` blocks of its parked tasks."""


def warm_up() -> None:
    """
    Play a drawn plan once before processes are forked. They inherit the imported modules and the cached results of pure
    functions. Runs see nothing else of it.
    """
    _WARM.append(Run(draw.plan("warm", FEATURES), FEATURES))
    _WARM[0].play()
    gc.freeze()  # No object here is garbage, and a collection in a fork would copy its pages.


def play(which: Plan, recorded: range = range(0)) -> Outcome:
    """One run, in this process. `recorded`: the turns that its outcome lists one by one."""
    return Run(which, FEATURES, recorded=recorded).play()


class Totals:
    """The sums over all runs."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.plans = 0
        self.seconds = 0.0
        self.turns = self.writes = 0
        self.faults: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()

    def add(self, outcome: Outcome) -> None:
        self.plans += 1
        self.seconds += outcome.seconds
        self.turns += outcome.turns
        self.writes += outcome.writes
        self.faults.update(outcome.faults)
        self.requests.update(outcome.requests)

    def line(self) -> str:
        real = time.monotonic() - self.began
        return (
            f"{self.plans} plans, {self.seconds / 3600:.2f} h simulated in {real:.0f} s "
            f"({self.seconds / max(real, 0.001):.0f} times real time)"
        )

    def report(self) -> str:
        rows = [self.line(), f"{self.turns} turns, {self.writes} writes to the store"]
        rows.append("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(self.faults.items())))
        rows.append("requests: " + ", ".join(f"{name} {count}" for name, count in sorted(self.requests.items())))
        return "\n".join(rows)


class Progress:
    """
    Records in a file which plans are done with the current code, so that a long run continues after an interruption.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._file = folder / f"done-{_digest()}"
        self.done = set(self._file.read_text().split()) if self._file.exists() else set()

    def add(self, seed: str) -> None:
        with self._file.open("a") as file:
            file.write(f"{seed}\n")


def _digest() -> str:
    """A digest of the code that runs."""
    found = hashlib.sha256()
    for package in (*loader.PACKAGES, "tests/simulation", "manifests"):
        for path in sorted((TOP / package).rglob("*")):
            if path.suffix in (".py", ".yaml"):
                found.update(path.read_bytes())
    return found.hexdigest()[:16]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the plans that the arguments select."""
    parser = argparse.ArgumentParser(prog="make simulate", description=__doc__)
    parser.add_argument("--plans", type=int, default=200, help="how many plans to draw and run")
    parser.add_argument("--first", type=int, default=1, help="the number of the first plan")
    parser.add_argument("--seed", action="append", default=[], help="run the plan of this seed instead; repeatable")
    parser.add_argument("--plan", type=Path, action="append", default=[], help="run the plan in this file instead")
    parser.add_argument("--seconds", type=float, default=0.0, help="end after so many seconds of real time")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--story", action="store_true", help="tell what happened in each run")
    parser.add_argument("--hashes", action="store_true", help="print the hashes of each run")
    parser.add_argument("--checkpoints", action="store_true", help="print the hashes after each 1,000 turns, too")
    parser.add_argument("--turns", type=_turns, default=range(0), help="print these turns of each run, as in 4000-4999")
    parser.add_argument("--anew", action="store_true", help="run plans that are done already, too")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of failing plans and of which plans are done")
    parser.add_argument("--table", action="store_true", help="print the table of faults, and end")
    parser.add_argument("--enumerate", action="store_true", help="run every point of the reference runs instead")
    parser.add_argument("--reference", action="append", default=[], help="of this reference run only; repeatable")
    parser.add_argument("--every", type=int, default=1, help="with --enumerate: run one point of so many")
    parser.add_argument("--learn", action="store_true", help="with --enumerate: print their kinds of writes only")
    options = parser.parse_args(arguments)
    if options.table:
        print("\n".join(faulttable.lines(FEATURES)))
        return 0
    if options.enumerate:
        warm_up()
        return _enumerate(options)
    named = [
        *(draw.plan(seed, FEATURES) for seed in options.seed),
        *(plan.from_text(p.read_text()) for p in options.plan),
    ]
    progress = None if named or options.anew else Progress(options.folder)
    plans = iter(named) if named else _drawn(options, progress)
    if (len(named) if named else options.plans) > _FEW:
        warm_up()
    totals = Totals()
    end = time.monotonic() + options.seconds if options.seconds else float("inf")
    recording = functools.partial(play, recorded=options.turns)
    for each, outcome in pool.run_all(_until(plans, end), recording, jobs=options.jobs):
        totals.add(outcome)
        if progress is not None and not outcome.violation:
            progress.add(each.seed)  # Recorded before it is printed, so that a printed result is not run again.
        _tell_hashes(options, each, outcome)
        if options.story:
            print(story.told(each, outcome, _command(each)))
        if outcome.violation:
            _failed(each, outcome, options.jobs)
            return 1
        if sys.stderr.isatty():
            print(f"\r{totals.line()} ", end="", file=sys.stderr, flush=True)
    if not (options.hashes or options.checkpoints or options.turns):
        print(totals.report())
    return 0


def _enumerate(options: argparse.Namespace) -> int:
    return campaign.main(
        FEATURES,
        FOLDER,
        jobs=options.jobs,
        names=options.reference,
        every=options.every,
        only_learn=options.learn,
    )


def _turns(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _tell_hashes(options: argparse.Namespace, which: Plan, outcome: Outcome) -> None:
    """Print the hashes by which two runs of a seed are compared; see `tests.simulation.compare`."""
    for point in outcome.checkpoints if options.checkpoints else ():
        print(f"{which.seed} turn {point.turns} at {point.now} ns: {point.trace:08x} {point.effects:08x}")
    for turn in outcome.record:
        print(f"{which.seed} turn {turn.number} at {turn.now} ns: {turn.task}")
    if options.hashes or options.checkpoints:
        print(f"{which.seed} {outcome.trace:08x} {outcome.effects:08x}", flush=True)


def _drawn(options: argparse.Namespace, progress: Progress | None) -> Iterator[Plan]:
    for number in range(options.first, options.first + options.plans):
        if progress is None or str(number) not in progress.done:
            yield draw.plan(str(number), FEATURES)


def _until(plans: Iterator[Plan], end: float) -> Iterator[Plan]:
    for each in plans:
        if time.monotonic() >= end:
            return
        yield each


def _failed(failed: Plan, outcome: Outcome, jobs: int) -> None:
    kind = shrink.kind_of(outcome.violation)
    print(f"\nseed {failed.seed} violates: {outcome.violation.splitlines()[0]}\nmaking it smaller ...", flush=True)

    def fails(plans: list[Plan]) -> list[bool]:
        found = {plan.to_text(p): o for p, o in pool.run_all(plans, play, jobs=jobs)}
        return [shrink.kind_of(found[plan.to_text(p)].violation) == kind for p in plans]

    small = shrink.shrunk(failed, fails, report=lambda p: print(f"  {len(p.steps)} steps", flush=True))
    (_, outcome), *_ = pool.run_all([small], play, jobs=1)
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"failed-{failed.seed}.json"
    path.write_text(plan.to_text(small))
    print(story.told(small, outcome, f"python -m tests.simulation --plan {path.relative_to(TOP)} --story"))


def _command(which: Plan) -> str:
    return f"python -m tests.simulation --seed {which.seed} --story"


if __name__ == "__main__":
    sys.exit(main())
