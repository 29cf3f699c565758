"""
What the administrator's options mean on this node: its pool by labels, the reserve, slices, how GPUs are shared.

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
from nodeagent.publishing.status import Reserve, Terms

REFUSED = "OptionsRefused"
_SAID = 512
"""Characters of a refusal that are repeated."""


@dataclass(frozen=True, slots=True)
class PoolDocument:
    """The document as it was last read, None where it never could be; and why what it says now does not count."""

    options: PoolOptions | None
    trouble: str = ""


def pooled(terms: Terms, said: PoolDocument, labels: Mapping[str, str], published: Mapping[str, Any]) -> Terms:
    """`terms` of the agent's own settings under the options. `published`: the GPUNode's status as it stands."""
    pool, options = said.options.of_node(labels) if said.options is not None else _earlier(published)
    return replace(
        terms,
        pool=pool,
        options=options.of_nodes(),
        mig=options.mig_strategy or terms.mig,
        reserve=Reserve(
            terms.reserve.least if options.reserve is None else options.reserve,
            terms.reserve.percent if options.reserve_percent is None else options.reserve_percent,
        ),
        conditions=(*terms.conditions, *_refused(said.trouble)),
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
    said = f"the options are not taken over, the earlier ones go on counting: {trouble[:_SAID]}"
    return (Condition(True, "CannotBeRead", said, REFUSED),)
