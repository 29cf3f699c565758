"""The message of a pod with its share: how much of which GPUs, of which model, on which node."""

from __future__ import annotations

import pytest

from allocator.scheduler import messages
from contract.encoding.quantity import GIB, MIB
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest

MODELS = {"a": "Tesla T4", "b": "Tesla T4", "c": "NVIDIA A10"}


def share(uuid: str, memory: int = 5 * GIB, cores: int = 0) -> GpuShare:
    return GpuShare(uuid, "abcdefghijkl".index(uuid), memory, cores, 16 * GIB)


def of(*shares: GpuShare, whole: bool = False, init: bool = False) -> tuple[FractionRequest, ContainerAllocation]:
    name = f"c{len(shares)}{init}"
    first = shares[0]
    request = FractionRequest(name, len(shares), memory=first.memory, cores=first.cores, exclusive=whole, init=init)
    return request, ContainerAllocation(name, shares)


ALLOCATIONS: dict[str, tuple[list[tuple[FractionRequest, ContainerAllocation]], str]] = {
    "memory": ([of(share("a"))], "5 GiB of GPU 0 (Tesla T4)"),
    "no whole GiB": ([of(share("a", 5000 * MIB))], "5000 MiB of GPU 0 (Tesla T4)"),
    "cores": ([of(share("a", cores=30))], "5 GiB and 30 % of the cores of GPU 0 (Tesla T4)"),
    "a whole GPU": ([of(share("c", 16 * GIB, 100), whole=True)], "all of GPU 2 (NVIDIA A10)"),
    "an unknown model": ([of(share("d"))], "5 GiB of GPU 3"),
    "two alike": ([of(share("a"), share("b"))], "5 GiB of each of GPUs 0, 1 (Tesla T4)"),
    "two models": ([of(share("b"), share("c"))], "5 GiB of GPU 1 (Tesla T4); 5 GiB of GPU 2 (NVIDIA A10)"),
    "an init container": (
        [of(share("a", 8 * GIB), init=True), of(share("a"))],
        "8 GiB of GPU 0 (Tesla T4)",
    ),
    "many": (
        [of(*(share(uuid) for uuid in "defghijkl"))],
        "5 GiB of each of GPUs 3, 4, 5, 6, 7, 8, 9, 10 and 1 more",
    ),
}


@pytest.mark.parametrize(("given", "text"), ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_what_a_pod_has(given: list[tuple[FractionRequest, ContainerAllocation]], text: str) -> None:
    request = PodRequest("native", tuple(fraction for fraction, _ in given))
    allocation = Allocation("id", "t4", tuple(container for _, container in given))
    assert messages.allocated(request, allocation, MODELS) == f"{text} on t4"


def test_a_claims_share_is_reported_once_for_all_containers() -> None:
    request = PodRequest("claims", (FractionRequest("a", percent=1), FractionRequest("b", percent=1)), claim="mine")
    containers = tuple(ContainerAllocation(name, (share("a", 2 * GIB, 10),)) for name in "ab")
    message = messages.allocated(request, Allocation("id", "t4", containers, "egpu-mine"), MODELS)
    assert message == "2 GiB and 10 % of the cores of GPU 0 (Tesla T4) on t4"
