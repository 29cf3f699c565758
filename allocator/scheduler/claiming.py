"""
The claims' part of the allocator's state: what the watch brings of them, and the work that follows from it.

Everything is decided at the `ClaimManager`; here is the one lock around it. Like all that works on the state it works
in memory and returns what is to be written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from allocator.claims import events
from allocator.claims.lifecycle import Refused, Step
from allocator.claims.manager import ClaimManager
from allocator.claims.rendering import ClaimBinding
from allocator.queue.reporting import EventRecord
from allocator.scheduler.context import SchedulerContext
from allocator.scheduler.housekeeping import Tending

JSON = dict[str, Any]


class Claiming(Tending):
    """Claims, beside what `Intake` and `Tending` keep up."""

    def __init__(self, context: SchedulerContext) -> None:
        super().__init__(context)
        options = context.options
        self._desk = ClaimManager(
            context.cluster,
            new_id=context.new_id,
            clock=context.clock,
            most_memory=options.claim_memory,
            faulted=context.faulted,
            follows=options.claims,
        )

    def replace_claims(self, plural: str, items: Iterable[JSON], *, tenure: int | None = None) -> None:
        """The whole list of one kind of `elasticgpu.io`. `tenure`: it was asked for in this leadership."""
        with self._lock:
            self._desk.replace(plural, items)
            self._synced(plural, tenure)
            self._rouse()

    def put_claim(self, plural: str, document: JSON) -> None:
        """An object of such a kind is new or changed."""
        with self._lock:
            self._waken(self._desk.take_in(plural, document))

    def drop_claim(self, plural: str, document: JSON) -> None:
        """An object of such a kind is gone."""
        with self._lock:
            self._waken(self._desk.drop(plural, document))

    def settle(self) -> None:
        """As everywhere, and claims may be tried again whose pause is over."""
        super().settle()
        with self._lock:
            self._waken(self._desk.settle())

    def deciding(self) -> tuple[bool, int | None]:
        """Whether this replica decides now, and in which leadership."""
        with self._lock:
            return self._mandate.holds(), self._mandate.number()

    def may_write_in(self, tenure: int | None) -> bool:
        """Whether the leadership of this number still holds; to be asked right before the write."""
        return self._mandate.covers(tenure)

    def take_claim_work(self) -> tuple[int | None, list[ClaimBinding], list[Step]]:
        """What is to be written for claims now, and the leadership in which it was decided."""
        with self._lock:
            tenure = self._mandate.number()
            if not self._mandate.holds():
                self._desk.abandon()
                return tenure, [], []
            return tenure, self._desk.take_bindings(), self._desk.take_steps()

    def bound(self, bind: ClaimBinding, outcome: str | Refused) -> None:
        """What became of a binding: `done`, `not-done`, `unknown`, or refused by the API server."""
        with self._lock:
            match outcome:
                case "done":
                    self._desk.written(bind)
                case "unknown":
                    self._desk.doubtful(bind)
                case _:
                    self._desk.not_written(bind)
                    if isinstance(outcome, Refused):
                        self._note_refusal(self._desk.binding_refused(bind, outcome))
                    self._rouse()

    def stepped(self, step: Step, answer: JSON | Refused | None) -> None:
        """A step was taken, and the API server answered with the object; `Refused` or None where it was not."""
        with self._lock:
            if answer is None or isinstance(answer, Refused):
                self._desk.failed(self._desk.uid_of(step))
                if answer is not None:
                    self._note_refusal(self._desk.step_refused(step, answer))
                return
            helps, told = self._desk.stepped(step, answer), events.event(step, answer)
            if told is not None:
                self._line.note(told)
            self._waken(helps or told is not None)

    def _note_refusal(self, told: EventRecord | None) -> None:
        if told is not None:
            self._line.note(told)
            self._wake()

    def claim_counts(self) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """How many claims there are by phase and reason, and how many ElasticGPUs of ours by phase."""
        with self._lock:
            return self._desk.counts()
