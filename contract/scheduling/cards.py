"""
The amount that a waiting share counts, and the kinds of cards that determine it.

A waiting pod's resources are fixed before it is placed, so a share by percent counts as that of the smallest GPU that
it accepts. The allocator knows each GPU. The webhook keeps the kinds of cards that its allocator sent last, so that
it can count while the allocator restarts. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from contract.model import FractionRequest, GpuKind, PodRequest
from contract.scheduling.filters import kind_accepted

Smallest = Callable[[FractionRequest], int]
"""Usable bytes of the smallest GPU that a share accepts; 0 if there is none."""


def floor(request: PodRequest, smallest: Smallest) -> Mapping[str, int]:
    """The least memory that a waiting pod will have, in bytes by container. It is exact for shares by bytes."""
    return {
        fraction.container: fraction.count * fraction.memory_on(0 if fraction.memory else smallest(fraction))
        for fraction in request.containers
    }


def smallest_of(cards: Iterable[GpuKind]) -> Smallest:
    """
    The smallest of these cards that a share accepts by kind.

    For a share that names or avoids single GPUs, or has selectors, it is the largest card. The kinds do not say which
    GPUs those are, and a quota must not count less than the share has.
    """
    listed = tuple(cards)

    def smallest(fraction: FractionRequest) -> int:
        usable = [card.usable for card in listed if kind_accepted(card.model, card.memory, fraction)]
        wishes = fraction.wishes
        unknown = wishes.use_uuids or wishes.avoid_uuids or wishes.selects
        return (max if unknown else min)(usable, default=0)

    return smallest
