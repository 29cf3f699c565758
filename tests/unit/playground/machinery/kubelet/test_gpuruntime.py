from __future__ import annotations

import pytest

from playground.machinery.kubelet.gpuruntime import (
    DeviceError,
    NodeGpu,
    UnresolvableDevice,
    memory_limit,
    printed,
    visible,
)

MIB = 1 << 20
T4 = NodeGpu(0, "GPU-aaaa-1", "Tesla T4", 15109 * MIB)
V100 = NodeGpu(1, "GPU-bbbb-2", "Tesla V100", 32768 * MIB)
GPUS = (T4, V100)

VISIBLE = {
    "empty gives nothing": ({"NVIDIA_VISIBLE_DEVICES": ""}, "nvidia/cuda", []),
    "void gives nothing": ({"NVIDIA_VISIBLE_DEVICES": "void"}, "nvidia/cuda", []),
    "none gives nothing": ({"NVIDIA_VISIBLE_DEVICES": "none"}, "nvidia/cuda", []),
    "all gives all": ({"NVIDIA_VISIBLE_DEVICES": "all"}, "busybox", [T4, V100]),
    "a UUID": ({"NVIDIA_VISIBLE_DEVICES": "GPU-bbbb-2"}, "busybox", [V100]),
    "UUIDs come in the node's order": ({"NVIDIA_VISIBLE_DEVICES": "GPU-bbbb-2,GPU-aaaa-1"}, "busybox", [T4, V100]),
    "the same twice is one": ({"NVIDIA_VISIBLE_DEVICES": "0,GPU-aaaa-1"}, "busybox", [T4]),
    "an index": ({"NVIDIA_VISIBLE_DEVICES": "1"}, "busybox", [V100]),
    "a UUID that is not there": ({"NVIDIA_VISIBLE_DEVICES": "GPU-cccc-3"}, "busybox", DeviceError("GPU-cccc-3")),
    "an index that is not there": ({"NVIDIA_VISIBLE_DEVICES": "0,7"}, "busybox", DeviceError("7")),
    "names of CDI devices": (
        {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=GPU-bbbb-2,gpufraction.io/partition=GPU-bbbb-2.id"},
        "busybox",
        [V100],
    ),
    "a CDI device that nobody described": (
        {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=GPU-cccc-3"},
        "busybox",
        UnresolvableDevice("nvidia.com/gpu=GPU-cccc-3"),
    ),
    "a CDI device beside an index": (
        {"NVIDIA_VISIBLE_DEVICES": "0,nvidia.com/gpu=GPU-bbbb-2"},
        "busybox",
        DeviceError("nvidia.com/gpu=GPU-bbbb-2"),
    ),
    "unset, a plain image": ({}, "busybox", []),
    "unset, a CUDA image": ({}, "nvcr.io/nvidia/cuda:12.4", [T4, V100]),
    "unset, a framework's image": ({}, "tensorflow/tensorflow:latest-gpu", [T4, V100]),
}


@pytest.mark.parametrize(("environment", "image", "want"), VISIBLE.values(), ids=VISIBLE.keys())
def test_visible(environment: dict[str, str], image: str, want: list[NodeGpu] | DeviceError) -> None:
    assert visible(environment, image, GPUS) == want


LIMITS = {
    "none": ({}, 15109),
    "in MiB": ({"CUDA_DEVICE_MEMORY_LIMIT": "5120m"}, 5120),
    "in GiB": ({"CUDA_DEVICE_MEMORY_LIMIT": "2G"}, 2048),
    "in bytes": ({"CUDA_DEVICE_MEMORY_LIMIT": str(1024 * MIB)}, 1024),
    "of this GPU before that of all": (
        {"CUDA_DEVICE_MEMORY_LIMIT_0": "3000m", "CUDA_DEVICE_MEMORY_LIMIT": "5m"},
        3000,
    ),
    "of another GPU": ({"CUDA_DEVICE_MEMORY_LIMIT_1": "3000m"}, 15109),
    "zero is no limit": ({"CUDA_DEVICE_MEMORY_LIMIT": "0m"}, 15109),
    "empty is no limit": ({"CUDA_DEVICE_MEMORY_LIMIT": ""}, 15109),
    "unreadable is no limit": ({"CUDA_DEVICE_MEMORY_LIMIT": "plenty"}, 15109),
    "more than the card": ({"CUDA_DEVICE_MEMORY_LIMIT": "99999m"}, 15109),
}


@pytest.mark.parametrize(("environment", "mib"), LIMITS.values(), ids=LIMITS.keys())
def test_memory_limit(environment: dict[str, str], mib: int) -> None:
    assert memory_limit(environment, 0, T4) == mib * MIB


def test_printed_shows_gpu_variables_then_each_gpu() -> None:
    environment = {
        "ALIYUN_COM_GPU_MEM_DEV": "15",
        "PATH": "/bin",
        "NVIDIA_VISIBLE_DEVICES": "GPU-aaaa-1",
        "CUDA_DEVICE_MEMORY_LIMIT": "5120m",
    }
    assert printed(environment, [T4]) == (
        "ALIYUN_COM_GPU_MEM_DEV=15\n"
        "NVIDIA_VISIBLE_DEVICES=GPU-aaaa-1\n"
        "CUDA_DEVICE_MEMORY_LIMIT=5120m\n"
        "GPU 0: Tesla T4 (UUID: GPU-aaaa-1) 0MiB / 5120MiB\n"
    )


def test_the_error_names_the_device() -> None:
    assert "device error: GPU-x: unknown device" in DeviceError("GPU-x").message
