"""
One measurement: so many pods created by several clients, until each has its node, and the processor time of all.

A side is a way in which pods come to nodes. The processor time counts until everything is written that follows from the
pods, such as conditions and Events, which may be after the last pod has its node.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks import processes
from benchmarks.progress import say
from benchmarks.throughput import emptywebhook, plane, requests
from benchmarks.throughput.peers import ours
from benchmarks.throughput.peers.peer import SHARE, Peer, Reading, gib
from benchmarks.throughput.peers.table import PEERS
from contract import names
from playground.programs.process import Program
from playground.waiting import NotInTime, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeConnectionLost, KubeForbidden

JSON = dict[str, Any]
CLIENTS = 8
IDLE_WRITES = 6
"""Writes in a second that are not of pods: leases are renewed all the time."""
TENANT, OTHERS = "tenant", "others"
"""A namespace that gpufraction serves, and one that it does not."""
HELD = "held"
"""A namespace of pods that are there from the start."""
_FILLED_AT_ONCE = 5_000
_TIMEOUT = 180.0
_PROGRESS_EVERY = 10.0
_RESTING = 15.0
_AGAIN, _PAUSE = "create it again in a moment", 0.1
"""In the words of a refusal that is over soon; seconds until the next try."""
_SETTLING = 1.0
"""An API server that was requested fewer writes than IDLE_WRITES in so many seconds has settled."""


@dataclass(frozen=True, slots=True)
class Side:
    """
    A way in which pods come to nodes.

    `ours`: on the control plane with gpufraction. `limits` of the one container; `gated`: the pods wait until shares
    come free; `empty`: a webhook that does nothing else names their nodes. `by_claims`: the pods ask by a template of
    ResourceClaims, on a control plane with that component. `peer`: on a control plane of its own.
    """

    name: str
    title: str
    ours: bool
    namespace: str
    limits: Mapping[str, str]
    annotations: Mapping[str, str]
    gated: bool = False
    empty: bool = False
    by_claims: bool = False
    peer: Peer | None = None

    @property
    def plane(self) -> str:
        """The control plane on which it is measured; several sides may share it."""
        if self.by_claims:
            return WITH_CLAIMS
        return self.peer.name if self.peer else WITH_US if self.ours else WITHOUT_US

    @property
    def made(self) -> str:
        """The collection of objects that are made for each pod and stay after it; empty where there are none."""
        if self.by_claims:
            return paths.resourceclaims(self.namespace)
        shown = self.reading.shown(self.namespace) if self.reading else ""
        return "" if shown == paths.pods(self.namespace) else shown

    @property
    def reading(self) -> Reading | None:
        """How the pods' cards are read; None where the side has no cards."""
        if self.peer:
            return self.peer.reading
        return ours.READING if self.ours and self.namespace == TENANT else None

    @property
    def kills(self) -> tuple[str, ...]:
        """The programs that decide on cards."""
        if self.peer:
            return self.peer.kills
        return ours.KILLS if self.reading else ()


WITH_US, WITH_CLAIMS, WITHOUT_US = "with us", "with us and ResourceClaims", "without us"
_OURS = {str(names.GPU_MEMORY): gib(SHARE)}
KUBE_SCHEDULER = Side("kube-scheduler", "kube-scheduler alone", False, OTHERS, {plane.EXTENDED: "1"}, {})
SIDES = (
    KUBE_SCHEDULER,
    Side("empty", "an empty webhook", False, TENANT, _OURS, {}, empty=True),
    Side("beside", "kube-scheduler beside us", True, OTHERS, {plane.EXTENDED: "1"}, {}),
    Side("nodeName", "we, by nodeName", True, TENANT, _OURS, {}),
    Side("affinity", "we, by affinity", True, TENANT, _OURS, {str(names.PLACEMENT): "affinity"}),
    Side("gated", "we, gated pods", True, TENANT, _OURS, {}, gated=True),
)
"""Kubernetes alone and our own sides: measured where no side is named."""
CLAIMS = Side("claims", "we, by ResourceClaims", True, TENANT, {}, {}, by_claims=True)
"""Ours too, measured where it is named: it needs Kubernetes 1.36 and kube-controller-manager."""
BESIDE = tuple(Side(peer.name, peer.title, False, TENANT, {}, {}, peer=peer) for peer in PEERS)


def is_filled(side: Side) -> bool:
    """Whether pods of the side may hold shares before anything is measured: ours by nodeName, or kube-scheduler's."""
    if side == KUBE_SCHEDULER:
        return True
    return side.reading is ours.READING and not (side.gated or side.empty or side.by_claims)


