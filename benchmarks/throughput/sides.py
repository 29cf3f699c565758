"""
One measurement: so many pods created by several clients, until each has its node, and what all processes worked for it.

A side is a way in which pods come to nodes. The processor time counts until everything is written that follows from the
pods, such as conditions and Events, which may be after the last pod has its node.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import processes
from benchmarks.progress import say
from benchmarks.throughput import emptywebhook, plane, requests
from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
CLIENTS = 8
TENANT, OTHERS = "tenant", "others"
"""A namespace that gpufraction serves, and one that it does not."""
_SHARE = "8Gi"
"""Of a card of 80 GiB, so that SHARES of a node always fit."""
_TIMEOUT = 180.0
_PROGRESS_EVERY = 10.0
_RESTING = 15.0
_SETTLING, _IDLE_WRITES = 1.0, 6
"""An API server that was requested fewer writes in so many seconds has settled: leases are renewed all the time."""


@dataclass(frozen=True, slots=True)
class Side:
    """
    A way in which pods come to nodes.

    `ours`: on the control plane with gpufraction. `limits` of the one container; `gated`: the pods wait until shares
    come free; `empty`: a webhook that does nothing else names their nodes.
    """

    name: str
    title: str
    ours: bool
    namespace: str
    limits: Mapping[str, str]
    annotations: Mapping[str, str]
    gated: bool = False
    empty: bool = False


_OURS = {str(names.GPU_MEMORY): _SHARE}
KUBE_SCHEDULER = Side("kube-scheduler", "kube-scheduler alone", False, OTHERS, {plane.EXTENDED: "1"}, {})
SIDES = (
    KUBE_SCHEDULER,
    Side("empty", "an empty webhook", False, TENANT, _OURS, {}, empty=True),
    Side("beside", "kube-scheduler beside us", True, OTHERS, {plane.EXTENDED: "1"}, {}),
    Side("nodeName", "we, by nodeName", True, TENANT, _OURS, {}),
    Side("affinity", "we, by affinity", True, TENANT, _OURS, {str(names.PLACEMENT): "affinity"}),
    Side("gated", "we, gated pods", True, TENANT, _OURS, {}, gated=True),
)


@dataclass(frozen=True, slots=True)
class Work:
    """What was done from one moment to another."""

    seconds: float
    """By the clock, until the last pod had its node or, of pods that wait, was stored."""
    cpu: Mapping[str, float]
    """Processor seconds of each program until nothing was written any more, less what it works when nothing happens."""
    cpu_bound: float
    """The same of all programs, until the end of `seconds`."""
    requests: Mapping[str, float]
    """Requests for each pod, by kind."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of one round."""

    side: str
    pods: int
    waited: Work | None
    """Gated pods: their creation, until they wait."""
    bound: Work

    @property
    def parts(self) -> tuple[Work, ...]:
        return (self.bound,) if self.waited is None else (self.waited, self.bound)

    @property
    def rate(self) -> float:
        """Bound pods a second; of gated ones from the moment at which shares came free."""
        return self.pods / self.bound.seconds

    def cpu_ms(self, program: str = "") -> float:
        """Processor time a pod, of one program or of all, the time until gated pods waited included."""
        found = sum(each for part in self.parts for name, each in part.cpu.items() if program in ("", name))
        return 1e3 * found / self.pods

    @property
    def cpu_ms_bound(self) -> float:
        """Processor time a pod of all programs, without what was still to be written when the last pod had its node."""
        return 1e3 * sum(part.cpu_bound for part in self.parts) / self.pods

    def requests(self, kind: str) -> float:
        """Requests of a kind for each pod."""
        return sum(part.requests[kind] for part in self.parts)


