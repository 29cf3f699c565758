"""The pod as it is stored: placed, waiting or refused."""

from __future__ import annotations

import pytest

from contract.encoding import codec
from contract.encoding.protocol import Answer, Never, Wait
from contract.reasons.pods import AnswerReason
from contract.scheduling import node_pin
from tests.unit.webhook.builders import GIB, WAIT, allocation, container, environment, placed, pod, request_text, share
from tests.unit.webhook.settling import ASKS, GATE, JSON, PERCENT, admitted, settled
from webhook.admission.admit import Admit, Deny

ELSEWHERE = Wait(AnswerReason.NOT_LEADING, "the leading allocator places the pod shortly")
IN_LINE = Wait(AnswerReason.QUEUED, "the pods ahead in the queue are placed first")
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


def from_annotation(name: str, prefix: str, of: str = "main") -> JSON:
    path = f"metadata.annotations['gpufraction.io/{prefix}.{of}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


OURS = [
    from_annotation("NVIDIA_VISIBLE_DEVICES", "devices"),
    from_annotation("GPUFRACTION_MEMORY_MIB", "memory-mib"),
    from_annotation("GPUFRACTION_MEMORY_LIMIT_MIB", "memory-mib"),
    from_annotation("CUDA_DEVICE_MEMORY_LIMIT", "memory-limit"),
    from_annotation("CUDA_DEVICE_SM_LIMIT", "cores-limit"),
    from_annotation("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "mps-memory"),
    from_annotation("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "mps-threads"),
    from_annotation("GPUFRACTION_MEMORY_FRACTION", "memory-fraction"),
]


def test_a_placed_pod_whole() -> None:
    made = pod(
        container(
            gpufraction_io__gpu_memory="5Gi", gpufraction_io__gpu_cores="30", cpu="2", env=[{"name": "A", "value": "1"}]
        ),
        container("side"),
        annotations={"team": "a"},
    )
    answer = placed(main=(share(cores=30),))
    assert admitted(made, answer) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "train-",
            "namespace": "team-a",
            "labels": {"app": "train"},
            "annotations": {
                "team": "a",
                "gpufraction.io/request": '{"containers":[{"cores":30,"count":1,"memory":5368709120,"name":"main"}],'
                '"dialect":"native","v":1}',
                "gpufraction.io/allocation": codec.allocation_to_text(answer.allocation),
                "gpufraction.io/pin": "nodeName",
                "gpufraction.io/devices.main": "GPU-aaaa",
                "gpufraction.io/memory-mib.main": "5120",
                "gpufraction.io/memory-limit.main": "5120m",
                "gpufraction.io/cores-limit.main": "30",
                "gpufraction.io/mps-memory.main": "0=5120M",
                "gpufraction.io/mps-threads.main": "30",
                "gpufraction.io/memory-fraction.main": "0.33887",
            },
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "nvidia/cuda:12.4.1-base-ubuntu22.04",
                    "env": [*OURS, {"name": "A", "value": "1"}],
                    "resources": {
                        "limits": {"cpu": "2", "gpufraction.io/gpu-memory": "5Gi", "gpufraction.io/gpu-cores": "30"},
                        "requests": {"gpufraction.io/gpu-memory": "5Gi", "gpufraction.io/gpu-cores": "30"},
                    },
                },
                {"name": "side", "image": "nvidia/cuda:12.4.1-base-ubuntu22.04", "env": [VOID]},
            ],
            "nodeName": "gpu-1",
        },
    }


def test_a_waiting_pod_has_the_gate_and_no_pin() -> None:
    outcome = settled(pod(container(gpufraction_io__gpu_memory="5Gi")), WAIT)
    assert isinstance(outcome, Admit)
    assert outcome.pod["spec"] == {
        "containers": [
            {
                "name": "main",
                "image": "nvidia/cuda:12.4.1-base-ubuntu22.04",
                "resources": {
                    "limits": {"gpufraction.io/gpu-memory": "5Gi"},
                    "requests": {"gpufraction.io/gpu-memory": "5Gi"},
                },
                "env": OURS,
            }
        ],
        "schedulingGates": [GATE],
    }
    assert set(outcome.pod["metadata"]["annotations"]) == {"gpufraction.io/request"}
    assert outcome.warnings == (
        "waiting: 0 of 3 GPU nodes fit: 2 short of memory (largest free 5120 MiB, wanted 8192), 1 cordoned",
    )


