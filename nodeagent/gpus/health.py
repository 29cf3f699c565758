"""
Whether a card may take new pods, given what it reported over time.

The driver reports faults in two ways. It shows some for as long as they last (a card off the bus, a row of memory that
waits for its replacement): each look contains those. Others are events: an XID, or an uncorrectable memory error.
An event counts against its card for `quiet` seconds. So a card that was reset, or whose fault a program caused, takes
pods again without any restart.

    well ──XID not ignored, or more uncorrected errors──▶ unhealthy ──no other for `quiet` seconds──▶ well
                                                             ▲   │
                                                             └───┘ another one: counted from there

Pure except for what it remembers; the time is passed in.

Must not: ask the driver, or know what is published.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nodeagent.gpus.library import Card

IGNORED_XIDS = (13, 31, 43, 45, 68, 109)
"""Faults of a program, not of the card; the list of NVIDIA's own device plugin."""


@dataclass(frozen=True, slots=True)
class CardFault:
    """The last event that counts against a card: seconds of the caller's clock, and a sentence."""

    at: float
    reason: str


class Record:
    """The events of all cards. `quiet`: seconds; `ignored`: XIDs that are not the card's fault. One thread uses it."""

    def __init__(self, *, quiet: float = 600.0, ignored: tuple[int, ...] = IGNORED_XIDS) -> None:
        self._quiet = quiet
        self._ignored = frozenset(ignored)
        self._faults: dict[str, CardFault] = {}
        self._errors: dict[str, int] = {}

    def judged(self, cards: tuple[Card, ...], now: float) -> tuple[Card, ...]:
        """The cards of a look at `now`, unhealthy if an event counts against them, slices with their card."""
        for card in cards:
            # A slice only repeats its card's events.
            if card.uuid and not card.parent:
                self._note(card, now)
        self._faults = {uuid: fault for uuid, fault in self._faults.items() if 0 <= now - fault.at < self._quiet}
        return tuple(self._judge(card) for card in cards)

    def _note(self, card: Card, now: float) -> None:
        counting = [xid for xid in card.xids if xid not in self._ignored]
        if counting:
            self._faults[card.uuid] = CardFault(now, f"the driver reported XID {', XID '.join(map(str, counting))}")
        if card.ecc is not None:
            before = self._errors.get(card.uuid)
            # Errors from before the agent's start do not count; the driver's count restarts with the driver.
            if before is not None and card.ecc > before:
                self._faults[card.uuid] = CardFault(now, f"{card.ecc - before} memory errors could not be corrected")
            self._errors[card.uuid] = card.ecc

    def _judge(self, card: Card) -> Card:
        fault = self._faults.get(card.parent or card.uuid)
        if fault is None or not card.healthy:
            return card
        reason = f"{fault.reason}; it accepts new pods again after {self._quiet:g} s without another"
        return replace(card, healthy=False, reason=reason)