class Bench:
    """
    One control plane, with so many nodes that gated pods wait for. `pids`: its programs, whose processor time counts.
    """

    def __init__(self, connect: Callable[[], Kube], pids: Mapping[str, int], *, held: int) -> None:
        self._kube = connect()
        self._pids = dict(pids)
        self._held = held
        self._clients = [connect() for _ in range(CLIENTS)]
        self.idle: Mapping[str, float] = dict.fromkeys(pids, 0.0)
        """Processor seconds a second of each program while nothing happens."""

    def rest(self) -> None:
        """Measure what the programs work when nothing happens, so that the length of a run does not matter."""
        self._settle()
        worked, started = self._worked(), time.perf_counter()
        time.sleep(_RESTING)
        passed = time.perf_counter() - started
        self.idle = {name: (now - worked[name]) / passed for name, now in self._worked().items()}

    def measure(self, side: Side, count: int) -> Measured:
        """Create so many pods and wait until each has its node; afterwards none is left. Raises `NotInTime`."""
        if side.empty:
            return self._through_empty_webhook(side, count)
        if not side.gated:
            bound = self._work(count, Placed(self._kube, side.namespace, count), lambda: self._create(side, count))
            self._clear(side.namespace)
            return Measured(side.name, count, None, bound)
        holders = self._hold(side)
        waited = self._work(count, None, lambda: self._create(side, count))
        seen = Placed(self._kube, side.namespace, count, besides=holders)
        bound = self._work(count, seen, lambda: self._delete(side.namespace, holders))
        self._clear(side.namespace)
        return Measured(side.name, count, waited, bound)

    def _through_empty_webhook(self, side: Side, count: int) -> Measured:
        open_nodes = self._kube.list(paths.nodes(), {"labelSelector": f"{plane.POOL}={plane.OPEN}"}).items
        names_of = [node["metadata"]["name"] for node in open_nodes]
        with emptywebhook.registered(self._kube, side.namespace, names_of):
            trial, pods = pod_of(side, "trial"), paths.pods(side.namespace)

            def called() -> bool:
                return "nodeName" in self._kube.create(pods, trial, {"dryRun": "All"})["spec"]

            wait_for(called, "the API server does not call the webhook yet", _TIMEOUT, every=0.1)
            self._settle()
            bound = self._work(count, Placed(self._kube, side.namespace, count), lambda: self._create(side, count))
        self._clear(side.namespace)
        return Measured(side.name, count, None, bound)

    def _work(self, count: int, placed: Placed | None, begin: Callable[[], None]) -> Work:
        asked, worked = requests.counted(self._kube.text("/metrics")), self._worked()
        started = time.perf_counter()
        begin()
        ended = placed.wait(_TIMEOUT) if placed is not None else time.perf_counter()
        bound = sum(self._since(worked, started).values())
        self._settle()
        cpu = self._since(worked, started)
        after = requests.counted(self._kube.text("/metrics"))
        return Work(ended - started, cpu, bound, requests.a_pod(asked, after, count))

    def _since(self, before: Mapping[str, float], started: float) -> dict[str, float]:
        """Processor seconds since then, less those of idle programs."""
        passed = time.perf_counter() - started
        return {name: max(now - before[name] - self.idle[name] * passed, 0.0) for name, now in self._worked().items()}

    def _worked(self) -> dict[str, float]:
        return {name: processes.cpu_seconds(pid) for name, pid in self._pids.items()}

    def _settle(self) -> None:
        """Wait until next to nothing is written any more. Raises `NotInTime`."""

        def settled() -> bool:
            before = self._revision()
            time.sleep(_SETTLING)
            return self._revision() - before < _IDLE_WRITES

        wait_for(settled, "the API server is still written to", _TIMEOUT, every=0.0)

    def _revision(self) -> int:
        """The store's version, which each write makes one larger."""
        return int(_version(self._kube, paths.configmaps(OTHERS)))

    # -- pods -----------------------------------------------------------------------------------------------------

    def _create(self, side: Side, count: int) -> None:
        def client(number: int) -> None:
            for pod in range(number, count, CLIENTS):
                self._clients[number].create(paths.pods(side.namespace), pod_of(side, f"pod-{pod:05}"), timeout=60)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))

    def _hold(self, side: Side) -> frozenset[str]:
        """Hold all cards of the nodes that gated pods wait for, by one pod for each node."""
        found = frozenset(f"holder-{number:05}" for number in range(self._held))
        placed = Placed(self._kube, side.namespace, self._held)
        for name in sorted(found):
            self._kube.create(paths.pods(side.namespace), _pod(name, {str(names.GPU_COUNT): str(plane.GPUS)}, {}, True))
        placed.wait(_TIMEOUT)
        self._settle()
        return found

    def _delete(self, namespace: str, those: frozenset[str]) -> None:
        for name in sorted(those):
            self._kube.delete(paths.pods(namespace, name), {"gracePeriodSeconds": 0}, timeout=60)

    def _clear(self, namespace: str) -> None:
        path = paths.pods(namespace)
        self._kube.delete(path, {"gracePeriodSeconds": 0}, timeout=120)
        wait_for(lambda: not self._kube.list(path).items, "pods are still there", _TIMEOUT, every=0.5)
        self._settle()


