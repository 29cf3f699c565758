"""Every dialect from a sentence and a manifest to the exact request, or to the exact refusal."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from contract.dialects import DIALECTS, Options, Refusal, asked, dialect_named, ours, read
from contract.model import FractionRequest, PodRequest, Wishes
from contract.quantity import GIB, MIB
from tests.builders import PodBuilder, pod

Outcome = PodRequest | Refusal | None
LIMITS = "spec.containers[0].resources.limits"


def one(dialect: str, *, unit: int = 0, **fraction: Any) -> PodRequest:
    """The request of a pod whose container `main` alone asks."""
    return PodRequest(dialect, (FractionRequest("main", **fraction),), unit=unit)


def asking(prefix: str, **amounts: int | str) -> PodBuilder:
    """A pod whose container `main` asks for `<prefix>/<key>`, `_` standing for `-`."""
    made = pod("p")
    for key, amount in amounts.items():
        made = made.asks(f"{prefix}/{key.replace('_', '-')}", amount)
    return made


def native(**amounts: int | str) -> PodBuilder:
    return asking("gpufraction.io", **amounts)


_MEMORY = "give the memory of each GPU with its unit, from 1Mi up, such as 8Gi"
_PERCENT = "give a whole number from 1 to 100"


def refused(key: str, found: str, cure: str) -> Refusal:
    return Refusal(f"{LIMITS}[{key}]", found, cure)


NATIVE: dict[str, tuple[PodBuilder, Outcome]] = {
    "memory": (native(gpu_memory="8Gi"), one("native", memory=8 * GIB)),
    "memory in decimal units": (native(gpu_memory="500M"), one("native", memory=500_000_000)),
    "memory and cores on two GPUs": (
        native(gpu_memory="8Gi", gpu_cores=30, gpu_count=2),
        one("native", memory=8 * GIB, cores=30, count=2),
    ),
    "two GPUs on one NUMA node": (
        native(gpu_percent=25, gpu_count=2).annotated("gpufraction.io/numa-bind", "true"),
        one("native", percent=25, cores=25, count=2, one_numa=True),
    ),
    "one GPU is on one NUMA node anyway": (
        native(gpu_percent=25).annotated("gpufraction.io/numa-bind", "True"),
        one("native", percent=25, cores=25),
    ),
    "a NUMA wish in words": (
        native(gpu_percent=25).annotated("gpufraction.io/numa-bind", "please"),
        Refusal("metadata.annotations[gpufraction.io/numa-bind]", "'please'", "give true or false"),
    ),
    "isolation that is required": (
        native(gpu_percent=25).annotated("gpufraction.io/isolation", "mps"),
        one("native", percent=25, cores=25),
    ),
    "isolation that nobody knows": (
        native(gpu_percent=25).annotated("gpufraction.io/isolation", "MPS"),
        Refusal("metadata.annotations[gpufraction.io/isolation]", "'MPS'", "give one of driver, mps, preload, watch"),
    ),
    "percent is of memory and cores": (native(gpu_percent=25), one("native", percent=25, cores=25)),
    "percent with other cores": (native(gpu_percent=25, gpu_cores=50), one("native", percent=25, cores=50)),
    "cores alone take memory in proportion": (native(gpu_cores=40), one("native", percent=40, cores=40)),
    "a count alone takes whole GPUs": (
        native(gpu_count=2),
        one("native", percent=100, cores=100, count=2, exclusive=True),
    ),
    "all of a GPU in percent is nobody else's": (
        native(gpu_percent=100),
        one("native", percent=100, cores=100, exclusive=True),
    ),
    "all memory but not all cores may have company": (
        native(gpu_percent=100, gpu_cores=50),
        one("native", percent=100, cores=50),
    ),
    "memory without a unit is a slip": (
        native(gpu_memory=8),
        refused("gpufraction.io/gpu-memory", "'8'", _MEMORY),
    ),
    "memory as text": (native(gpu_memory="lots"), refused("gpufraction.io/gpu-memory", "'lots'", _MEMORY)),
    "memory in an unknown unit": (native(gpu_memory="8GB"), refused("gpufraction.io/gpu-memory", "'8GB'", _MEMORY)),
    "no memory": (native(gpu_memory=0), refused("gpufraction.io/gpu-memory", "'0'", _MEMORY)),
    "negative memory": (native(gpu_memory="-8Gi"), refused("gpufraction.io/gpu-memory", "'-8Gi'", _MEMORY)),
    "memory with an endless exponent": (
        native(gpu_memory="1e1000"),
        refused("gpufraction.io/gpu-memory", "'1e1000'", _MEMORY),
    ),
    "memory beyond every machine": (native(gpu_memory="2Pi"), refused("gpufraction.io/gpu-memory", "'2Pi'", _MEMORY)),
    "half a percent": (native(gpu_percent="0.5"), refused("gpufraction.io/gpu-percent", "'0.5'", _PERCENT)),
    "no percent": (native(gpu_percent=0), refused("gpufraction.io/gpu-percent", "'0'", _PERCENT)),
    "more than a GPU in percent": (native(gpu_percent=101), refused("gpufraction.io/gpu-percent", "'101'", _PERCENT)),
    "no cores": (native(gpu_cores=0), refused("gpufraction.io/gpu-cores", "'0'", _PERCENT)),
    "more cores than a GPU has": (native(gpu_cores=200), refused("gpufraction.io/gpu-cores", "'200'", _PERCENT)),
    "no GPU": (native(gpu_count=0), refused("gpufraction.io/gpu-count", "'0'", "give a whole number from 1 to 64")),
    "65 GPUs": (native(gpu_count=65), refused("gpufraction.io/gpu-count", "'65'", "give a whole number from 1 to 64")),
    "memory twice": (
        native(gpu_memory="8Gi", gpu_percent=25),
        refused(
            "gpufraction.io/gpu-percent",
            "25 beside gpufraction.io/gpu-memory",
            "give either gpufraction.io/gpu-percent or gpufraction.io/gpu-memory",
        ),
    ),
}

_UNITS = "give whole GiB without a suffix, such as 5"


def aliyun(**amounts: int | str) -> PodBuilder:
    return asking("aliyun.com", **amounts)


def on_aliyun(**fraction: Any) -> PodRequest:
    return one("aliyun", unit=GIB, **fraction)


ALIYUN: dict[str, tuple[PodBuilder, Outcome]] = {
    "GiB": (aliyun(gpu_mem=5), on_aliyun(memory=5 * GIB)),
    "a count of 1 is neutral": (aliyun(gpu_mem=5, gpu_count=1), on_aliyun(memory=5 * GIB)),
    "a count of 0 is neutral too": (aliyun(gpu_mem=5, gpu_count=0), on_aliyun(memory=5 * GIB)),
    "a count divides the memory": (aliyun(gpu_mem=8, gpu_count=4), on_aliyun(memory=2 * GIB, count=4)),
    "the commercial edition's label does so too": (
        aliyun(gpu_mem=8).labelled("aliyun.com/gpu-count", "4"),
        on_aliyun(memory=2 * GIB, count=4),
    ),
    "a neutral count beside the label": (
        aliyun(gpu_mem=8, gpu_count=1).labelled("aliyun.com/gpu-count", "4"),
        on_aliyun(memory=2 * GIB, count=4),
    ),
    "the label with leading zeros": (
        aliyun(gpu_mem=8).labelled("aliyun.com/gpu-count", "0000004"),
        on_aliyun(memory=2 * GIB, count=4),
    ),
    "cores beside memory": (
        pod("p").asks("aliyun.com/gpu-mem", 5).asks("aliyun.com/gpu-core.percentage", 30),
        on_aliyun(memory=5 * GIB, cores=30),
    ),
    "what Kubernetes makes of 3000": (aliyun(gpu_mem="3k"), on_aliyun(memory=3000 * GIB)),
    "no memory asks for nothing": (aliyun(gpu_mem=0), None),
    "no memory on no GPU asks for nothing": (aliyun(gpu_mem=0, gpu_count=0), None),
    "containers share one GPU": (
        pod("p").init("i").asks("aliyun.com/gpu-mem", 1).container("a").asks("aliyun.com/gpu-mem", 2),
        PodRequest(
            "aliyun",
            (FractionRequest("i", memory=GIB, init=True), FractionRequest("a", memory=2 * GIB)),
            same_gpus=True,
            unit=GIB,
        ),
    ),
    "a container without memory is no part of it": (
        pod("p").container("log").container("main").asks("aliyun.com/gpu-mem", 2),
        on_aliyun(memory=2 * GIB),
    ),
    "a unit written out": (aliyun(gpu_mem="5Gi"), refused("aliyun.com/gpu-mem", "'5Gi'", _UNITS)),
    "ten to the tenth, as 10G means": (aliyun(gpu_mem="10G"), refused("aliyun.com/gpu-mem", "'10G'", _UNITS)),
    "half a GiB": (aliyun(gpu_mem="0.5"), refused("aliyun.com/gpu-mem", "'0.5'", _UNITS)),
    "negative": (aliyun(gpu_mem=-5), refused("aliyun.com/gpu-mem", "'-5'", _UNITS)),
    "memory that cannot be divided": (
        aliyun(gpu_mem=9, gpu_count=4),
        refused("aliyun.com/gpu-mem", "9 for 4 GPUs", "give a multiple of 4, such as 12"),
    ),
    "a count without memory": (
        aliyun(gpu_count=1),
        refused(
            "aliyun.com/gpu-mem",
            "nothing",
            "name the memory in GiB beside aliyun.com/gpu-count or aliyun.com/gpu-core.percentage",
        ),
    ),
    "too many GPUs": (
        aliyun(gpu_mem=65, gpu_count=65),
        refused("aliyun.com/gpu-count", "'65'", "give a whole number from 1 to 64"),
    ),
    "a label that is no number": (
        aliyun(gpu_mem=8).labelled("aliyun.com/gpu-count", "four"),
        Refusal("metadata.labels[aliyun.com/gpu-count]", "'four'", "give a whole number from 1 to 64"),
    ),
    "a label of many digits": (
        aliyun(gpu_mem=8).labelled("aliyun.com/gpu-count", "000004" + "0" * 5000),
        Refusal(
            "metadata.labels[aliyun.com/gpu-count]",
            "'000004" + "0" * 31 + "..." + "0" * 37 + "'",
            "give a whole number from 1 to 64",
        ),
    ),
    "a label against the limit": (
        aliyun(gpu_mem=8, gpu_count=2).labelled("aliyun.com/gpu-count", "4"),
        refused("aliyun.com/gpu-count", "2 beside 4 in the pod's label aliyun.com/gpu-count", "keep one of them"),
    ),
    "an init container's cores are free again": (
        pod("p")
        .init("i")
        .asks("aliyun.com/gpu-mem", 2)
        .asks("aliyun.com/gpu-core.percentage", 60)
        .container("a")
        .asks("aliyun.com/gpu-mem", 2)
        .asks("aliyun.com/gpu-core.percentage", 60),
        PodRequest(
            "aliyun",
            (
                FractionRequest("i", memory=2 * GIB, cores=60, init=True),
                FractionRequest("a", memory=2 * GIB, cores=60),
            ),
            same_gpus=True,
            unit=GIB,
        ),
    ),
    "more cores in all than one GPU has": (
        pod("p")
        .container("a")
        .asks("aliyun.com/gpu-mem", 2)
        .asks("aliyun.com/gpu-core.percentage", 60)
        .container("b")
        .asks("aliyun.com/gpu-mem", 2)
        .asks("aliyun.com/gpu-core.percentage", 60),
        Refusal(
            "spec.containers[1].resources.limits[aliyun.com/gpu-core.percentage]",
            "120 percent of one GPU with the containers before",
            "give at most 100 in all, since a pod is on one GPU",
        ),
    ),
    "containers with different counts": (
        pod("p")
        .container("a")
        .asks("aliyun.com/gpu-mem", 2)
        .container("b")
        .asks("aliyun.com/gpu-mem", 2)
        .asks("aliyun.com/gpu-count", 2),
        Refusal(
            "spec.containers[1].resources.limits[aliyun.com/gpu-count]",
            "2 GPUs beside 1 of container a",
            "give every container of the pod the same aliyun.com/gpu-count",
        ),
    ),
}


def hami(**amounts: int | str) -> PodBuilder:
    return asking("nvidia.com", **amounts)


WHOLE_GPU = one("hami", percent=100, cores=100, exclusive=True)
_MIB = "give whole MiB such as 3000, or a quantity such as 3Gi"

HAMI: dict[str, tuple[PodBuilder, Outcome]] = {
    "a GPU and nothing else is a whole one": (hami(gpu=1), WHOLE_GPU),
    "MiB on each GPU": (hami(gpu=2, gpumem=3000), one("hami", count=2, memory=3000 * MIB)),
    "MiB as Kubernetes writes 3000": (hami(gpu=1, gpumem="3k"), one("hami", memory=3000 * MIB)),
    "the account's Deployment": (hami(gpu=1, gpumem=10000, gpucores=10), one("hami", memory=10000 * MIB, cores=10)),
    "memory alone is on one GPU": (hami(gpumem=3000), one("hami", memory=3000 * MIB)),
    "a quantity with its unit": (hami(gpu=1, gpumem="3Gi"), one("hami", memory=3 * GIB)),
    "half a GiB": (hami(gpu=1, gpumem="0.5Gi"), one("hami", memory=512 * MIB)),
    "percent of the memory": (hami(gpu=1, gpumem_percentage=50), one("hami", percent=50)),
    "memory goes before percent": (hami(gpu=1, gpumem=3000, gpumem_percentage=50), one("hami", memory=3000 * MIB)),
    "no percent means none was named": (hami(gpu=1, gpumem_percentage=0), WHOLE_GPU),
    "no memory means none was named": (hami(gpu=1, gpumem=0), WHOLE_GPU),
    "all memory in percent is a whole GPU": (hami(gpu=1, gpumem_percentage=100), WHOLE_GPU),
    "cores without memory take all memory": (hami(gpu=1, gpucores=30), one("hami", percent=100, cores=30)),
    "no cores without memory": (hami(gpu=1, gpucores=0), one("hami", percent=100)),
    "cores by their other name": (hami(gpu=1, gpumem=3000, cores=30), one("hami", memory=3000 * MIB, cores=30)),
    "gpucores goes before its other name": (
        hami(gpu=1, gpumem=3000, gpucores=40, cores=30),
        one("hami", memory=3000 * MIB, cores=40),
    ),
    "all cores is exclusive": (
        hami(gpu=1, gpumem=3000, gpucores=100),
        one("hami", memory=3000 * MIB, cores=100, exclusive=True),
    ),
    "more than all cores is all cores": (
        hami(gpu=1, gpumem=3000, gpucores=150),
        one("hami", memory=3000 * MIB, cores=100, exclusive=True),
    ),
    "no GPU asks for nothing": (hami(gpu=0, gpumem=3000), None),
    "a priority alone asks for nothing": (hami(priority=0), None),
    "low priority beside a GPU": (hami(gpu=1, gpumem=3000, priority=1), one("hami", memory=3000 * MIB)),
    "high priority beside a GPU": (
        hami(gpu=1, gpumem=3000, priority=0),
        PodRequest("hami", (FractionRequest("main", memory=3000 * MIB),), priority=1),
    ),
    "a priority that is neither": (
        hami(gpu=1, gpumem=3000, priority=2),
        refused("nvidia.com/priority", "'2'", "give 0 for high priority or 1 for low"),
    ),
    "a card for this pod alone": (
        hami(gpu=1, gpumem=3000).annotated("hami.io/gpu-scheduler-policy", "mutex"),
        one("hami", memory=3000 * MIB, cores=100, exclusive=True),
    ),
    "one NUMA node for one GPU": (
        hami(gpu=1, gpumem=3000).annotated("nvidia.com/numa-bind", "true"),
        one("hami", memory=3000 * MIB),
    ),
    "one NUMA node for two GPUs": (
        hami(gpu=2, gpumem=3000).annotated("nvidia.com/numa-bind", "true"),
        one("hami", count=2, memory=3000 * MIB, one_numa=True),
    ),
    "a NUMA wish that is none": (
        hami(gpu=1, gpumem=3000).annotated("nvidia.com/numa-bind", "yes"),
        Refusal("metadata.annotations[nvidia.com/numa-bind]", "'yes'", "give true or false"),
    ),
    "containers have GPUs of their own": (
        pod("p").sidecar("s").asks("nvidia.com/gpumem", 1000).container("a").asks("nvidia.com/gpu", 1),
        PodRequest(
            "hami",
            (FractionRequest("s", memory=1000 * MIB), FractionRequest("a", percent=100, cores=100, exclusive=True)),
        ),
    ),
    "models and cards by annotation": (
        hami(gpumem=3000)
        .annotated("nvidia.com/use-gputype", "A100, V100,")
        .annotated("nvidia.com/nouse-gputype", "T4")
        .annotated("nvidia.com/use-gpuuuid", "GPU-1")
        .annotated("nvidia.com/nouse-gpuuuid", "GPU-2,GPU-3"),
        one("hami", memory=3000 * MIB, wishes=Wishes(("A100", "V100"), ("T4",), ("GPU-1",), ("GPU-2", "GPU-3"))),
    ),
    "policies by annotation": (
        hami(gpumem=3000)
        .annotated("hami.io/node-scheduler-policy", "spread")
        .annotated("hami.io/gpu-scheduler-policy", "numa, binpack"),
        PodRequest("hami", (FractionRequest("main", memory=3000 * MIB),), node_policy="spread", gpu_policy="binpack"),
    ),
    "policies that only that scheduler has": (
        hami(gpumem=3000).annotated("hami.io/gpu-scheduler-policy", "topology-aware"),
        one("hami", memory=3000 * MIB),
    ),
    "more than all memory in percent": (
        hami(gpu=1, gpumem_percentage=120),
        refused("nvidia.com/gpumem-percentage", "'120'", "give a whole percentage from 1 to 100"),
    ),
    "memory in decimal units": (hami(gpu=1, gpumem="3G"), refused("nvidia.com/gpumem", "'3G'", _MIB)),
    "a few bytes": (hami(gpu=1, gpumem="3Ki"), refused("nvidia.com/gpumem", "'3Ki'", _MIB)),
    "a fraction of a MiB": (hami(gpu=1, gpumem="0.5"), refused("nvidia.com/gpumem", "'0.5'", _MIB)),
    "negative memory": (hami(gpu=1, gpumem=-1), refused("nvidia.com/gpumem", "'-1'", _MIB)),
    "negative cores": (
        hami(gpu=1, gpucores=-1),
        refused("nvidia.com/gpucores", "'-1'", "give a whole percentage from 0 to 100"),
    ),
    "half a GPU": (hami(gpu="500m"), refused("nvidia.com/gpu", "'500m'", "give a whole number from 1 to 64")),
}

_CARD = "give a whole number from 1 to 100, which is one whole card"


def nano(percent: int | str) -> PodBuilder:
    return pod("p").asks("nano-gpu/gpu-percent", percent)


NANO: dict[str, tuple[PodBuilder, Outcome]] = {
    "percent of memory and cores": (nano(20), one("nano", percent=20, cores=20)),
    "all of a card may have company, as there": (nano(100), one("nano", percent=100, cores=100)),
    "the name of 2022": (pod("p").asks("elastic-gpu/gpu-percent", 20), one("nano", percent=20, cores=20)),
    "containers may be on different cards": (
        pod("p").container("a").asks("nano-gpu/gpu-percent", 60).container("b").asks("nano-gpu/gpu-percent", 60),
        PodRequest(
            "nano",
            (FractionRequest("a", percent=60, cores=60), FractionRequest("b", percent=60, cores=60)),
        ),
    ),
    "more than a card": (nano(120), refused("nano-gpu/gpu-percent", "'120'", _CARD)),
    "nothing of a card": (nano(0), refused("nano-gpu/gpu-percent", "'0'", _CARD)),
    "in words": (nano("twenty"), refused("nano-gpu/gpu-percent", "'twenty'", _CARD)),
    "under both names": (
        nano(20).asks("elastic-gpu/gpu-percent", 20),
        refused("elastic-gpu/gpu-percent", "beside nano-gpu/gpu-percent", "the two mean the same: keep one"),
    ),
}


def elastic(group: str = "elasticgpu.io", **amounts: int | str) -> PodBuilder:
    return asking(group, **amounts)


_HUNDREDTHS = "give a whole number: 1 to 99 of one card, or 100 for each whole card, up to 6400"

ELASTIC: dict[str, tuple[PodBuilder, Outcome]] = {
    "MiB": (elastic(gpu_memory="256"), one("elastic", memory=256 * MIB)),
    "the group of the last scheduler": (
        elastic("elasticgpu.com", gpu_memory=256, gpu_core=10),
        one("elastic", memory=256 * MIB, cores=10),
    ),
    "one of each group": (
        elastic(gpu_memory=256).asks("elasticgpu.com/gpu-core", 10),
        one("elastic", memory=256 * MIB, cores=10),
    ),
    "a quantity with its unit": (elastic(gpu_memory="1Gi"), one("elastic", memory=GIB)),
    "cores alone take memory in proportion": (elastic(gpu_core=10), one("elastic", percent=10, cores=10)),
    "99 is a share still": (elastic(gpu_core=99), one("elastic", percent=99, cores=99)),
    "100 is a whole card": (elastic(gpu_core=100), one("elastic", percent=100, cores=100, exclusive=True)),
    "150 is a whole card": (elastic(gpu_core=150), one("elastic", percent=100, cores=100, exclusive=True)),
    "200 are two": (elastic(gpu_core=200), one("elastic", percent=100, cores=100, count=2, exclusive=True)),
    "memory beside whole cards is theirs anyway": (
        elastic(gpu_core=100, gpu_memory=256),
        one("elastic", percent=100, cores=100, exclusive=True),
    ),
    "nothing of both": (elastic(gpu_core=0, gpu_memory=0), None),
    "no cores beside memory": (elastic(gpu_core=0, gpu_memory=256), one("elastic", memory=256 * MIB)),
    "containers may be on different cards": (
        pod("p").init("i").asks("elasticgpu.io/gpu-core", 10).container("a").asks("elasticgpu.io/gpu-memory", 1),
        PodRequest(
            "elastic",
            (FractionRequest("i", percent=10, cores=10, init=True), FractionRequest("a", memory=MIB)),
        ),
    ),
    "under both names": (
        elastic(gpu_core=10).asks("elasticgpu.com/gpu-core", 10),
        refused("elasticgpu.com/gpu-core", "beside elasticgpu.io/gpu-core", "the two mean the same: keep one"),
    ),
    "negative": (elastic(gpu_core=-1), refused("elasticgpu.io/gpu-core", "'-1'", _HUNDREDTHS)),
    "more than any machine has": (elastic(gpu_core=6401), refused("elasticgpu.io/gpu-core", "'6401'", _HUNDREDTHS)),
    "half a MiB": (elastic(gpu_memory="0.5"), refused("elasticgpu.io/gpu-memory", "'0.5'", _MIB)),
}


def kai(**annotations: str) -> PodBuilder:
    made = pod("p")
    for key, value in annotations.items():
        made = made.annotated(key.replace("_", "-"), value)
    return made


def wrong(key: str, found: str, cure: str) -> Refusal:
    return Refusal(f"metadata.annotations[{key}]", found, cure)


_PART = "give a number between 0 and 1, from 0.01 up, such as 0.5"

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
        wrong("gpu-memory", "beside gpu-fraction", "keep one of the two"),
    ),
    "a container that is not there": (
        kai(gpu_fraction="0.5", gpu_fraction_container_name="b").container("a"),
        wrong("gpu-fraction-container-name", "'b'", "name one of the pod's containers"),
    ),
    "a whole card beside it": (
        kai(gpu_fraction="0.5").asks("nvidia.com/gpu", 1),
        wrong(
            "gpu-fraction",
            f"KAI-Scheduler beside HAMi (nvidia.com/gpu) ({LIMITS}[nvidia.com/gpu])",
            "ask in one dialect only: remove one of the two",
        ),
    ),
}

_CARD_MEMORY = "give the memory of a whole GPU with its unit, from 1Mi up, such as 40Gi"

EVERYWHERE: dict[str, tuple[PodBuilder, Outcome]] = {
    "a pod that asks for nothing": (pod("p").needs(cpu=1), None),
    "a GPU of another vendor": (pod("p").asks("amd.com/gpu", 1), None),
    "our annotations go with every dialect": (
        nano(20)
        .annotated(names.USE_MODELS, "A100")
        .annotated(names.AVOID_MODELS, "T4")
        .annotated(names.USE_UUIDS, "GPU-1")
        .annotated(names.AVOID_UUIDS, "GPU-2")
        .annotated(names.NODE_POLICY, "spread")
        .annotated(names.GPU_POLICY, "binpack"),
        PodRequest(
            "nano",
            (FractionRequest("main", percent=20, cores=20, wishes=Wishes(("A100",), ("T4",), ("GPU-1",), ("GPU-2",))),),
            node_policy="spread",
            gpu_policy="binpack",
        ),
    ),
    "our words are added to the dialect's, and our policy wins": (
        hami(gpumem=3000)
        .annotated("nvidia.com/use-gputype", "V100")
        .annotated(names.USE_MODELS, "A100")
        .annotated("hami.io/node-scheduler-policy", "spread")
        .annotated(names.NODE_POLICY, "binpack"),
        PodRequest(
            "hami",
            (FractionRequest("main", memory=3000 * MIB, wishes=Wishes(("A100", "V100"))),),
            node_policy="binpack",
        ),
    ),
    "a wish of one container is in place of the pod's": (
        pod("p")
        .annotated(names.USE_MODELS, "T4")
        .annotated(f"{names.USE_MODELS}.a", "H100,A100")
        .annotated(names.LEAST_MEMORY, "40Gi")
        .container("a")
        .asks("nano-gpu/gpu-percent", 20)
        .container("b")
        .asks("nano-gpu/gpu-percent", 20),
        PodRequest(
            "nano",
            (
                FractionRequest(
                    "a", percent=20, cores=20, wishes=Wishes(("H100", "A100"), least_memory=40 * GIB, ordered=True)
                ),
                FractionRequest("b", percent=20, cores=20, wishes=Wishes(("T4",), least_memory=40 * GIB)),
            ),
        ),
    ),
    "a card's memory without a unit": (
        nano(20).annotated(names.LEAST_MEMORY, "40"),
        Refusal("metadata.annotations[gpufraction.io/min-gpu-memory]", "'40'", _CARD_MEMORY),
    ),
    "a policy that we do not have": (
        nano(20).annotated(names.GPU_POLICY, "random"),
        Refusal("metadata.annotations[gpufraction.io/gpu-policy]", "'random'", "use binpack or spread"),
    ),
    "a request without a limit": (
        pod("p").container("main", resources={"requests": {"nano-gpu/gpu-percent": "20"}}),
        one("nano", percent=20, cores=20),
    ),
    "a wrong request without a limit is named as such": (
        pod("p").container("main", resources={"requests": {"nano-gpu/gpu-percent": "120"}}),
        Refusal("spec.containers[0].resources.requests[nano-gpu/gpu-percent]", "'120'", _CARD),
    ),
    "a wrong init container is named by its place": (
        pod("p").init("a").init("b").asks("nano-gpu/gpu-percent", 120).container("main"),
        Refusal("spec.initContainers[1].resources.limits[nano-gpu/gpu-percent]", "'120'", _CARD),
    ),
    "two dialects in one container": (
        nano(20).asks("nvidia.com/gpu", 1),
        refused(
            "nano-gpu/gpu-percent",
            f"nano-gpu beside HAMi (nvidia.com/gpu) ({LIMITS}[nvidia.com/gpu])",
            "ask in one dialect only: remove one of the two",
        ),
    ),
    "two dialects in one pod": (
        pod("p").init("a").asks("gpufraction.io/gpu-percent", 20).container("b").asks("aliyun.com/gpu-mem", 5),
        Refusal(
            f"{LIMITS}[aliyun.com/gpu-mem]",
            "Aliyun gpushare beside gpufraction.io "
            "(spec.initContainers[0].resources.limits[gpufraction.io/gpu-percent])",
            "ask in one dialect only: remove one of the two",
        ),
    ),
}

TABLES = {
    "native": NATIVE,
    "aliyun": ALIYUN,
    "hami": HAMI,
    "nano": NANO,
    "elastic": ELASTIC,
    "kai": KAI,
    "every dialect": EVERYWHERE,
}
CASES = {f"{name}: {says}": case for name, table in TABLES.items() for says, case in table.items()}


@pytest.mark.parametrize(("builder", "wanted"), CASES.values(), ids=CASES.keys())
def test_read(builder: PodBuilder, wanted: Outcome) -> None:
    assert read(builder.json()) == wanted


@pytest.mark.parametrize(("builder", "wanted"), CASES.values(), ids=CASES.keys())
def test_the_tenants_own_manifest_reads_the_same(builder: PodBuilder, wanted: Outcome) -> None:
    assert read(builder.manifest()) == wanted


MIB_UNITS = Options(aliyun_unit=MIB)
DEFAULTED = Options(default_memory=5000 * MIB, default_cores=20)
CHOSEN: dict[str, tuple[PodBuilder, Options, Outcome]] = {
    "Aliyun units in MiB": (aliyun(gpu_mem=5000), MIB_UNITS, one("aliyun", unit=MIB, memory=5000 * MIB)),
    "Aliyun units in MiB are told so": (
        aliyun(gpu_mem="5Gi"),
        MIB_UNITS,
        refused("aliyun.com/gpu-mem", "'5Gi'", "give whole MiB without a suffix, such as 5"),
    ),
    "default cores where memory is named": (hami(gpumem=3000), DEFAULTED, one("hami", memory=3000 * MIB, cores=20)),
    "default memory where cores are named": (hami(gpucores=30), DEFAULTED, one("hami", memory=5000 * MIB, cores=30)),
    "no default turns a whole GPU into a share": (hami(gpu=1), DEFAULTED, WHOLE_GPU),
    "no default in proportion where an amount was chosen": (
        elastic(gpu_core=10),
        Options(core_only_memory=GIB),
        one("elastic", memory=GIB, cores=10),
    ),
    "no default where a percentage is named": (
        hami(gpucores=30, gpumem_percentage=50),
        DEFAULTED,
        one("hami", percent=50, cores=30),
    ),
}


@pytest.mark.parametrize(("builder", "options", "wanted"), CHOSEN.values(), ids=CHOSEN.keys())
def test_what_the_administrator_chose(builder: PodBuilder, options: Options, wanted: Outcome) -> None:
    assert read(builder.json(), options) == wanted


def test_a_refusal_in_one_sentence() -> None:
    assert str(read(nano(120).json())) == (
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found '120'; "
        "give a whole number from 1 to 100, which is one whole card"
    )


def test_the_table_of_dialects() -> None:
    assert [dialect.name for dialect in DIALECTS] == ["native", "aliyun", "elastic", "claims", "hami", "nano", "kai"]
    assert [dialect_named(dialect.name) for dialect in DIALECTS] == list(DIALECTS)
    assert dialect_named("from a newer version") is None
    resources = [resource for dialect in DIALECTS for resource in dialect.resources]
    assert len(set(resources)) == len(resources)
    assert [name for name in resources if not ours(name)] == []
    assert not ours("cpu")


def test_asked_keeps_the_order_of_the_table() -> None:
    made = nano(20).asks("aliyun.com/gpu-mem", 5).asks("gpufraction.io/gpu-count", 1).json()
    assert [dialect.name for dialect in asked(made)] == ["native", "aliyun", "nano"]


WARNED: dict[str, tuple[PodBuilder, tuple[str, ...]]] = {
    "nothing to say": (elastic(gpu_core=200), ()),
    "a card and a half": (
        elastic(gpu_core=150),
        (f"{LIMITS}[elasticgpu.io/gpu-core]: 150 gives 1 whole card; the 50 beyond are not given",),
    ),
    "memory of whole cards": (
        elastic(gpu_core=200, gpu_memory=256),
        (f"{LIMITS}[elasticgpu.io/gpu-memory]: not counted, since 2 whole cards are given with all their memory",),
    ),
    "a third": (
        kai(gpu_fraction="0.333"),
        ("metadata.annotations[gpu-fraction]: '0.333' is served as 33 percent of the card's memory",),
    ),
}


@pytest.mark.parametrize(("builder", "wanted"), WARNED.values(), ids=WARNED.keys())
def test_what_a_tenant_is_told(builder: PodBuilder, wanted: tuple[str, ...]) -> None:
    found = read(builder.json())
    assert isinstance(found, PodRequest)
    assert found.warnings == wanted
