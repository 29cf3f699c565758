"""
How property tests choose their examples, and what the suite prints at its end.

A change must not fail because a random example found a defect in code that it did not touch. So the examples are the
same every time. HYPOTHESIS_PROFILE=explore (`make explore`) takes others, ten times as many, because more of the same
would prove little. Examples have no deadline, because machines are busy at times.
"""

from __future__ import annotations

import functools
import gc
import os
import re
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

_TOP = Path(__file__).resolve().parent.parent

# Tests contact only this machine. Python's HTTP client would use a proxy from the environment even for that.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True, max_examples=40)
settings.register_profile("explore", _PATIENT, print_blob=True, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without garbage collection: collecting creates a million objects, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_SHARED = {"acceptance": "system", "conformance": "", "hostile": "", "queueing": "", "system": "", "trouble": ""}
"""Folders of `tests/cluster` whose files share a cluster, and the folder that has that cluster if it is another one."""
_OWN = re.compile(r"\b(?:Cluster|Troubled|hostile_cluster)\(")
"""A file with this text starts its own cluster."""


class _ByCluster(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs all files that share a cluster, so it starts once. Other files are distributed one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return _together(nodeid.split("::", 1)[0])


@functools.cache
def _together(path: str) -> str:
    """The key that keeps the tests of a file in one process."""
    folder = Path(path).parent
    if folder.parent.name != "cluster" or folder.name not in _SHARED or _OWN.search((_TOP / path).read_text()):
        return path
    return _SHARED[folder.name] or folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Used with `--dist loadfile`."""
    return _ByCluster(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line for each reason, most frequent first, instead of one line for each test."""
    why = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if why:
        terminalreporter.section("skipped, and what it takes to run them")
    for reason, tests in why.most_common():
        terminalreporter.write_line(f"{tests:5}  {reason}")


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
