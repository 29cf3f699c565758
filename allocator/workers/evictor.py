"""
Evictions, written: those that were ordered, and those that make room for a waiting pod.

Making room may need several evictions, and a disruption budget may refuse any of them. So all are first tried as a dry
run, and the first real refusal ends it: no pod is evicted for a plan that is known not to work. The results go back to
the controller, which decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable

from allocator.faults import Faulted, surfaced
from allocator.queue.records import Eviction
from allocator.scheduler.core import Controller
from allocator.scheduler.events import EvictionAnswered, EvictionOutcome
from allocator.workers.binder import evict
from runtime.kubernetes.client import Kube

_GRANTED = ("evicted", "gone")


def ask(kube: Kube, order: Eviction, faulted: Faulted, *, dry_run: bool = False) -> EvictionOutcome:
    """Ask for one eviction; an internal error is a failure."""
    try:
        return evict(kube, order, dry_run=dry_run)
    except Exception:
        faulted("evict", order.key)
        return "failed"


class Evictor:
    """Calls the API server. `counted`: called with the cause and the outcome of each eviction."""

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        counted: Callable[[str, str], None],
        faulted: Faulted = surfaced,
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._counted = counted
        self._faulted = faulted

    def carry_out(self, order: Eviction) -> None:
        """Evict one pod."""
        self._counted(order.cause, ask(self._kube, order, self._faulted))

    def preempt(self) -> None:
        """Make room for a waiting pod, if evictions would."""
        orders = self._controller.preempt()
        for dry_run in (True, False):
            for order in orders:
                outcome = ask(self._kube, order, self._faulted, dry_run=dry_run)
                if dry_run and outcome in _GRANTED:
                    continue
                self._counted(order.cause, outcome)
                self._controller.handle(EvictionAnswered(order, outcome))
                if outcome not in _GRANTED:
                    return
