"""
Watch events of Kueue's objects, in the version that is served.

A cluster may have no Kueue, or may get or upgrade it later. So the served versions are requested from time to time, and
the watches follow. If none is served, nothing is watched and nothing is logged.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from allocator.faults import Faulted
from allocator.features.kueue import workloads
from allocator.features.kueue.checks import FitChecks
from allocator.features.kueue.workloads import CHECKS, FLAVORS, GROUP, VERSIONS, WORKLOADS, UnreadableObject
from contract import kinds
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.watch import Deleted, Event, Informer, Put, Replaced
from runtime.supervision import Workers

JSON = dict[str, Any]
log = logging.getLogger(__name__)
KINDS = (CHECKS, FLAVORS, WORKLOADS)
_READ = {CHECKS: kinds.ADMISSIONCHECKS, FLAVORS: kinds.RESOURCEFLAVORS, WORKLOADS: kinds.WORKLOADS}
_LOOK_AGAIN = 10.0
"""Seconds between two requests for the served versions."""


def served_version(kube: Kube) -> str:
    """The version of Kueue's API to use; empty if no supported one is served. Raises `KubeError`."""
    try:
        group = kube.get(f"/apis/{GROUP}")
    except KubeNotFound:
        return ""
    served = {str(each.get("version")) for each in group.get("versions") or ()}
    return next((version for version in VERSIONS if version in served), "")


class KueueInformers:
    """Feeds `FitChecks` under its lock. `refresh` is called by one thread."""

    def __init__(
        self,
        kube: Kube,
        checks: FitChecks,
        lock: threading.Lock,
        *,
        faulted: Faulted,
        changed: Callable[[], None],
        on_restart: Callable[[str, str], None] = lambda name, why: None,
        workers: Workers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`changed` is called after each event, on the informer's thread."""
        self._kube = kube
        self._checks = checks
        self._lock = lock
        self._faulted = faulted
        self._changed = changed
        self._on_restart = on_restart
        self._workers = workers
        self._clock = clock
        self.version = ""
        """The watched version; empty: none."""
        self._informers: tuple[Informer, ...] = ()
        self._look_at = float("-inf")

    def synced(self) -> bool:
        """Whether every kind has been listed."""
        return bool(self._informers) and all(informer.synced.is_set() for informer in self._informers)

    def refresh(self) -> None:
        """Watch the served version. This requests it every few seconds; without an answer nothing changes."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_AGAIN
        try:
            version = served_version(self._kube)
        except KubeError as error:
            log.info("versions of Kueue not known", extra={"reason": str(error)})
            return
        if version != self.version:
            self.stop()
            self.version = version
            self._start()

    def _start(self) -> None:
        if not self.version:
            for plural in KINDS:
                self._take(plural, Replaced([]))
            return
        log.info("watching Kueue", extra={"version": self.version})
        self._informers = tuple(self._informer(plural) for plural in KINDS)
        for informer in self._informers:
            informer.start()

    def stop(self) -> None:
        """Stop watching."""
        for informer in self._informers:
            informer.stop()
        self._informers = ()

    def _informer(self, plural: str) -> Informer:
        return Informer(
            self._kube,
            paths.path(f"{GROUP}/{self.version}", plural),
            lambda event: self._take(plural, event),
            name=f"kueue-{plural}",
            of=_READ[plural],
            trim=self._trim if plural == WORKLOADS else None,
            on_restart=lambda why: self._on_restart(f"kueue-{plural}", why),
            optional=True,
            workers=self._workers,
        )

    def _trim(self, document: JSON) -> JSON:
        """An unreadable object counts as one without quota; the others are still read."""
        try:
            return workloads.trim(document)
        except UnreadableObject as error:
            log.warning("workload unreadable", extra={"reason": str(error)})
        except Exception:
            self._faulted("kueue", workloads.key_of(document))
        return {"metadata": document.get("metadata") or {}}

    def _take(self, plural: str, event: Event) -> None:
        match event:
            case Replaced(items):
                with self._lock:
                    self._checks.listed(plural, [workloads.key_of(each) for each in items])
                for each in items:
                    self._put(plural, each)
            case Put(document):
                self._put(plural, document)
            case Deleted(document):
                with self._lock:
                    self._checks.deleted(plural, document)
        self._changed()

    def _put(self, plural: str, document: JSON) -> None:
        """An object that fails does not affect the others."""
        try:
            with self._lock:
                self._checks.changed(plural, document, self._clock())
        except UnreadableObject as error:
            log.warning("object of Kueue's unreadable", extra={"kind": plural, "reason": str(error)})
        except Exception:
            self._faulted("kueue", f"{plural} {workloads.key_of(document)}")