class Placed:
    """When each pod of a namespace was first seen with a node; by a watch that begins now."""

    def __init__(self, kube: Kube, namespace: str, count: int, *, besides: frozenset[str] = frozenset()) -> None:
        self._kube = kube
        self._path = paths.pods(namespace)
        self._count = count
        self._besides = besides
        self._seen: set[str] = set()
        self._ended = 0.0
        self._done = threading.Event()
        self._open = threading.Event()
        version = _version(kube, self._path)
        threading.Thread(target=self._follow, args=(version,), name="bench-watch", daemon=True).start()
        if not self._open.wait(10):
            raise TimeoutError("the watch of the pods does not open")

    def _follow(self, version: str) -> None:
        """Until all are seen. An API server ends the watch of a client that does not keep up; then we list."""
        while not self._done.is_set():
            self._watch(version)
            listing = self._kube.list(self._path)
            for pod in listing.items:
                self._see(pod)
            version = listing.resource_version

    def _watch(self, version: str) -> None:
        def on_open(close: Callable[[], None]) -> None:
            self._open.set()

        seconds = int(_TIMEOUT)
        for event in self._kube.watch(self._path, resource_version=version, timeout_seconds=seconds, on_open=on_open):
            if event["type"] in ("ADDED", "MODIFIED"):
                self._see(event["object"])
            if self._done.is_set():
                return

    def _see(self, pod: JSON) -> None:
        name = pod["metadata"]["name"]
        if name not in self._besides and pod["spec"].get("nodeName"):
            self._seen.add(name)
        if len(self._seen) == self._count and not self._done.is_set():
            self._ended = time.perf_counter()
            self._done.set()

    def wait(self, timeout: float) -> float:
        """The moment of the last one. Raises TimeoutError."""
        deadline = time.monotonic() + timeout
        while not self._done.wait(_PROGRESS_EVERY):
            say(f"{len(self._seen)} of {self._count} pods have a node")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._count - len(self._seen)} pods have no node after {timeout:.0f} s")
        return self._ended


def _version(kube: Kube, path: str) -> str:
    """The collection's version, which is that of the whole store."""
    return next(kube.pages(path, page=1)).resource_version


def held_nodes(pods: int) -> int:
    """How many nodes the shares of so many gated pods need."""
    return -(-pods // plane.SHARES)


def pod_of(side: Side, name: str) -> JSON:
    """A small pod of the side."""
    return _pod(name, side.limits, side.annotations, side.gated)


def _pod(name: str, limits: Mapping[str, str], annotations: Mapping[str, str], held: bool) -> JSON:
    resources = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": dict(limits)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "bench"}, "annotations": dict(annotations)},
        "spec": {
            "containers": [{"name": "main", "image": "registry.example/bench:1", "resources": resources}],
            **({"nodeSelector": {plane.POOL: plane.HELD}} if held else {}),
        },
    }


def chosen(wanted: Sequence[str]) -> tuple[Side, ...]:
    """The sides of these names, in their order; all without any. Raises ValueError for a name that none has."""
    unknown = set(wanted) - {side.name for side in SIDES}
    if unknown:
        raise ValueError(f"no side {min(unknown)!r}; there are {', '.join(side.name for side in SIDES)}")
    return tuple(side for side in SIDES if not wanted or side.name in wanted)
