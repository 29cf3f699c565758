"""
A very large number of generated pods, most of them plausible for a tenant: each gets an answer, and none causes a
fault.

The ordinary tests use a few hundred, and `make fuzz` uses 100,000. The pods are based on the examples of every
dialect's documentation, with other amounts, more containers, preferences of every dialect and other fields of pods.
Some are then mixed or damaged. The test prints how many were admitted and requires a minimum, because pods that are all
refused would test little.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from contract import names
from contract.dialects import DIALECTS
from contract.dialects.base import Dialect, Example
from contract.model import PodRequest
from tests.examples import examples
from tests.unit.webhook.admission.test_made_up_pods import (
    ANSWERS,
    JSON,
    RESERVED_ENV,
    SOURCES,
    damaged_pods,
    made_up_pods,
    webhook,
)

LEAST_ADMITTED = 0.4


def _made(limits: JSON, annotations: JSON, labels: JSON) -> JSON:
    container = {"name": "main", "resources": {"limits": limits}}
    return {"metadata": {"annotations": annotations, "labels": labels}, "spec": {"containers": [container]}}


def _served(dialect: Dialect) -> list[Example]:
    """The examples that are not mistakes."""
    return [
        example
        for example in dialect.examples
        if isinstance(
            DIALECTS.read(_made(dict(example.limits), dict(example.annotations), dict(example.labels))), PodRequest
        )
    ]


EXAMPLES: dict[str, list[Example]] = {d.name: _served(d) for d in DIALECTS if _served(d)}
WISHES: tuple[tuple[str, str], ...] = (
    (names.NODE_POLICY, "spread"),
    (names.GPU_POLICY, "binpack"),
    (names.USE_MODELS, "A100,T4"),
    (names.LEAST_MEMORY, "16Gi"),
    (names.ISOLATION, "watch"),
    (names.NUMA_BIND, "true"),
    (names.PLACEMENT, "affinity"),
)
KINDS = ("meant",) * 7 + ("odd", "mixed", "damaged")


@st.composite
def meant(draw: st.DrawFn) -> JSON:
    """A pod that requests in one dialect, in one to three containers."""
    listed = EXAMPLES[draw(st.sampled_from(sorted(EXAMPLES)))]
    example = draw(st.sampled_from(listed))
    made = json.loads(json.dumps(_made(dict(example.limits), dict(example.annotations), dict(example.labels))))
    spec = made["spec"]
    spec["containers"][0]["resources"]["limits"] = {k: _less(draw, v) for k, v in example.limits.items()}
    for position in range(draw(st.sampled_from((0, 0, 0, 1, 2)))):
        more = draw(st.sampled_from((example, None)))
        limits = dict(more.limits) if more is not None else {"cpu": "1"}
        container = {"name": f"c{position}", "resources": {"limits": limits}}
        kind = draw(st.sampled_from(("containers", "containers", "initContainers")))
        spec.setdefault(kind, []).append(container)
    if draw(st.booleans()):
        variable, source = draw(st.sampled_from([*RESERVED_ENV, "A"])), draw(st.sampled_from(SOURCES))
        spec["containers"][0]["env"] = [{"name": variable, **source}]
    if draw(st.booleans()):
        key, value = draw(st.sampled_from(WISHES))
        made["metadata"]["annotations"][str(key)] = value
    return {**made, "metadata": {**made["metadata"], "name": "p"}}


def _less(draw: st.DrawFn, amount: Any) -> Any:
    """A plain number unchanged, or a smaller one."""
    if not str(amount).isdecimal() or int(amount) < 2 or draw(st.booleans()):
        return amount
    return str(draw(st.integers(1, int(amount))))


@st.composite
def any_pods(draw: st.DrawFn) -> tuple[str, JSON]:
    """The kind of pod, and the pod."""
    kind = draw(st.sampled_from(KINDS))
    if kind == "odd":
        return kind, draw(made_up_pods)
    if kind == "damaged":
        return kind, draw(damaged_pods())
    made = draw(meant())
    if kind == "mixed":
        others = draw(meant())
        made["spec"]["containers"] += [{**c, "name": f"{c['name']}-2"} for c in others["spec"]["containers"]]
    return kind, made


class Tally:
    """What happened to the pods."""

    def __init__(self) -> None:
        self.found: Counter[tuple[str, str]] = Counter()

    def admit(self, kind: str, made: JSON, answer: str) -> None:
        """Pass one pod through the webhook; a fault fails the test."""
        response = webhook().response(made, answer)
        allowed = response["allowed"]
        outcome = ("admitted" if "patch" in response else "untouched") if allowed else "refused"
        assert allowed or response["status"]["message"]
        self.found[kind, outcome] += 1

    @property
    def admitted(self) -> float:
        """The fraction of all pods that were admitted with a share, or to wait for one."""
        return sum(n for (_, outcome), n in self.found.items() if outcome == "admitted") / self.found.total()

    def __str__(self) -> str:
        lines = [f"{kind:8} {outcome:10} {number:7}" for (kind, outcome), number in sorted(self.found.items())]
        return "\n".join((*lines, f"{self.found.total()} pods, {self.admitted:.0%} admitted"))


def put_through(number: int) -> Tally:
    tally = Tally()
    # No example database and no explain phase: a failure is rare, and is shrunk anyway.
    quick = settings(
        max_examples=number,
        deadline=None,
        database=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )

    @quick
    @given(any_pods(), st.sampled_from(sorted(set(ANSWERS) - {"never"})))
    def through(pod: tuple[str, JSON], answer: str) -> None:
        tally.admit(*pod, answer)

    through()
    print(f"\n{tally}")
    return tally


def test_every_dialect_is_among_them() -> None:
    # Pods that request by ResourceClaims use another entry of the webhook.
    assert EXAMPLES.keys() == {dialect.name for dialect in DIALECTS} - {"resourceclaims"}


def test_three_hundred_pods() -> None:
    tally = put_through(examples(300))
    assert tally.found.total() >= 300
    assert tally.admitted > LEAST_ADMITTED, tally


@pytest.mark.fuzz
@pytest.mark.timeout(4 * 3600)
def test_a_hundred_thousand_pods() -> None:
    tally = put_through(100_000)
    assert tally.found.total() >= 100_000
    assert tally.admitted > LEAST_ADMITTED, tally
