"""
The registry of reasons: every code of a condition or Event of ours, in one table for each object it is about.

A row has the code, where it is read, its text, a cure, and what can cure it. The queue wakes pods by it, the plugin
finds by it what would help, and `docs/reasons.md` is made from it. A program writes a reason only as a member of a
table (`ReasonName`), so none is missing here.
"""

from __future__ import annotations

from collections.abc import Mapping

from contract.reasons.base import Cure, ReasonKind, ReasonName, Row
from contract.reasons.claims import ClaimEventReason, ClaimReason, PodOfClaim
from contract.reasons.gpunodes import CheckReason, GPUNodeReason, NodeEventReason
from contract.reasons.nodes import Code
from contract.reasons.pods import AnswerReason, PodEventReason, PodReason

__all__ = ["REGISTRY", "WAITING", "Cure", "ReasonKind", "ReasonName", "Row"]

_TABLES = (
    PodReason,
    PodOfClaim,
    AnswerReason,
    PodEventReason,
    ClaimReason,
    ClaimEventReason,
    GPUNodeReason,
    NodeEventReason,
    CheckReason,
)

REGISTRY: tuple[tuple[ReasonName, Row], ...] = (
    *((code.word, code.row) for code in Code),
    *((reason, reason.row) for table in _TABLES for reason in table),
)
"""Every code with its row. A code that is written about several kinds of objects has a row for each."""

WAITING: Mapping[str, Row] = {
    word: row for word, row in reversed(REGISTRY) if row.kind in (ReasonKind.NODE, ReasonKind.WAITS, ReasonKind.PLACED)
}
"""The possible contents of a pod's condition, by its reason."""
