"""KAI's annotations: each sentence with its pod and what reading it gives."""

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
