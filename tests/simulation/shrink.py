"""Makes a plan that fails smaller: fewer steps first, then a simpler world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.plan import Plan

Fails = Callable[[list[Plan]], list[bool]]
"""
Whether each of these plans still fails in the same way. The plans are independent, so they may run at the same time.
"""


def kind_of(violation: str) -> str:
    """The key by which two violations count as the same: the name of what was violated."""
    return violation.partition(":")[0]


def shrunk(plan: Plan, fails: Fails, *, report: Callable[[Plan], None] = lambda plan: None) -> Plan:
    """The smallest plan found that still fails. `report` receives each smaller one."""
    plan = _fewer_steps(plan, fails, report)
    for simpler in _simpler(plan):
        if fails([simpler])[0]:
            plan = simpler
            report(plan)
    return _fewer_steps(plan, fails, report)


def _fewer_steps(plan: Plan, fails: Fails, report: Callable[[Plan], None]) -> Plan:
    """Delta debugging (Zeller, 2002): drop parts, halves first, until no single step can be dropped."""
    parts = 2
    while plan.steps:
        length = len(plan.steps)
        parts = min(parts, length)
        bounds = [(length * i // parts, length * (i + 1) // parts) for i in range(parts)]
        smaller = [plan.without(frozenset(range(start, end))) for start, end in bounds]
        found = next((each for each, still in zip(smaller, fails(smaller), strict=True) if still), None)
        if found is not None:
            plan, parts = found, max(parts - 1, 2)
            report(plan)
        elif parts >= length:
            return plan
        else:
            parts *= 2
    return plan


def _simpler(plan: Plan) -> Iterator[Plan]:
    """The plan in simpler worlds, each of which changes one thing."""
    yield replace(plan, preempt=0.0)
    shape: Mapping[str, Any] = plan.shape
    yield replace(plan, shape={**shape, "latency": (0.001, 0.001)})
    yield replace(plan, shape={**shape, "flags": {}})
    cards = dict(shape.get("cards", {}))
    for node in list(cards)[1:]:
        yield replace(plan, shape={**shape, "cards": {name: text for name, text in cards.items() if name != node}})
