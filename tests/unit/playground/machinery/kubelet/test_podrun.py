from __future__ import annotations

from collections.abc import Callable

import pytest

from playground.api.kinds.values import JSON
from playground.machinery.kubelet.environment import Surroundings
from playground.machinery.kubelet.gpuruntime import NodeGpu
from playground.machinery.kubelet.podrun import (
    EXIT_CODE,
    RUN_SECONDS,
    START_SECONDS,
    PodRun,
    run_seconds,
    start_seconds,
)
from playground.machinery.kubelet.podstatus import Ended, Placed, Running, Waiting
from tests.unit.playground.machinery.builders import pod

THEN, NOW, LATER = "2024-01-01T00:00:00Z", "2024-01-01T00:00:05Z", "2024-01-01T00:00:09Z"
PLACED = Placed("10.244.0.1", "10.0.0.1", THEN)
GPU = NodeGpu(0, "GPU-1", "Tesla T4", 1 << 30)


def started(value: JSON) -> PodRun:
    run = PodRun(value, "n1", PLACED)
    run.start(Surroundings(), [GPU], NOW)
    return run


def conditions_of(status: JSON) -> dict[str, str]:
    return {c["type"]: c["status"] for c in status["conditions"]}


def test_init_containers_end_and_sidecars_run_beside_the_others() -> None:
    value = pod()
    value["spec"]["initContainers"] = [{"name": "first"}, {"name": "beside", "restartPolicy": "Always"}]
    run = started(value)
    status = run.status(NOW)
    assert run.states == {"first": Ended(0, NOW, NOW), "beside": Running(NOW), "main": Running(NOW)}
    assert (status["phase"], status["podIP"], status["startTime"]) == ("Running", "10.244.0.1", THEN)
    assert conditions_of(status) == {
        "PodReadyToStartContainers": "True",
        "Initialized": "True",
        "Ready": "True",
        "ContainersReady": "True",
        "PodScheduled": "True",
    }
    assert [entry["ready"] for entry in status["initContainerStatuses"]] == [True, True]


@pytest.mark.parametrize(("annotations", "code", "phase"), [({}, 0, "Succeeded"), ({EXIT_CODE: "143"}, 143, "Failed")])
def test_a_pod_that_is_stopped_ends_with_its_exit_code(annotations: dict[str, str], code: int, phase: str) -> None:
    value = pod(annotations=annotations)
    value["spec"]["initContainers"] = [{"name": "beside", "restartPolicy": "Always"}]
    run = started(value)
    run.kill(LATER)
    assert run.states == {"beside": Ended(0, NOW, LATER), "main": Ended(code, NOW, LATER)}
    assert run.status(LATER)["phase"] == phase


def test_an_init_container_that_cannot_start_holds_the_rest() -> None:
    value = pod()
    missing = {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "none", "key": "k"}}}
    value["spec"]["initContainers"] = [{"name": "first", "env": [missing]}]
    run = started(value)
    assert run.states == {
        "first": Waiting("CreateContainerConfigError", 'configmap "none" not found'),
        "main": Waiting("PodInitializing"),
    }
    status = run.status(NOW)
    assert (status["phase"], conditions_of(status)["Initialized"]) == ("Pending", "False")


def test_an_unknown_device_is_found_out_at_the_next_try() -> None:
    value = pod()
    value["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "GPU-2"}]
    run = started(value)
    state = run.status(NOW)["containerStatuses"][0]["state"]
    assert state["waiting"]["reason"] == "RunContainerError"
    assert "device error: GPU-2: unknown device" in state["waiting"]["message"]
    run.start(Surroundings(), [GPU, NodeGpu(1, "GPU-2", "Tesla T4", 1 << 30)], LATER)
    assert run.states == {"main": Running(LATER)}
    assert run.logs["main"].splitlines() == [
        "NVIDIA_VISIBLE_DEVICES=GPU-2",
        "GPU 0: Tesla T4 (UUID: GPU-2) 0MiB / 1024MiB",
    ]


def test_how_a_pod_ends_is_its_restart_policys_choice() -> None:
    outcomes = {}
    for policy in ("Always", "OnFailure", "Never"):
        for code in (0, 3):
            run = started(pod(restartPolicy=policy, annotations={RUN_SECONDS: "1", EXIT_CODE: str(code)}))
            run.complete(LATER)
            status = run.status(LATER)
            outcomes[policy, code] = (status["phase"], status["containerStatuses"][0]["restartCount"])
    assert outcomes == {
        ("Always", 0): ("Running", 1),
        ("Always", 3): ("Running", 1),
        ("OnFailure", 0): ("Succeeded", 0),
        ("OnFailure", 3): ("Running", 1),
        ("Never", 0): ("Succeeded", 0),
        ("Never", 3): ("Failed", 0),
    }


@pytest.mark.parametrize(("read", "annotation"), [(run_seconds, RUN_SECONDS), (start_seconds, START_SECONDS)])
def test_seconds_in_annotations(read: Callable[[JSON], float | None], annotation: str) -> None:
    texts = {"2.5": 2.5, "-1": 0.0, "long": None}
    assert {text: read(pod(annotations={annotation: text})) for text in texts} == texts
    assert read(pod()) is None
