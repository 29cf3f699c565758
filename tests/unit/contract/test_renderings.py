"""What the older systems' tools and programs read about an allocation, in those systems' formats."""

from __future__ import annotations

from typing import Any

import pytest

from contract.dialects import DIALECTS
from contract.dialects.base import Rendering
from contract.encoding.quantity import MIB
from contract.model import Allocation, ContainerAllocation, GpuShare, PodRequest
from contract.options import Options
from tests.builders import PodBuilder, pod

NOW = 1795258067301435491
T4 = 15109 * MIB


def request_of(builder: PodBuilder, options: Options | None = None) -> PodRequest:
    found = DIALECTS.read(builder.json(), options or Options())
    assert isinstance(found, PodRequest)
    return found


def given_gpus(request: PodRequest, *indexes: tuple[int, ...], card: int = T4) -> Allocation:
    """An allocation of these GPUs, with one tuple for each container of the request."""
    return Allocation(
        "a1",
        "n1",
        tuple(
            ContainerAllocation(
                f.container, tuple(GpuShare(f"GPU-{i}", i, f.memory_on(card), f.cores, card) for i in gpus)
            )
            for f, gpus in zip(request.containers, indexes, strict=True)
        ),
    )


def aliyun(index: str, dev: str, sum_: str, by_container: str) -> Rendering:
    prefix = "ALIYUN_COM_GPU_MEM_"
    annotations = {
        prefix + "IDX": index,
        prefix + "DEV": dev,
        prefix + "POD": sum_,
        prefix + "ASSIGNED": "false",
        prefix + "ASSUME_TIME": "1795258067301435491",
    }
    return Rendering(annotations | ({"scheduler.framework.gpushare.allocation": by_container} if by_container else {}))


def elastic(**containers: str) -> Rendering:
    annotations = {f"elasticgpu.io/container-{name}": indexes for name, indexes in containers.items()}
    return Rendering({"elasticgpu.io/assumed": "true", **annotations}, {"elasticgpu.io/assumed": "true"})


LONG = "c" * 60
RENDERED: dict[str, tuple[PodBuilder, Options, tuple[tuple[int, ...], ...], Rendering]] = {
    "Aliyun, the account's pod on a T4": (
        pod("binpack-1").asks("aliyun.com/gpu-count", 1).asks("aliyun.com/gpu-mem", 5),
        Options(),
        ((0,),),
        aliyun("0", "14", "5", '{"0":{"0":5}}'),
    ),
    "Aliyun, memory over four GPUs": (
        pod("p").asks("aliyun.com/gpu-mem", 8).labelled("aliyun.com/gpu-count", "4"),
        Options(),
        ((0, 1, 2, 3),),
        aliyun("0,1,2,3", "14", "8", '{"0":{"0":2,"1":2,"2":2,"3":2}}'),
    ),
    "Aliyun, the sum over containers": (
        pod("p").container("a").asks("aliyun.com/gpu-mem", 2).container("b").asks("aliyun.com/gpu-mem", 3),
        Options(),
        ((1,), (1,)),
        aliyun("1", "14", "5", '{"0":{"1":2},"1":{"1":3}}'),
    ),
    "Aliyun, an init container is no part of the sum": (
        pod("p").init("a").asks("aliyun.com/gpu-mem", 4).container("b").asks("aliyun.com/gpu-mem", 3),
        Options(),
        ((1,), (1,)),
        aliyun("1", "14", "3", '{"0":{"1":3}}'),
    ),
    "Aliyun, an init container alone": (
        pod("p").init("a").asks("aliyun.com/gpu-mem", 4).container("b"),
        Options(),
        ((1,),),
        aliyun("1", "14", "4", ""),
    ),
    "Aliyun in MiB": (
        pod("p").asks("aliyun.com/gpu-mem", 5000),
        Options(aliyun_unit=MIB),
        ((0,),),
        aliyun("0", "15109", "5000", '{"0":{"0":5000}}'),
    ),
    "Aliyun counts containers as the pod lists them": (
        pod("p").container("log").container("main").asks("aliyun.com/gpu-mem", 5),
        Options(),
        ((0,),),
        aliyun("0", "14", "5", '{"1":{"0":5}}'),
    ),
    "Elastic GPU, the documented Deployment": (
        pod("p").container("cuda").asks("elasticgpu.io/gpu-memory", 256),
        Options(),
        ((1,),),
        elastic(cuda="1"),
    ),
    "Elastic GPU, whole cards; a container without a share has none": (
        pod("p").container("log").container("cuda").asks("elasticgpu.com/gpu-core", 200),
        Options(),
        ((0, 1),),
        elastic(cuda="0,1"),
    ),
    "nano-gpu, a container without a share": (
        pod("p").init("fetch").container("log").container("main").asks("nano-gpu/gpu-percent", 20),
        Options(),
        ((3,),),
        Rendering(
            {"nano-gpu/assume": "true", "nano-gpu/container-log": "-1", "nano-gpu/container-main": "3"},
            {"nano-gpu/assume": "true"},
        ),
    ),
    "KAI has none that others read": (pod("p").annotated("gpu-fraction", "0.5"), Options(), ((0,),), Rendering()),
    "nano-gpu": (
        pod("gpu-pod").container("cuda-container").asks("nano-gpu/gpu-percent", 20),
        Options(),
        ((0,),),
        Rendering({"nano-gpu/assume": "true", "nano-gpu/container-cuda-container": "0"}, {"nano-gpu/assume": "true"}),
    ),
    "nano-gpu, containers on different cards": (
        pod("p").container("a").asks("nano-gpu/gpu-percent", 60).container("b").asks("nano-gpu/gpu-percent", 60),
        Options(),
        ((0,), (2,)),
        Rendering(
            {"nano-gpu/assume": "true", "nano-gpu/container-a": "0", "nano-gpu/container-b": "2"},
            {"nano-gpu/assume": "true"},
        ),
    ),
    "nano-gpu, a container whose name makes no valid annotation": (
        pod("p").container(LONG).asks("nano-gpu/gpu-percent", 60),
        Options(),
        ((0,),),
        Rendering({"nano-gpu/assume": "true"}, {"nano-gpu/assume": "true"}),
    ),
    "HAMi has none that others read": (pod("p").asks("nvidia.com/gpu", 1), Options(), ((0,),), Rendering()),
    "neither have we": (pod("p").asks("gpufraction.io/gpu-percent", 20), Options(), ((0,),), Rendering()),
}


