"""HAMi's resources: for each sentence a pod and the result of reading it."""

from __future__ import annotations

from contract.dialects.base import Refusal
from contract.encoding.quantity import GIB, MIB
from contract.model import FractionRequest, PodRequest, Wishes
from tests.builders import PodBuilder, pod
from tests.unit.contract.dialects.asking import Outcome, asking, one, refused


def hami(**amounts: int | str) -> PodBuilder:
    return asking("nvidia.com", **amounts)


WHOLE_GPU = one("hami", percent=100, cores=100, exclusive=True)

GIVE_MIB = "give whole MiB such as 3000, or a quantity such as 3Gi"

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
    "memory in decimal units": (hami(gpu=1, gpumem="3G"), refused("nvidia.com/gpumem", "'3G'", GIVE_MIB)),
    "a few bytes": (hami(gpu=1, gpumem="3Ki"), refused("nvidia.com/gpumem", "'3Ki'", GIVE_MIB)),
    "a fraction of a MiB": (hami(gpu=1, gpumem="0.5"), refused("nvidia.com/gpumem", "'0.5'", GIVE_MIB)),
    "negative memory": (hami(gpu=1, gpumem=-1), refused("nvidia.com/gpumem", "'-1'", GIVE_MIB)),
    "negative cores": (
        hami(gpu=1, gpucores=-1),
        refused("nvidia.com/gpucores", "'-1'", "give a whole percentage from 0 to 100"),
    ),
    "half a GPU": (hami(gpu="500m"), refused("nvidia.com/gpu", "'500m'", "give a whole number from 1 to 64")),
}