@dataclass(frozen=True, slots=True)
class Work:
    """The work from one moment to another."""

    seconds: float
    """By the clock, until the last pod had its node or, of pods that wait, was stored."""
    cpu: Mapping[str, float]
    """Processor seconds of each program until nothing was written any more, less its idle work."""
    cpu_bound: float
    """The same of all programs, until the end of `seconds`."""
    requests: Mapping[str, float]
    """Requests for each pod, by kind."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One side of one round. `pods`: those that were placed."""

    side: str
    pods: int
    waited: Work | None
    """Gated pods: their creation, until they wait."""
    bound: Work
    known: Sequence[float] = ()
    """Seconds from each pod's creation until its card was seen; of gated pods none."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Resident bytes of each program at the end."""
    refused: int = 0
    """Creations that were refused for the moment, and tried again."""

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
    One control plane, with so many nodes that gated pods wait for. `programs`: those whose processor time counts.
    `idle_writes`: as many in a second are not of pods.
    """

    def __init__(
        self, connect: Callable[[], Kube], programs: Mapping[str, Program], *, held: int, idle_writes: int = IDLE_WRITES
    ) -> None:
        self.kube = connect()
        self.programs = dict(programs)
        self._held = held
        self._idle_writes = idle_writes
        self._clients = [connect() for _ in range(CLIENTS)]
        self._created: dict[str, float] = {}
        """When the creation of each pod of this measurement began."""
        self.refused = 0
        """Creations of this measurement that were refused and tried again."""
        self.idle: Mapping[str, float] = dict.fromkeys(programs, 0.0)
        """Processor seconds a second of each program while nothing happens."""

    def rest(self) -> Mapping[str, float]:
        """Measure the idle work of the programs, so that the length of a run does not matter."""
        self.settle()
        worked, started = self._worked(), time.perf_counter()
        time.sleep(_RESTING)
        passed = time.perf_counter() - started
        self.idle = {name: (now - worked[name]) / passed for name, now in self._worked().items()}
        return self.idle

    def measure(self, side: Side, count: int) -> Measured:
        """Create so many pods and wait until each has its node; afterwards none is left. Raises `NotInTime`."""
        if side.empty:
            return self._through_empty_webhook(side, count)
        if not side.gated:
            return self._directly(side, count)
        holders = self._hold(side)
        waited = self._work(count, None, lambda: self._create(side, count))
        seen = Placed(self.kube, side.namespace, count, besides=holders)
        bound = self._work(count, seen, lambda: self._delete(side.namespace, holders))
        self.clear(side)
        return Measured(side.name, count, waited, bound)

    def _directly(self, side: Side, count: int) -> Measured:
        seen = Placed(self.kube, side.namespace, count, reading=side.reading, partly=side.peer is not None)
        self.refused = 0
        bound = self._work(count, seen, lambda: self._create(side, count))
        memory = {name: processes.rss(program.pid) for name, program in self.programs.items()}
        known = [moment - self._created[name] for name, moment in seen.known.items()]
        seen.close()
        self.clear(side)
        return Measured(side.name, seen.count, None, bound, known, memory, self.refused)

    def one_by_one(self, side: Side, count: int) -> Sequence[float]:
        """Seconds until each pod's card is known, of pods that are created when no other one waits."""
        seen = Placed(self.kube, side.namespace, count, reading=side.reading)
        for number in range(count):
            name = f"single-{number:03}"
            self._created[name] = time.perf_counter()
            self._create_one(self.kube, side, pod_of(side, name))
            wait_for(lambda name=name: name in seen.known, f"no card of {name} is known", _TIMEOUT, every=0.002)  # type: ignore[misc]
        seen.close()
        self.clear(side)
        return [moment - self._created[name] for name, moment in seen.known.items()]

    def _through_empty_webhook(self, side: Side, count: int) -> Measured:
        with emptywebhook.registered(self.kube, side.namespace, self._open_nodes()):
            trial, pods = pod_of(side, "trial"), paths.pods(side.namespace)

            def called() -> bool:
                return "nodeName" in self.kube.create(pods, trial, {"dryRun": "All"})["spec"]

            wait_for(called, "the API server does not call the webhook yet", _TIMEOUT, every=0.1)
            self.settle()
            bound = self._work(count, Placed(self.kube, side.namespace, count), lambda: self._create(side, count))
        self.clear(side)
        return Measured(side.name, count, None, bound)

    def _open_nodes(self) -> Sequence[str]:
        found = self.kube.list(paths.nodes(), {"labelSelector": f"{plane.POOL}={plane.OPEN}"}).items
        return [node["metadata"]["name"] for node in found]

    def _work(self, count: int, placed: Placed | None, begin: Callable[[], None]) -> Work:
        asked, worked = requests.counted(self.kube.text("/metrics")), self._worked()
        started = time.perf_counter()
        begin()
        ended = placed.wait(_TIMEOUT) if placed is not None else time.perf_counter()
        bound = sum(self._since(worked, started).values())
        self.settle()
        cpu = self._since(worked, started)
        after = requests.counted(self.kube.text("/metrics"))
        count = placed.count if placed is not None else count
        return Work(ended - started, cpu, bound, requests.a_pod(asked, after, count))

    def _since(self, before: Mapping[str, float], started: float) -> dict[str, float]:
        """Processor seconds since then, less those of idle programs."""
        passed = time.perf_counter() - started
        return {name: max(now - before[name] - self.idle[name] * passed, 0.0) for name, now in self._worked().items()}

    def _worked(self) -> dict[str, float]:
        return {name: processes.cpu_seconds(program.pid) for name, program in self.programs.items()}

    def settle(self) -> None:
        """Wait until next to nothing is written any more. Raises `NotInTime`."""

        def settled() -> bool:
            before = self._revision()
            time.sleep(_SETTLING)
            return self._revision() - before < self._idle_writes

        wait_for(settled, "the API server is still written to", _TIMEOUT, every=0.0)

    def _revision(self) -> int:
        """The store's version, which each write makes one larger."""
        return int(_version(self.kube, paths.configmaps(OTHERS)))

    # -- pods -----------------------------------------------------------------------------------------------------

    def fill(self, side: Side, count: int) -> None:
        """
        So many pods of the side hold their shares from now on, in a namespace of their own. Raises `NotInTime`.

        Where kube-scheduler would place them, they are created on their nodes, which it counts as its own placements.
        """
        labels = {names.INJECT_LABEL: names.INJECT_ENABLED}
        made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HELD, "labels": labels}}
        self.kube.create(paths.namespaces(), made)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        self.kube.create(paths.path("v1", "serviceaccounts", HELD), account)
        on = () if side.reading else self._open_nodes()
        for first in range(0, count, _FILLED_AT_ONCE):
            say(f"{first} of {count} pods hold a share")
            some = range(first, min(first + _FILLED_AT_ONCE, count))
            self._create(replace(side, namespace=HELD), len(some), first=first, on=on)
        self._created.clear()
        pods = self.kube.list(paths.pods(HELD), trim=lambda pod: {"node": pod["spec"].get("nodeName")}, timeout=120)
        placed = sum(bool(each["node"]) for each in pods.items)
        if placed < count:
            raise NotInTime(f"{count - placed} of {count} pods that should hold a share have no node")

    def _create(self, side: Side, count: int, *, first: int = 0, on: Sequence[str] = ()) -> None:
        """`on`: the nodes on which the pods are, one after the other; without any the side places them."""

        def client(number: int) -> None:
            for pod in range(first + number, first + count, CLIENTS):
                made = pod_of(side, f"pod-{pod:05}")
                if on:
                    made["spec"]["nodeName"] = on[pod % len(on)]
                self._created[made["metadata"]["name"]] = time.perf_counter()
                self._create_one(self._clients[number], side, made)

        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(client, range(CLIENTS)))

    def _create_one(self, client: Kube, side: Side, made: JSON) -> None:
        """
        Create a pod. One that asks by claims is refused while the allocator does not answer in time, as on a busy
        machine: it is created again, as controllers do. Raises `KubeError`.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            try:
                client.create(paths.pods(side.namespace), made, timeout=60)
                return
            except KubeForbidden as error:
                if not side.by_claims or _AGAIN not in str(error) or time.monotonic() > deadline:
                    raise
                self.refused += 1
                time.sleep(_PAUSE)

    def _hold(self, side: Side) -> frozenset[str]:
        """Hold all cards of the nodes that gated pods wait for, by one pod for each node."""
        found = frozenset(f"holder-{number:05}" for number in range(self._held))
        placed = Placed(self.kube, side.namespace, self._held)
        for name in sorted(found):
            self.kube.create(paths.pods(side.namespace), _pod(name, {str(names.GPU_COUNT): str(plane.GPUS)}, {}, True))
        placed.wait(_TIMEOUT)
        self.settle()
        return found

    def _delete(self, namespace: str, those: frozenset[str]) -> None:
        for name in sorted(those):
            self.kube.delete(paths.pods(namespace, name), {"gracePeriodSeconds": 0}, timeout=60)

    def clear(self, side: Side) -> None:
        """Delete all its pods, and wait until nothing is written any more. Raises `NotInTime`."""
        path = paths.pods(side.namespace)
        self.kube.delete(path, {"gracePeriodSeconds": 0}, timeout=120)
        wait_for(lambda: not self.kube.list(path).items, "pods are still there", _TIMEOUT, every=0.5)
        self.settle()
        if side.made:
            # The garbage collector would do that, which does not run.
            self.kube.delete(side.made, timeout=120)
            wait_for(lambda: not self.kube.list(side.made).items, "claims are still there", _TIMEOUT, every=0.5)
            self.settle()


class Placed:
    """
    When each pod of a namespace was first seen with a node, and with its card; by watches that begin now.

    `count` pods are waited for, `besides` some that are not counted. `partly`: of those that are not placed in time
    nothing is reported, and `count` is how many were.
    """

    def __init__(
        self,
        kube: Kube,
        namespace: str,
        count: int,
        *,
        besides: frozenset[str] = frozenset(),
        reading: Reading | None = None,
        partly: bool = False,
    ) -> None:
        self.count = count
        self._besides = besides
        self._partly = partly
        self._reading = reading
        self._seen: set[str] = set()
        self.known: dict[str, float] = {}
        """When each pod's card was first seen."""
        self._ended = 0.0
        self._done = threading.Event()
        self._closed = threading.Event()
        pods = paths.pods(namespace)
        shown = reading.shown(namespace) if reading else pods
        Followed(kube, pods, self._see_pod if shown == pods else self._see, self._closed)
        if shown != pods:
            Followed(kube, shown, self._see_card, self._closed)

    def _see_pod(self, pod: JSON) -> None:
        self._see_card(pod)
        self._see(pod)

    def _see_card(self, shown: JSON) -> None:
        name = self._reading.known(shown) if self._reading else ""
        if name:
            self.known.setdefault(name, time.perf_counter())

    def _see(self, pod: JSON) -> None:
        name = pod["metadata"]["name"]
        if name not in self._besides and pod["spec"].get("nodeName") and name not in self._seen:
            self._seen.add(name)
            self._ended = time.perf_counter()
            if len(self._seen) == self.count:
                self._done.set()
                if self._reading is None:
                    self.close()

    def wait(self, timeout: float) -> float:
        """The moment of the last one. Raises TimeoutError; where `partly`, if none was placed."""
        deadline = time.monotonic() + timeout
        while not self._done.wait(_PROGRESS_EVERY):
            say(f"{len(self._seen)} of {self.count} pods have a node")
            if time.monotonic() > deadline:
                if not (self._partly and self._seen):
                    raise TimeoutError(f"{self.count - len(self._seen)} pods have no node after {timeout:.0f} s")
                self.count = len(self._seen)
                break
        return self._ended

    def close(self) -> None:
        """End the watches, which otherwise see cards that are reported after the nodes."""
        self._closed.set()