def test_without_an_answer_the_pod_waits_and_says_why() -> None:
    outcome = settled(pod(container(gpufraction_io__gpu_memory="5Gi")), None)
    assert isinstance(outcome, Admit)
    assert outcome.pod["spec"]["schedulingGates"] == [GATE]
    assert outcome.warnings == ("waiting: the allocator does not answer; the pod is placed as soon as it does",)


def test_what_another_replica_decides_is_not_reported_as_a_fault() -> None:
    """Everything that one API server sends may go to a replica that does not lead."""
    outcome = settled(pod(ASKS), ELSEWHERE)
    assert isinstance(outcome, Admit)
    assert outcome.warnings == ("waiting: the leading allocator places the pod shortly",)


def test_a_placed_pod_brings_no_warning() -> None:
    outcome = settled(pod(container(gpufraction_io__gpu_memory="5Gi")), placed())
    assert isinstance(outcome, Admit)
    assert outcome.warnings == ()


def memory_of(made: JSON, position: int = 0) -> tuple[str | None, str | None]:
    resources = made["spec"]["containers"][position].get("resources") or {}
    return tuple((resources.get(kind) or {}).get("gpufraction.io/gpu-memory") for kind in ("limits", "requests"))  # type: ignore[return-value]


MEMORY = {
    "placed: exactly what the shares hold": (
        PERCENT,
        placed(main=(share("GPU-a", 0, 3 * GIB, 20), share("GPU-b", 1, 2 * GIB, 20))),
        "5Gi",
    ),
    "waiting for bytes: what was asked of each GPU": (
        pod(container(gpufraction_io__gpu_memory="3Gi", gpufraction_io__gpu_count="2")),
        Wait("NoRoom", "full", {"main": GIB}),
        "6Gi",
    ),
    "waiting for percent: the floor that the answer gives": (PERCENT, Wait("NoRoom", "full", {"main": GIB}), "1Gi"),
}


@pytest.mark.parametrize(("made", "answer", "want"), MEMORY.values(), ids=MEMORY.keys())
def test_the_memory_that_is_counted(made: JSON, answer: Answer | None, want: str | None) -> None:
    assert memory_of(admitted(made, answer)) == (want, want)


TWO_CONTAINERS = pod(container(gpufraction_io__gpu_memory="5Gi"), container("side", gpufraction_io__gpu_percent="1"))
UNCOUNTED: dict[str, tuple[JSON, Answer | None, str, str]] = {
    "nobody to ask": (PERCENT, None, "main", "the allocator does not answer"),
    "no GPU that it accepts": (PERCENT, Wait("NoGPUs", "none here yet"), "main", "none here yet"),
    "a share of nothing": (PERCENT, Wait("NoRoom", "full", {"main": 0}), "main", "full"),
    "a whole GPU": (pod(container(nvidia_com__gpu="1")), None, "main", "the allocator does not answer"),
    "cores that stand for memory": (
        pod(container(elasticgpu_io__gpu_core="50")),
        None,
        "main",
        "the allocator does not answer",
    ),
    "beside one that is counted": (TWO_CONTAINERS, Wait("X", "full", {"main": GIB}), "side", "full"),
    "bound to a node too": (
        pod(container(gpufraction_io__gpu_percent="20"), nodeName="gpu-1"),
        None,
        "main",
        "the allocator does not answer",
    ),
}


@pytest.mark.parametrize(("made", "answer", "which", "because"), UNCOUNTED.values(), ids=UNCOUNTED.keys())
def test_a_percentage_of_which_nobody_knows_how_much_it_is_is_refused(
    made: JSON, answer: Answer | None, which: str, because: str
) -> None:
    assert settled(made, answer) == Deny(
        f"container {which!r} requests a whole GPU or a percentage of one, and the memory that a quota "
        f"counts for it is unknown now ({because}); create the pod again in a moment, or request an amount of memory",
        403,
    )


