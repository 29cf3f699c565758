"""
Shows that the simulation can fail: it runs against programs with one defect each, and tells which ones it notices.

    python -m tests.simulation.mutants [--only NAME] [--plans N] [--jobs J]

Exit status: 0 where every mutant was caught, 1 where one survived, 2 where the table does not fit the code.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.simulation.mutants.table import MUTANTS, Mutant
from tests.simulation.mutants.trial import Verdict

TOP = Path(__file__).resolve().parents[3]
PLANS = 60
"""Drawn plans against each mutant, at most."""
_WIDTH = 110


class Unfit(Exception):
    """A mutant of the table cannot be tried, or keeps the programs from running at all."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try what the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="the name of a mutant; repeatable")
    parser.add_argument("--plans", type=int, default=PLANS, help="drawn plans against each mutant, at most")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="mutants at a time")
    options = parser.parse_args(arguments)
    chosen = [each for each in MUTANTS if not options.only or each.name in options.only]
    if unknown := set(options.only) - {each.name for each in chosen}:
        parser.error(f"no mutant is called {', '.join(sorted(unknown))}")
    began, found = time.monotonic(), list[Verdict]()
    try:
        for verdict in _tried(chosen, options.plans, options.jobs):
            found.append(verdict)
            print(_line(verdict), flush=True)
    except Unfit as error:
        print(error, file=sys.stderr)
        return 2
    return _report(chosen, found, time.monotonic() - began)


def _tried(mutants: Sequence[Mutant], plans: int, jobs: int) -> Iterator[Verdict]:
    """The verdict on each, in the order of the table. Raises `Unfit`."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda each: _alone(each, plans), mutants)


def _alone(mutant: Mutant, plans: int) -> Verdict:
    command = [sys.executable, "-m", "tests.simulation.mutants.trial", mutant.name, str(plans)]
    done = subprocess.run(command, cwd=TOP, env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, text=True)
    if done.returncode:
        raise Unfit(f"{mutant.name}: exit status {done.returncode}\n{done.stderr}")
    verdict = Verdict(**json.loads(done.stdout.splitlines()[-1]))
    if not verdict.came_up:
        raise Unfit(f"{mutant.name}: with it the cluster does not even come up: {verdict.violation}")
    return verdict


def _line(verdict: Verdict) -> str:
    if not verdict.violation:
        return f"SURVIVED  {verdict.mutant}: {verdict.plans} plans"
    what = verdict.violation.splitlines()[0]
    return f"caught    {verdict.mutant}: by plan {verdict.plan} after {verdict.plans}: {what[:_WIDTH]}"


def _report(chosen: Sequence[Mutant], found: Sequence[Verdict], seconds: float) -> int:
    alive = {each.mutant for each in found if not each.violation}
    print(f"{len(found) - len(alive)} of {len(found)} mutants caught in {seconds:.0f} s")
    for each in chosen:
        if each.name in alive:
            print(f"survived: {each.name} ({each.kind}): {each.promise}")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
