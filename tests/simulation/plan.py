"""
What happens in a run, as a value: the world's shape, and a list of steps with their times.

A plan is drawn from a seed before the run begins, and can be written to a file, changed by hand, and shrunk. A failure
is kept as its plan, because a seed gives another plan after the next change of these tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Step:
    """
    One event of a plan.

    at: seconds after the cluster has come up. kind: the name of an operation or a fault. seconds: how long a fault
    lasts; 0 if it is over at once.
    """

    at: float
    kind: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Plan:
    """
    A run. seed: for all choices that the plan does not make, such as which task runs next and how long a request takes.

    shape: the arguments of `world.Shape`. preempt: how likely a thread loses its turn at a lock.
    """

    seed: str
    steps: tuple[Step, ...] = ()
    shape: Mapping[str, Any] = field(default_factory=dict)
    preempt: float = 0.02

    def without(self, dropped: frozenset[int]) -> Plan:
        """The plan without the steps at these positions."""
        return replace(self, steps=tuple(step for i, step in enumerate(self.steps) if i not in dropped))

    @property
    def ends(self) -> float:
        """When the last step is over, in seconds after the beginning."""
        return max((step.at + step.seconds for step in self.steps), default=0.0)


def to_text(plan: Plan) -> str:
    """The plan as JSON, one line for each step."""
    head = {"seed": plan.seed, "preempt": plan.preempt, "shape": dict(plan.shape)}
    lines = [json.dumps(asdict(step)) for step in plan.steps]
    return json.dumps(head)[:-1] + ', "steps": [\n' + ",\n".join(lines) + "\n]}\n"


def from_text(text: str) -> Plan:
    """Read what `to_text` wrote. Raises ValueError."""
    document = json.loads(text)
    steps = tuple(Step(**each) for each in document["steps"])
    return Plan(document["seed"], steps, document.get("shape") or {}, document.get("preempt", 0.02))
