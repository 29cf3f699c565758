"""
Which GPUs the Node's annotation `gpufraction.io/cordon` means, and which of its words mean none.

A GPU is named by its UUID or by its index; naming a card names its slices. A word that names no GPU keeps nothing out,
though its author believes otherwise. A condition and an Event report it.

Pure. Must not: guess which GPU was meant.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from contract import names
from contract.encoding.reading import shown
from nodeagent.conditions import Condition
from nodeagent.gpus.library import Card

NAMES_NO_GPU = "CordonNamesNoGpu"
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Cordon:
    """UUIDs of the GPUs that are meant, and a condition where a word means none."""

    uuids: frozenset[str] = frozenset()
    conditions: tuple[Condition, ...] = ()


def read(words: Iterable[str], cards: Iterable[Card]) -> Cordon:
    """What the words mean among these cards; no word is wrong while no card can be seen."""
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
        f"metadata.annotations[{names.CORDON}]: found {found}{more}, which is no GPU of this node and excludes none; "
        f"give indexes ({here}) or UUIDs, separated by commas"
    )
    return (Condition(True, "NoSuchGpu", message, NAMES_NO_GPU),)
