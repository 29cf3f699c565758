"""Aliyun's gpushare: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from typing import Any

from contract.dialects.base import Refusal
from contract.encoding.quantity import GIB
from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.asking import Outcome, asking, one, refused

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
    "more than any card has": (
        aliyun(gpu_mem="70000"),
        refused("aliyun.com/gpu-mem", "'70000'", "too large for any GPU: give at most 65536, which is 64Ti"),
    ),
    "thousands, as an API server writes them": (
        aliyun(gpu_mem="70k"),
        refused("aliyun.com/gpu-mem", "'70000'", "too large for any GPU: give at most 65536, which is 64Ti"),
    ),
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
            "name the memory in GiB together with aliyun.com/gpu-count or aliyun.com/gpu-core.percentage",
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
        refused("aliyun.com/gpu-count", "2, and 4 in the pod's label aliyun.com/gpu-count", "keep one of them"),
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
            "120 percent of one GPU together with the preceding containers",
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
            "2 GPUs, while container a has 1",
            "give every container of the pod the same aliyun.com/gpu-count",
        ),
    ),
}
