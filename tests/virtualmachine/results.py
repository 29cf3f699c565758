"""
The results of the tests on a virtual machine: a report for programs, and lines for people.

Pure, except that it reads one file. Must not: run anything.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

JSON = dict[str, Any]
_ENDS = ("failure", "error", "skipped")


def report(junit: Path, facts: Mapping[str, str], *, accelerator: str, seconds: float) -> JSON:
    """`junit`: pytest's file. Each test is passed, failure, error or skipped, with a line that says why."""
    found: dict[str, JSON] = {}
    cases = ElementTree.parse(junit).getroot().iter("testcase") if junit.exists() else iter(())
    for case in cases:
        name = f"{case.get('classname', '')}::{case.get('name', '')}"
        end = next((child for child in case if child.tag in _ENDS), None)
        about: JSON = {"outcome": "passed" if end is None else end.tag, "seconds": round(float(case.get("time", 0)), 1)}
        if end is not None:
            about["why"] = (end.get("message") or "").splitlines()[0][:500] if end.get("message") else ""
        if name not in found or about["outcome"] in ("failure", "error"):
            found[name] = about
    totals = Counter(test["outcome"] for test in found.values())
    return {
        "machine": dict(facts),
        "accelerator": accelerator,
        "seconds": round(seconds),
        "totals": dict(sorted(totals.items())),
        "tests": dict(sorted(found.items())),
    }


def lines(of: JSON) -> Iterator[str]:
    """The totals, the tests that did not pass, and why tests were skipped."""
    totals = ", ".join(f"{count} {outcome}" for outcome, count in of["totals"].items()) or "no test ran"
    yield f"{totals} in {of['seconds']} s under {of['accelerator']}"
    for name, test in of["tests"].items():
        if test["outcome"] in ("failure", "error"):
            yield f"{test['outcome']}: {name}: {test['why']}"
    skipped = Counter(test["why"] for test in of["tests"].values() if test["outcome"] == "skipped")
    yield from (f"skipped {count}: {why}" for why, count in sorted(skipped.items()))
