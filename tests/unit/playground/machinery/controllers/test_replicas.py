from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playground.api.kinds.values import JSON
from playground.machinery.controllers import replicas
from playground.machinery.controllers.replicas import Bounds, Size
from tests.unit.playground.machinery.builders import pod


def aged(name: str, created: str, *, phase: str = "Running", ready: bool = True, bound: bool = True) -> JSON:
    value = pod(name)
    value["metadata"]["creationTimestamp"] = created
    value["spec"]["nodeName"] = "n1" if bound else ""
    value["status"] = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": created}],
    }
    return value


def test_a_scale_down_takes_unscheduled_then_pending_then_unready_then_young() -> None:
    old, young = aged("old", "2024-01-01T00:00:00Z"), aged("young", "2024-01-02T00:00:00Z")
    unready = aged("unready", "2024-01-01T00:00:00Z", ready=False)
    pending = aged("pending", "2024-01-01T00:00:00Z", phase="Pending", ready=False)
    waiting = aged("waiting", "2024-01-01T00:00:00Z", phase="Pending", ready=False, bound=False)
    cheap = aged("cheap", "2023-01-01T00:00:00Z")
    cheap["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "-1"}
    ranked = replicas.going_first([old, young, unready, pending, waiting, cheap])
    assert [p["metadata"]["name"] for p in ranked] == ["waiting", "pending", "unready", "cheap", "young", "old"]


BOUNDS: dict[str, tuple[JSON, Bounds]] = {
    "the default": ({"replicas": 10}, Bounds(10, 3, 2)),
    "one replica surges": ({"replicas": 1}, Bounds(1, 1, 0)),
    "numbers": (
        {"replicas": 4, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 2}}},
        Bounds(4, 0, 2),
    ),
    "both nothing is one unavailable": (
        {"replicas": 4, "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}},
        Bounds(4, 0, 1),
    ),
    "recreate": ({"replicas": 4, "strategy": {"type": "Recreate"}}, Bounds(4, 0, 4)),
}


@pytest.mark.parametrize(("spec", "want"), BOUNDS.values(), ids=BOUNDS.keys())
def test_bounds(spec: JSON, want: Bounds) -> None:
    assert replicas.bounds(spec) == want


@given(
    desired=st.integers(0, 12),
    surge=st.integers(0, 5),
    unavailable=st.integers(0, 5),
    olds=st.lists(st.integers(0, 12), max_size=3),
    data=st.data(),
)
def test_a_rolling_update_keeps_its_bounds_and_ends(
    desired: int, surge: int, unavailable: int, olds: list[int], data: Any
) -> None:
    """Whenever pods become available, there are never too many or too few pods, and the update ends."""
    limits = Bounds(desired, surge, min(max(unavailable, 0 if surge else 1), desired))
    wanted = {"new": 0, **{f"old{i}": min(n, desired) for i, n in enumerate(olds)}}
    available = dict(wanted)
    for step in range(200):
        sizes = {name: Size(name, wanted[name], min(available[name], wanted[name])) for name in wanted}
        before = sum(wanted.values())
        change = replicas.rolling(limits, sizes["new"], [s for n, s in sizes.items() if n != "new"])
        wanted.update(change)
        assert sum(wanted.values()) <= max(before, desired + surge)
        if any(name != "new" for name in change):
            left = sum(min(available[name], wanted[name]) for name in wanted)
            assert left >= desired - limits.unavailable or left == sum(s.available for s in sizes.values())
        for name in wanted:
            missing = wanted[name] - min(available[name], wanted[name])
            # After a while every requested pod becomes available, so that the update can end.
            came = missing if step > 20 else data.draw(st.integers(0, missing))
            available[name] = min(available[name], wanted[name]) + came
    assert wanted == {name: desired if name == "new" else 0 for name in wanted}


def test_recreate_waits_for_the_old_pods() -> None:
    limits, new, old = Bounds(3, 0, 3), Size("new", 0), Size("old", 3, 3)
    assert replicas.recreating(limits, None, [old], 3) == {"old": 0}
    assert replicas.recreating(limits, new, [Size("old", 0)], 2) == {}
    assert replicas.recreating(limits, new, [Size("old", 0)], 0) == {"new": 3}
    assert replicas.recreating(limits, Size("new", 3), [Size("old", 0)], 0) == {}


def test_the_hash_label_is_no_part_of_the_template() -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": []}}
    labelled = {"metadata": {"labels": {"a": "b", "pod-template-hash": "x"}}, "spec": {"containers": []}}
    assert replicas.same_template(template, labelled)
    assert replicas.template_hash(template) == replicas.template_hash(labelled)
    assert replicas.template_hash(template) != replicas.template_hash(template, 1)
    assert len(replicas.template_hash(template)) == 10


def test_availability_waits_for_min_ready_seconds() -> None:
    value = aged("p", "2024-01-01T00:00:00Z")
    at = 1704067200.0
    assert replicas.available_in(value, 0, at) == 0
    assert replicas.available_in(value, 30, at + 10) == 20
    assert replicas.available_in(value, 30, at + 31) == 0
    assert replicas.available_in(aged("q", "2024-01-01T00:00:00Z", ready=False), 0, at) is None
