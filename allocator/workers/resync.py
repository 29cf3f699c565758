"""
Periodic repair: at the start of a leadership and every few minutes, a fresh list of pods against the allocator's state.

A list and a watch are never of the same moment, so a difference is looked at twice. A pod that was known before the
list was requested and is not in it was deleted; if it is still known some seconds later, the watch has lost its end. A
pod that differs from the list is read again after those seconds; if it has not changed meanwhile, the watch has lost
its change. Drift is repaired by reading all pods again through a new watch, because a list and its later events are in
order only within one stream, and because a watch that loses events cannot be trusted.

The reading thread is not the placing one, so a large list delays no pod. Findings are logged and evicted by the
controller. A failure to read leaves everything as it is and is tried again soon.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allocator.cache import podinfo
from allocator.faults import Faulted, surfaced
from allocator.scheduler import consistency
from allocator.scheduler.consistency import ListedPod
from allocator.scheduler.core import Controller
from allocator.scheduler.events import DriftFound, UncountedFound
from contract import kinds, names
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.metrics import allocator as specs
from contract.options import NO_OPTIONS, PoolOptions
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.metrics import Metrics

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_TICK = 1.0
_GRACE = 5.0
"""Seconds within which the watch should bring what the list has shown."""
_RETRY = 30.0
"""The most seconds until a pass that could not read is tried again."""
_MOST_READS = 50
"""Pods that are read again one by one; where more differ, the state is mended without that."""
_SHOWN = 5
_NOTHING: JSON = {}


@dataclass(frozen=True, slots=True)
class ResyncCounters:
    """Called with the outcome of each pass: drift by kind, and how many pods are not counted."""

    passed: Callable[[str], None] = lambda outcome: None
    drifted: Callable[[str, int], None] = lambda kind, count: None
    uncounted: Callable[[int], None] = lambda count: None

    @classmethod
    def of(cls, metrics: Metrics) -> ResyncCounters:
        """The metrics."""
        passes, drift = metrics.counter(specs.REPAIR_PASSES), metrics.counter(specs.LEDGER_DRIFT)
        return cls(
            passed=lambda outcome: passes.labels(outcome=outcome).inc(),
            drifted=lambda kind, count: drift.labels(kind=kind).inc(count),
            uncounted=metrics.gauge(specs.UNCOUNTED_PODS).set,
        )


@dataclass(frozen=True, slots=True)
class Doubts:
    """The differences of the first check: pods that differ from the list, and known pods that are not in it."""

    differing: tuple[ListedPod, ...]
    deleted: tuple[str, ...]


class Resync:
    """One pass when due, and its second look a few seconds later. `every` in seconds."""

    def __init__(
        self,
        *,
        kube: Kube,
        controller: Controller,
        clock: Callable[[], float],
        every: float,
        options: Callable[[], PoolOptions | None] = lambda: NO_OPTIONS,
        dialects: Dialects = DIALECTS,
        found: ResyncCounters | None = None,
        faulted: Faulted = surfaced,
    ) -> None:
        self._faulted = faulted
        self._kube = kube
        self._controller = controller
        self._clock = clock
        self._every = every
        self._options = options
        self._dialects = dialects
        self._found = found or ResyncCounters()
        self._due: float | None = None
        self._doubts: Doubts | None = None
        self._look_again = 0.0

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_TICK):
            self.tick()

    def tick(self) -> None:
        """Do what is due; call it about once a second."""
        now = self._clock()
        if not self._controller.decides():
            if self._due is not None:
                self._found.uncounted(0)  # the leader's to say
            self._due = None
            self._doubts = None
            return
        self._controller.report_overcommitted()
        try:
            if self._doubts is not None and now >= self._look_again:
                self._second_look(self._doubts)
            if self._doubts is None and (self._due is None or now >= self._due):
                self._due = now + self._every
                self._first_look()
        except KubeError as error:
            self._due = now + min(self._every, _RETRY)
            self._found.passed("failed")
            log.warning("repair could not list pods", extra={"reason": str(error)})

    def _first_look(self) -> None:
        selector = f"{names.INJECT_LABEL}={names.INJECT_ENABLED}"
        namespaces = self._kube.list(paths.namespaces(), {"labelSelector": selector}, of=kinds.NAMESPACES, trim=_name)
        served = frozenset(item["name"] for item in namespaces.items)
        deleted, differing, uncounted = set(self._controller.uids()), dict[str, ListedPod](), dict[str, str]()
        options = self._reading()

        def see(pod: JSON) -> JSON:
            """Most pods are not kept: a large cluster's list would not fit alongside its known state."""
            deleted.discard(podinfo.named(pod)[0])
            try:
                listed = consistency.listed(pod, options, served, self._dialects)
            except Exception:
                self._faulted("repair", podinfo.named(pod)[1])
                return _NOTHING
            if self._controller.differs(listed):
                differing[listed.uid] = listed
            if listed.uncounted:
                uncounted[listed.uid] = listed.key
            return _NOTHING

        self._kube.list(paths.pods(), of=kinds.PODS_COMPARED, trim=see)
        if differing or deleted:
            self._doubts = Doubts(tuple(differing.values()), tuple(deleted))
            self._look_again = self._clock() + _GRACE
        else:
            self._found.passed("clean")
        self._controller.handle(UncountedFound(uncounted))
        self._found.uncounted(len(uncounted))

    def _second_look(self, doubts: Doubts) -> None:
        self._doubts = None
        deleted = [uid for uid in doubts.deleted if self._controller.known(uid)]
        differing = [pod for pod in doubts.differing if self._controller.differs(pod)]
        if len(differing) <= _MOST_READS:
            differing = [pod for pod in differing if self._is_still_so(pod)]
        if not deleted and not differing:
            self._found.passed("clean")
            return
        self._found.passed("mended")
        self._found.drifted("gone", len(deleted))
        self._found.drifted("changed", len(differing))
        shown = [pod.key for pod in differing[:_SHOWN]]
        log.warning(
            "ledger differed from the API server, and is corrected",
            extra={"gone": len(deleted), "changed": len(differing), "some": shown},
        )
        self._controller.handle(DriftFound())

    def _reading(self) -> PoolOptions:
        """How pods are read now; without a document if it could never be read."""
        return self._options() or NO_OPTIONS

    def _is_still_so(self, pod: ListedPod) -> bool:
        """Whether the pod has not changed since it was listed, so that the watch has had time to bring it."""
        namespace, name = pod.key.split("/", 1)
        try:
            now = consistency.listed(
                self._kube.get(paths.pods(namespace, name)), self._reading(), dialects=self._dialects
            )
        except KubeNotFound:
            return False
        except KubeError:
            raise
        except Exception:
            self._faulted("repair", pod.key)
            return False
        return (now.uid, now.version) == (pod.uid, pod.version)


def _name(namespace: JSON) -> JSON:
    return {"name": (namespace.get("metadata") or {}).get("name", "")}
