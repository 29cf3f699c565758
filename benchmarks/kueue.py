"""
`python -m benchmarks.kueue`: queued pods through Kueue and us, alongside Kueue alone, in one run on one control plane.

It needs a real control plane (KUBEBUILDER_ASSETS) and Kueue's own program (ENGINES_ASSETS). The pods are created while
the queue is held. Then the queue is released, and the time runs until no pod has a gate: of Kueue alone, and of Kueue
and us, where each pod has its share then. No scheduler binds the pods, so the kubelets have no part in it.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks import processes
from benchmarks.figures import machine_line, table
from benchmarks.progress import say
from contract import names, pods
from contract.options import DEFAULTS
from kubectl_gpufraction.commands import kueueconfig as transformations
from playground.cluster import Cluster
from playground.engines import kueue
from playground.machinery.objects.nodes import NodeSpec
from playground.realapi.components import assets_of
from playground.realapi.real import Real
from playground.shapes import GpuNode
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
PODS, ROUNDS = 1000, 2
_NODES = [
    GpuNode(NodeSpec(f"gpus-{number}", cpu="32", memory="256Gi", pods=500), "8 x NVIDIA A100-SXM4-80GB 81920MiB")
    for number in range(3)
]
_NAMESPACE, _QUEUE = "default", "bench"
_LABEL = "kueue.x-k8s.io/queue-name"
_NOBODY = "nobody"
_WORKERS = ("Kueue", "allocator")
_TIMEOUT = 600.0
_QUOTA = {"cpu": "1000", "memory": "1000Gi", str(names.GPU_MEMORY): "10000Gi", str(names.GPU_CORES): "12800"}
SIDES: Mapping[str, Mapping[str, str]] = {
    "Kueue alone": {},
    "Kueue and gpufraction": {str(names.GPU_MEMORY): "1Gi", str(names.GPU_CORES): "1"},
}
"""The requests of each side's pods alongside CPU and memory."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of one round, in seconds."""

    created: float
    first: float
    """From the release of the queue until the first pod has no gate."""
    all: float
    """From the release of the queue until no pod has one."""
    cpu: tuple[float, ...]
    """The processor time of the programs of `_WORKERS` meanwhile."""


def measure(count: int, rounds: int, environment: Mapping[str, str] = os.environ) -> Iterator[str]:
    """Both sides by turns, so many rounds."""
    plane, folder = assets_of(environment), kueue.KUEUE.assets()
    missing = [each for each in (plane, folder) if isinstance(each, str)]
    if missing or isinstance(plane, str) or isinstance(folder, str):
        yield f"Kueue was not measured: {'; '.join(missing)}"
        return
    found: dict[str, list[Measured]] = {side: [] for side in SIDES}
    with (
        tempfile.TemporaryDirectory(prefix="bench-kueue-") as directory,
        Cluster(nodes=_NODES, control_plane=lambda gpus_of: Real(plane, gpus_of=gpus_of)) as cluster,
        kueue.running(cluster, folder, Path(directory) / "kueue", _configuration()) as running,
    ):
        running.flavor("any", {})
        running.queue(_QUEUE, "any", _QUOTA)
        for turn in range(rounds):
            for side, asks in SIDES.items():
                say(f"round {turn + 1} of {rounds}: {count} pods, {side}")
                pids = [running.program.pid, cluster.programs["allocator"].pid]
                found[side].append(_side(cluster.kube, count, asks, pids))
                _clear(cluster.kube, running)
    yield table(
        f"{count} queued pods from the release of their queue until no gate is left, {rounds} rounds by turns",
        ("side", "pods/s", "all after s", "first after s", "created/s", *(f"{name} cpu ms" for name in _WORKERS)),
        [row for side, each in found.items() for row in _rows(side, count, each)],
    )
    for side, each in found.items():
        rates = ",".join(f"{count / one.all:.0f}" for one in each)
        yield machine_line("kueue", {"side": side.replace(" ", "-"), "pods": count, "pods_per_second": rates})


def _configuration() -> JSON:
    return dict(yaml.safe_load(transformations.document(DEFAULTS)))


