"""
The thread that writes for claims, and the GPU objects beside them.

It runs in every replica and writes in the one that leads: the controller gives work to no other, and right before each
write it is asked again. GPU objects come last and in small numbers: what a card has left may change with every pod,
and only the last state of a moment is worth a write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from allocator.claims import cards, objects, writer
from allocator.claims.cards import Write
from allocator.controller import Controller
from allocator.filters import Limits
from runtime.kube import Kube, KubeError, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_AT_LEAST_EVERY = 1.0


class Claims:
    """
    Call `run` on a thread of its own. `woken` is set when there may be something to write.

    `card_writes`: GPU objects written in a second, at most; 0 writes none. `timeout`: seconds for one write.
    """

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        woken: threading.Event,
        limits: Limits,
        card_writes: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kube, self._controller, self._woken = kube, controller, woken
        self._limits, self._timeout, self._clock = limits, timeout, clock
        self._card_writes = card_writes
        self._cards: dict[str, JSON] | None = None
        """GPU objects as they stand, since they were listed in `_listed_in`."""
        self._listed_in: int | None = None
        self._next_cards = 0.0

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.is_set():
            self._woken.wait(_AT_LEAST_EVERY)
            self._woken.clear()
            self.once()
            now = self._clock()
            if now >= self._next_cards:
                self._next_cards = now + 1.0
                self.write_cards()

    def once(self) -> None:
        """Write until nothing is left to be written: what was answered may call for the next step at once."""
        while self._round():
            pass

    def _round(self) -> bool:
        tenure, bindings, steps = self._controller.take_claim_work()
        for bind in bindings:
            fenced = not self._controller.may_write_in(tenure)
            self._controller.bound(bind, "not-done" if fenced else writer.bind(self._kube, bind, timeout=self._timeout))
        for step in steps:
            if not self._controller.may_write_in(tenure):
                return False
            self._controller.stepped(step, writer.step(self._kube, step, timeout=self._timeout))
        return bool(steps)

    # -- GPU objects ----------------------------------------------------------------------------------------------

    def write_cards(self) -> None:
        """Bring the GPU objects up to date, so many of them as a second allows."""
        decides, tenure = self._controller.deciding()
        if not decides or not self._card_writes:
            self._cards = None
            return
        try:
            known = self._known(tenure)
            wanted = cards.wanted(self._controller.nodes(), self._limits)
            for number, write in enumerate(cards.writes(known, wanted), 1):
                if number > self._card_writes or not self._controller.may_write_in(tenure):
                    return
                self._write(known, write)
        except KubeNotFound:
            self._cards = None  # the kind is not served
        except KubeError as error:
            self._cards = None
            log.info("GPU objects not written", extra={"reason": str(error)})

    def _known(self, tenure: int | None) -> dict[str, JSON]:
        if self._cards is None or self._listed_in != tenure:
            listing = self._kube.list(writer.path(objects.CARDS))
            self._cards = {item["metadata"]["name"]: item for item in listing.items}
            self._listed_in = tenure
        return self._cards

    def _write(self, known: dict[str, JSON], write: Write) -> None:
        found = writer.card(self._kube, write, timeout=self._timeout)
        if found is None:
            known.pop(write.name, None)
        else:
            known[write.name] = found
