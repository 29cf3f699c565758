"""
The one checker for all sides: the bookings of each card, and the overcommitted cards.

Pure. It trusts no side's own accounts: a side reports only the cards that its stored objects give each pod with a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Card = tuple[str, str]
"""A node, and the key of one of its cards, such as an index or a UUID."""


@dataclass(frozen=True, slots=True)
class Booking:
    """
    A booking of a pod that has a node: `memory` of a card there, in bytes.

    `card` is empty where the pod has a node and no card is written anywhere. A pod with several cards has several.
    """

    pod: str
    node: str
    card: str
    memory: int


def overcommitted(bookings: Iterable[Booking], size: int) -> Mapping[Card, int]:
    """The cards on which more than `size` bytes are booked, with the booked bytes."""
    booked: dict[Card, int] = {}
    for each in bookings:
        if each.card:
            booked[each.node, each.card] = booked.get((each.node, each.card), 0) + each.memory
    return {card: memory for card, memory in booked.items() if memory > size}


def without_card(bookings: Iterable[Booking]) -> int:
    """How many pods have a node and no card."""
    return len({each.pod for each in bookings if not each.card})