def _rows(side: str, count: int, measured: list[Measured]) -> Iterator[tuple[str, ...]]:
    for one in measured:
        rates = f"{count / one.all:.0f}", f"{one.all:.1f}", f"{one.first:.2f}", f"{count / one.created:.0f}"
        yield side, *rates, *(f"{1000 * worked / count:.1f}" for worked in one.cpu)


def _side(kube: Kube, count: int, asks: Mapping[str, str], pids: Sequence[int]) -> Measured:
    queue = paths.path(kueue.GROUP_VERSION, "clusterqueues", None, _QUEUE)
    kube.patch_merge(queue, {"spec": {"stopPolicy": "Hold"}})
    started = time.perf_counter()
    for number in range(count):
        kube.create(paths.pods(_NAMESPACE), _pod(f"pod-{number:04}", asks))
    created = time.perf_counter() - started
    say(f"created in {created:.0f} s")
    wait_for(lambda: len(_workloads(kube)) == count, "Kueue has not seen all pods", _TIMEOUT, every=0.5)
    with_gates = Ungated(kube, count, bool(asks))
    before, released = [processes.cpu_seconds(pid) for pid in pids], time.perf_counter()
    kube.patch_merge(queue, {"spec": {"stopPolicy": "None"}})
    times = with_gates.wait(_TIMEOUT)
    say(f"released in {times[-1] - released:.0f} s")
    worked = [processes.cpu_seconds(pid) - then for pid, then in zip(pids, before, strict=True)]
    return Measured(created, times[0] - released, times[-1] - released, tuple(worked))


def _workloads(kube: Kube) -> list[JSON]:
    return list(kube.list(paths.path(kueue.GROUP_VERSION, "workloads", _NAMESPACE)).items)


def _pod(name: str, asks: Mapping[str, str]) -> JSON:
    container = {
        "name": "main",
        "image": "registry.example/bench:1",
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, **({"limits": dict(asks)} if asks else {})},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {_LABEL: _QUEUE}},
        "spec": {"schedulerName": _NOBODY, "containers": [container]},
    }


class Ungated:
    """When each pod was first seen without a gate, and with its share where `shares`; by a watch that begins now."""

    def __init__(self, kube: Kube, count: int, shares: bool) -> None:
        self._kube = kube
        self._count = count
        self._shares = shares
        self._times: dict[str, float] = {}
        self._done = threading.Event()
        self._open = threading.Event()
        version = kube.list(paths.pods(_NAMESPACE)).resource_version
        threading.Thread(target=self._read, args=(version,), name="bench-watch", daemon=True).start()
        if not self._open.wait(10):
            raise TimeoutError("the watch of the pods does not open")

    def _read(self, version: str) -> None:
        def on_open(close: Callable[[], None]) -> None:
            self._open.set()

        path = paths.pods(_NAMESPACE)
        for event in self._kube.watch(path, resource_version=version, timeout_seconds=int(_TIMEOUT), on_open=on_open):
            pod = event["object"]
            if event["type"] != "MODIFIED" or pods.gates(pod):
                continue
            if self._shares and names.ALLOCATION not in pods.annotations_of(pod):
                continue
            self._times.setdefault(pod["metadata"]["name"], time.perf_counter())
            if len(self._times) == self._count:
                self._done.set()
                return

    def wait(self, timeout: float) -> list[float]:
        """The moments of all pods, in order. Raises TimeoutError."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"{self._count - len(self._times)} pods have a gate after {timeout:.0f} s")
        return sorted(self._times.values())


def _clear(kube: Kube, running: kueue.Kueue) -> None:
    kube.delete(paths.pods(_NAMESPACE), {"gracePeriodSeconds": 0}, timeout=60)
    wait_for(lambda: not kube.list(paths.pods(_NAMESPACE)).items, "pods are still there", _TIMEOUT, every=0.5)
    wait_for(running.holds_nothing, "quota is still held", _TIMEOUT, every=0.5)


def main() -> int:
    """Measure and print; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kueue", description="Queued pods through Kueue and us.")
    parser.add_argument("--pods", type=int, default=PODS, help="pods of each side in each round (%(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="rounds, alternating between both sides (%(default)s)"
    )
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}\n")
    for text in measure(given.pods, given.rounds):
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
