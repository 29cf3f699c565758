"""
The cards of this node with a share that the agent cannot read, such as one that a later version wrote.

How much such a pod may take is unknown, so it holds its cards: they take no new pods, and the agent gives their other
pods only what those have booked. The pod itself gets nothing from the agent, and keeps what it has.

Pure. Must not: end or report the pod. Only the reader is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from contract.pods import UnreadShare
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.sharing.residents import Resident

SHARES_READ = "SharesRead"
"""The condition that such shares exist; absent without one."""
_CLOSED = "a pod on it has a share that the node agent cannot read; see the condition SharesRead"
_LONGEST = 512
"""Characters of the reasons in the condition."""


@dataclass(frozen=True, slots=True)
class UnreadShares:
    """Unread shares: in `closed` the cards that they may hold, each with the reason, in `conditions` the report."""

    closed: Mapping[str, str] = field(default_factory=dict)
    conditions: tuple[Condition, ...] = ()


def unread_shares(residents: Iterable[Resident], cards: Collection[str]) -> UnreadShares:
    """The unread shares of these pods. `cards`: the UUIDs of all cards and slices here."""
    unread = _unread(residents)
    if not unread:
        return UnreadShares()
    closed = held(unread, cards)
    whys = "; ".join(sorted({share.why for share in unread}))
    who = "1 pod has a share" if len(unread) == 1 else f"{len(unread)} pods have shares"
    message = (
        f"{who} that this agent cannot read, so {len(closed)} of {len(cards)} GPUs accept no pods: {whys[:_LONGEST]}. "
        "Run an agent of the version that placed the pod, or a later one"
    )
    condition = Condition(False, GPUNodeReason.SHARE_UNREAD, message, SHARES_READ)
    return UnreadShares(dict.fromkeys(sorted(closed), _CLOSED), (condition,))


def unread_on(residents: Iterable[Resident], cards: Collection[str]) -> frozenset[str]:
    """Those of all `cards` here that such a share may hold."""
    return held(_unread(residents), cards)


def held(unread: Iterable[UnreadShare], cards: Collection[str]) -> frozenset[str]:
    """Those of all `cards` here that one of these shares may hold."""
    return frozenset().union(*(share.cards(cards) for share in unread))


def _unread(residents: Iterable[Resident]) -> Sequence[UnreadShare]:
    return [resident.unread for resident in residents if resident.unread is not None]
