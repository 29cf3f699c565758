"""
Finds where two runs of a seed differ. They must never differ. If they do, the machine or chance decides something.

    python -m tests.simulation.compare 7    runs seed 7 under several hash seeds, and shows the first turn that differs

Exit status: 0 if the runs are equal, 1 if they differ.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.kernel.scheduler import CHECKPOINT

TOP = Path(__file__).resolve().parents[2]
AROUND = 10
"""How many turns are shown before the first that differs."""

Lines = list[str]
Run = Callable[..., Lines]
"""Returns what a run with these arguments prints."""


@dataclass(frozen=True, slots=True)
class Parting:
    """
    Where two runs differ. turn: the number of the first turn that differs; before: what both did until then; one,
    other: what each did in that turn.
    """

    turn: int
    before: Lines
    one: Lines
    other: Lines

    def __str__(self) -> str:
        rows = [f"the runs part at turn {self.turn}", *(f"    both   {each}" for each in self.before)]
        rows += [f"    one    {each}" for each in self.one] + [f"    other  {each}" for each in self.other]
        return "\n".join(rows)


def parting(one: Run, other: Run) -> Parting | None:
    """
    Where two runs differ; None if they are equal. Each is run again for the turns between two checkpoints.

    If these turns are equal, an answer of the API server in them differs; the reported turn is the one after the last.
    """
    ours, theirs = one("--checkpoints"), other("--checkpoints")
    equal = _equal(ours, theirs)
    if equal == len(ours) == len(theirs):
        return None
    first = equal * CHECKPOINT + 1
    window = ("--turns", f"{first}-{first + CHECKPOINT - 1}")
    ours, theirs = one(*window), other(*window)
    turn = _equal(ours, theirs)
    before = ours[max(turn - AROUND, 0) : turn]
    return Parting(first + turn, before, ours[turn : turn + 3], theirs[turn : turn + 3])


def _equal(ours: Lines, theirs: Lines) -> int:
    """How many lines at the beginning are equal."""
    pairs: Iterator[tuple[str, str]] = zip(ours, theirs, strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def simulated(seed: str, hash_seed: str) -> Run:
    """Runs of that seed with that hash seed, each in a new process and only once."""

    @functools.cache
    def run(*arguments: str) -> Lines:
        command = [sys.executable, "-m", "tests.simulation", "--seed", seed, "--jobs", "1", *arguments]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(TOP)}
        done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise RuntimeError(f"the simulation ended with {done.returncode}:\n{done.stderr}")
        return [line for line in done.stdout.splitlines() if line.startswith(f"{seed} ")]

    return run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.compare", description=__doc__)
    parser.add_argument("seed", nargs="+", help="of the plans to run")
    parser.add_argument("--hash-seed", nargs="+", default=["0", "1", "random"], help="of Python, for each run")
    options = parser.parse_args(arguments)
    parted = False
    for seed in options.seed:
        first, *others = [simulated(seed, each) for each in options.hash_seed]
        for other in others:
            found = parting(first, other)
            print(f"seed {seed}: {found or 'equal'}", flush=True)
            parted = parted or found is not None
    return 1 if parted else 0


if __name__ == "__main__":
    sys.exit(main())
