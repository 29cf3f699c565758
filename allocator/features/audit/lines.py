"""
The lines of the audit: fixed messages with the fields of `FIELDS`, which docs/audit.md documents. A field is never
renamed; new ones may be added.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from allocator.features.audit.part import Granted, Released
from contract.scheduling.demand import Demand
from contract.scheduling.nodeinfo import AllocatedPod

log = logging.getLogger(__name__)
GRANTED, RELEASED = "share granted", "share released"
_MOST_CARDS = 16
FIELDS: Mapping[str, tuple[str, ...]] = {
    GRANTED: ("pod", "uid", "owner", "node", "cards", "allocation", "priority", "dialect", "by"),
    RELEASED: ("pod", "uid", "owner", "node", "cards", "allocation", "priority", "end", "cause", "reason", "held"),
}
"""The fields of each message, in their order."""


def write(what: Granted | Released) -> None:
    """Write the line of this event."""
    message, fields = line(what)
    log.info(message, extra=fields)


def line(what: Granted | Released) -> tuple[str, dict[str, Any]]:
    """The message and its fields."""
    about = _about(what.pod, what.allocation)
    if isinstance(what, Granted):
        return GRANTED, {**about, "dialect": what.dialect, "by": what.by}
    more = {"end": what.end, "cause": what.cause, "reason": what.why, "held": round(what.held)}
    return RELEASED, {**about, **more}


def _about(pod: AllocatedPod, allocation: str) -> dict[str, Any]:
    cards = [_card(uuid, demand) for uuid, demand in sorted(pod.demands.items())]
    more = [f"and {len(cards) - _MOST_CARDS} more"] if len(cards) > _MOST_CARDS else []
    return {
        "pod": pod.key,
        "uid": pod.uid,
        "owner": pod.owner,
        "node": pod.node,
        "cards": ",".join(cards[:_MOST_CARDS] + more),
        "allocation": allocation,
        "priority": pod.priority,
    }


def _card(uuid: str, demand: Demand) -> str:
    """`GPU-1a2b:8192MiB:50%`, `GPU-1a2b:whole`."""
    amount = "whole" if demand.exclusive else f"{demand.memory >> 20}MiB"
    return f"{uuid}:{amount}:{demand.cores}%" if demand.cores and not demand.exclusive else f"{uuid}:{amount}"