class Followed:
    """Calls `see` with each object of a collection as it is and as it changes from now on, until `closed`."""

    def __init__(self, kube: Kube, path: str, see: Callable[[JSON], None], closed: threading.Event) -> None:
        self._kube = kube
        self._path = path
        self._see = see
        self._closed = closed
        self._open = threading.Event()
        version = _version(kube, self._path)
        threading.Thread(target=self._follow, args=(version,), name="bench-watch", daemon=True).start()
        if not self._open.wait(10):
            raise TimeoutError(f"the watch of {path} does not open")

    def _follow(self, version: str) -> None:
        """An API server ends the watch of a client that does not keep up; then we list. It ends with the API server."""
        while not self._closed.is_set():
            with contextlib.suppress(KubeConnectionLost):
                self._watch(version)
            if self._closed.is_set():
                return
            listing = self._kube.list(self._path)
            for each in listing.items:
                self._see(each)
            version = listing.resource_version

    def _watch(self, version: str) -> None:
        def on_open(close: Callable[[], None]) -> None:
            self._open.set()

        seconds = int(_TIMEOUT)
        for event in self._kube.watch(self._path, resource_version=version, timeout_seconds=seconds, on_open=on_open):
            if event["type"] in ("ADDED", "MODIFIED"):
                self._see(event["object"])
            if self._closed.is_set():
                return


def _version(kube: Kube, path: str) -> str:
    """The collection's version, which is that of the whole store."""
    return next(kube.pages(path, page=1)).resource_version


def held_nodes(pods: int) -> int:
    """How many nodes the shares of so many gated pods need."""
    return -(-pods // plane.SHARES)


def pod_of(side: Side, name: str) -> JSON:
    """A small pod of the side."""
    made = _pod(name, side.limits, side.annotations, side.gated)
    if side.peer is not None:
        side.peer.pod(made)
    if side.by_claims:
        ours.name_claim(made)
    return made


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
    """The sides of these names, in their order; SIDES without any. Raises ValueError for a name that none has."""
    known = (*SIDES, CLAIMS, *BESIDE)
    unknown = set(wanted) - {side.name for side in known}
    if unknown:
        raise ValueError(f"no side {min(unknown)!r}; there are {', '.join(side.name for side in known)}")
    return tuple(side for side in known if side.name in wanted) if wanted else SIDES
