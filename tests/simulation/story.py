"""Tells what happened in a run: which program did what and when, up to the violation."""

from __future__ import annotations

import re
from collections.abc import Iterator

from tests.simulation.plan import Plan
from tests.simulation.run import Line, Outcome

WIDTH = 160
MOST = 120
"""The number of lines in a story; it keeps the last ones."""
_SHORT = (
    (re.compile(r"/api/v1/namespaces/"), ""),
    (re.compile(r"/apis?/[a-z0-9.]+/v[a-z0-9]+/(namespaces/)?"), ""),
)
_DULL = re.compile(r"\[info\] (published|watch interrupted|watch recovered)|/events ")


def told(plan: Plan, outcome: Outcome, command: str) -> str:
    """The story, with the command that repeats it."""
    head = [
        f"Seed {plan.seed}: {len(plan.steps)} steps, {len(plan.shape.get('cards', {})) or 3} nodes,"
        f" {plan.shape.get('replicas', 2)} replicas; {outcome.seconds:.1f} s simulated.",
        "",
    ]
    lines = list(_interesting(outcome.lines))
    if len(lines) > MOST:
        head.append(f"    ... {len(lines) - MOST} lines before these")
    head += [_line(each) for each in lines[-MOST:]]
    return "\n".join([*head, "", "Again:", f"    {command}", ""])


def _interesting(lines: list[Line]) -> Iterator[Line]:
    for line in lines:
        if not _DULL.search(line.action):
            yield line


def _line(line: Line) -> str:
    action = line.action
    for pattern, short in _SHORT:
        action = pattern.sub(short, action)
    if line.actor != "VIOLATION" and len(action) > WIDTH:
        action = action[: WIDTH - 1] + "…"
    return f"{line.at:9.3f} s  {line.actor:<18} {action}"
