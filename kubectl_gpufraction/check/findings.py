"""
A finding: the object of a check, its state, and the command that fixes it.

Pure. The level UNKNOWN stands for what the user may not see: it is neither OK nor a failure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kubectl_gpufraction.output.tables import Column

OK, WARN, FAIL, UNKNOWN = "OK", "WARN", "FAIL", "UNKNOWN"
_LEVELS = (FAIL, WARN, UNKNOWN, OK)

COLUMNS = (Column("result", "RESULT"), Column("check", "CHECK"), Column("found", "FOUND"))


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the check. `cure`: what to do, a command where there is one; empty for nothing."""

    level: str
    check: str
    found: str
    cure: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that could not be read, and why: `you may not list nodes`."""

    why: str


def unknown(check: str, *facts: object) -> Finding | None:
    """The finding for the first of these facts that could not be read; None if all could."""
    why = next((fact.why for fact in facts if isinstance(fact, Unseen)), None)
    return None if why is None else Finding(UNKNOWN, check, f"unknown: {why}")


def row(finding: Finding) -> dict[str, Any]:
    """The finding as data for programs."""
    return {"result": finding.level, "check": finding.check, "found": finding.found, "cure": finding.cure or None}


def in_table(finding: Finding) -> dict[str, Any]:
    """The finding for people: the cure follows the result, so that each finding is one line."""
    word = "next" if finding.level == OK else "cure"
    return row(finding) | {"found": f"{finding.found}; {word}: {finding.cure}" if finding.cure else finding.found}


_CAUSES = (
    "kubernetes",
    "installation",
    "own-pod-security",
    "image",
    "program-rights",
    "runtime-class",
    "certificates",
    "keeper-of-certificates",
    "webhook",
    "leader",
    "dry-run",
    "policies",
    "device-plugins",
    "node-labels",
    "gpus",
)
"""Checks in the order of cause and effect: a failure in one of them makes later ones fail too."""


def by_cause(findings: Sequence[Finding]) -> list[Finding]:
    """The findings by level, the worst first, and the failures so that a cause comes before its effects."""
    rank = {check: number for number, check in enumerate(_CAUSES)}

    def order(finding: Finding) -> tuple[int, int]:
        return _LEVELS.index(finding.level), rank.get(finding.check, len(rank)) if finding.level == FAIL else 0

    return sorted(findings, key=order)


def first_to_fix(findings: Sequence[Finding]) -> list[str]:
    """The failure that may cause others, with its cure; nothing if at most one fails."""
    failing = [each for each in by_cause(findings) if each.level == FAIL]
    if len(failing) < 2:
        return []
    first = failing[0]
    cure = [f"    {first.cure}"] if first.cure else []
    return [f"Fix this one first, since it may cause others: {first.check}: {first.found}", *cure, ""]


def summary(findings: Sequence[Finding]) -> str:
    """How many there are of each level: `2 FAIL, 1 WARN, 14 OK`."""
    counted = [(sum(each.level == level for each in findings), level) for level in _LEVELS]
    return ", ".join(f"{count} {level}" for count, level in counted if count)


def number(count: int, what: str) -> str:
    """`1 node`, `2 nodes`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
