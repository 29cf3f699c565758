"""
The loop that places pending pods: each wake-up, and each second, it runs a scheduling cycle and the phases of a tick.

It decides nothing: it carries out the core's effects and reports the results by events. Bindings are written in
parallel, because each costs a round trip and decisions must not wait for it. Each phase is supervised separately, so
that a failure does not affect the others, and an error of one pod's write affects only that pod.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from allocator.cache.capacities import HeldBeyond
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import PodEvent, pod_event
from allocator.cache.repeated import RepeatedNote
from allocator.faults import Faulted, surfaced
from allocator.queue.parking import ParkedPod
from allocator.queue.records import Binding, EventRecord, Eviction, StatusUpdate
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    AssumedChecked,
    BindAbandoned,
    BindFailed,
    BindFaulted,
    BindSucceeded,
    BindUnknown,
    CheckAssumed,
    FencePods,
    LatePod,
    ParkedRead,
    ReadBack,
    ReadParked,
    ReadUntold,
    Relist,
    ShareTaken,
    TakeShare,
    TickPhase,
    UntoldRead,
    WriteBarrier,
)
from allocator.workers.binder import EventRecorder, Unwritable, read_back, take_share, write
from allocator.workers.evictor import Evictor
from allocator.workers.fence import Fencer
from contract import kinds, pods
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding import reading
from contract.metrics import allocator as specs
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.metrics import Metrics
from runtime.supervision import Unsupervised, Workers

log = logging.getLogger(__name__)
_SETTLE_EVERY = 1.0
_NAMESPACES = 16
"""Namespaces that are searched at a time for unseen pods."""
_LIST_TIMEOUT = 10.0
_AFTER_THE_CYCLE = (
    TickPhase.UPKEEP,
    TickPhase.FOREIGN_GATES,
    TickPhase.BINDINGS,
    TickPhase.RESERVATIONS,
    TickPhase.EVICTIONS,
)


@dataclass(frozen=True, slots=True)
class LoopCounters:
    """
    Receives the duration of each pass in seconds, and the outcome of each write, eviction and late pod.
    """

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
    """One pass for each wake-up, and the clock's part about once a second."""

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        recorder: EventRecorder,
        woken: threading.Event,
        now_ns: Callable[[], int],
        relist: Callable[[Relist], None] = lambda order: None,
        write_timeout: float = 10.0,
        protects: bool = False,
        dialects: Dialects = DIALECTS,
        writers: int = 4,
        counted: LoopCounters | None = None,
        decided: Callable[[], None] = lambda: None,
        carries: Mapping[type, Callable[[Any], None]] | None = None,
        word: Callable[[], str] = lambda: secrets.token_hex(4),
        workers: Workers | None = None,
        faulted: Faulted = surfaced,
    ) -> None:
        self._workers = workers or Unsupervised()
        self._faulted = faulted
        self._cycle_due = False
        """A wake-up arrived, and no scheduling cycle has run since."""
        self._kube = kube
        self._controller = controller
        self._recorder = recorder
        self._woken = woken
        self._now_ns = now_ns
        self._counted = counted or LoopCounters()
        self._relist = relist
        self._write_timeout = write_timeout
        self._decided = decided
        self._protects = protects
        self._dialects = dialects
        self._evictor = Evictor(kube, controller, self._counted.evicted, faulted)
        self._pool = ThreadPoolExecutor(max_workers=writers, thread_name_prefix="commit")
        self._fencer = Fencer(
            kube, controller, word=word, timeout=write_timeout, writers=self._pool, failed=self._counted.late
        )
        self._carries = {**self._own(), **(carries or {})}

    def run(self, stop: threading.Event) -> None:
        """Until stopped. Commits in progress are finished, so that none is left with an unknown result without need."""
        try:
            while not stop.is_set():
                woken = self._woken.wait(_SETTLE_EVERY)
                if woken:  # a wake-up after the wait must not be lost
                    self._woken.clear()
                self._cycle_due |= woken
                self._turn()
        finally:
            if stop.is_set():  # else this is called again
                self._pool.shutdown(wait=True)

    def _turn(self) -> None:
        self._attempt(TickPhase.TAKE_OVER)
        self._attempt(TickPhase.LATE_PODS)
        if self._cycle_due:
            self._cycle_due = not self._workers.attempt("scheduling-cycle", self.once)
        for phase in (
            TickPhase.FOREIGN_GATES,
            TickPhase.UNBOUND_PODS,
            TickPhase.UPKEEP,
            TickPhase.BINDINGS,
            TickPhase.RESERVATIONS,
            TickPhase.EVICTIONS,
        ):
            self._attempt(phase)
        self._workers.attempt("scheduling-preemption", self._evictor.preempt)

    def _attempt(self, phase: TickPhase) -> None:
        self._workers.attempt(f"scheduling-{phase}", lambda: self.carry_out(phase))

    def carry_out(self, phase: TickPhase) -> None:
        """
        Carry out the effects of one phase.

        Bindings are written in parallel, because each is a round trip; everything else in its order.
        """
        effects = self._controller.tick(phase)
        list(self._pool.map(self._resolve, (each for each in effects if isinstance(each, Binding | ReadBack))))
        for effect in effects:
            if not isinstance(effect, Binding | ReadBack):
                self._carries[type(effect)](effect)

    def _own(self) -> dict[type, Callable[[Any], object]]:
        """The core's effects other than `Binding` and `ReadBack`, and what carries them out."""
        return {
            Relist: self._list_again,
            WriteBarrier: self._fencer.write_barrier,
            FencePods: self._fencer.fence,
            LatePod: self._fencer.fail,
            TakeShare: self._take_share,
            CheckAssumed: lambda check: self._check(check.reservations),
            Eviction: self._evictor.carry_out,
            ReadParked: lambda parked: self._pool.submit(self._read_parked, parked.pod),
            ReadUntold: lambda untold: self._pool.submit(self._read_untold, untold),
            **dict.fromkeys((StatusUpdate, EventRecord, HeldBeyond, RepeatedNote), self._recorder.put),
        }

    def _list_again(self, order: Relist) -> None:
        if order.pods:
            log.info("listing pods again", extra={"term": order.term})
        self._relist(order)

    def _resolve(self, effect: Binding | ReadBack) -> None:
        """A binding with an unknown outcome: written again if this replica may, else its pod is read back."""
        if isinstance(effect, Binding):
            self._bind(effect)
        else:
            self._read_back(effect.binding)

    def once(self) -> None:
        """One scheduling cycle: decide for the queue, then write."""
        started = time.perf_counter()
        bindings, reports = self._controller.schedule_pending()
        self._counted.passed(time.perf_counter() - started)
        self._decided()
        self._write(bindings)
        for news in reports:
            self._recorder.put(news)

    def _write(self, bindings: Sequence[Binding]) -> None:
        list(self._pool.map(self._bind, bindings))

    def _take_share(self, take: TakeShare) -> None:
        """
        Remove a share from a pod; a pod that has changed is evaluated again. An unknown result frees nothing: the share
        is counted until the watch shows the pod without it.
        """
        fields = {"pod": take.key, **({"gate": take.gate} if take.gate else {"node": take.withdrawn_from})}
        try:
            take_share(self._kube, take, timeout=self._write_timeout)
        except KubeError as error:
            log.info("share not taken off a pod", extra={**fields, "reason": str(error)})
            return
        log.warning("share taken off a pod", extra=fields)
        self._controller.handle(ShareTaken(take))

    def _read_back(self, binding: Binding) -> None:
        try:
            self._settle(read_back(self._kube, binding, timeout=self._write_timeout))
        except Exception:
            self._controller.handle(BindFaulted(binding))

    def _check(self, overdue: Iterable[Reservation]) -> None:
        """
        Ask for the pods of reservations that were not seen in time, because the watch may be late.

        Some namespaces at a time, those that have waited longest first: tenants choose how many namespaces there are.
        """
        by_namespace: dict[str, list[Reservation]] = {}
        for holding in sorted(overdue, key=lambda holding: holding.since):
            by_namespace.setdefault(holding.pod.split("/", 1)[0], []).append(holding)
        some = list(by_namespace)[:_NAMESPACES]
        answers: dict[str, set[str] | None] = dict(zip(some, self._pool.map(self._held_in, some), strict=True))
        for namespace, holdings in by_namespace.items():
            self._controller.handle(AssumedChecked(tuple(holdings), answers.get(namespace)))

    def _held_in(self, namespace: str) -> set[str] | None:
        """Ids of the allocations that a namespace's pods carry; None if that could not be found out."""
        if not reading.is_label(namespace):
            return set()
        try:
            listing = self._kube.list(paths.pods(namespace), of=kinds.PODS, trim=_holds, timeout=_LIST_TIMEOUT)
        except KubeNotFound:
            return set()
        except KubeError as error:
            log.warning("unconfirmed pods not listed", extra={"namespace": namespace, "reason": str(error)})
            return None
        except Exception:
            self._faulted("overdue", namespace)
            return None
        return {item["id"] for item in listing.items}

    def _read_parked(self, parked: ParkedPod) -> None:
        """Read a pod that is known by name only. Every outcome is reported, or it would never be read again."""
        self._controller.handle(ParkedRead(parked.uid, *self._read("parked", parked.key)))

    def _read_untold(self, untold: ReadUntold) -> None:
        """Read a pod that must be told something. Every outcome is reported, or it would never be read again."""
        self._controller.handle(UntoldRead(untold.uid, untold.number, *self._read("untold", untold.key)))

    def _read(self, place: str, key: str) -> tuple[PodEvent | None, bool]:
        """The pod, None if it could not be read, and whether there is none."""
        try:
            return pod_event(self._kube.get(paths.pods(*key.split("/", 1)), timeout=_LIST_TIMEOUT), pods.trim), False
        except KubeNotFound:
            return None, True
        except KubeError as error:
            log.info("pod not read", extra={"pod": key, "reason": str(error)})
        except Exception:
            self._faulted(place, key)
        return None, False

    def _bind(self, binding: Binding) -> None:
        """Write it and report the result to the controller. No error prevents other writes or the report."""
        try:
            self._write_one(binding)
        except Unwritable:
            self._controller.handle(BindFaulted(binding, sent=False))
        except Exception:
            # It is unknown whether it was sent, so its share stays reserved until the pod has been read.
            self._controller.handle(BindFaulted(binding))

    def _write_one(self, binding: Binding) -> None:
        if self._controller.may_write_in(binding.term):
            outcome = write(
                self._kube,
                binding,
                self._now_ns(),
                protects=self._protects,
                timeout=self._write_timeout,
                dialects=self._dialects,
            )
            self._settle(outcome)
            return
        self._controller.handle(BindAbandoned(binding))
        self._counted.written("fenced")
        log.info("pod not placed", extra={**_fields(binding), "reason": "leadership lost before binding"})

    def _settle(self, outcome: BindSucceeded | BindFailed | BindUnknown) -> None:
        self._controller.handle(outcome)
        fields = _fields(outcome.binding)
        match outcome:
            case BindSucceeded():
                log.info("pod placed", extra=fields)
            case BindFailed():
                log.info("pod not placed", extra={**fields, "reason": outcome.why})
            case BindUnknown():
                log.warning("outcome of the binding unknown", extra={**fields, "reason": outcome.why})
        self._counted.written(_OUTCOMES[type(outcome)])


def _fields(binding: Binding) -> dict[str, str]:
    return {"pod": binding.pod.key, "node": binding.allocation.node}


def _holds(pod: dict[str, Any]) -> dict[str, Any]:
    return {"id": "" if pods.finished(pod) else pods.allocation_id(pod)}


_OUTCOMES: dict[type, str] = {BindSucceeded: "succeeded", BindFailed: "failed", BindUnknown: "unknown"}
