"""
Shows that the simulation can fail: runs it against programs with one defect each, and reports which defects it notices.

    python -m tests.simulation.mutants [--only NAME] [--plans N] [--jobs J]

Exit status: 0 if every mutant was caught, 1 if one survived, 2 if the table does not match the code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from tests.simulation.mutants.table import MUTANTS, Mutant
from tests.simulation.mutants.trial import Order, Verdict

TOP = Path(__file__).resolve().parents[3]
PLANS = 60
"""At most this many drawn plans against each mutant."""
_WIDTH = 110


class Unfit(Exception):
    """A mutant of the table cannot be applied, or keeps the programs from running at all."""


class Trials:
    """
    Tries mutants against a limited number of drawn plans, each trial in its own process.

    A plan that the unchanged programs fail proves nothing about a mutant, so it is not counted.
    """

    def __init__(self, plans: int) -> None:
        self._plans = plans
        self._lock = threading.Lock()
        self.fails_anyway: dict[str, str] = {}
        """The violation of the unchanged programs, by the seed of the plan; empty if they pass it."""

    def of(self, mutant: Mutant) -> Verdict:
        """The result for the mutant. Raises `Unfit`."""
        order, before = Order(mutant.name, self._plans), 0
        while True:
            verdict = _carried_out(order)
            if not verdict.came_up:
                raise Unfit(f"{mutant.name}: with it the cluster does not even come up: {verdict.violation}")
            before += verdict.plans
            if not verdict.violation or not self._fails(verdict.plan):
                return replace(verdict, plans=before)
            order = replace(order, skipped=(*order.skipped, verdict.plan))

    def _fails(self, seed: str) -> bool:
        """Whether the unchanged programs fail that plan."""
        with self._lock:
            if seed not in self.fails_anyway:
                self.fails_anyway[seed] = _carried_out(Order(drawn=self._plans, only=seed)).violation
            return bool(self.fails_anyway[seed])


def _carried_out(order: Order) -> Verdict:
    command = [sys.executable, "-m", "tests.simulation.mutants.trial", json.dumps(asdict(order))]
    done = subprocess.run(command, cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True)
    if done.returncode:
        raise Unfit(f"{order.mutant}: exit status {done.returncode}\n{done.stderr}")
    return Verdict(**json.loads(done.stdout.splitlines()[-1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the mutants that the arguments select."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="the name of a mutant; repeatable")
    parser.add_argument("--plans", type=int, default=PLANS, help="drawn plans against each mutant, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.only or each.name in options.only]
    if unknown := set(options.only) - {each.name for each in chosen}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    began, trials = time.monotonic(), Trials(options.plans)
    found = list[Verdict]()
    try:
        for verdict in _tried(trials, chosen, options.jobs):
            found.append(verdict)
            print(_line(verdict), flush=True)
    except Unfit as error:
        print(error, file=sys.stderr)
        return 2
    return _report(chosen, found, trials, time.monotonic() - began)


def _tried(trials: Trials, mutants: Sequence[Mutant], jobs: int) -> Iterator[Verdict]:
    """The verdict on each, in the order of the table. Raises `Unfit`."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(trials.of, mutants)


def _line(verdict: Verdict) -> str:
    if not verdict.violation:
        return f"SURVIVED  {verdict.mutant}: {verdict.plans} plans"
    what = verdict.violation.splitlines()[0]
    return f"caught    {verdict.mutant}: by plan {verdict.plan} after {verdict.plans}: {what[:_WIDTH]}"


def _report(chosen: Sequence[Mutant], found: Sequence[Verdict], trials: Trials, seconds: float) -> int:
    alive = {each.mutant for each in found if not each.violation}
    print(f"{len(found) - len(alive)} of {len(found)} mutants caught in {seconds:.0f} s")
    for each in chosen:
        if each.name in alive:
            print(f"survived: {each.name} ({each.kind}): {each.promise}")
    for seed, violation in trials.fails_anyway.items():
        if violation:
            print(f"not counted: plan {seed}, which fails without a mutant: {violation.splitlines()[0][:_WIDTH]}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
