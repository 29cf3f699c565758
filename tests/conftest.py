"""What the whole suite prints at its end: each reason to skip once, with how many tests it kept away."""

from __future__ import annotations

from collections import Counter

import pytest


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