def test_cores_are_counted_over_all_gpus_and_percent_resources_go() -> None:
    made = admitted(PERCENT, Wait("NoRoom", "full", {"main": GIB}))
    counted = {"gpufraction.io/gpu-cores": "40", "gpufraction.io/gpu-memory": "1Gi"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": counted, "requests": counted}


def test_limits_that_held_nothing_else_are_removed() -> None:
    made = pod(container("other"), container(aliyun_com__gpu_mem="5"))
    made["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "0"}, "claims": []}
    assert admitted(made, None)["spec"]["containers"][0]["resources"] == {"claims": []}


def test_every_dialects_resources_are_taken_out_of_limits_and_requests() -> None:
    made = pod(container(nvidia_com__gpu="1", nvidia_com__gpumem="3000", memory="1Gi"))
    made["spec"]["containers"][0]["resources"]["requests"] = {"nvidia.com/gpu": "1", "memory": "1Gi"}
    assert admitted(made, None)["spec"]["containers"][0]["resources"] == {
        "limits": {"memory": "1Gi", "gpufraction.io/gpu-memory": "3000Mi"},
        "requests": {"memory": "1Gi", "gpufraction.io/gpu-memory": "3000Mi"},
    }


# -- environment and annotations of the tenant ------------------------------------------------------------------------

TENANT_ENV = [
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
    {"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2"},
    {"name": "CUDA_MPS_PIPE_DIRECTORY", "value": "/tmp/x"},
    {"name": "NVIDIA_GPU_MEMORY_LIMIT", "value": "99999"},
    {"name": "CUDA_DEVICE_MEMORY_LIMIT_0", "value": "0"},
    {"name": "CUDA_DISABLE_CONTROL", "value": "true"},
    {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"},
    {"name": "KEEP", "value": "$(NVIDIA_VISIBLE_DEVICES)"},
    {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"},
]


def test_what_a_tenant_sets_of_ours_is_replaced_in_every_container() -> None:
    made = pod(
        container(gpufraction_io__gpu_memory="5Gi", env=TENANT_ENV),
        container("side", env=TENANT_ENV),
        init=[container("fetch", env=TENANT_ENV)],
    )
    got = admitted(made, placed())
    keep = {"name": "KEEP", "value": "$(NVIDIA_VISIBLE_DEVICES)"}
    assert got["spec"]["containers"][0]["env"] == [*OURS, keep]
    assert got["spec"]["containers"][1]["env"] == [VOID, keep]
    assert got["spec"]["initContainers"][0]["env"] == [VOID, keep]


def test_a_dialects_own_environment_cannot_be_set_by_the_tenant_either() -> None:
    fake = [{"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "99"}]
    got = admitted(pod(container(aliyun_com__gpu_mem="5", env=fake), container("side", env=fake)), placed())
    assert environment(got, "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "5"
    assert environment(got, "main")["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert environment(got, "side") == {"NVIDIA_VISIBLE_DEVICES": "void"}


def test_what_a_tenant_writes_under_our_annotations_is_dropped() -> None:
    made = pod(
        container(gpufraction_io__gpu_memory="5Gi"),
        container("side"),
        annotations={
            "gpufraction.io/devices.main": "all",
            "gpufraction.io/devices.side": "all",
            "gpufraction.io/memory-limit.main": "99999m",
            "gpufraction.io/allocation": codec.allocation_to_text(allocation("forged")),
            "gpufraction.io/request": request_text(main={"memory": 80 * GIB}),
            "gpufraction.io/node-policy": "spread",
            "nvidia.cdi.k8s.io/container.main": "nvidia.com/gpu=all",
            "cdi.k8s.io/mine": "nvidia.com/gpu=0",
        },
    )
    got = admitted(made, WAIT)
    assert got["metadata"]["annotations"] == {
        "gpufraction.io/node-policy": "spread",
        "gpufraction.io/request": '{"containers":[{"count":1,"memory":5368709120,"name":"main"}],"dialect":"native",'
        '"nodePolicy":"spread","v":1}',
    }
    assert environment(got, "main")["NVIDIA_VISIBLE_DEVICES"] == ""


def test_an_older_systems_annotations_and_labels_are_written_when_placed() -> None:
    made = pod(container())
    made["spec"]["containers"][0]["resources"] = {"limits": {"nano-gpu/gpu-percent": "20"}}
    got = admitted(made, placed(main=(share(index=3, cores=20),)))
    assert got["metadata"]["labels"] == {"app": "train", "nano-gpu/assume": "true"}
    assert got["metadata"]["annotations"]["nano-gpu/container-main"] == "3"


# -- pin and gate -----------------------------------------------------------------------------------------------------

PINNED = node_pin.pinned({}, "gpu-1")
OTHER_GATE = {"name": "kueue.x-k8s.io/admission"}

PINS = {
    "by name": (pod(ASKS), placed("nodeName"), {"nodeName": "gpu-1"}),
    "by affinity": (pod(ASKS), placed("affinity"), {"affinity": PINNED}),
    "our gate in the tenant's manifest is taken away": (
        pod(ASKS, schedulingGates=[GATE]),
        placed("nodeName"),
        {"nodeName": "gpu-1"},
    ),
    "a foreign gate stays, and then a name would be refused": (
        pod(ASKS, schedulingGates=[OTHER_GATE, GATE]),
        placed("nodeName"),
        {"affinity": PINNED, "schedulingGates": [OTHER_GATE]},
    ),
    "a node that the tenant named needs no pin": (
        pod(ASKS, nodeName="gpu-1"),
        placed("affinity"),
        {"nodeName": "gpu-1"},
    ),
    "waiting beside a foreign gate": (
        pod(ASKS, schedulingGates=[OTHER_GATE]),
        WAIT,
        {"schedulingGates": [OTHER_GATE, GATE]},
    ),
    "waiting with our gate already there": (pod(ASKS, schedulingGates=[GATE]), WAIT, {"schedulingGates": [GATE]}),
}


@pytest.mark.parametrize(("made", "answer", "want"), PINS.values(), ids=PINS.keys())
def test_pin_and_gate(made: JSON, answer: Answer, want: JSON) -> None:
    spec = admitted(made, answer)["spec"]
    assert {key: value for key, value in spec.items() if key != "containers"} == want


BOUND = {
    "no room on it": (
        pod(ASKS, nodeName="gpu-1"),
        WAIT,
        "spec.nodeName: found 'gpu-1', which cannot take the pod now: 0 of 3 GPU nodes fit: 2 short of memory (largest "
        "free 5120 MiB, wanted 8192), 1 cordoned; remove spec.nodeName (a nodeSelector can choose the node) and the "
        "pod waits in the queue",
    ),
    "a replica that does not lead, and a scheduler that may not bind it": (
        pod(ASKS, nodeName="gpu-1", schedulerName="volcano"),
        ELSEWHERE,
        "spec.nodeName: found 'gpu-1', where only the leading replica can place the pod, and this replica does not "
        "lead; create it again, remove spec.schedulerName, or remove spec.nodeName (a nodeSelector can choose the "
        "node) and the pod waits in the queue",
    ),
    "nobody to ask": (
        pod(ASKS, nodeName="gpu-1"),
        None,
        "spec.nodeName: found 'gpu-1' while the allocator does not answer; create it again soon, or remove "
        "spec.nodeName (a nodeSelector can choose the node) and the pod waits in the queue",
    ),
}


@pytest.mark.parametrize(("made", "answer", "message"), BOUND.values(), ids=BOUND.keys())
def test_a_pod_that_is_bound_to_a_node_cannot_wait(made: JSON, answer: Answer | None, message: str) -> None:
    assert settled(made, answer) == Deny(message, 403)


@pytest.mark.parametrize("soon", [ELSEWHERE, IN_LINE], ids=["another replica leads", "others are before it"])
def test_a_pod_that_is_bound_to_a_node_waits_for_a_moment_by_affinity(soon: Wait) -> None:
    outcome = settled(pod(ASKS, nodeName="gpu-1", schedulerName="default-scheduler"), soon)
    assert isinstance(outcome, Admit)
    assert {key: value for key, value in outcome.pod["spec"].items() if key != "containers"} == {
        "schedulerName": "default-scheduler",
        "affinity": node_pin.pinned({}, "gpu-1"),
        "schedulingGates": [GATE],
    }
    assert outcome.warnings == (
        "spec.nodeName: found 'gpu-1'; the pod gets a node affinity for it instead, and waits",
        f"waiting: {soon.reason}",
    )


def test_its_own_affinity_goes_on_counting_beside_the_node() -> None:
    wanted = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [wanted]}}
    made = pod(ASKS, nodeName="gpu-1", affinity={"nodeAffinity": required})
    spec = admitted(made, ELSEWHERE)["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term == {**wanted, "matchFields": [node_pin.requirement("gpu-1")]}
    assert "nodeName" not in spec


def test_what_no_gpu_could_ever_serve_is_refused() -> None:
    assert settled(pod(ASKS), Never("TooLarge", "the largest GPU has 32768 MiB, wanted 81920")) == Deny(
        "the largest GPU has 32768 MiB, wanted 81920", 403
    )
