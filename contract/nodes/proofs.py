"""
The proof that a node holds programs to their shares: written by the allocator on a GPUNode, and read by its agent.

A canary, which is a pod with a share on an idle card, tried to exceed it. `held`: it was refused. The annotation is
three words: `held` or `exceeded`, when the canary was created, and the driver's version then. Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from contract.encoding import moments

_HELD, _EXCEEDED = "held", "exceeded"
_MOST = 128
_DRIVER = re.compile(r"[0-9][0-9.]{0,31}")


class ProofState(StrEnum):
    """The state of a node's levels, in `status.isolationProof` of its GPUNode. Empty text: no proof is required."""

    HELD = "held"
    """A fresh proof; the levels that limit are published."""
    DUE = "due"
    """As `held`, but half of its time is over: a canary may renew it."""
    MISSING = "missing"
    """No fresh proof; no level that limits is published."""
    FAILED = "failed"
    """A canary exceeded its share; no level that limits is published."""


AWAITED = frozenset((ProofState.DUE, ProofState.MISSING, ProofState.FAILED))
"""States in which a canary tries again."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A canary's result. `at`: when it was created, seconds since 1970. `driver`: the version of the driver then."""

    held: bool
    at: int
    driver: str


def to_text(proof: Proof) -> str:
    """The annotation."""
    return f"{_HELD if proof.held else _EXCEEDED} {moments.stamp(proof.at)} {proof.driver}"


def from_text(text: str) -> Proof | None:
    """Read the annotation; an unreadable one is not a proof."""
    words = text[:_MOST].split(" ") if len(text) <= _MOST else []
    if len(words) != 3 or words[0] not in (_HELD, _EXCEEDED) or not _DRIVER.fullmatch(words[2]):
        return None
    at = moments.seconds(words[1])
    return Proof(words[0] == _HELD, int(at), words[2]) if at is not None and at >= 0 else None
