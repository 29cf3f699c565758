"""
The feature's part of the core: it handles watch events and write results of claims, and returns the next writes.
"""

from __future__ import annotations

from collections import Counter

from allocator.features.elasticgpuclaims import events, objects
from allocator.features.elasticgpuclaims.changes import (
    ClaimBindingAnswered,
    ClaimChanged,
    ClaimDeleted,
    ClaimsListed,
    ClaimStepAnswered,
)
from allocator.features.elasticgpuclaims.lifecycle import Refused, Step
from allocator.features.elasticgpuclaims.manager import ClaimManager
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.queue.records import EventRecord
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart


class ClaimsPart:
    """
    Claims in the core. `most_memory`: bytes for the claims of one namespace together, 0 for any.
    """

    def __init__(self, core: Core, *, most_memory: int = 0) -> None:
        self._core = core
        self._records = core.state.records
        self._trigger = core.state.trigger
        self.manager = ClaimManager(
            core.state.cache,
            new_id=core.new_id,
            clock=core.clock,
            most_memory=most_memory,
            faulted=core.faulted,
            by_claims=core.by_claims,
        )
        """Other parts only read it, under the lock."""

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(
            handlers={
                ClaimsListed: self._listed,
                ClaimChanged: self._changed,
                ClaimDeleted: self._deleted,
                ClaimBindingAnswered: self._binding_answered,
                ClaimStepAnswered: self._step_answered,
            },
            ticks={TickPhase.UPKEEP: self._tick},
            lists=frozenset((objects.CLAIMS, objects.CLASSES, objects.SHARES)),
            booked=frozenset((objects.SHARES,)),
            claims=self.manager,
        )

    def effects(self) -> tuple[int | None, list[ClaimBinding], list[Step]]:
        """The effects for claims, each once, with the term of leadership in which they were decided."""
        leadership = self._core.state.leadership
        if not leadership.holds():
            self.manager.bindings.abandon()
            return leadership.number(), [], []
        term = leadership.number()
        return term, self.manager.bindings.take(self._core.clock(), term), self.manager.steps.take()

    def counts(self) -> tuple[Counter[tuple[str, str]], Counter[str]]:
        """The number of claims by phase and reason, and of our ElasticGPUs by phase."""
        return self.manager.store.counts()

    def _tick(self, now: float) -> tuple[()]:
        self._trigger.event(self.manager.store.tick())
        return ()

    def _listed(self, event: ClaimsListed, now: float) -> None:
        self.manager.store.replace(event.plural, event.documents)
        self._core.synced(event.plural, event.term)
        self._trigger.requeue()

    def _changed(self, event: ClaimChanged, now: float) -> None:
        self._trigger.event(self.manager.store.take_in(event.plural, event.document))

    def _deleted(self, event: ClaimDeleted, now: float) -> None:
        self._trigger.event(self.manager.store.drop(event.plural, event.document))

    def _binding_answered(self, event: ClaimBindingAnswered, now: float) -> None:
        binding, outcome = event.binding, event.outcome
        match outcome:
            case "succeeded":
                self.manager.steps.written(binding)
            case "unknown":
                self.manager.bindings.unresolved(binding, now)
            case _:
                refused = outcome if isinstance(outcome, Refused) else None
                self._note_refusal(self.manager.steps.not_written(binding, refused))
                self._trigger.requeue()

    def _step_answered(self, event: ClaimStepAnswered, now: float) -> None:
        step, answer = event.step, event.answer
        if answer is None or isinstance(answer, Refused):
            self._note_refusal(self.manager.steps.failed(step, answer))
            return
        helps = self.manager.steps.stepped(step, answer)
        record = events.event(step, answer)
        if record is not None:
            self._records.note(record)
        self._trigger.event(helps or record is not None)

    def _note_refusal(self, record: EventRecord | None) -> None:
        if record is not None:
            self._records.note(record)
            self._trigger.wake()
