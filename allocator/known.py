"""
What the allocator keeps of a pod that is on a node, and what of any pod in all, to be compared with a fresh look at it.
"""

from __future__ import annotations

from dataclasses import dataclass

from contract.model import Allocation, Compute


@dataclass(frozen=True, slots=True)
class OnNode:
    """What a pod takes of its node besides GPUs."""

    node: str
    compute: Compute
    host_ports: frozenset[tuple[str, str, int]] = frozenset()


@dataclass(frozen=True, slots=True)
class Known:
    """Where a pod stands by what the watches brought. `waits`: behind our gate."""

    node: str = ""
    waits: bool = False
    allocation: Allocation | None = None


NOBODY = Known()
"""A pod of which nothing is kept."""
