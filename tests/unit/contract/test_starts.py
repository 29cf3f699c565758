"""Whether a pod that starts alone is starting, by its status."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names, pods, starts
from contract.encoding import moments
from contract.model import FractionRequest, PodRequest

JSON = dict[str, Any]
PLACED = 1_800_000_000.0
ALONE = PodRequest(
    "native",
    (
        FractionRequest("warm", percent=10, init=True, alone=True),
        FractionRequest("main", percent=50, alone=True),
    ),
)


def condition(kind: str, holds: bool, at: float) -> JSON:
    return {"type": kind, "status": "True" if holds else "False", "lastTransitionTime": moments.stamp(PLACED + at)}


def running(name: str, at: float, restarts: int = 0) -> JSON:
    return {"name": name, "restartCount": restarts, "state": {"running": {"startedAt": moments.stamp(PLACED + at)}}}


READY, NOT_READY = condition("Ready", True, 90), condition("Ready", False, 1)


@pytest.mark.parametrize(
    ("status", "since"),
    [
        pytest.param({}, PLACED, id="nothing of it is known: since its placement"),
        pytest.param({"conditions": [NOT_READY]}, PLACED, id="no container has started"),
        pytest.param(
            {"conditions": [NOT_READY], "containerStatuses": [running("main", 30)]}, PLACED + 30, id="started"
        ),
        pytest.param(
            {"containerStatuses": [running("other", 30)]}, PLACED, id="only a container without a share started"
        ),
        pytest.param({"initContainerStatuses": [running("warm", 5)]}, PLACED, id="only an init container started"),
        pytest.param({"containerStatuses": [running("main", -400)]}, PLACED, id="the node's clock is behind"),
        pytest.param(
            {"conditions": [NOT_READY], "containerStatuses": [running("main", 70, 2)]}, PLACED, id="restarted"
        ),
        pytest.param({"conditions": [READY], "containerStatuses": [running("main", 30)]}, None, id="ready"),
        pytest.param(
            {"conditions": [NOT_READY, condition("ContainersReady", True, 60)]},
            None,
            id="ready but for a readiness gate",
        ),
        pytest.param(
            {"conditions": [condition("Ready", False, 300)], "containerStatuses": [running("main", 30)]},
            None,
            id="was ready, and its probe fails since",
        ),
        pytest.param(
            {"conditions": [condition("Ready", False, 30)], "containerStatuses": [running("main", 30)]},
            PLACED + 30,
            id="unready since the second in which it started",
        ),
        pytest.param(
            {"conditions": [{"type": "Ready"}], "containerStatuses": [{"name": "main", "state": {"running": {}}}]},
            PLACED,
            id="a status without times",
        ),
    ],
)
def test_since_when_a_pod_is_starting(status: JSON, since: float | None) -> None:
    assert starts.starting_since({"status": status}, ALONE, PLACED) == since


def test_a_pod_that_does_not_start_alone_never_is() -> None:
    assert (
        starts.starting_since({"status": {}}, PodRequest("native", (FractionRequest("main", percent=50),)), 1.0) is None
    )


def test_what_says_so_is_kept_of_a_pod_that_is_trimmed() -> None:
    resized = {**running("main", 30), "resources": {"requests": {"cpu": "2"}}, "image": "x"}
    pod: JSON = {
        "metadata": {"annotations": {str(names.START): names.ALONE}},
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}, {"name": "other"}]},
        "status": {"conditions": [NOT_READY], "containerStatuses": [resized, {"name": "other", "image": "y"}]},
    }
    kept = {key: resized[key] for key in ("name", "resources", "restartCount", "state")}
    assert pods.trim(pod)["status"] == {"conditions": [NOT_READY], "containerStatuses": [kept, {"name": "other"}]}
    del pod["metadata"]["annotations"]
    small = {"name": "main", "resources": {"requests": {"cpu": "2"}}}
    assert pods.trim(pod)["status"] == {"conditions": [NOT_READY], "containerStatuses": [small]}
