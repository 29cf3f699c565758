"""
The terms on which this node's GPUs are published: the administrator's options, ownership and cordon, put together.

The options give the node's pool (by its labels), the reserve, MIG slices, and how GPUs are shared.

An unreadable document changes nothing: the last readable one stays in use, or after a restart what the GPUNode states,
and a condition reports the error. So a typing error neither shrinks a node under its pods nor promises more than
intended.

Pure. Must not: read the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.nodes import repeated
from contract.nodes.capacity import Reserve
from contract.nodes.idle import IdleShare
from contract.nodes.reports import PodReport
from contract.options import SILENT, BadOption, PoolOptions, VgpuOptions, vgpu_options
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.publishing import startup
from nodeagent.publishing.reconcile import NodeView
from nodeagent.publishing.status import DEFAULT_TERMS, Terms
from nodeagent.sharing import cordoning
from nodeagent.sharing.ownership import decide

REFUSED, UNIQUE = "OptionsRefused", "GpusUnique"
_LONGEST = 1024
_LONGEST_MESSAGE = 512
"""Characters of the error that the condition repeats."""


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """The document as it was last read, None if it never could be; and why its present content is refused."""

    options: PoolOptions | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """
    The machine as the agent saw it in one round. `held`: UUIDs that holder pods report. `pods_unknown`: why the pods
    here, and so the holders, are unknown; empty if they are known. `idle`: the shares that compute nothing.
    `reports`: what is wrong with pods here. `waits`: why nothing may be written now, neither here nor to the API; empty
    where it may.
    """

    observation: Observation
    options: PoolDocument
    held: frozenset[str] = frozenset()
    pods_unknown: str = ""
    idle: frozenset[IdleShare] = frozenset()
    reports: frozenset[PodReport] = frozenset()
    waits: str = ""


def terms_of(own: Terms, report: NodeReport, node: NodeView, published: Mapping[str, Any]) -> Terms:
    """The terms of this round. `own`: those of the agent's settings. `published`: the GPUNode's present status."""
    cards = report.observation.cards
    whole = (card.uuid for card in cards if card.uuid and not card.parent)
    sharing = decide(node.ownership, report.held, whole)
    cordon = cordoning.read(node.cordoned, cards)
    terms = pooled(own, report.options, node.labels, published)
    return replace(
        terms,
        cordoned=cordon.uuids,
        shared=sharing.shared,
        not_shared=sharing.why,
        conditions=(
            *sharing.conditions,
            *cordon.conditions,
            *startup.left_on(node.startup_taints, removes=terms.startup_taint, refused=terms.startup_refused),
            *terms.conditions,
        ),
    )


def unique(text: str) -> tuple[Condition, ...]:
    """The condition for cards that other nodes report too, by the allocator's annotation; none where there is none."""
    found = repeated.from_text(text)
    if not found:
        return ()
    message = "; ".join(each.words for each in found)
    return (Condition(False, GPUNodeReason.REPEATED_UUID, message[:_LONGEST], UNIQUE),)


def pooled(terms: Terms, document: PoolDocument, labels: Mapping[str, str], published: Mapping[str, Any]) -> Terms:
    """The terms of the agent's settings with the administrator's options. `published`: the GPUNode's present status."""
    pool, options = document.options.of_node(labels) if document.options is not None else _earlier(published)
    return replace(
        terms,
        pool=pool,
        options=options.of_nodes(),
        mig=options.mig_strategy or DEFAULT_TERMS.mig,
        reserve=Reserve(options.reserve or 0, options.reserve_percent or 0),
        conditions=(*terms.conditions, *_refused(document.trouble)),
    )


def _earlier(published: Mapping[str, Any]) -> tuple[str, VgpuOptions]:
    try:
        options = vgpu_options({item["name"]: item["value"] for item in published.get("options") or ()})
    except (BadOption, LookupError, TypeError):
        options = SILENT
    return str(published.get("pool") or ""), options


def _refused(trouble: str) -> tuple[Condition, ...]:
    if not trouble:
        return ()
    message = f"the options are refused, and the previous ones stay in use: {trouble[:_LONGEST_MESSAGE]}"
    return (Condition(True, GPUNodeReason.CANNOT_BE_READ, message, REFUSED),)
