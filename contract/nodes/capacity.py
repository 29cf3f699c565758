"""
What a node's GPUs promise, and what pods hold beyond that: by both the agent says how much capacity the Node has.

The kubelet of a node counts all pods there, those too whose GPU is gone, was replaced, or promises less than it did.
Their amounts must not be taken from the GPUs that are well. So a Node's capacity is what its GPUs promise, and on top
what is held beyond that, GPU by GPU. The agent knows the first. The allocator knows the second, and writes it onto the
GPUNode as a `Beyond`; a digest there names the promise that it was counted against, so that no old word is taken for a
new one.

NVIDIA's own device plugin may hand out GPUs of the node beside our shares, under names of its own.

Pure. Must not: know who writes, or when.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.encoding import quantity
from contract.encoding.reading import Malformed, Reader
from contract.model import MOST_MEMORY, WHOLE, WITHHELD, Gpu, Usage

_NOT_SHARED = WITHHELD[1]
_MOST = MOST_MEMORY << 10
"""As which more counts; no node holds as much."""
VENDOR_GPU = "nvidia.com/gpu"
_VENDOR_GPUS = re.compile(r"nvidia\.com/(gpu|mig-[0-9][a-z0-9.-]{0,50})(\.shared)?")
"""
By which NVIDIA's device plugin hands out GPUs (its README): `nvidia.com/gpu`; with MIG strategy `mixed` one name for
each profile; with time-slicing or MPS and `renameByDefault` the same with `.shared`. Other names under `nvidia.com`
stand for no GPU: NICs, channels, or what somebody made up.
"""


@dataclass(frozen=True, slots=True)
class Amounts:
    """The accounting resources of a node: memory in bytes, cores in percent of one GPU."""

    memory: int = 0
    cores: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        """Both together."""
        return Amounts(self.memory + other.memory, self.cores + other.cores)

    def above(self, other: Amounts) -> Amounts:
        """What of this is more than the other, of each resource; nothing where it is less."""
        return Amounts(max(0, self.memory - other.memory), max(0, self.cores - other.cores))

    def at_least(self, other: Amounts) -> Amounts:
        """The larger of each resource."""
        return Amounts(max(self.memory, other.memory), max(self.cores, other.cores))


NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class Beyond:
    """What pods hold beyond what the GPUs promise. `of`: the digest of that promise."""

    of: str
    amounts: Amounts = NOTHING


Promises = Mapping[str, Amounts]
"""What each GPU of a node promises, by UUID."""


def promises(gpus: Iterable[Gpu]) -> Promises:
    """
    Every GPU counts, the sick and the cordoned too, since pods hold shares of them; not what a vendor's device plugin
    has, which is counted under that plugin's own resource.
    """
    return {
        gpu.uuid: NOTHING if gpu.withheld == _NOT_SHARED else Amounts(gpu.sharing.promised(gpu.usable), WHOLE)
        for gpu in gpus
    }


def total(amounts: Iterable[Amounts]) -> Amounts:
    """All together."""
    return sum(amounts, NOTHING)


def digest(promised: Promises) -> str:
    """The same text for the same promise, in whatever order."""
    lines = (f"{uuid} {amounts.memory} {amounts.cores}\n" for uuid, amounts in sorted(promised.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def beyond(promised: Promises, used: Mapping[str, Usage]) -> Beyond:
    """What is used beyond the promise: of each GPU what it does not promise, and all of a GPU that is not there."""
    held = ((uuid, Amounts(usage.memory, usage.cores)) for uuid, usage in used.items())
    more = total(amounts.above(promised.get(uuid, NOTHING)) for uuid, amounts in held)
    return Beyond(digest(promised), Amounts(min(more.memory, _MOST), more.cores))


def to_text(said: Beyond) -> str:
    """As the annotation says it."""
    return json.dumps({"of": said.of, "memory": said.amounts.memory, "cores": said.amounts.cores})


def from_text(text: object) -> Beyond | None:
    """The inverse; None for what cannot be read, as where nobody has said anything."""
    try:
        found = Reader(json.loads(text if isinstance(text, str) else ""), "beyond")
        return Beyond(found.text("of"), Amounts(found.amount("memory", most=_MOST), found.amount("cores", most=_MOST)))
    except (ValueError, RecursionError, Malformed):
        return None


def vendor_gpus(amounts: Mapping[str, Any]) -> frozenset[str]:
    """Of a node's allocatable amounts, or of a container's, the plugin's GPUs of which there is at least one."""
    return frozenset(
        name for name, amount in amounts.items() if _VENDOR_GPUS.fullmatch(name) and quantity.integer_or(amount, 0) > 0
    )
