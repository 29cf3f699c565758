"""
The terms on which this node's GPUs are published: the administrator's options, ownership and cordon, put together.

The options mean a pool by the node's labels, the reserve, slices, and how GPUs are shared.

A document that cannot be read changes nothing: what was read last counts, after a restart what the GPUNode says counts
here, and a condition tells what is wrong. So a slip of the pen neither shrinks a node under its pods nor promises more
than was meant.

Pure. Must not: read the document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from contract.options import SILENT, BadOption, PoolOptions, VgpuOptions, vgpu_options
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.publishing.reconcile import NodeView
from nodeagent.publishing.status import Reserve, Terms
from nodeagent.sharing import cordoning
from nodeagent.sharing.ownership import Ownership, decide

REFUSED = "OptionsRefused"
_SAID = 512
"""Characters of a refusal that are repeated."""


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """The document as it was last read, None where it never could be; and why what it says now does not count."""

    options: PoolOptions | None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """
    What the agent saw in one round, the API server aside. `held`: UUIDs that holder pods report. `pods_unknown`: why
    the pods here, and so the holders, are not known; empty where they are.
    """

    observation: Observation
    options: PoolDocument
    held: frozenset[str] = frozenset()
    pods_unknown: str = ""


def terms_of(own: Terms, report: NodeReport, node: NodeView, published: Mapping[str, Any]) -> Terms:
    """`own`, those of the agent's settings, under all that was seen. `published`: the GPUNode's status as it stands."""
    cards = report.observation.cards
    whole = (card.uuid for card in cards if card.uuid and not card.parent)
    sharing = decide(Ownership(node.choice, node.offered), report.held, whole)
    cordon = cordoning.read(node.cordoned, cards)
    terms = pooled(own, report.options, node.labels, published)
    return replace(
        terms,
        cordoned=cordon.uuids,
        shared=sharing.shared,
        not_shared=sharing.why,
        conditions=(*sharing.conditions, *cordon.conditions, *terms.conditions),
    )


def pooled(terms: Terms, document: PoolDocument, labels: Mapping[str, str], published: Mapping[str, Any]) -> Terms:
    """`terms` of the agent's own settings under the options. `published`: the GPUNode's status as it stands."""
    pool, options = document.options.of_node(labels) if document.options is not None else _earlier(published)
    return replace(
        terms,
        pool=pool,
        options=options.of_nodes(),
        mig=options.mig_strategy or terms.mig,
        reserve=Reserve(
            terms.reserve.least if options.reserve is None else options.reserve,
            terms.reserve.percent if options.reserve_percent is None else options.reserve_percent,
        ),
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
    message = f"the options are not taken over, the earlier ones go on counting: {trouble[:_SAID]}"
    return (Condition(True, "CannotBeRead", message, REFUSED),)
