"""The clusters on which the page is tested: the playground with some teams, and a cluster of a thousand nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from contract import names
from kubectl_gpufraction.__main__ import parser
from kubectl_gpufraction.check.facts import ADMISSION, CONFIGURATION
from kubectl_gpufraction.session import Session
from kubectl_gpufraction.ui.command import of_session
from playground.api.kinds.values import ADMIN, timestamp
from playground.cluster import Cluster
from playground.embedded import Embedded
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.transport import connect_transport
from runtime.kubernetes.warnings import WarningTransport
from tests.unit.kubectl_gpufraction.answering import answering, kubeconfig
from tests.unit.kubectl_gpufraction.objects import admitted, gpunode, node
from tests.unit.kubectl_gpufraction.test_tenants import WHOLE, collection

JSON = dict[str, Any]
TOKEN = "a-token-of-this-test"
_SIZES = (("Tesla T4", 15109), ("Tesla V100-SXM2-32GB", 32768), ("NVIDIA A10", 23028), ("NVIDIA A100-SXM4-80GB", 81920))
_TEAMS = tuple(f"team-{letter}" for letter in "abcdefghij")


@contextmanager
def page(config: Path, *flags: str) -> Iterator[str]:
    """The page for the cluster of that kubeconfig, with these flags of the command. Yields its address."""
    given = parser().parse_args(["ui", "--kubeconfig", str(config), *flags])
    listening = WarningTransport(connect_transport(kubeconfig=str(config), context=None, user_agent="test"))
    session = Session(given, Kube(listening), listening, "default")
    with of_session(session, token=TOKEN, least_rest=0.5) as server:
        yield f"http://127.0.0.1:{server.port}/{TOKEN}/"


# -- the playground -------------------------------------------------------------------------------------------------


@contextmanager
def small(directory: Path) -> Iterator[Cluster]:
    """Three nodes, three teams, a dozen running pods and four waiting ones."""
    teams = ("default", "team-a", "team-b")
    with Cluster(directory=directory, namespaces=teams) as cluster:
        for namespace, name, memory, cores, number in (
            ("team-a", "notebook", "3Gi", 20, 4),
            ("team-b", "train-large", "16Gi", 50, 3),
            ("default", "inference", "5Gi", 10, 5),
            ("team-b", "train-huge", "24Gi", 60, 3),
            ("team-a", "whole-card", "30Gi", 100, 1),
        ):
            for at in range(number):
                cluster.kube.create(paths.pods(namespace), _pod(f"{name}-{at}", memory, cores))
            time.sleep(1.1)  # pods created in the same second share a place in the queue
        wait_for(lambda: _running(cluster.kube) == 12, lambda: f"{_running(cluster.kube)} pods run", timeout=60)
        yield cluster


def _pod(name: str, memory: str, cores: int) -> JSON:
    limits = {str(names.GPU_MEMORY): memory, str(names.GPU_CORES): str(cores)}
    container = {"name": "main", "image": "example.org/busy", "resources": {"limits": limits}}
    tolerated = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    return {"metadata": {"name": name}, "spec": {"containers": [container], "tolerations": tolerated}}


def _running(kube: Kube) -> int:
    return sum(pod.get("status", {}).get("phase") == "Running" for pod in kube.list(paths.pods()).items)


# -- a thousand nodes -----------------------------------------------------------------------------------------------


class Large(Embedded):
    """A control plane whose store is filled with nodes of 8 GPUs with sharers, and a queue. Nothing acts on them."""

    def __init__(self, nodes: int) -> None:
        super().__init__(gpus_of=lambda node: ())
        self._nodes = nodes

    def start(self) -> None:
        """Fill the store and listen."""
        self.server.start()
        for document in installing.to_apply():
            if document["kind"] in ("CustomResourceDefinition", "MutatingWebhookConfiguration", "Namespace"):
                self.api.call("POST", installing.path_of(document), body=document)
        now = time.time()
        created = timestamp(now - 5_000)
        self.api.call("POST", paths.leases(names.NAMESPACE), body=lease(timestamp(now), seconds=86_400))
        for number in range(self._nodes):
            name = f"gpu-{number:04}"
            model, size = _SIZES[number // 7 % len(_SIZES)]
            made = gpunode(name, *[size] * 8, model=model, unhealthy=5 if number % 83 == 11 else -1)
            made["status"] |= {"observedAt": timestamp(now), "isolation": ["mps"] if number % 3 else []}
            made_node = node(name, cordoned=number % 41 == 17)
            made_node["metadata"]["labels"] = {"karpenter.sh/nodepool": "batch" if number % 5 else "notebooks"}
            self._put("nodes", "", made_node)
            self._put(f"{names.GPUNODE_PLURAL}.{names.GROUP}", "", made | {"apiVersion": names.GPUNODE_GROUP_VERSION})
            for gpu in range(8):
                sharers = (number * 31 + gpu * (number % 7 + 1)) % 5
                for sharer in range(sharers):
                    part = (2 + (gpu * 5 + sharer * 3 + number) % 4) * (2 + number * 13 % 11 % 4)
                    amount = f"{size * part // (25 * sharers)}Mi"
                    pod = admitted(f"job-{number:04}-{gpu}-{sharer}", str(names.GPU_MEMORY), amount, on=name, gpu=gpu)
                    self._store(pod, _TEAMS[(number // 9 + sharer) % len(_TEAMS)], created)
        for number in range(120):
            why = "0 of 1000 GPU nodes fit: 976 short of memory (largest free 81920 MiB, wanted 92160), 24 cordoned"
            pod = admitted(f"huge-{number:03}", str(names.GPU_MEMORY), "90Gi", waits=why)
            self._store(pod, _TEAMS[number % 3], timestamp(now - 900 + number * 5))

    def stop(self) -> None:
        """Stop listening."""
        self.server.stop()

    def _store(self, pod: JSON, namespace: str, created: str) -> None:
        pod["metadata"] |= {"namespace": namespace, "creationTimestamp": created}
        self._put("pods", namespace, pod)

    def _put(self, resource: str, namespace: str, value: JSON) -> None:
        value["metadata"]["uid"] = f"{resource}-{value['metadata']['name']}"
        self.api.store.create(resource, (namespace, value["metadata"]["name"]), value)


@contextmanager
def large(directory: Path, nodes: int = 1_000) -> Iterator[Path]:
    """A cluster of this many nodes. Yields its kubeconfig."""
    plane = Large(nodes)
    plane.start()
    try:
        file = directory / "kubeconfig"
        file.write_text(plane.kubeconfig(ADMIN), encoding="utf-8")
        yield file
    finally:
        plane.stop()


# -- states with problems -------------------------------------------------------------------------------------------


def lease(renewed: str, *, holder: str = "gpufraction-0_1", seconds: int = 15) -> JSON:
    """The allocators' Lease."""
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": seconds}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": names.LEASE, "namespace": names.NAMESPACE},
        "spec": spec,
    }


