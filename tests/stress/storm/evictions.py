"""
What a watch of the pods shows of an allocator's evictions: which pods were evicted, and for which pods that may have
been.

It uses the API server's own order of events. It judges nothing; `test_preemption_storm` does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contract import names, pods
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced

JSON = dict[str, Any]


@dataclass(frozen=True)
class Eviction:
    """One pod that was removed without a client's deletion, and what was in the queue then."""

    name: str
    priority: int
    highest_waiting: int
    """The highest priority of a pod that waited then; -1 if none waited."""
    guarded_left: int | None
    """For a pod with the label: how many others with it were ready then and stay. None for a pod that was not ready."""


class Witness:
    """Receives every event of the pods. `deletes`: the names of pods that a client deleted."""

    def __init__(self, deletes: Container[str], guard: str) -> None:
        self._deletes, self._guard = deletes, guard
        self._lock = threading.Lock()  # guards everything here: the informer writes, the test reads
        self._known: dict[str, JSON] = {}
        self._evictions: dict[str, Eviction] = {}
        self._waited: dict[str, int] = {}

    def see(self, event: Event) -> None:
        """Take an event in, in order."""
        with self._lock:
            match event:
                case Replaced(items) | Part(items):
                    for each in items:
                        self._put(each)
                case Put(pod):
                    self._put(pod)
                case Deleted(pod):
                    self._put({**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}})
                    self._known.pop(pods.uid(pod), None)

    def _put(self, pod: JSON) -> None:
        uid, name = pods.uid(pod), pod["metadata"]["name"]
        if names.GATE in pods.gates(pod):
            self._waited[name] = pods.priority(pod)
        ends = "deletionTimestamp" in pod["metadata"] and not pods.finished(pod)
        if ends and name not in self._deletes and name not in self._evictions:
            self._evictions[name] = self._eviction(uid, pod)
        self._known[uid] = pod

    def _eviction(self, uid: str, pod: JSON) -> Eviction:
        waiting = [pods.priority(p) for p in self._known.values() if names.GATE in pods.gates(p) and _stays(p)]
        guarded = None
        if self._guarded(pod) and uid in self._known and scenarios.is_running(self._known[uid]):
            guarded = sum(
                self._guarded(p) and scenarios.is_running(p) for other, p in self._known.items() if other != uid
            )
        return Eviction(pod["metadata"]["name"], pods.priority(pod), max(waiting, default=-1), guarded)

    def _guarded(self, pod: JSON) -> bool:
        return self._guard in (pod["metadata"].get("labels") or {})

    # -- reading --------------------------------------------------------------------------------------------------

    def evicted(self) -> set[str]:
        """The names of the evicted pods."""
        with self._lock:
            return set(self._evictions)

    def evictions(self) -> list[Eviction]:
        """All evictions."""
        with self._lock:
            return list(self._evictions.values())

    def waited(self, above: int) -> int:
        """How many pods of a higher priority have ever waited."""
        with self._lock:
            return sum(priority > above for priority in self._waited.values())


def _stays(pod: JSON) -> bool:
    return "deletionTimestamp" not in pod["metadata"]


@contextmanager
def watching(kubeconfig: str, deletes: Container[str], guard: str) -> Iterator[Witness]:
    """A witness of the pods of the namespace `default` in this context."""
    witness = Witness(deletes, guard)
    see: Callable[[Event], None] = witness.see
    kube = Kube.connect(kubeconfig=kubeconfig, user_agent="witness")
    informer = Informer(kube, paths.pods("default"), see, name="witness")
    informer.start()
    try:
        wait_for(informer.synced.is_set, "the pods are not listed")
        yield witness
    finally:
        informer.stop()
