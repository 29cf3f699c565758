"""Others overwrite or remove the condition of a pod: it is written again, and this keeps no program busy."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.hostile.attack import TENANT, Hostile

pytestmark = pytest.mark.hostile
JSON = dict[str, Any]
HOLD = "example.com/hold"
STALE = {"status": "False", "reason": "Stale", "message": "waiting: written by somebody else"}
"""Old conditions of the pod that a kubelet or another controller may write back."""


def overwrite(hostile: Hostile, name: str, **condition: str) -> None:
    found = {"type": str(names.ALLOCATED_CONDITION), **condition}
    path = paths.pods(TENANT, name, "status")
    hostile.kube.patch_strategic(path, {"status": {"conditions": [found]}})


def remove(hostile: Hostile, name: str) -> None:
    found = {"type": str(names.ALLOCATED_CONDITION), "$patch": "delete"}
    path = paths.pods(TENANT, name, "status")
    hostile.kube.patch_strategic(path, {"status": {"conditions": [found]}})


def condition(hostile: Hostile, name: str) -> JSON:
    return scenarios.condition(hostile.kube.get(paths.pods(TENANT, name)))


def says(hostile: Hostile, name: str, wanted: JSON) -> None:
    """Wait until the pod has exactly this condition again."""

    def found() -> JSON:
        found = condition(hostile, name)
        return {key: found.get(key) for key in wanted}

    wait_for(lambda: found() == wanted, lambda: f"{name} says {found()}, not {wanted}")


def one_that_runs_and_one_that_waits(hostile: Hostile) -> dict[str, JSON]:
    """
    The two pods, and their conditions. The running pod has waited, because a pod that never waited has no condition.
    """
    for name in ("runs", "waits"):
        whole = pod(name).asks("gpufraction.io/gpu-memory", "15000Mi").asks("gpufraction.io/gpu-count", 2)
        held = whole.gated(HOLD) if name == "runs" else whole
        hostile.create(held.spec(nodeSelector={"gpushare": "true"}))
        wait_for(lambda name=name: bool(condition(hostile, name)), "nobody was told")  # type: ignore[misc]
        if name == "runs":
            hostile.kube.patch_json(paths.pods(TENANT, name), [{"op": "remove", "path": "/spec/schedulingGates/0"}])
            wait_for(lambda: condition(hostile, "runs").get("status") == "True", "it does not get its share")
    scenarios.settled(hostile.kube, 2, running=1)
    written = {name: condition(hostile, name) for name in ("runs", "waits")}
    assert [written[name]["status"] for name in ("runs", "waits")] == ["True", "False"]
    return {name: {key: found[key] for key in ("status", "reason", "message")} for name, found in written.items()}


@pytest.mark.parametrize(
    "attack",
    [
        "overwritten",
        pytest.param("removed", marks=pytest.mark.long),
        pytest.param("told the contrary", marks=pytest.mark.long),
    ],
)
def test_what_others_make_of_a_condition_is_repaired(hostile: Hostile, attack: str) -> None:
    """C8: the leader repairs it at its next look, even if nothing else has changed."""
    written = one_that_runs_and_one_that_waits(hostile)
    for name, found in written.items():
        match attack:
            case "overwritten":
                overwrite(hostile, name, **STALE)
            case "removed":
                remove(hostile, name)
            case "told the contrary":
                overwrite(hostile, name, **{**found, "status": "False" if found["status"] == "True" else "True"})
    for name, found in written.items():
        says(hostile, name, found)


def test_a_pod_that_never_waited_is_told_once_somebody_says_that_it_waits(hostile: Hostile) -> None:
    hostile.create(pod("runs").asks("gpufraction.io/gpu-memory", "1000Mi"))
    scenarios.settled(hostile.kube, 1, running=1)
    assert condition(hostile, "runs") == {}
    overwrite(hostile, "runs", **STALE)
    says(hostile, "runs", {"status": "True", "reason": "Allocated"})


@pytest.mark.long
def test_a_writer_who_never_gives_up_costs_next_to_nothing(hostile: Hostile) -> None:
    """
    C8: two programs write against each other. Ours waits longer each time, and the other's pod keeps the other's text.
    """
    written = one_that_runs_and_one_that_waits(hostile)
    stop, repairs = threading.Event(), 0

    def fight() -> None:
        nonlocal repairs
        while not stop.wait(0.05):
            if condition(hostile, "runs").get("status") == "True":
                repairs += 1
                overwrite(hostile, "runs", **STALE)

    thread = threading.Thread(target=fight)
    thread.start()
    try:
        stop.wait(13)
        assert hostile.neighbour_is_served() < 5
    finally:
        stop.set()
        thread.join()
    assert 1 <= repairs <= 4, "at once, and after 3, 6 and 12 s"
    says(hostile, "runs", written["runs"])
