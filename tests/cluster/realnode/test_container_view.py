"""
What a container sees of a real node's GPUs, for each way in which NVIDIA's programs deliver them.

kubelet fills the variables from annotations, NVIDIA's runtime or its NRI plugin acts on what it finds, and runc creates
the files and the control group. Nothing of this is simulated.
"""

from __future__ import annotations

import platform
from dataclasses import replace

import pytest

from contract import names
from tests.cluster.realnode.cluster import MEMORY, UUIDS, RealNodeCluster, container
from tests.cluster.realnode.inside import SCRIPT, Inside
from tests.cluster.realnode.ways import Way

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]

NOTHING = Inside()
"""No GPUs, and no limit of anything."""
CLOSED = Inside(environment={"NVIDIA_VISIBLE_DEVICES": "void"})
"""The view of a container that must see no GPUs."""
_COMMON = {"/dev/nvidia-uvm": "1ff:0", "/dev/nvidiactl": "c3:ff"}
_LIBRARIES = "/usr/lib/x86_64-linux-gnu" if platform.machine() == "x86_64" else "/usr/lib/aarch64-linux-gnu"


def share(mebibytes: int, *cards: int, cores: str = "100") -> Inside:
    """What a container with this much of each of these cards sees."""
    limits = ",".join(f"{place}={mebibytes}M" for place in range(len(cards)))
    return Inside(
        environment={
            "CUDA_DEVICE_MEMORY_LIMIT": f"{mebibytes}m",
            "CUDA_DEVICE_SM_LIMIT": "0" if cores == "100" else cores,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": cores,
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": limits,
            "GPUFRACTION_MEMORY_FRACTION": f"0.{(mebibytes << 20) * 1_000_000 // MEMORY:06d}".rstrip("0"),
            "GPUFRACTION_MEMORY_LIMIT_MIB": str(mebibytes),
            "GPUFRACTION_MEMORY_MIB": str(mebibytes),
            "NVIDIA_CTK_LIBCUDA_DIR": _LIBRARIES,
            # The runtime has converted the names into devices, and leaves nothing for another hook to act on.
            "NVIDIA_VISIBLE_DEVICES": "void",
        },
        devices=dict(sorted({**_COMMON, **{f"/dev/nvidia{card}": f"c3:{card}" for card in cards}}.items())),
        cards=cards,
        files=(f"{_LIBRARIES}/libnvidia-ml.so.1",),
    )


def test_the_agent_concludes_how_gpus_come(real: RealNodeCluster, way: Way) -> None:
    status = real.gpunode()
    assert status["delivery"] == way.delivery
    assert [(gpu["uuid"], gpu["health"]) for gpu in status["gpus"]] == [(uuid, "Healthy") for uuid in UUIDS]


def test_a_container_sees_its_gpu_and_is_held_to_its_limits(real: RealNodeCluster, way: Way) -> None:
    real.submit("a", container(gpu_memory="4Gi", cpu="500m", memory="64Mi"))
    assert real.inside("a") == replace(share(4096, 0), memory=64 << 20, cpus=0.5)


def test_two_tenants_see_their_own(real: RealNodeCluster, way: Way) -> None:
    """The third pod fits only with the first one, and sees only that card."""
    for name, amount in (("a", "10Gi"), ("b", "12Gi"), ("c", "4Gi")):
        real.submit(name, container(gpu_memory=amount))
        real.running(name)
    assert [real.inside(name) for name in "abc"] == [share(10240, 0), share(12288, 1), share(4096, 0)]


def test_two_cards_and_two_containers(real: RealNodeCluster, way: Way) -> None:
    both = container("both", gpu_memory="2Gi", gpu_count="2", gpu_cores="30")
    neither = container("neither")
    real.submit("a", both, neither)
    assert real.inside("a", "both") == share(2048, 0, 1, cores="30")
    assert real.inside("a", "neither") == CLOSED


@pytest.mark.parametrize("runtime_class", ["nvidia", None])
def test_a_pod_without_a_share_sees_no_gpu(real: RealNodeCluster, way: Way, runtime_class: str | None) -> None:
    """This includes a pod that names all GPUs: the component hide-gpus removes its device settings."""
    if runtime_class and not way.mode:
        pytest.skip("no runtime of NVIDIA's there")
    greedy = container()
    greedy["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    names_them = {"nvidia.cdi.k8s.io/container.c": f"{way.kind or 'nvidia.com/gpu'}=all"}
    real.submit("none", greedy, annotations=names_them, runtimeClassName=runtime_class)
    assert real.inside("none") == CLOSED


def test_who_names_devices_himself_gets_his_share_and_no_other(real: RealNodeCluster, way: Way) -> None:
    """Admission replaces what a tenant wrote if NVIDIA's runtime or its NRI plugin would act on it."""
    every = f"{way.kind or 'nvidia.com/gpu'}=all"
    thief, mate = container(gpu_memory="1Gi"), container("mate")
    thief["env"] = mate["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": every}]
    real.submit("thief", thief, mate, annotations={"nvidia.cdi.k8s.io/container.mate": every})
    assert real.inside("thief") == share(1024, 0)
    assert real.inside("thief", "mate") == CLOSED


def test_a_restarted_container_sees_the_same(real: RealNodeCluster, way: Way) -> None:
    first = "test -e /keep/again || { touch /keep/again; exit 1; }\n"
    once = container(command=("sh", "-c", first + SCRIPT), gpu_memory="14Gi")
    once["volumeMounts"] = [{"name": "keep", "mountPath": "/keep"}]
    real.submit("a", container(gpu_memory="3Gi"))
    real.running("a")
    real.submit("b", once, volumes=[{"name": "keep", "emptyDir": {}}])
    assert real.inside("b", restart=1) == share(14336, 1)


def test_a_pod_that_waits_gets_its_gpu_when_there_is_room(real: RealNodeCluster, way: Way) -> None:
    """The allocation is written after admission, and still reaches the container."""
    for name in "ab":
        real.submit(name, container(gpu_memory="14Gi"))
        real.running(name)
    real.submit("c", container(gpu_memory="8Gi"))
    pod = real.waiting("c")
    assert names.ALLOCATION not in pod["metadata"]["annotations"]
    real.delete("b")
    assert real.inside("c") == share(8192, 1)
