"""
The loop that places waiting pods: woken by what might help, it runs a scheduling cycle and writes what was decided.

It reads as its phases: decide, write, settle. Writes go out side by side, since a placement costs one round trip and
decisions must not wait for it. Each phase is supervised by itself, so that one which fails keeps none of the others
from its work, and an error that comes of one pod's write stays with that pod. Nothing else lives here.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from allocator.cache.ledger import Reservation
from allocator.faults import Faulted, surfaced
from allocator.queue.records import Binding
from allocator.scheduler.core import Controller
from allocator.workers.binder import BindFailed, BindSucceeded, BindUnknown, EventRecorder, Unwritable, read_back, write
from allocator.workers.evictor import Evictor
from allocator.workers.fence import Fencer
from contract import pods
from contract.encoding import reading
from contract.metrics import allocator as specs
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.metrics import Metrics
from runtime.supervision import Unsupervised, Workers

log = logging.getLogger(__name__)
_SETTLE_EVERY = 1.0
_NAMESPACES = 16
"""In which it is looked at a time for pods that were not seen."""
_LIST_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class LoopCounters:
    """Who is told how long each pass took, in seconds, and what became of each write, eviction and late pod."""

    passed: Callable[[float], None] = lambda seconds: None
    written: Callable[[str], None] = lambda outcome: None
    evicted: Callable[[str, str], None] = lambda cause, outcome: None
    late: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, metrics: Metrics) -> LoopCounters:
        """The metrics."""
        bindings, evictions = metrics.counter(specs.BINDINGS), metrics.counter(specs.EVICTIONS)
        return cls(
            passed=metrics.histogram(specs.SCHEDULING_CYCLE_SECONDS).observe,
            written=lambda outcome: bindings.labels(outcome=outcome).inc(),
            evicted=lambda cause, outcome: evictions.labels(cause=cause, outcome=outcome).inc(),
            late=metrics.counter(specs.LATE_PODS).inc,
        )


class SchedulingLoop:
    """One pass a wake-up, and the clock's part about once a second."""

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        recorder: EventRecorder,
        woken: threading.Event,
        now_ns: Callable[[], int],
        relist: Callable[[int | None], None] = lambda term: None,
        write_timeout: float = 10.0,
        writers: int = 4,
        counted: LoopCounters | None = None,
        decided: Callable[[], None] = lambda: None,
        word: Callable[[], str] = lambda: secrets.token_hex(4),
        workers: Workers | None = None,
        faulted: Faulted = surfaced,
    ) -> None:
        self._workers, self._faulted = workers or Unsupervised(), faulted
        self._cycle_due = False
        """A wake-up arrived, and no scheduling cycle has run since."""
        self._kube, self._controller, self._recorder = kube, controller, recorder
        self._woken, self._now_ns, self._counted = woken, now_ns, counted or LoopCounters()
        self._relist, self._write_timeout, self._decided = relist, write_timeout, decided
        self._relisted: int | None = None
        self._evictor = Evictor(kube, controller, self._counted.evicted, faulted)
        self._pool = ThreadPoolExecutor(max_workers=writers, thread_name_prefix="commit")
        self._fencer = Fencer(
            kube, controller, word=word, timeout=write_timeout, writers=self._pool, failed=self._counted.late
        )

    def run(self, stop: threading.Event) -> None:
        """Until stopped. Commits under way are finished, so that none is left in doubt for no reason."""
        try:
            while not stop.is_set():
                woken = self._woken.wait(_SETTLE_EVERY)
                if woken:  # a wake-up that comes after the wait must not be lost
                    self._woken.clear()
                self._cycle_due |= woken
                self._turn()
        finally:
            if stop.is_set():  # else this is called again
                self._pool.shutdown(wait=True)

    def _turn(self) -> None:
        attempt = self._workers.attempt
        attempt("placing-take-over", self._take_over)
        attempt("placing-late", self._fencer.fail_late)
        if self._cycle_due:
            self._cycle_due = not attempt("placing-line", self.once)
        attempt("placing-settle", self._controller.tick)
        attempt("placing-write", self._write_the_rest)
        attempt("placing-doubtful", self._resolve)
        attempt("placing-overdue", self._check_overdue)
        attempt("placing-evict", self._evictor.carry_out)
        attempt("placing-preempt", self._evictor.preempt)

    def _take_over(self) -> None:
        """
        Newly elected: the pods are listed anew, since the leader before may have written more than we have seen; once
        they are, what it has still under way is fenced.

        They are listed anew too where repair has found that what we know is not so.
        """
        term = self._controller.unlisted()
        if term is not None and term != self._relisted:
            self._relisted = term
            log.info("listing pods for a new leadership", extra={"term": term})
            self._relist(term)
        elif term is None and self._controller.take_relist():
            self._relist(self._controller.term())
        self._fencer.fence()

    def _write_the_rest(self) -> None:
        for each in self._controller.to_write():
            self._recorder.put(each)

    def once(self) -> None:
        """One scheduling cycle: decide for the queue, then write."""
        started = time.perf_counter()
        bindings, told = self._controller.schedule_pending()
        self._counted.passed(time.perf_counter() - started)
        self._decided()
        self._write(bindings)
        for news in told:
            self._recorder.put(news)

    def _write(self, bindings: Sequence[Binding]) -> None:
        list(self._pool.map(self._bind, bindings))

    def _resolve(self) -> None:
        """Commits of which nobody knows what became: written once more where that is ours to do, else looked for."""
        self._write(self._controller.unresolved())
        list(self._pool.map(self._look_for, self._controller.to_read_back()))

    def _look_for(self, binding: Binding) -> None:
        try:
            self._settle(binding, read_back(self._kube, binding, timeout=self._write_timeout))
        except Exception:
            self._controller.bind_faulted(binding)

    def _check_overdue(self) -> None:
        """
        Reservations whose pods were not seen in time: ask for the pods, since the watch may be what is late.

        Some namespaces at a time, those that have waited longest first: whoever can have reservations made names them.
        """
        by_namespace: dict[str, list[Reservation]] = {}
        for holding in sorted(self._controller.overdue(), key=lambda holding: holding.since):
            by_namespace.setdefault(holding.pod.split("/", 1)[0], []).append(holding)
        some = list(by_namespace)[:_NAMESPACES]
        for namespace, exist in zip(some, self._pool.map(self._held_in, some), strict=True):
            holdings = by_namespace.pop(namespace)
            if exist is None:
                self._controller.not_listed(holdings)
            else:
                self._controller.expire(holdings, exist)
        for left in by_namespace.values():
            self._controller.not_listed(left)

    def _held_in(self, namespace: str) -> set[str] | None:
        """Ids of the allocations that a namespace's pods carry; None where that could not be found out."""
        if not reading.is_label(namespace):
            return set()
        try:
            listing = self._kube.list(paths.pods(namespace), trim=_holds, timeout=_LIST_TIMEOUT)
        except KubeNotFound:
            return set()
        except KubeError as error:
            log.warning("unconfirmed pods not listed", extra={"namespace": namespace, "reason": str(error)})
            return None
        except Exception:
            self._faulted("overdue", namespace)
            return None
        return {item["id"] for item in listing.items}

    def _bind(self, binding: Binding) -> None:
        """Write it and tell the controller. No error keeps others from being written, or leaves this one as it is."""
        try:
            self._commit_one(binding)
        except Unwritable:
            self._controller.bind_faulted(binding, sent=False)
        except Exception:
            # Whether it went out is not known, so its share stays reserved until the pod has been looked at.
            self._controller.bind_faulted(binding)

    def _commit_one(self, binding: Binding) -> None:
        fields = {"pod": binding.pod.key, "node": binding.allocation.node}
        if not self._controller.may_write(binding):
            self._controller.abandon(binding)
            self._counted.written("fenced")
            log.info("pod not placed", extra={**fields, "reason": "leadership lost before binding"})
            return
        self._settle(binding, write(self._kube, binding, self._now_ns(), timeout=self._write_timeout))

    def _settle(self, binding: Binding, outcome: BindSucceeded | BindFailed | BindUnknown) -> None:
        fields = {"pod": binding.pod.key, "node": binding.allocation.node}
        match outcome:
            case BindSucceeded(pod):
                self._controller.bind_succeeded(binding, pod)
                log.info("pod placed", extra=fields)
            case BindFailed(pod, why, refused):
                self._controller.bind_failed(binding, pod, why, refused=refused)
                log.info("pod not placed", extra={**fields, "reason": why})
            case BindUnknown(why):
                self._controller.bind_unknown(binding)
                log.warning("outcome of the binding unknown", extra={**fields, "reason": why})
        self._counted.written(_OUTCOMES[type(outcome)])


def _holds(pod: dict[str, Any]) -> dict[str, Any]:
    return {"id": "" if pods.finished(pod) else pods.allocation_id(pod)}


_OUTCOMES: dict[type, str] = {BindSucceeded: "succeeded", BindFailed: "failed", BindUnknown: "unknown"}
