"""
Many pods at once from several clients, some deleted again, while leaders are killed: what must hold then.

The same storm in two sizes: small in the ordinary tests, 1,000 pods in `make storm`. Everything random comes from one
seed, which a failure prints.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from contract import names, pods
from playground import scenarios
from playground.cluster import Cluster
from runtime import kubepaths
from runtime.kube import Kube, KubeError, KubeNotFound
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]


@dataclass
class Storm:
    """One storm. `kill_every` in seconds; `deleted` is the part of the pods that is deleted again."""

    cluster: Cluster
    pods: int
    clients: int = 4
    kill_every: float = 3.0
    deleted: float = 0.1
    seed: int = 1
    created: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    kills: int = 0

    def blow(self) -> None:
        """Create, delete and kill until all pods were created; then bring everybody back."""
        killer_stop = threading.Event()
        killer = threading.Thread(target=self._kill_leaders, args=(killer_stop,), name="killer", daemon=True)
        killer.start()
        try:
            with ThreadPoolExecutor(self.clients, thread_name_prefix="client") as clients:
                list(clients.map(self._client, range(self.clients)))
        finally:
            killer_stop.set()
            killer.join()
        for program in self.cluster.programs.values():
            if not program.alive() and program.name != "certs":
                program.start()

    def _client(self, number: int) -> None:
        kube = Kube.connect(kubeconfig=str(self.cluster.kubeconfig), user_agent=f"client-{number}")
        rng = random.Random(f"{self.seed}-{number}")
        mine: list[str] = []
        for index in range(self.pods // self.clients):
            name = f"storm-{number}-{index}"
            if self._create(kube, made(name, rng)):
                mine.append(name)
            if mine and rng.random() < self.deleted:
                self._delete(kube, mine.pop(rng.randrange(len(mine))))

    def _create(self, kube: Kube, builder: PodBuilder) -> bool:
        manifest = builder.manifest()
        name = manifest["metadata"]["name"]
        for _ in range(50):
            try:
                kube.create(kubepaths.pods("default"), manifest)
            except KubeError as error:
                if error.status == 409:  # an earlier try was taken after all
                    break
                if error.status and error.status < 500:
                    self.refused.append(f"{name}: {error}")
                    return False
                time.sleep(0.1)  # a webhook that is down is back in a moment
            else:
                break
        else:
            self.refused.append(f"{name}: no admission for 5 s")
            return False
        self.created.append(name)
        return True

    def _delete(self, kube: Kube, name: str) -> None:
        with contextlib.suppress(KubeNotFound):
            kube.delete(kubepaths.pods("default", name))
        self.created.remove(name)

    def _kill_leaders(self, stop: threading.Event) -> None:
        while not stop.wait(self.kill_every):
            leader = self._leader()
            if leader is None:
                continue
            leader.kill()
            self.kills += 1
            if stop.wait(0.5):
                return
            leader.start()

    def _leader(self) -> Any:
        """The allocator that the Lease names."""
        path = kubepaths.path("coordination.k8s.io/v1", "leases", names.NAMESPACE, "gpufraction-allocator")
        try:
            holder = str(self.cluster.kube.get(path)["spec"].get("holderIdentity") or "")
        except KubeError:
            return None
        for replica in self.cluster.replicas:
            if holder.startswith(f"replica-{replica.number}_"):
                return self.cluster.programs[replica.name("allocator")]
        return None

    def settle(self, timeout: float) -> list[JSON]:
        """Wait until every pod that was created runs or waits with a reason, and nothing that waits would fit."""
        found: list[JSON] = []

        def quiet() -> bool:
            found[:] = [p for p in scenarios.all_pods(self.cluster.kube) if "deletionTimestamp" not in p["metadata"]]
            return len(found) == len(self.created) and all(
                scenarios.is_running(p) or scenarios.waits(p) or pods.finished(p) for p in found
            )

        scenarios.wait_for(
            quiet,
            lambda: f"seed {self.seed}: {len(self.created)} created, " + "; ".join(_troubled(found)),
            timeout,
        )
        return found


def _troubled(found: list[JSON]) -> Iterator[str]:
    yield f"{len(found)} there"
    for each in found:
        if not (scenarios.is_running(each) or scenarios.waits(each)):
            yield f"{pods.key(each)} {each.get('status')} {each['spec'].get('schedulingGates')}"


def made(name: str, rng: random.Random) -> PodBuilder:
    """A pod of some dialect, of some size, tolerating the GPU pool's taint or not."""
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