def deployment(ready: int) -> JSON:
    """The Deployment of webhook and allocator, with this many Ready replicas."""
    metadata = {"name": ADMISSION, "namespace": names.NAMESPACE}
    return {"metadata": metadata, "spec": {"replicas": 2}, "status": {"readyReplicas": ready}}


HOOK = {"webhooks": [{"failurePolicy": "Fail"}]}
LEASES = paths.leases(names.NAMESPACE, names.LEASE)
DEPLOYMENTS = paths.deployments(names.NAMESPACE)
HOOKS = paths.mutatingwebhookconfigurations(CONFIGURATION)
PROMETHEUS = "/api/v1/namespaces/monitoring/services/prometheus:9090/proxy/api/v1/query_range"
WELL: dict[str, tuple[int, Any]] = WHOLE | {
    LEASES: (200, lease("2100-01-01T00:00:00Z")),
    DEPLOYMENTS: collection(deployment(2)),
    HOOKS: (200, HOOK),
}
"""Answers of an API server: one node with two pods, and running programs."""
TROUBLED = WELL | {
    LEASES: (200, lease("2026-01-01T00:00:00Z")),
    DEPLOYMENTS: collection(deployment(0)),
}
"""The same, but none of the programs runs."""


WITH_PROMETHEUS = ("--prometheus", "monitoring/prometheus:9090", "--dashboard", "https://grafana.example/d/gpufraction")


def measured(now: float) -> dict[str, tuple[int, Any]]:
    """
    Answers about two GPUs, and Prometheus' answers about the first of them in the last hour.

    Both queries return both series: as memory the first is less than 1 MiB, and as a ratio the second is too large.
    """
    end = int(now) // 120 * 120
    values = [[end - 120 * at, str((30 - at) * (7 + at % 5) / 11 / 31)] for at in range(31)]
    sizes = [[end - 120 * at, str(1_700_000_000 - at % 7 * 90_000_000)] for at in range(31)]
    card = {"node": "n1", "gpu": "GPU-n1-0"}
    series = [{"metric": card, "values": each} for each in (values, sizes)]
    inventory = gpunode("n1", 15109, 15109)
    inventory["status"]["idle"] = [{"pod": "runs", "since": timestamp(now - 7_500)}]
    return WELL | {
        "/apis/gpufraction.io/v1alpha1/gpunodes": collection(inventory),
        PROMETHEUS: (200, {"data": {"result": series}}),
    }


@contextmanager
def answered(given: dict[str, tuple[int, Any]], directory: Path, *flags: str) -> Iterator[str]:
    """The page for an API server with these answers. Yields its address."""
    with answering(given) as port, page(kubeconfig(directory, port), *flags) as address:
        yield address
