"""KAI's annotations: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from contract.dialects.base import Refusal
from contract.encoding.quantity import MIB
from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.asking import LIMITS, Outcome, one


def kai(**annotations: str) -> PodBuilder:
    made = pod("p")
    for key, value in annotations.items():
        made = made.annotated(key.replace("_", "-"), value)
    return made


def by_container(**annotations: str) -> PodBuilder:
    """`request`, `limit`, `portion_limit` and further fields of container `main`."""
    made = pod("p")
    for key, value in annotations.items():
        prefix = "kai.scheduler/container" if key == "portion_limit" else "nvidia.com/container"
        made = made.annotated(f"{prefix}.main.gpu-memory.{key.replace('_', '.')}", value)
    return made


def wrong(key: str, found: str, cure: str) -> Refusal:
    return Refusal(f"metadata.annotations[{key}]", found, cure)


_PART = "give a number from 0.01 to less than 1, such as 0.5"

KAI: dict[str, tuple[PodBuilder, Outcome]] = {
    "a fraction of the memory": (kai(gpu_fraction="0.5"), one("kai", percent=50)),
    "MiB": (kai(gpu_memory="4000"), one("kai", memory=4000 * MIB)),
    "of several cards": (kai(gpu_fraction="0.25", gpu_fraction_num_devices="2"), one("kai", percent=25, count=2)),
    "the first app container has it": (
        kai(gpu_fraction="0.5").init("i").container("a").container("b"),
        PodRequest("kai", (FractionRequest("a", percent=50),)),
    ),
    "a container by its name": (
        kai(gpu_fraction="0.5", gpu_fraction_container_name="b").container("a").container("b"),
        PodRequest("kai", (FractionRequest("b", percent=50),)),
    ),
    "an init container by its name": (
        kai(gpu_memory="1", gpu_fraction_container_name="i").init("i").container("a"),
        PodRequest("kai", (FractionRequest("i", memory=MIB, init=True),)),
    ),
    "finer than a percent": (kai(gpu_fraction="0.333"), one("kai", percent=33)),
    "cards without a share": (kai(gpu_fraction_num_devices="2"), None),
    "a whole card": (kai(gpu_fraction="1"), wrong("gpu-fraction", "'1'", _PART)),
    "nothing": (kai(gpu_fraction="0"), wrong("gpu-fraction", "'0'", _PART)),
    "less than a percent": (kai(gpu_fraction="0.001"), wrong("gpu-fraction", "'0.001'", _PART)),
    "in words": (kai(gpu_fraction="half"), wrong("gpu-fraction", "'half'", _PART)),
    "empty": (kai(gpu_fraction=""), wrong("gpu-fraction", "''", "give an amount, or remove the annotation")),
    "negative memory": (
        kai(gpu_memory="-5"),
        wrong("gpu-memory", "'-5'", "give a whole number of MiB, such as 4000"),
    ),
    "65 cards": (
        kai(gpu_fraction="0.5", gpu_fraction_num_devices="65"),
        wrong("gpu-fraction-num-devices", "'65'", "give a whole number of GPUs from 1 to 64"),
    ),
    "both": (
        kai(gpu_fraction="0.5", gpu_memory="5"),
        wrong("gpu-memory", "together with gpu-fraction", "keep one of the two"),
    ),
    "a limit above the memory": (
        kai(gpu_memory="4000").annotated("gpu-memory.limit", "8Gi"),
        one("kai", memory=4000 * MIB, limit=8192 * MIB),
    ),
    "a limit above the fraction": (
        kai(gpu_fraction="0.25").annotated("gpu-fraction.limit", "0.6"),
        one("kai", percent=25, limit=60),
    ),
    "a limit above the fraction, by container": (
        by_container(portion_limit="0.6").annotated("gpu-fraction", "0.25"),
        one("kai", percent=25, limit=60),
    ),
    "a limit that is the request": (
        kai(gpu_memory="4096").annotated("gpu-memory.limit", "4Gi"),
        one("kai", memory=4096 * MIB),
    ),
    "by container": (by_container(request="7680Mi"), one("kai", memory=7680 * MIB)),
    "by container, with a limit": (
        by_container(request="4096Mi", limit="8Gi"),
        one("kai", memory=4096 * MIB, limit=8192 * MIB),
    ),
    "by container, the limit alone": (by_container(limit="8Gi"), one("kai", memory=8192 * MIB)),
    "by container, of several cards": (
        by_container(request="1Gi", limit="2Gi").annotated("gpu-fraction-num-devices", "2"),
        one("kai", memory=1024 * MIB, limit=2048 * MIB, count=2),
    ),
    "by container, as that system writes it beside the shorter annotations": (
        by_container(request="4Gi", limit="8Gi")
        .annotated("gpu-memory", "4096")
        .annotated("gpu-memory.limit", "8Gi")
        .annotated("nvidia.com/container.main.gpu-compute.mode", "time-slicing"),
        one("kai", memory=4096 * MIB, limit=8192 * MIB),
    ),
    "an init container in the annotation's name": (
        pod("p").annotated("nvidia.com/container.i.gpu-memory.request", "1Gi").init("i").container("a"),
        PodRequest("kai", (FractionRequest("i", memory=1024 * MIB, init=True),)),
    ),
    "a way to take turns, of no share": (
        pod("p").annotated("nvidia.com/container.main.gpu-compute.mode", "sm-sharing"),
        None,
    ),
    "two amounts that differ": (
        by_container(request="4Gi").annotated("gpu-memory", "4000"),
        wrong(
            "nvidia.com/container.main.gpu-memory.request",
            "'4Gi', while gpu-memory is '4000'",
            "the two mean the same: keep one",
        ),
    ),
    "two containers": (
        by_container(request="4Gi").annotated("nvidia.com/container.other.gpu-memory.request", "4Gi"),
        wrong(
            "nvidia.com/container.other.gpu-memory.request",
            "together with an amount for container main",
            "name one container",
        ),
    ),
    "two containers in two ways": (
        by_container(request="4Gi").annotated("gpu-fraction-container-name", "other").container("other"),
        wrong(
            "gpu-fraction-container-name",
            "'other', together with nvidia.com/container.main.gpu-memory.request",
            "name the container once",
        ),
    ),
    "a container in the annotation's name that is not there": (
        pod("p").annotated("nvidia.com/container.b.gpu-memory.request", "1Gi"),
        wrong("nvidia.com/container.b.gpu-memory.request", "'b'", "name one of the pod's containers"),
    ),
    "memory by container beside a fraction": (
        by_container(request="4Gi").annotated("gpu-fraction", "0.5"),
        wrong("nvidia.com/container.main.gpu-memory.request", "together with gpu-fraction", "keep one of the two"),
    ),
    "a limit below the memory": (
        kai(gpu_memory="4000").annotated("gpu-memory.limit", "2Gi"),
        wrong(
            "gpu-memory.limit",
            "'2Gi', less than gpu-memory, which is '4000'",
            "give at least gpu-memory, or remove the limit",
        ),
    ),
    "a limit below the fraction": (
        kai(gpu_fraction="0.5").annotated("gpu-fraction.limit", "0.25"),
        wrong(
            "gpu-fraction.limit",
            "'0.25', less than gpu-fraction, which is '0.5'",
            "give at least gpu-fraction, or remove the limit",
        ),
    ),
    "a limit of memory beside a fraction": (
        kai(gpu_fraction="0.5").annotated("gpu-memory.limit", "8Gi"),
        wrong("gpu-memory.limit", "together with gpu-fraction", "give gpu-fraction.limit instead"),
    ),
    "a limit of memory alone": (
        pod("p").annotated("gpu-memory.limit", "8Gi"),
        wrong(
            "gpu-memory.limit", "'8Gi' without gpu-memory", "give gpu-memory too, which is the amount that is booked"
        ),
    ),
    "a limit of a fraction alone": (
        pod("p").annotated("gpu-fraction.limit", "0.5"),
        wrong(
            "gpu-fraction.limit",
            "'0.5' without gpu-fraction",
            "give gpu-fraction too, which is the amount that is booked",
        ),
    ),
    "a limit without a unit": (
        kai(gpu_memory="4000").annotated("gpu-memory.limit", "8000"),
        wrong("gpu-memory.limit", "'8000'", "give memory with its unit, at least 1Mi, such as 8Gi"),
    ),
    "an empty limit": (
        kai(gpu_fraction="0.5").annotated("gpu-fraction.limit", ""),
        wrong("gpu-fraction.limit", "''", _PART),
    ),
    "a limit beyond every machine": (
        kai(gpu_memory="4000").annotated("gpu-memory.limit", "2Pi"),
        wrong("gpu-memory.limit", "'2Pi'", "too large for any GPU: give at most 64Ti"),
    ),
    "GPUs that the pod's author chose": (
        by_container(request="1Gi").annotated("nvidia.com/container.main.gpus.devices", "GPU-0"),
        wrong("nvidia.com/container.main.gpus.devices", "'GPU-0'", "remove it: only a scheduler chooses the GPUs"),
    ),
    "a container that is not there": (
        kai(gpu_fraction="0.5", gpu_fraction_container_name="b").container("a"),
        wrong("gpu-fraction-container-name", "'b'", "name one of the pod's containers"),
    ),
    "a whole card beside it": (
        kai(gpu_fraction="0.5").asks("nvidia.com/gpu", 1),
        wrong(
            "gpu-fraction",
            f"KAI-Scheduler together with HAMi (nvidia.com/gpu) ({LIMITS}[nvidia.com/gpu])",
            "use only one dialect: remove one of the two",
        ),
    ),
}
