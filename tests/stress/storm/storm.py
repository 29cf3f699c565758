"""
Many pods at once from several clients, some of them deleted again, while leaders are killed, and what must hold then.

The same storm in two sizes: small in the ordinary tests, 1,000 pods in `make storm`. Everything random comes from one
seed, which a failure prints.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import (
    Kube,
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeNotFound,
    KubeTooManyRequests,
    KubeUnavailable,
)
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
_PATIENCE, _PAUSE = 60.0, 0.1
_AGAIN = "again in a moment"
KEPT = "storm-keeps"
"""A label of pods that no client deletes."""


@dataclass
class Storm:
    """
    One storm. `strike` is the fault, repeated after `strike_every` seconds; it returns whether it hit. `deleted` is the
    fraction of the pods that is deleted again. A `seed` repeats a storm, as far as threads and processes allow.
    """

    cluster: Cluster
    pods: int
    clients: int = 4
    strike: Callable[[Storm], bool] = lambda storm: storm.kill_leader()
    strike_every: float = 3.0
    deleted: float = 0.1
    seed: int = 1
    make: Callable[[str, random.Random], PodBuilder] = field(default_factory=lambda: made)
    """Creates a pod of that name."""
    evicted: Callable[[], Collection[str]] = tuple
    """The names of the pods that the allocator has evicted so far."""
    deletes: set[str] = field(default_factory=set)
    """The names of the pods whose deletion was requested."""
    created: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    strikes: int = 0
    _half: threading.Event = field(default_factory=threading.Event)
    _gusts: int = 0
    _killed: str = ""

    def blow(self) -> None:
        """
        Create and delete until all pods were created, and strike meanwhile. The first strike comes at half time at the
        latest, however fast the machine is. Then restart all programs. It can be called again.
        """
        stop = threading.Event()
        self._half.clear()
        striking = threading.Thread(target=self._strike, args=(stop,), name="striking", daemon=True)
        striking.start()
        try:
            with ThreadPoolExecutor(self.clients, thread_name_prefix="client") as clients:
                list(clients.map(self._client, range(self.clients)))
        finally:
            stop.set()
            self._half.set()
            striking.join()
        self._gusts += 1
        for program in self.cluster.programs.values():
            if not program.alive() and program.name != "certs":
                program.start()

    def _client(self, number: int) -> None:
        kube = Kube.connect(kubeconfig=str(self.cluster.kubeconfig), user_agent=f"client-{number}")
        rng = random.Random(f"{self.seed}-{self._gusts}-{number}")
        mine: list[str] = []
        each = self.pods // self.clients
        for index in range(each):
            if index == each // 2:
                self._half.set()
            name = f"storm-{self._gusts}-{number}-{index}"
            builder = self.make(name, rng)
            if self._create(kube, builder) and not builder.manifest()["metadata"].get("labels", {}).get(KEPT):
                mine.append(name)
            if mine and rng.random() < self.deleted:
                self._delete(kube, mine.pop(rng.randrange(len(mine))))

    def _create(self, kube: Kube, builder: PodBuilder) -> bool:
        manifest = builder.manifest()
        name = manifest["metadata"]["name"]
        try:
            self._insist(lambda: kube.create(paths.pods("default"), manifest))
        except KubeConflict:  # an earlier attempt succeeded after all
            pass
        except KubeError as error:
            self.refused.append(f"{name}: {error}")
            return False
        self.created.append(name)
        return True

    def _delete(self, kube: Kube, name: str) -> None:
        self.deletes.add(name)
        with contextlib.suppress(KubeNotFound):  # by an earlier attempt
            self._insist(lambda: kube.delete(paths.pods("default", name)))
        self.created.remove(name)

    def _insist(self, write: Callable[[], object]) -> None:
        """
        Write until there is an answer: a program that is down is back in a moment, as for any client of a cluster.
        """
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                write()
                return
            except (KubeUnavailable, KubeTooManyRequests, KubeForbidden) as error:
                # A percentage is refused while it is unknown what a quota has to count for it. A controller would also
                # create the pod again then.
                if time.monotonic() > deadline or (isinstance(error, KubeForbidden) and _AGAIN not in str(error)):
                    raise
                time.sleep(_PAUSE)

    def _strike(self, stop: threading.Event) -> None:
        """Strike until stopped, and at least until one strike has hit."""
        self._half.wait(self.strike_every)
        before = self.strikes
        while not stop.is_set() or self.strikes == before:
            hit = self.strike(self)
            self.strikes += hit
            if hit:
                stop.wait(self.strike_every)
            else:
                time.sleep(_PAUSE)

    def kill_leader(self) -> bool:
        """
        Send SIGKILL to the allocator that the Lease names, unless it was already killed. It is restarted in a moment.
        """
        leader, identity = self._leader()
        if leader is None or identity == self._killed:
            return False
        leader.kill()
        self._killed = identity
        time.sleep(0.5)  # the minimum time that a kubelet takes
        leader.start()
        return True

    def _leader(self) -> tuple[Program | None, str]:
        """The allocator that the Lease names, and that name."""
        path = paths.path("coordination.k8s.io/v1", "leases", names.NAMESPACE, "gpufraction-allocator")
        try:
            holder = str(self.cluster.kube.get(path)["spec"].get("holderIdentity") or "")
        except KubeError:
            return None, ""
        for replica in self.cluster.replicas:
            if holder.startswith(f"replica-{replica.number}_"):
                return self.cluster.programs[replica.name("allocator")], holder
        return None, holder

    def settle(self, timeout: float) -> list[JSON]:
        """Wait until every created pod runs or waits with a reason, and no waiting pod would fit."""
        found: list[JSON] = []

        def quiet() -> bool:
            found[:] = [p for p in scenarios.all_pods(self.cluster.kube) if "deletionTimestamp" not in p["metadata"]]
            return not self._amiss(found) and all(
                scenarios.is_running(p) or scenarios.waits(p) or pods.finished(p) for p in found
            )

        wait_for(
            quiet,
            lambda: f"seed {self.seed}: amiss {self._amiss(found)}; " + "; ".join(_troubled(found)),
            timeout,
            every=0.5,  # a list of a thousand pods takes time that the cluster itself needs to come to rest
        )
        return found

    def _amiss(self, found: list[JSON]) -> set[str]:
        """The names of pods that should exist and do not, and of pods that exist and should not."""
        return {p["metadata"]["name"] for p in found} ^ (set(self.created) - set(self.evicted()))


def _troubled(found: list[JSON]) -> Iterator[str]:
    """How many pods exist, and the first of those that neither run nor wait with a reason."""
    settled = (scenarios.is_running, scenarios.waits, pods.finished)
    silent = [each for each in found if not any(so(each) for so in settled)]
    yield f"{len(found)} there, {len(silent)} neither run nor wait with a reason"
    for each in silent[:5]:
        yield f"{pods.key(each)} {each.get('status')} {each['spec'].get('schedulingGates')}"


def made(name: str, rng: random.Random) -> PodBuilder:
    """A pod of some dialect and size, with or without a toleration of the GPU pool's taint."""
    builder = pod(name)
    match rng.randrange(6):
        case 0:
            builder = builder.asks("aliyun.com/gpu-mem", rng.choice((1, 2, 4)))
        case 1:
            builder = builder.asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", rng.choice((1000, 3000)))
        case 2:
            builder = builder.asks("nano-gpu/gpu-percent", rng.choice((5, 20, 50)))
        case 3:
            builder = builder.asks("gpufraction.io/gpu-memory", rng.choice(("512Mi", "2Gi", "7Gi")))
        case 4:
            builder = builder.asks("gpufraction.io/gpu-memory", "1Gi").asks("gpufraction.io/gpu-count", 2)
        case _:
            builder = builder.asks("nvidia.com/gpu", 1)
    if rng.random() < 0.2:
        builder = builder.annotated(names.PLACEMENT, "affinity")
    return builder.tolerates("nvidia.com/gpu") if rng.random() < 0.7 else builder
