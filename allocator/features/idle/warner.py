"""
Writes the warnings of idle pods.

A disruption budget may refuse the eviction of any victim of a plan. So all evictions are tried first as a dry run, and
no pod is warned for a plan that cannot be carried out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime

from allocator.faults import Faulted, surfaced
from allocator.features.idle.part import IdlePodWarned, IdleWarning, WarnIdlePods, WarningOutcome
from allocator.queue.records import EventRecord
from allocator.scheduler.core import Controller
from allocator.workers.binder import record
from allocator.workers.evictor import ask
from contract.reasons.pods import PodEventReason
from runtime.kubernetes.client import Kube, KubeError

log = logging.getLogger(__name__)


class Warner:
    """Calls the API server. It calls `counted` with the outcome of each warning."""

    def __init__(
        self, kube: Kube, controller: Controller, *, counted: Callable[[str], None], faulted: Faulted = surfaced
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._counted = counted
        self._faulted = faulted

    def warn(self, plan: WarnIdlePods) -> None:
        """Warn the victims of one plan that they will be evicted soon."""
        for warning in plan.warnings:
            granted = ask(self._kube, warning.eviction, self._faulted, dry_run=True)
            if granted != "evicted":
                self._answer(warning, granted)
                return
        for warning in plan.warnings:
            self._answer(warning, self._warn(warning))

    def _warn(self, warning: IdleWarning) -> WarningOutcome:
        order = warning.eviction
        said = EventRecord("Pod", order.key, order.uid, PodEventReason.IDLE, warning.message)
        try:
            record(self._kube, said, datetime.now(UTC))
        except KubeError as error:
            log.warning("idle pod not warned", extra={"pod": order.key, "reason": str(error)})
            return "failed"
        except Exception:
            self._faulted("warn", order.key)
            return "failed"
        log.warning("idle pod warned", extra={"pod": order.key})
        return "warned"

    def _answer(self, warning: IdleWarning, outcome: WarningOutcome) -> None:
        self._counted(outcome)
        self._controller.handle(IdlePodWarned(warning, outcome))
