"""
How property tests look for their examples, and what the whole suite prints at its end.

A change must not fail because of what chance found in code that it did not touch: the same examples every time, unless
HYPOTHESIS_PROFILE=explore asks for others, ten times as many (`make explore`); more of the same would prove little.
No example has a deadline: machines are busy at times.
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

# Tests talk to this machine alone. Python's own HTTP client would ask a proxy of the environment's for that too.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "*"

_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", _PATIENT, derandomize=True, max_examples=40)
settings.register_profile("explore", _PATIENT, print_blob=True, max_examples=400)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Without looking for garbage: a million objects are made meanwhile, and all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


_SHARED = {"acceptance": "system", "conformance": "", "hostile": "", "queueing": "", "system": "", "trouble": ""}
"""Folders of `tests/cluster` whose files share a cluster, and the folder whose cluster it is, where not their own."""
_OWN = re.compile(r"\b(?:Cluster|Troubled|hostile_cluster)\(")
"""What a file has that starts a cluster of its own."""


class _ByCluster(LoadScopeScheduling):  # type: ignore[misc]
    """One process runs all files that share a cluster, so it is started once; other files are spread one by one."""

    def _split_scope(self, nodeid: str) -> str:
        return _together(nodeid.split("::", 1)[0])


@functools.cache
def _together(path: str) -> str:
    """What the tests of a file are kept together by."""
    folder = Path(path).parent
    if folder.parent.name != "cluster" or folder.name not in _SHARED or _OWN.search((_TOP / path).read_text()):
        return path
    return _SHARED[folder.name] or folder.name


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """With `--dist loadfile`."""
    return _ByCluster(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line a reason, the commonest first, in place of one line a test."""
    why = Counter(_reason(report) for report in terminalreporter.stats.get("skipped", []))
    if why:
        terminalreporter.section("skipped, and what it takes to run them")
    for reason, tests in why.most_common():
        terminalreporter.write_line(f"{tests:5}  {reason}")


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else str(where)
    return text.removeprefix("Skipped: ")
