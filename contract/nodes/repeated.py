"""
Cards whose UUID several nodes report, as the allocator notes them on a GPUNode and its agent shows them.

A driver gives each card a UUID of its own. Two nodes report the same one if two kubelets run on one machine, if a
machine was cloned, or if somebody who controls a node lies. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract.encoding.reading import is_subdomain

MOST_NOTED = 64
"""Cards of one node that are noted. All others are counted as usual."""
_OPEN, _CLOSED = "open", "closed"


@dataclass(frozen=True, slots=True, order=True)
class RepeatedGpu:
    """A card of a node that another node reports too. `closed`: it takes no new pods on this node."""

    uuid: str
    other: str
    closed: bool

    @property
    def words(self) -> str:
        """The problem and its consequence."""
        then = "accepts no new pods here" if self.closed else "accepts new pods here, but not there"
        return f"GPU {self.uuid} is also reported by node {self.other}, and {then}"


def to_text(found: Iterable[RepeatedGpu]) -> str:
    """The annotation; empty if no card is repeated."""
    noted = sorted(found)[:MOST_NOTED]
    return ",".join(f"{each.uuid} {each.other} {_CLOSED if each.closed else _OPEN}" for each in noted)


def from_text(text: str) -> tuple[RepeatedGpu, ...]:
    """Read the annotation. An unreadable annotation counts as absent."""
    found = []
    for item in text.split(",")[:MOST_NOTED]:
        uuid, _, rest = item.partition(" ")
        other, _, state = rest.partition(" ")
        if uuid and is_subdomain(other) and state in (_OPEN, _CLOSED):
            found.append(RepeatedGpu(uuid, other, state == _CLOSED))
    return tuple(found)
