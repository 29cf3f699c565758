"""
The time for which a freed share is idle: from the deletion of its pod to the removal of the next pod's gate.

It uses the whole embedded cluster with one GPU, and a queue of pods that each request all of it. One watch of the pods,
in the API server's own process, gives both times.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.admission import workload
from benchmarks.figures import MILLISECOND, Spread, machine_line, table
from benchmarks.progress import say
from contract import names, pods
from playground.api.store.watching import Watch
from playground.cluster import Cluster
from playground.embedded import Embedded
from playground.shapes import gpu_node
from runtime.kubernetes import paths

JSON = dict[str, Any]
ROUNDS = 60
_TIMEOUT = 20.0
_NAMESPACE = "default"
_WHOLE = {str(names.GPU_PERCENT): "100"}


def freed() -> Iterator[str]:
    """Measure one queue of pods, placed one by one."""
    planes: list[Embedded] = []

    def embedded(gpus_of: Any) -> Embedded:
        planes.append(Embedded(gpus_of=gpus_of))
        return planes[0]

    say(f"a line of {ROUNDS} pods for one GPU")
    with Cluster(nodes=(gpu_node("one", "1 x Tesla T4 15109MiB"),), control_plane=embedded) as cluster:
        path = paths.pods(_NAMESPACE)
        seen = Sightings(planes[0].api.watch(path))
        for number in range(ROUNDS + 1):
            cluster.kube.create(path, workload.pod(0, namespace=_NAMESPACE, name=f"pod-{number:03}", wanted=_WHOLE))
        holder = seen.wait(lambda sight: sight.running).pod
        took = []
        for _ in range(ROUNDS):
            cluster.kube.delete(f"{path}/{holder}", {"gracePeriodSeconds": 0})
            deleted = seen.wait(_deleted(holder))
            opened = seen.wait(lambda sight: not sight.gated and not sight.deleted)
            took.append(opened.at - deleted.at)
            holder = seen.wait(lambda sight: sight.running).pod
        seen.close()
    spread = Spread.of(took)
    yield table(
        f"A freed share to the next pod in a line of {ROUNDS}",
        ("rounds", "p50 ms", "p99 ms", "max ms"),
        [(str(spread.count), *spread.cells(MILLISECOND, 1))],
    )
    keys = ("p50_ms", "p99_ms", "max_ms")
    yield machine_line("freed", {"rounds": spread.count, **dict(zip(keys, spread.cells(MILLISECOND, 1), strict=True))})


def _deleted(pod: str) -> Callable[[Sight], bool]:
    return lambda sight: sight.deleted and sight.pod == pod


@dataclass(frozen=True, slots=True)
class Sight:
    """One event of the watch: its time, and the state of the pod."""

    at: int
    """By the process's performance counter, in nanoseconds."""
    pod: str
    deleted: bool
    gated: bool
    running: bool


class Sightings:
    """A watch's events with the time of each, in order."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._queue: queue.SimpleQueue[Sight] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="bench-watch", daemon=True).start()

    def _read(self) -> None:
        for event in self._watch.events():
            at, pod = time.perf_counter_ns(), event.object
            self._queue.put(
                Sight(
                    at=at,
                    pod=pod["metadata"]["name"],
                    deleted=event.type == "DELETED",
                    gated=names.GATE in pods.gates(pod),
                    running=event.type != "DELETED" and (pod.get("status") or {}).get("phase") == "Running",
                )
            )

    def wait(self, wanted: Callable[[Sight], bool]) -> Sight:
        """The next event that is wanted; those before it are dropped. Raises TimeoutError."""
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                sight = self._queue.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise TimeoutError(f"what should happen to the pods did not within {_TIMEOUT:.0f} s") from None
            if wanted(sight):
                return sight

    def close(self) -> None:
        """End the watch."""
        self._watch.close()
