"""
Score: which of the GPUs and nodes that fit is preferred. Two policies at each level, in one table.

Integers only, so that a decision is the same on every machine; the smaller score wins, and ties go to the lower index
or the lesser name. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from contract.model import WHOLE, NodeState, Usage
from contract.scheduling.fit import GpuScore
from contract.scheduling.request import SchedulingRequest

FINE = 1_000_000
"""Steps in which a used share of a node is told apart."""

LEARNED = frozenset(("fragmentation", "value"))
"""Node policies that go by what was learnt of the demand, and choose the GPUs of the node too."""


@dataclass(frozen=True, slots=True)
class Policy:
    """
    How nodes and the GPUs of a node are preferred; each `binpack` or `spread`.

    `node` may be one of `LEARNED`; then `gpu` is not asked.
    """

    node: str = "binpack"
    gpu: str = "binpack"

    @property
    def learned(self) -> bool:
        """Whether it goes by what was learnt of the demand."""
        return self.node in LEARNED


DEFAULT_POLICY = Policy()


def policy_of(request: SchedulingRequest, default: Policy) -> Policy:
    """The tenant's choice where there is one; where the rest would be learnt, it is the best fit then."""
    wanted = request.request
    if default.learned:
        if not wanted.node_policy and not wanted.gpu_policy:
            return default
        default = DEFAULT_POLICY
    return Policy(wanted.node_policy or default.node, wanted.gpu_policy or default.gpu)


def least_free(usable: int, usage: Usage) -> int:
    """Best fit: the GPU with the least free memory comes first, so that large requests find room elsewhere."""
    return usable - usage.memory


def most_free(usable: int, usage: Usage) -> int:
    """The GPU with the most free memory comes first."""
    return usage.memory - usable


GPU_SCORES: Mapping[str, GpuScore] = {"binpack": least_free, "spread": most_free}


def used_share(node: NodeState, memory: int, cores: int) -> int:
    """
    How full the node's GPUs are, the larger of memory and cores, with `memory` bytes and `cores` percent more.

    In millionths of all that the node has. Memory is counted in MiB here, so that the products fit 64 bits.
    """
    total = taken_memory = taken_cores = 0
    for gpu, usage in zip(node.gpus, node.usage, strict=True):
        total += gpu.usable
        taken_memory += usage.memory
        taken_cores += usage.cores
    if not total:
        return 0
    by_memory = ((taken_memory + memory) >> 20) * FINE // max(total >> 20, 1)
    by_cores = (taken_cores + cores) * FINE // (WHOLE * len(node.gpus))
    return max(by_memory, by_cores)


def fullest(share: int) -> int:
    """The node that becomes the fullest comes first."""
    return -share


def emptiest(share: int) -> int:
    """The node that stays the emptiest comes first."""
    return share


NODE_SCORES: Mapping[str, Callable[[int], int]] = {"binpack": fullest, "spread": emptiest}
