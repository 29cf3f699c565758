"""Our own resources: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from contract.dialects.base import Refusal
from contract.encoding.quantity import GIB
from contract.isolation import ISOLATION
from tests.builders import PodBuilder
from tests.unit.contract.dialects.asking import Outcome, asking, one, refused


def native(**amounts: int | str) -> PodBuilder:
    return asking("gpufraction.io", **amounts)


_MEMORY = "give the memory of each GPU with its unit, at least 1Mi, such as 8Gi"
_PERCENT = "give a whole number from 1 to 100"

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
        Refusal("metadata.annotations[gpufraction.io/isolation]", "'MPS'", f"give one of {', '.join(ISOLATION)}"),
    ),
    "a limit above the memory": (
        native(gpu_memory="8Gi", gpu_memory_limit="24Gi"),
        one("native", memory=8 * GIB, limit=24 * GIB),
    ),
    "a limit above the percent": (
        native(gpu_percent=25, gpu_percent_limit=60),
        one("native", percent=25, cores=25, limit=60),
    ),
    "a limit above the memory of each of two GPUs": (
        native(gpu_memory="8Gi", gpu_memory_limit="24Gi", gpu_count=2),
        one("native", memory=8 * GIB, limit=24 * GIB, count=2),
    ),
    "a limit that is the request": (
        native(gpu_memory="8Gi", gpu_memory_limit="8192Mi"),
        one("native", memory=8 * GIB),
    ),
    "all of a GPU has no room for a limit": (
        native(gpu_percent=100, gpu_percent_limit=100),
        one("native", percent=100, cores=100, exclusive=True),
    ),
    "a limit below the memory": (
        native(gpu_memory="24Gi", gpu_memory_limit="8Gi"),
        refused(
            "gpufraction.io/gpu-memory-limit",
            "'8Gi', less than gpufraction.io/gpu-memory, which is '24Gi'",
            "give at least gpufraction.io/gpu-memory, or remove the limit",
        ),
    ),
    "a limit below the percent": (
        native(gpu_percent=60, gpu_percent_limit=25),
        refused(
            "gpufraction.io/gpu-percent-limit",
            "'25', less than gpufraction.io/gpu-percent, which is '60'",
            "give at least gpufraction.io/gpu-percent, or remove the limit",
        ),
    ),
    "a limit without a request": (
        native(gpu_memory_limit="24Gi"),
        refused(
            "gpufraction.io/gpu-memory-limit",
            "'24Gi' without gpufraction.io/gpu-memory",
            "give gpufraction.io/gpu-memory too, which is the amount that is booked",
        ),
    ),
    "a limit beside whole GPUs": (
        native(gpu_count=2, gpu_percent_limit=50),
        refused(
            "gpufraction.io/gpu-percent-limit",
            "'50' without gpufraction.io/gpu-percent",
            "give gpufraction.io/gpu-percent too, which is the amount that is booked",
        ),
    ),
    "a limit in the other unit": (
        native(gpu_percent=25, gpu_memory_limit="24Gi"),
        refused(
            "gpufraction.io/gpu-memory-limit",
            "'24Gi' without gpufraction.io/gpu-memory",
            "give gpufraction.io/gpu-percent-limit instead",
        ),
    ),
    "a limit without a unit": (
        native(gpu_memory="8Gi", gpu_memory_limit=24),
        refused("gpufraction.io/gpu-memory-limit", "'24'", _MEMORY),
    ),
    "a limit beyond every machine": (
        native(gpu_memory="8Gi", gpu_memory_limit="2Pi"),
        refused("gpufraction.io/gpu-memory-limit", "'2Pi'", "too large for any GPU: give at most 64Ti"),
    ),
    "a limit of more than a GPU in percent": (
        native(gpu_percent=25, gpu_percent_limit=101),
        refused("gpufraction.io/gpu-percent-limit", "'101'", _PERCENT),
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
    "memory beyond every machine": (
        native(gpu_memory="2Pi"),
        refused("gpufraction.io/gpu-memory", "'2Pi'", "too large for any GPU: give at most 64Ti"),
    ),
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
            "25 together with gpufraction.io/gpu-memory",
            "give either gpufraction.io/gpu-percent or gpufraction.io/gpu-memory",
        ),
    ),
}
