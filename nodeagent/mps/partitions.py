"""
Static partitions of MPS: multiprocessors of a card that the programs of one pod have for themselves.

A percentage of threads is a cap: it reserves nothing, and programs of several pods may run on one multiprocessor. A
daemon that was started with `-S` gives out partitions instead: whole chunks of multiprocessors, which no other client
uses, also while they are idle. A client names its partition in `CUDA_MPS_SM_PARTITION`; one that names none fails.

NVIDIA documents it in "Multi-Process Service", release 615 ("Using Static SM Partitioning"): daemons from version 13010
on, cards from Ampere on, `sm_partition add <UUID> <chunks>`, `sm_partition rm <UUID> <partition>`, and `lspart`. The
number of multiprocessors in a chunk depends on the card. `lspart` shows it, so it is not assumed here. A partition in
use cannot be removed, and a daemon forgets its partitions when it ends.

Pure. Must not: talk to a daemon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from contract.model import PARTITION_KIND, WHOLE, Allocation

FLAG = "-S"
LIST = "lspart"
COMMON = ""
"""The key of the partition that all pods without cores of their own use together; it has one chunk."""
_FIRST_VERSION = 13010
_FIRST_CAPABILITY = (8, 0)
"""Ampere."""
_CREATED = re.compile(r"\bGPU-[0-9A-Za-z-]+/([0-9A-Za-z+/=]+)")
"""Some daemons answer with the partition alone, others with a sentence around it. Its own name may contain slashes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """One card in the output of `lspart`. `partitions`: the chunks of each, by its name; `used`: those with clients."""

    chunks: int
    """Of the card, free and used."""
    partitions: Mapping[str, int]
    used: frozenset[str] = frozenset()
    chunk: int = 0
    """Multiprocessors in one chunk; 0 while no partition shows it."""

    @property
    def free(self) -> int:
        """Chunks in no partition."""
        return self.chunks - sum(self.partitions.values())


@dataclass(frozen=True, slots=True)
class PartitionSteps:
    """The next steps. `known`: the partition of each key that has one."""

    known: Mapping[str, str]
    remove: tuple[str, ...]
    add: Mapping[str, int]
    """Chunks by key. They fit."""
    without: tuple[str, ...]
    """Keys for which too few chunks are left."""


def cores_of(allocation: Allocation) -> Mapping[str, int]:
    """
    Percent of the cores that are reserved for the allocation, by GPU on which it has a device of `PARTITION_KIND`.

    All containers of a pod have one partition together. Each container of a claim's pods may use all of its share.
    """
    found: dict[str, int] = {}
    for container in allocation.containers:
        for share in container.shares:
            if PARTITION_KIND in share.cdi.split(","):
                cores, before = 0 if share.cores_free else share.cores, found.get(share.uuid, 0)
                found[share.uuid] = max(before, cores) if allocation.group else min(WHOLE, before + cores)
    return found


def supported(version: str, capability: str) -> bool:
    """Whether a daemon with this answer to `-v` can partition a card of this compute capability."""
    versions = [int(number) for number in re.findall(r"\b\d{4,6}\b", version)]
    major, _, minor = capability.partition(".")
    new = major.isdecimal() and minor.isdecimal() and (int(major), int(minor)) >= _FIRST_CAPABILITY
    return new and bool(versions) and max(versions) >= _FIRST_VERSION


def created(answer: str) -> str:
    """The name of the partition that `sm_partition add` made; empty if it made none."""
    found = _CREATED.search(answer)
    return found.group(1) if found else ""


def layout(answer: str) -> Layout | None:
    """
    Read `lspart` of a daemon with one card; None if the answer is no such table.

    Its columns are the card, the partition, free and used chunks, free and used multiprocessors, and whether there are
    clients. The row without a partition is the card's. Columns that do not apply have a dash, or are left out.
    """
    total, partitions, used, chunk = None, {}, set(), 0
    for line in answer.splitlines():
        words = line.split()
        if not words or not words[0].startswith("GPU-"):
            continue
        numbers = [int(word) for word in words[1:] if word.isdecimal() and len(word) < 6]
        named = [word for word in words[1:] if len(word) > 5]
        if not named and len(numbers) >= 2:
            total = numbers[0] + numbers[1]
        elif named and len(numbers) == 2:
            partitions[named[0]] = numbers[0]
            chunk = chunk or (numbers[1] // numbers[0] if numbers[0] else 0)
            if words[-1] == "Yes":
                used.add(named[0])
    return None if total is None else Layout(total, partitions, frozenset(used), chunk)


def chunks_of(cores: int, total: int) -> int:
    """
    The chunks for this percentage of a card: rounded down, so that shares that fit by percent fit by chunks, but at
    least one, since a client without a partition fails.
    """
    return max(1, cores * total // WHOLE)


def steps(found: Layout, known: Mapping[str, str], wanted: Mapping[str, int]) -> PartitionSteps:
    """
    The steps from the present card to the wanted shares, in percent by key (0 for `COMMON`).

    `known`: the partition of each key, as recorded. An unrecorded partition, or one that is no longer wanted, is
    removed unless it has clients. A wanted key keeps its partition of any size.
    """
    there = {key: name for key, name in known.items() if name in found.partitions}
    kept = {key: name for key, name in there.items() if key in wanted or name in found.used}
    names = set(kept.values())
    remove = tuple(sorted(name for name in found.partitions if name not in names and name not in found.used))
    left = found.free + sum(found.partitions[name] for name in remove)
    add: dict[str, int] = {}
    without = []
    for key in sorted(wanted.keys() - kept.keys(), key=lambda key: (-wanted[key], key)):
        need = chunks_of(wanted[key], found.chunks)
        if need <= left:
            add[key], left = need, left - need
        else:
            without.append(key)
    return PartitionSteps(kept, remove, add, tuple(without))


def rounding(cores: Iterable[int], found: Layout) -> str:
    """What rounding does to these shares, as a sentence; empty where all of them divide."""
    odd = sorted({each for each in cores if each and each * found.chunks % WHOLE})
    rounded = [f"{each}% is {chunks_of(each, found.chunks)} of {found.chunks} chunks" for each in odd]
    return "rounded down to whole chunks: " + ", ".join(rounded) if rounded else ""
