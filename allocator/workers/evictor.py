"""
Evictions, written: those that were ordered, and those that make room for a waiting pod; and the warnings before some.

For room it may need several pods, and a disruption budget may refuse any of them. So all are asked about first, as a
dry run, and the first real refusal ends it: nobody is evicted for a plan that cannot be carried out, as far as that can
be known. What became of each goes back to the controller, which decides what follows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from allocator.faults import Faulted, surfaced
from allocator.queue.records import EventRecord, Eviction
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    EvictionAnswered,
    EvictionOutcome,
    IdlePodWarned,
    IdleWarning,
    WarnIdlePods,
    WarningOutcome,
)
from allocator.workers.binder import evict, record
from contract.reasons.pods import PodEventReason
from runtime.kubernetes.client import Kube, KubeError

log = logging.getLogger(__name__)

_GRANTED = ("evicted", "gone")


class Evictor:
    """
    Asks the API server. `counted` is told the cause and the outcome of each eviction, `warned` the outcome of each
    warning.
    """

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        counted: Callable[[str, str], None],
        faulted: Faulted = surfaced,
        *,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
        warned: Callable[[str], None] = lambda outcome: None,
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._counted = counted
        self._faulted = faulted
        self._clock = clock
        self._warned = warned

    def carry_out(self, order: Eviction) -> None:
        """Evict one pod."""
        self._counted(order.cause, self._evict(order))

    def _evict(self, order: Eviction, *, dry_run: bool = False) -> EvictionOutcome:
        try:
            return evict(self._kube, order, dry_run=dry_run)
        except Exception:
            self._faulted("evict", order.key)
            return "failed"

    def warn(self, plan: WarnIdlePods) -> None:
        """
        Warn the victims of one plan that they are evicted soon. Where one of the evictions would not be allowed now,
        nobody is warned for a plan that cannot be carried out.
        """
        for warning in plan.warnings:
            granted = self._evict(warning.eviction, dry_run=True)
            if granted != "evicted":
                self._answer(warning, granted)
                return
        for warning in plan.warnings:
            self._answer(warning, self._warn(warning))

    def _warn(self, warning: IdleWarning) -> WarningOutcome:
        order = warning.eviction
        try:
            record(
                self._kube,
                EventRecord("Pod", order.key, order.uid, PodEventReason.IDLE, warning.message),
                self._clock(),
            )
        except KubeError as error:
            log.warning("idle pod not warned", extra={"pod": order.key, "reason": str(error)})
            return "failed"
        except Exception:
            self._faulted("warn", order.key)
            return "failed"
        log.warning("idle pod warned", extra={"pod": order.key})
        return "warned"

    def _answer(self, warning: IdleWarning, outcome: WarningOutcome) -> None:
        self._warned(outcome)
        self._controller.handle(IdlePodWarned(warning, outcome))

    def preempt(self) -> None:
        """Make room for a waiting pod, if somebody's going would."""
        orders = self._controller.preempt()
        for dry_run in (True, False):
            for order in orders:
                outcome = self._evict(order, dry_run=dry_run)
                if dry_run and outcome in _GRANTED:
                    continue
                self._counted(order.cause, outcome)
                self._controller.handle(EvictionAnswered(order, outcome))
                if outcome not in _GRANTED:
                    return
