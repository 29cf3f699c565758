"""
Card hours: exactly one allocator counts each moment, whenever allocators start and end.

The time that each allocator counted is read from its meter. This includes killed allocators, whose memory still exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allocator.features.metering.worker import MeteringWorker
from contract import names
from tests.simulation.feature import Feature, Goal, Invariant, Violation
from tests.simulation.features import leftovers
from tests.simulation.plan import Step
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

ONCE = "each moment is counted once"
_UNTOLD = ("clock.", "etcd.", "lease.")
"""Faults after which it is unclear how much time has passed: of clocks, and of the Lease with its leader."""
_LOSING = ("requests.", "partition.")
"""
Faults after which a renewal may have been carried out without its answer. Nothing counts that time, rather than two.
"""
_ROUNDED = 0.01
_LATER = 8.0
"""At most this many seconds are not counted yet by the leader."""


class Meters:
    """The meters of all allocators that ever ran, by the name of their host."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._workers: dict[str, Any] = {}
        self.since: float | None = None
        """When an allocator first began to lead, in seconds."""
        self.led: dict[str, None] = {}
        """The hosts that ever led."""
        run.notes[ONCE] = self
        run.world.network.seen.append(lambda call, status: self._note_leaders())

    def holds(self, change: Any) -> Violation | None:
        """At each renewal of the Lease: all together have counted no more than the time since the first renewal."""
        if change.resource != "leases.coordination.k8s.io" or change.object["metadata"]["name"] != names.LEASE:
            return None
        now = self._run.kernel.seconds()
        self.since = now if self.since is None else self.since
        self._look()
        return too_much(self.answered(), now - self.since) if told(self._run) else None

    def _note_leaders(self) -> None:
        """At each answered request: an allocator that is killed right after it learns that it leads counts, too."""
        self.led |= dict.fromkeys(each.host.name for each in self._run.world.leaders() if each.host is not None)

    def _look(self) -> None:
        for each in self._run.world.allocators:
            if each.alive and each.host is not None and each.host.name not in self._workers:
                found = worker_of(self._run, each)
                if found is not None:
                    self._workers[each.host.name] = found

    def answered(self) -> dict[str, float]:
        """Seconds that each of them counted."""
        return {name: worker._meter.answered() for name, worker in self._workers.items()}


def told(run: Run) -> bool:
    """Whether the plan has no fault that puts the time itself in doubt."""
    return not any(step.kind.startswith(_UNTOLD) for step in run.plan.steps)


def worker_of(run: Run, program: Program) -> MeteringWorker | None:
    """The worker of a running program; None if it has not started yet."""
    if program.running is None:
        return None
    found = (each for _, each in leftovers.walk(leftovers.root_of(run, program)) if isinstance(each, MeteringWorker))
    return next(found, None)


def loses(run: Run) -> bool:
    """Whether the plan has faults that can leave time uncounted, such as a crash instead of the answer to a renewal."""
    return any(step.kind.startswith(_LOSING) or _crashes_unanswered(step) for step in run.plan.steps)


def _crashes_unanswered(step: Step) -> bool:
    found = step.arguments
    return step.kind == "crash-at" and found["moment"] == "unanswered" and "Lease" in str(found["write"])


def too_much(answered: Mapping[str, float], elapsed: float) -> Violation | None:
    """A violation if all together counted more than the time that has passed."""
    total = sum(answered.values())
    return f"{dict(answered)} are {total:.3f} s, in {elapsed:.3f} s" if total > elapsed + _ROUNDED else None


def too_little(answered: Mapping[str, float], elapsed: float) -> Violation | None:
    """A violation if all together counted much less."""
    total = sum(answered.values())
    return f"{dict(answered)} are {total:.3f} s of {elapsed:.3f} s" if total < elapsed - _LATER else None


def _all_counted(run: Run) -> list[Violation]:
    """
    All time is counted if one allocator has led all the time. An allocator that ends loses what it had not counted yet.
    One that never learns of its last renewals does not count up to them.
    """
    meters = run.notes[ONCE]
    answered = meters.answered()
    if not told(run) or loses(run) or meters.since is None or len(meters.led) != 1:
        return []
    found = too_little(answered, run.kernel.seconds() - meters.since)
    return [] if found is None else [found]


FEATURE = Feature(
    "metering",
    invariants=(Invariant(ONCE, lambda run: Meters(run).holds),),
    goals=(Goal("all time is counted", _all_counted),),
)