@pytest.mark.parametrize(("builder", "options", "gpus", "wanted"), RENDERED.values(), ids=RENDERED.keys())
def test_render(builder: PodBuilder, options: Options, gpus: tuple[tuple[int, ...], ...], wanted: Rendering) -> None:
    request = request_of(builder, options)
    assert DIALECTS.render(builder.json(), request, given_gpus(request, *gpus), NOW) == wanted


def test_a_dialect_from_a_newer_version_renders_nothing() -> None:
    request = request_of(pod("p").asks("nano-gpu/gpu-percent", 20))
    newer = PodRequest("newer", request.containers)
    assert DIALECTS.render(pod("p").json(), newer, given_gpus(newer, (0,)), NOW) == Rendering()


def from_annotation(name: str) -> dict[str, Any]:
    path = f"metadata.annotations['{name}']"
    return {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": path}}}


ALIYUN_VARIABLES = [from_annotation(f"ALIYUN_COM_GPU_MEM_{part}") for part in ("IDX", "POD", "DEV")]
ENVIRONMENTS: dict[str, tuple[PodBuilder, list[list[dict[str, Any]]]]] = {
    "Aliyun, the account's pod": (
        pod("p").asks("aliyun.com/gpu-mem", 5),
        [[*ALIYUN_VARIABLES, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "5"}]],
    ),
    "Aliyun, a container's units are those on each GPU": (
        pod("p").asks("aliyun.com/gpu-mem", 8).asks("aliyun.com/gpu-count", 4),
        [[*ALIYUN_VARIABLES, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "2"}]],
    ),
    "Aliyun, each container has its own": (
        pod("p").container("a").asks("aliyun.com/gpu-mem", 2).container("b").asks("aliyun.com/gpu-mem", 3),
        [
            [*ALIYUN_VARIABLES, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "2"}],
            [*ALIYUN_VARIABLES, {"name": "ALIYUN_COM_GPU_MEM_CONTAINER", "value": "3"}],
        ],
    ),
    "nano-gpu": (pod("p").asks("nano-gpu/gpu-percent", 20), [[]]),
    "HAMi": (pod("p").asks("nvidia.com/gpu", 1), [[]]),
    "HAMi, high priority": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/priority", 0),
        [[{"name": "CUDA_TASK_PRIORITY", "value": "0"}]],
    ),
    "HAMi, low priority, which is what the limiter takes": (
        pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/priority", 1),
        [[]],
    ),
    "native": (pod("p").asks("gpufraction.io/gpu-percent", 20), [[]]),
}


@pytest.mark.parametrize(("builder", "wanted"), ENVIRONMENTS.values(), ids=ENVIRONMENTS.keys())
def test_environment(builder: PodBuilder, wanted: list[list[dict[str, Any]]]) -> None:
    request = request_of(builder)
    dialect = DIALECTS.named(request.dialect)
    assert dialect is not None
    assert [dialect.environment(request, fraction) for fraction in request.containers] == wanted


ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
PLACED = pod("p").annotated("gpufraction.io/allocation", "{}").annotated(ASSIGNED, "false")
STARTED: dict[str, tuple[PodBuilder, dict[str, str]]] = {
    "the containers run": (PLACED.phase("Running"), {ASSIGNED: "true"}),
    "they do not run yet": (PLACED.phase("Pending"), {}),
    "it was said before": (PLACED.annotated(ASSIGNED, "true").phase("Running"), {}),
    "a pod that is not ours": (pod("p").annotated(ASSIGNED, "false").phase("Running"), {}),
    "a dialect that changes nothing": (
        pod("p").annotated("gpufraction.io/allocation", "{}").annotated("nano-gpu/assume", "true").phase("Running"),
        {},
    ),
}


@pytest.mark.parametrize(("builder", "wanted"), STARTED.values(), ids=STARTED.keys())
def test_what_changes_once_containers_run(builder: PodBuilder, wanted: dict[str, str]) -> None:
    assert DIALECTS.started(builder.json()) == wanted
