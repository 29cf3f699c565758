"""
A Node's capacity of GPU shares: what its GPUs promise, and what pods hold beyond that.

A kubelet counts all pods of its node, also those whose GPU is removed, replaced, or promises less than before. Their
amounts must not be taken from the healthy GPUs. So a Node's capacity is the promise of its GPUs, plus what is held
beyond it, GPU by GPU. The agent knows the promise. The allocator knows the rest and writes it to the GPUNode as a
`Beyond`, with a digest of the promise that it was computed from, so that an outdated one is recognized.

A ResourceClaim that several pods use is held once, but Kubernetes counts it for each of them: the difference is also
held beyond the promise.

NVIDIA's own device plugin may offer GPUs of the node alongside our shares, under its own resource names.

Pure. Must not: know who writes, or when.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.encoding import quantity
from contract.encoding.reading import Malformed
from contract.encoding.wire import TEXT, inline, load, number, record
from contract.model import MOST_MEMORY, WHOLE, WITHHELD, Gpu, Usage

_NOT_SHARED = WITHHELD[1]
_MOST = MOST_MEMORY << 10
"""A larger amount counts as this; no node has as much."""
VENDOR_GPU = "nvidia.com/gpu"
_VENDOR_GPUS = re.compile(r"nvidia\.com/(gpu|mig-[0-9][a-z0-9.-]{0,50})(\.shared)?")
"""
The resources by which NVIDIA's device plugin offers GPUs (its README): `nvidia.com/gpu`; with MIG strategy `mixed` one
for each profile; with time-slicing or MPS and `renameByDefault` the same with `.shared`. Other names under `nvidia.com`
are not GPUs: NICs, channels, or invented names.
"""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Memory of each card that no pod gets: the largest of these bytes, this percent, and the driver's own reserve."""

    least: int = 0
    percent: int = 0

    def usable(self, memory: int, by_driver: int = 0) -> int:
        """
        Bytes that pods may get of a card with `memory` bytes, of which the driver reserves `by_driver`.

        The reserve includes the driver's own, since no pod can allocate either.
        """
        return max(0, memory - max(self.least, memory * self.percent // WHOLE, by_driver))


NO_RESERVE = Reserve()
MOST_LIMIT_RATIO = 10
"""How many times its request a memory limit may be at most, whatever the options say."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """The accounting resources of a node: memory in bytes, cores in percent of one GPU."""

    memory: int = 0
    cores: int = 0
    limits: int = 0
    """Bytes for memory limits above requests; see `with_limits`."""

    def with_limits(self, gpus: Iterable[Gpu]) -> Amounts:
        """
        The same with the resource of memory limits, where a GPU may have such limits.

        It is as much as any limits can add up to whose requests have room, so no kubelet or scheduler refuses what the
        allocator has allowed, even while the option changes. The allocator decides what limits may add up to.
        """
        allowed = any(gpu.sharing.limit_ratio for gpu in gpus)
        return replace(self, limits=self.memory * MOST_LIMIT_RATIO if allowed else 0)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(self.memory + other.memory, self.cores + other.cores)

    def above(self, other: Amounts) -> Amounts:
        """The difference to `other` of each resource, at least 0."""
        return Amounts(max(0, self.memory - other.memory), max(0, self.cores - other.cores))

    def at_least(self, other: Amounts) -> Amounts:
        return Amounts(max(self.memory, other.memory), max(self.cores, other.cores))


NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class Beyond:
    """The amounts that pods hold beyond the promise of the GPUs. `of`: the digest of that promise."""

    of: str
    amounts: Amounts = NOTHING


Promises = Mapping[str, Amounts]
"""The promise of each GPU of a node, by UUID."""


def promises(gpus: Iterable[Gpu]) -> Promises:
    """
    What each GPU promises. Unhealthy and cordoned GPUs count too, since pods hold shares of them. GPUs of a vendor's
    device plugin promise nothing: they count under the plugin's own resource.
    """
    return {
        gpu.uuid: NOTHING if gpu.withheld == _NOT_SHARED else Amounts(gpu.sharing.promised(gpu.usable), WHOLE)
        for gpu in gpus
    }


def total(amounts: Iterable[Amounts]) -> Amounts:
    return sum(amounts, NOTHING)


def digest(promised: Promises) -> str:
    """A text that is equal for equal promises."""
    lines = (f"{uuid} {amounts.memory} {amounts.cores}\n" for uuid, amounts in sorted(promised.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


def beyond(promised: Promises, used: Mapping[str, Usage], unserved: Amounts = NOTHING) -> Beyond:
    """
    What is used beyond the promise: of each GPU what exceeds its promise, and all of a GPU that is removed. `unserved`:
    what counts for pods that use no GPU, or a share that counts for another pod.
    """
    held = ((uuid, Amounts(usage.memory, usage.cores)) for uuid, usage in used.items())
    more = unserved + total(amounts.above(promised.get(uuid, NOTHING)) for uuid, amounts in held)
    return Beyond(digest(promised), Amounts(min(more.memory, _MOST), more.cores))


_AMOUNT = number(_MOST).required()
_BEYOND = record(Beyond, {"of": TEXT, "amounts": inline(Amounts, {"memory": _AMOUNT, "cores": _AMOUNT})})


def to_text(held: Beyond) -> str:
    return json.dumps(_BEYOND.to_json(held))


def from_text(text: object) -> Beyond | None:
    """The inverse of `to_text`; None for a missing or unreadable annotation."""
    try:
        return _BEYOND.from_json(load(text, "beyond"))
    except Malformed:
        return None


def vendor_gpus(amounts: Mapping[str, Any]) -> frozenset[str]:
    """The plugin's resources with at least one GPU, among a node's allocatable or a container's amounts."""
    return frozenset(
        name for name, amount in amounts.items() if _VENDOR_GPUS.fullmatch(name) and quantity.integer_or(amount, 0) > 0
    )
