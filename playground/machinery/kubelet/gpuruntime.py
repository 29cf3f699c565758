"""
The GPUs that the NVIDIA container runtime gives a container, by its environment, on a node that has GPUs.

The playground has no driver, so this module computes which GPUs a container would get, and what a program in it would
print. The rules are those of the NVIDIA container toolkit in its `legacy` mode on a node whose default runtime is
`nvidia`, and of its `cdi` mode for names of CDI devices. Source: NVIDIA container toolkit documentation, "Environment
variables (OCI spec)", and libnvidia-container's device selection. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from contract.encoding.quantity import MIB
from contract.model import PARTITION_KIND, SHARE_KIND

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
SHOWN_PREFIXES = ("ALIYUN_COM_GPU", "NVIDIA_", "CUDA_", "GPU")
_CUDA_IMAGES = ("cuda", "nvidia", "gpu", "tensorflow", "pytorch", "dcgm")
_UUID_PREFIX = "GPU-"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LIMIT = "CUDA_DEVICE_MEMORY_LIMIT"


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU as its node's driver knows it; memory in bytes."""

    index: int
    uuid: str
    model: str
    memory: int


NodeGpus: TypeAlias = Sequence[NodeGpu]


@dataclass(frozen=True, slots=True)
class DeviceError:
    """The container does not start: kubelet's reason and message for its waiting state."""

    device: str
    reason: str = "RunContainerError"

    @property
    def message(self) -> str:
        return (
            "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create "
            "failed: unable to start container process: error during container init: error running hook #0: error "
            "running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
            f"nvidia-container-cli: device error: {self.device}: unknown device: unknown"
        )


@dataclass(frozen=True, slots=True)
class UnresolvableDevice(DeviceError):
    """A CDI device without a description."""

    reason: str = "CreateContainerError"

    @property
    def message(self) -> str:
        return f"CDI device injection failed: unresolvable CDI devices {self.device}"


def asks_for_all(image: str) -> bool:
    """Whether the image sets `NVIDIA_VISIBLE_DEVICES=all`, as CUDA images do; recognised by the image's name."""
    name = image.lower()
    return any(word in name for word in _CUDA_IMAGES)


def visible(environment: Mapping[str, str], image: str, gpus: NodeGpus) -> list[NodeGpu] | DeviceError:
    """
    The GPUs that the runtime gives the container, in the node's order, not in that of the request. If all requested
    devices are names of CDI devices, it resolves these, as NVIDIA's runtime does in its `cdi` mode.
    """
    wanted = environment.get(VISIBLE, "all" if asks_for_all(image) else "void")
    if wanted in ("", "void", "none"):
        return []
    words = wanted.split(",")
    if all("/" in word and "=" in word for word in words):
        return with_described((), words, gpus)
    chosen: set[int] = set()
    for word in words:
        found = [gpu.index for gpu in gpus if word == "all" or _is(gpu, word)]
        if not found and word != "all":
            return DeviceError(word)
        chosen.update(found)
    return [gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index) if gpu.index in chosen]


def with_described(
    before: Sequence[NodeGpu], names: Iterable[str], gpus: NodeGpus
) -> list[NodeGpu] | UnresolvableDevice:
    """
    The GPUs of a container by its environment and by CDI devices, in the node's order.

    Every GPU of the node is described under each vendor's kind, by its UUID; the runtime refuses any other name.
    """
    uuids = {gpu.uuid for gpu in before}
    for name in names:
        kind, _, device = name.partition("=")
        if device.partition(".")[0] not in {gpu.uuid for gpu in gpus}:
            return UnresolvableDevice(name)
        if kind not in (SHARE_KIND, PARTITION_KIND):
            uuids.add(device)
    return [gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index) if gpu.uuid in uuids]


def _is(gpu: NodeGpu, word: str) -> bool:
    """Whether the text is the GPU's index, or its UUID or the beginning of it, as the runtime accepts."""
    if word.isdecimal():
        return gpu.index == int(word)
    return len(word) > len(_UUID_PREFIX) and gpu.uuid.lower().startswith(word.lower())


def memory_limit(environment: Mapping[str, str], position: int, gpu: NodeGpu) -> int:
    """Bytes of the GPU that the container sees: its limit where one is set and readable, else the card's."""
    for name in (f"{_LIMIT}_{position}", _LIMIT):
        text = environment.get(name, "").strip().lower()
        number, unit = (text[:-1], text[-1]) if text[-1:] in ("k", "m", "g") else (text, "")
        if number.isdecimal() and int(number):
            return min(int(number) * _UNITS[unit], gpu.memory)
    return gpu.memory


def printed(environment: Mapping[str, str], gpus: Iterable[NodeGpu]) -> str:
    """The log of a container that prints what it sees of GPUs: its variables, then one line for each GPU."""
    lines = [f"{name}={value}" for name, value in environment.items() if name.startswith(SHOWN_PREFIXES)]
    for position, gpu in enumerate(gpus):
        limit = memory_limit(environment, position, gpu) // MIB
        lines.append(f"GPU {position}: {gpu.model} (UUID: {gpu.uuid}) 0MiB / {limit}MiB")
    return "".join(f"{line}\n" for line in lines)
