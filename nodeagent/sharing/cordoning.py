"""
The GPUs that the Node's annotation `gpufraction.io/cordon` names, and its words that match no GPU.

A word is a GPU's UUID or index; a card's includes its slices. A word that names no GPU has no effect, although its
author expects one, so a condition and an Event report it.

Pure. Must not: guess which GPU was meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract import names
from contract.encoding.reading import shown
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.gpus.library import Card

NAMES_NO_GPU = "CordonNamesNoGpu"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Cordon:
    """UUIDs of the cordoned GPUs, and a condition if a word names none."""

    uuids: frozenset[str] = frozenset()
    conditions: tuple[Condition, ...] = ()


def read(words: Iterable[str], cards: Iterable[Card]) -> Cordon:
    """The cordon among these cards. No word is reported while no card can be seen."""
    seen = tuple(cards)
    meant = {word: {card.uuid for card in seen if card.uuid and _means(word, card)} for word in words}
    strangers = sorted(word for word, found in meant.items() if not found) if seen else []
    return Cordon(frozenset().union(*meant.values()), _wrong(strangers, seen))


def _means(word: str, card: Card) -> bool:
    return word == card.uuid or (
        not card.parent and word.isascii() and word.isdecimal() and len(word) <= 4 and int(word) == card.index
    )


def _wrong(strangers: list[str], cards: tuple[Card, ...]) -> tuple[Condition, ...]:
    if not strangers:
        return ()
    found = ", ".join(shown(word) for word in strangers[:_SHOWN])
    more = f" and {len(strangers) - _SHOWN} more" if len(strangers) > _SHOWN else ""
    here = ", ".join(str(card.index) for card in cards if not card.parent)
    message = (
        f"metadata.annotations[{names.CORDON}]: found {found}{more}, which is not a GPU of this node and excludes "
        f"nothing; give indexes ({here}) or UUIDs, separated by commas"
    )
    return (Condition(True, GPUNodeReason.NO_SUCH_GPU, message, NAMES_NO_GPU),)
