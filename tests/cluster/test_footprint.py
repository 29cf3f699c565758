"""The watch on memory kills a program that exceeds its limit, even through a child process, and no other one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from playground.programs.process import Program
from playground.waiting import wait_for
from tests.cluster.hostile.footprint import Footprint, limits

LIMIT = limits()["webhook"]
GROWS = f"""
import pathlib, sys, time
def grow():
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)
    held = bytearray({LIMIT})
    time.sleep(60)
"""
ALONE, FORKS, STAYS = (
    f"{GROWS}grow()",
    f"import os{GROWS}grow() if os.fork() == 0 else os.wait()",
    f"{GROWS}time.sleep(60)",
)


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[dict[str, Program]]:
    """The programs with a cluster's names, each counted once while it was small."""
    codes = {"webhook": ALONE, "webhook-1": FORKS, "webhook-2": STAYS}
    made = {
        name: Program(
            name,
            ["-c", code, str(tmp_path / "go")],
            log=tmp_path / f"{name}.log",
            environment={},
            command=(sys.executable,),
        )
        for name, code in codes.items()
    }
    for program in made.values():
        program.start()
    yield made
    for program in made.values():
        program.kill()


def test_who_grows_beyond_the_limit_is_killed(programs: dict[str, Program], tmp_path: Path) -> None:
    footprint = Footprint(SimpleNamespace(programs=programs))
    footprint.start()
    try:
        wait_for(lambda: footprint.peaks.keys() == programs.keys(), "they are not looked at")
        assert footprint.killed == []
        (tmp_path / "go").touch()
        wait_for(lambda: len(footprint.killed) == 2, lambda: f"{footprint.killed}, {footprint.peaks}", 20)
    finally:
        footprint.stop()
    assert {name for name, program in programs.items() if program.alive()} == {"webhook-2"}
