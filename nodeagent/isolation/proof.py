"""
If the administrator wants proofs, levels that limit are published only with a fresh proof.

    works, no proof ──▶ missing ──canary held──▶ held ──half of its time──▶ due ──all of it──▶ missing
          ▲                └──canary exceeded──▶ failed ◀──canary exceeded── held, due
          └── the level stopped working, or the driver changed: an older proof no longer counts

A proof counts for a level only if the level has worked without a break since before the canary was created. After a
restart of the agent this is assumed only for the levels that were published before. So every failure, of the agent, the
allocator, a clock or an annotation, leads to a level that is not published.

Pure: time is passed in. Must not: know a level by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from contract.isolation import LIMITING
from contract.nodes.proofs import Proof, ProofState
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition

PROVEN = "IsolationProven"
"""The condition that reports whether the levels that limit are proven."""
_LEAST_LEFT = 0.5
"""The part of a proof's time after which it may be renewed."""
_ALWAYS = float("-inf")


@dataclass(frozen=True, slots=True)
class ProofGate:
    """
    What may be published. `proven`: the levels that limit and may be published; None: none of them needs a proof.
    `state`: as in `Inventory.proof`; empty for None.
    """

    proven: frozenset[str] | None = None
    state: str = ""
    conditions: tuple[Condition, ...] = ()

    def lets(self, level: str) -> bool:
        """Whether a level that works may be published."""
        return self.proven is None or level not in LIMITING or level in self.proven


OPEN = ProofGate()
NOTHING_LIMITS = ProofGate(frozenset())


class Proofs:
    """`within`: seconds for which a proof counts; 0: no level needs one. One thread uses it."""

    def __init__(self, within: float) -> None:
        self._within = within
        self._since: dict[str, float] | None = None
        """Since when each level that limits works, by name; None before the first look."""
        self.gate = NOTHING_LIMITS if within else OPEN
        """Of the last judgement; before the first one nothing that limits is published. From any thread."""

    def judge(
        self, works: Collection[str], proof: Proof | None, driver: str, now: float, published: Collection[str]
    ) -> ProofGate:
        """
        Which of the levels that work now may be published.

        `published`: the levels that the GPUNode has had until now. `now`: seconds since 1970.
        """
        if not self._within:
            return OPEN
        limiting = [level for level in LIMITING if level in works]
        before = self._since
        if before is None:
            before = dict.fromkeys(published, _ALWAYS)
        since = self._since = {level: before.get(level, now) for level in limiting}
        self.gate = self._judged(since, proof, driver, now) if limiting else NOTHING_LIMITS
        return self.gate

    def _judged(self, since: Mapping[str, float], proof: Proof | None, driver: str, now: float) -> ProofGate:
        if proof is None or proof.driver != driver:
            return _closed(since, frozenset(), ProofState.MISSING)
        if not proof.held:
            return _closed(since, frozenset(), ProofState.FAILED)
        age = now - proof.at
        if not 0 <= age <= self._within:
            return _closed(since, frozenset(), ProofState.MISSING)
        proven = frozenset(level for level, began in since.items() if began <= proof.at)
        if len(proven) < len(since):
            return _closed(since, proven, ProofState.MISSING)
        message = f"a canary could not exceed its share: {', '.join(since)}"
        state = ProofState.DUE if age >= self._within * _LEAST_LEFT else ProofState.HELD
        return ProofGate(proven, state, (Condition(True, GPUNodeReason.PROVEN, message, PROVEN),))


def _closed(since: Collection[str], proven: frozenset[str], state: ProofState) -> ProofGate:
    listed = ", ".join(level for level in since if level not in proven)
    if state == ProofState.FAILED:
        reason, why = GPUNodeReason.PROOF_FAILED, "a canary exceeded its share"
    else:
        reason, why = GPUNodeReason.UNPROVEN, "no canary has tested them recently"
    found = Condition(False, reason, f"{why}, so these are not published: {listed}", PROVEN)
    return ProofGate(proven, state, (found,))
