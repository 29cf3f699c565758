"""One seed is one run, in any process; and a run that does not end shows where its tasks are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.compare import Lines, Run, parting

TOP = Path(__file__).resolve().parents[3]


def environment(hash_seed: str = "0") -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TOP), "PYTHONHASHSEED": hash_seed}


# -- the same seed, the same run --------------------------------------------------------------------------------------


def simulation(hash_seed: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.simulation", "--plans", "2", "--jobs", "1", "--hashes", *arguments]
    return subprocess.Popen(
        command, cwd=TOP, env=environment(hash_seed), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def hashes(process: subprocess.Popen[str]) -> Lines:
    """What it prints until its end."""
    out, _ = process.communicate()
    assert process.returncode == 0, out
    return out.splitlines()


@pytest.mark.timeout(600)
def test_a_seed_is_one_run_under_any_hash_seed_and_after_an_interruption(tmp_path: Path) -> None:
    with simulation("0", "--anew") as one:
        whole = hashes(one)
        assert [line.split()[0] for line in whole] == ["1", "2"]
    with simulation("1", "--folder", str(tmp_path)) as interrupted:
        assert interrupted.stdout is not None
        before = [interrupted.stdout.readline().strip()]
        interrupted.send_signal(signal.SIGINT)
        before += interrupted.communicate()[0].splitlines()
    with simulation("random", "--folder", str(tmp_path)) as continued:
        assert [*before, *hashes(continued)] == whole


# -- where two runs differ --------------------------------------------------------------------------------------------


def played(tasks: list[str], hashes: list[str]) -> Run:
    """A run whose turns are those tasks, with a checkpoint after every thousand turns."""

    def run(*arguments: str) -> Lines:
        if arguments == ("--checkpoints",):
            return hashes
        first, last = map(int, arguments[1].split("-"))
        return [f"turn {number}: {tasks[number - 1]}" for number in range(first, min(last, len(tasks)) + 1)]

    return run


def test_equal_runs_do_not_part() -> None:
    run = played(["a"] * 2500, ["1", "2", "end"])
    assert parting(run, run) is None


def test_runs_part_at_the_first_turn_that_differs() -> None:
    one, other = ["a"] * 2500, ["a"] * 2500
    other[1233], other[1700] = "b", "c"
    found = parting(played(one, ["1", "2", "end"]), played(other, ["1", "x", "other"]))
    assert found is not None
    assert (found.turn, found.before[-1], found.one[0], found.other[0]) == (
        1234,
        "turn 1233: a",
        "turn 1234: a",
        "turn 1234: b",
    )


def test_runs_may_part_after_the_last_checkpoint() -> None:
    found = parting(played(["a"] * 2005, ["1", "2", "end"]), played(["a"] * 2007, ["1", "2", "other"]))
    assert found is not None
    assert (found.turn, found.one, found.other[0]) == (2006, [], "turn 2006: a")


# -- a run that does not end ------------------------------------------------------------------------------------------

STUCK = {
    "a real lock is held across a turn": """
lock = threading.Lock()
def holds():
    with lock:
        kernel.block(2_000_000)
def waits():
    kernel.block(1_000_000)
    lock.acquire()
kernel.spawn(host, holds, "holds")
kernel.spawn(host, waits, "waits")
""",
    "a task never waits": """
def loops():
    while True:
        pass
def waits():
    kernel.block(1 << 60)
kernel.spawn(host, waits, "waits")
kernel.spawn(host, loops, "loops")
""",
    "tasks wait for nothing again and again": """
def loops():
    while True:
        kernel.give_way()
def waits():
    kernel.block(1 << 60)
kernel.spawn(host, waits, "waits")
kernel.spawn(host, loops, "loops")
""",
}
RESTS = "rests"
TOLD = {
    "a real lock is held across a turn": (
        "turn 3 has taken",
        "host/holds:",
        "host/waits, whose turn it is:",
        "in waits",
    ),
    "a task never waits": ("has taken", "host/waits:", "host/loops, whose turn it is:", "in loops"),
    "tasks wait for nothing again and again": ("have passed, and", "host/waits:", "host/loops", "in loops"),
}
_PLAY = """
import sys, threading, time
from tests.simulation.kernel import loader, scheduler
loader.install()
rests = None
from tests.simulation import pool
from tests.simulation.kernel.scheduler import Host, Kernel
from tests.simulation.plan import Plan
from tests.simulation.run import Outcome

def play(plan):
    kernel, host = scheduler.activate(Kernel("1")), Host("host", 1)
    exec(plan.seed, {**globals(), "kernel": kernel, "host": host})
    if plan.seed == "rests":
        time.sleep(2.5)
        return Outcome(violation=plan.seed)
    kernel.run(1 << 62)

plans = [Plan(text) for text in sys.argv[1:]]
found = {p.seed: o for p, o in pool.run_all(plans, play, jobs=len(plans), longest=4.0, one_turn=1.0)}
print("\\n====\\n".join(found[text].violation for text in sys.argv[1:]))
"""


@pytest.fixture(scope="module")
def violations() -> dict[str, str]:
    """What is reported about each stuck run."""
    command = [sys.executable, "-c", _PLAY, *STUCK.values(), RESTS]
    done = subprocess.run(command, cwd=TOP, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip([*STUCK, RESTS], done.stdout.strip().split("\n====\n"), strict=True))


def test_a_process_that_waits_for_its_forks_is_not_stuck(violations: dict[str, str]) -> None:
    """Its simulation pauses for longer than a turn may take."""
    assert violations[RESTS] == RESTS


@pytest.mark.parametrize("what", STUCK)
def test_a_run_that_is_stuck_tells_all_stacks(what: str, violations: dict[str, str]) -> None:
    told = violations[what]
    assert told.startswith("the run has not ended: ")
    for text in TOLD[what]:
        assert text in told
