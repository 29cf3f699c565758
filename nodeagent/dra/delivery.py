"""
Delivery by ResourceClaims, on nodes that must deliver this way: by the Node's label or by the agent's setting.

Must not: know gRPC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from contract import names
from contract.model import Inventory
from nodeagent.isolation import delivery
from nodeagent.isolation.cards import Cards
from nodeagent.isolation.mechanism import Delivered


class Registration(Protocol):
    """Whether kubelet registered the agent as its plugin; None before it answered. `why`: the reason for a refusal."""

    @property
    def registered(self) -> bool | None: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ClaimDelivery:
    """`plugin`: the agent as a kubelet plugin, or None. `cards`: describes them; None: other tools do."""

    plugin: Registration | None = None
    cards: Cards | None = None

    def conclude(self, found: Delivered, inventory: Inventory, now: float, labels: Mapping[str, str]) -> Delivered:
        """As `DeliveryWay.conclude`. The result is unchanged if the node delivers in another way."""
        chosen = found.delivery is not None and found.delivery.dra
        if labels.get(names.DELIVERY) != names.BY_DRA and not chosen:
            return found
        kind = self.cards.describe(inventory) if self.cards is not None else found.kind
        missing, without = (self.cards.trouble, self.cards.undescribed) if self.cards is not None else ("", {})
        registered, why = _answer(self.plugin)
        delivered, condition = delivery.by_claim(found.delivery, kind, registered, why, missing, without)
        return Delivered(delivered, (*found.conditions, condition), without, kind)


def _answer(plugin: Registration | None) -> tuple[bool | None, str]:
    if plugin is None:
        return False, "the agent's setting kubelet is empty"
    return plugin.registered, plugin.why
