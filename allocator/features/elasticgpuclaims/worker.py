"""
The thread that writes for claims, and the GPU objects alongside them.

It runs in every replica and writes only in the leading one: only that one gets work from the controller, and the worker
checks again right before each write. GPU objects come last and in small numbers: a card's free part may change with
every pod, and only the latest state is worth a write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from allocator.faults import Faulted, surfaced
from allocator.features.elasticgpuclaims import cards, objects, writer
from allocator.features.elasticgpuclaims.cards import CardWrite
from allocator.features.elasticgpuclaims.changes import ClaimBindingAnswered, ClaimOutcome, ClaimStepAnswered
from allocator.features.elasticgpuclaims.lifecycle import Refused, Step
from allocator.features.elasticgpuclaims.part import ClaimsPart
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.scheduler.core import Controller
from contract import kinds
from contract.model import NodeState
from contract.scheduling.filters import Limits
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_AT_LEAST_EVERY = 1.0
_LIST_EVERY = 600.0
"""Seconds until GPU objects are listed again, since somebody may have deleted some."""


class Claims:
    """
    Call `run` on a thread of its own. `woken` is set when there may be work.

    `card_writes`: the most GPU objects to write per second; 0 writes none. `timeout`: seconds for one write.
    """

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        part: ClaimsPart,
        woken: threading.Event,
        limits: Limits,
        card_writes: int,
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
        faulted: Faulted = surfaced,
    ) -> None:
        self._faulted = faulted
        self._kube = kube
        self._controller = controller
        self._part = part
        self._woken = woken
        self._limits = limits
        self._timeout = timeout
        self._clock = clock
        self._card_writes = card_writes
        self._cards: dict[str, dict[str, JSON]] | None = None
        """The current GPU objects, by node and by name, since the list of `_listed_in`."""
        self._right: dict[str, NodeState | None] = {}
        """The node's state for which its objects were last correct."""
        self._listed_in: int | None = None
        self._next_cards = self._list_again = 0.0

    def run(self, stop: threading.Event) -> None:
        """Run until stopped."""
        while not stop.is_set():
            self._woken.wait(_AT_LEAST_EVERY)
            self._woken.clear()
            self.once()
            now = self._clock()
            if now >= self._next_cards:
                self._next_cards = now + 1.0
                self.write_cards()

    def once(self) -> None:
        """Write until nothing is left: an answer may require the next step at once."""
        while self._round():
            pass

    def _round(self) -> bool:
        term, bindings, steps = self._controller.locked(self._part.effects)
        for bind in bindings:
            fenced = not self._controller.may_write_in(term)
            self._controller.handle(ClaimBindingAnswered(bind, "failed" if fenced else self._bind(bind)))
        for step in steps:
            if not self._controller.may_write_in(term):
                return False
            self._controller.handle(ClaimStepAnswered(step, self._step(step)))
        return bool(steps)

    def _bind(self, bind: ClaimBinding) -> ClaimOutcome:
        try:
            return writer.bind(self._kube, bind, timeout=self._timeout)
        except Exception:
            self._faulted("claim", bind.claim.key)
            return "unknown"

    def _step(self, step: Step) -> JSON | Refused | None:
        try:
            return writer.step(self._kube, step, timeout=self._timeout)
        except Exception:
            self._faulted("claim", step.name)
            return None

    # -- GPU objects ----------------------------------------------------------------------------------------------

    def write_cards(self) -> None:
        """
        Update the GPU objects, at most as many as one second allows.

        Only nodes whose state has changed since their objects were last correct are compared.
        """
        decides, term = self._controller.deciding()
        if not decides or not self._card_writes:
            self._cards = None
            return
        try:
            known = self._known(term)
            states = {state.name: state for state in self._controller.nodes()}
            left = self._card_writes
            for node in sorted(states.keys() | known.keys() | self._right.keys()):
                state = states.get(node)
                if node in self._right and self._right[node] is state:
                    continue
                left -= self._write_node(node, state, known.setdefault(node, {}), left, term)
                if left <= 0:
                    return
        except KubeNotFound:
            self._cards = None  # the kind is not served
        except KubeError as error:
            self._cards = None
            log.info("GPU objects not written", extra={"reason": str(error)})

    def _write_node(
        self, node: str, state: NodeState | None, known: dict[str, JSON], most: int, term: int | None
    ) -> int:
        """Write the objects of one node's cards, up to the limit. Returns how many were written."""
        wanted = cards.wanted([state] if state is not None else [], self._limits)
        number = 0
        for write in cards.writes(dict(known), wanted):
            if number == most or not self._controller.may_write_in(term):
                return most
            self._write(known, write)
            number += 1
        if not number:
            self._right[node] = state
        return number

    def _known(self, term: int | None) -> dict[str, dict[str, JSON]]:
        now = self._clock()
        if self._cards is None or self._listed_in != term or now >= self._list_again:
            self._cards = {}
            self._right = {}
            self._listed_in = term
            self._list_again = now + _LIST_EVERY
            for item in self._kube.list(writer.path(objects.CARDS), of=kinds.CARDS).items:
                node = str((item.get("spec") or {}).get("nodeName", ""))
                self._cards.setdefault(node, {})[item["metadata"]["name"]] = item
        return self._cards

    def _write(self, known: dict[str, JSON], write: CardWrite) -> None:
        found = writer.card(self._kube, write, timeout=self._timeout)
        if found is None:
            known.pop(write.name, None)
        else:
            known[write.name] = found
