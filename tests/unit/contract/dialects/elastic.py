"""Elastic GPU: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from contract.encoding.quantity import GIB, MIB
from contract.model import FractionRequest, PodRequest
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.asking import Outcome, asking, one, refused
from tests.unit.contract.dialects.hami import GIVE_MIB


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
        refused("elasticgpu.com/gpu-core", "together with elasticgpu.io/gpu-core", "the two mean the same: keep one"),
    ),
    "negative": (elastic(gpu_core=-1), refused("elasticgpu.io/gpu-core", "'-1'", _HUNDREDTHS)),
    "more than any machine has": (elastic(gpu_core=6401), refused("elasticgpu.io/gpu-core", "'6401'", _HUNDREDTHS)),
    "half a MiB": (elastic(gpu_memory="0.5"), refused("elasticgpu.io/gpu-memory", "'0.5'", GIVE_MIB)),
}
