"""
A cluster of two replicas under attack. After every test the same processes run as before, each within its manifest's
memory limit. No reservation is left, and another tenant's pod is placed as if nothing had happened.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from playground import scenarios
from playground.cluster import Cluster
from playground.embedded import ControlPlane
from playground.machinery.kubelet.gpuruntime import NodeGpus
from playground.shapes import DEMO, GpuNode
from playground.waiting import PATIENCE, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeForbidden, KubeInvalid
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.footprint import Footprint
from tests.cluster.system import invariants

JSON = dict[str, Any]
ASSUME_TTL = 2.0
"""Seconds that a reservation waits for its pod here: long for a test, short for a person."""
TENANT, NEIGHBOUR = "default", "neighbour"
"""The namespace that attacks, and the one that must not be affected."""
MANIFEST_LEASE = ("--election-lease", "15s")
"""The default of every installation. The short one of other test clusters can expire on a busy API server."""
DELAY = 1.0
"""At most this many seconds of delay by an attack are allowed for another tenant's pod."""
MakePlane = Callable[[Callable[[str], NodeGpus]], ControlPlane]


@dataclasses.dataclass
class Hostile:
    """The cluster, and helpers that tests of attacks need repeatedly."""

    cluster: Cluster
    footprint: Footprint

    @property
    def kube(self) -> Kube:
        """A client of an administrator."""
        return self.cluster.kube

    def create(self, made: PodBuilder, namespace: str = TENANT, *, dry_run: bool = False) -> JSON:
        """Submit one pod."""
        manifest = made.manifest()
        manifest["metadata"]["namespace"] = namespace
        return self.kube.create(paths.pods(namespace), manifest, {"dryRun": "All"} if dry_run else None)

    def create_once_allowed(self, made: PodBuilder, namespace: str = TENANT, within: float = 20.0) -> None:
        """Submit one pod. An API server notices a moment late that a policy was deleted."""
        manifest = made.manifest()
        manifest["metadata"]["namespace"] = namespace
        refused: list[KubeError] = []

        def created() -> bool:
            try:
                return bool(self.kube.create(paths.pods(namespace), manifest, timeout=60))
            except (KubeForbidden, KubeInvalid) as error:
                refused[:] = [error]
                return False

        wait_for(created, lambda: f"refused: {refused}", within, every=0.2)

    def pods(self, namespace: str = TENANT) -> list[JSON]:
        """Every pod of a namespace."""
        return list(self.kube.list(paths.pods(namespace)).items)

    def pids(self) -> dict[str, int]:
        """Every program that should run, and its process id; 0 for one that has ended."""
        programs = self.cluster.programs.items()
        return {name: program.pid if program.alive() else 0 for name, program in programs if name != "certs"}

    def figures(self, replica: int = 0) -> dict[str, float]:
        """The metrics of an allocator."""
        return invariants.figures(self.cluster, replica)

    def neighbour_is_served(self, within: float = PATIENCE) -> float:
        """Have another tenant's small pod placed, and delete it. Returns how long the placement took, in seconds."""
        made = pod("neighbour").asks("gpufraction.io/gpu-memory", "1Gi")
        started = time.monotonic()
        uid = self.create(made, NEIGHBOUR)["metadata"]["uid"]
        path = paths.pods(NEIGHBOUR, "neighbour")
        wait_for(
            lambda: bool(self.kube.get(path)["spec"].get("nodeName")),
            lambda: f"the neighbour's pod is not placed: {scenarios.shown([self.kube.get(path)])}",
            within,
        )
        took = time.monotonic() - started
        self.kube.delete(path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
        return took


def hostile_cluster(
    plane: MakePlane,
    directory: Path,
    *,
    nodes: Sequence[GpuNode] = DEMO,
    flags: Sequence[str] = (),
    webhook: Sequence[str] = (),
    nodeagent: Sequence[str] = (),
    components: Sequence[str] = (),
    route: Callable[[str, str], str] = lambda program, kubeconfig: kubeconfig,
) -> Iterator[Hostile]:
    """A cluster with other settings, for a fixture to `yield from`. `route`: as for `Cluster`."""
    pace = ("--assume-ttl", f"{ASSUME_TTL:.0f}s", "--repair-every", "1s", "--placement-node-policy", "binpack")
    cluster = Cluster(
        nodes=nodes,
        directory=directory,
        settings={"allocator": (*pace, *flags), "webhook": tuple(webhook), "nodeagent": tuple(nodeagent)},
        replicas=2,
        namespaces=(TENANT, NEIGHBOUR),
        components=components,
        control_plane=plane,
        route=route,
    )
    with cluster:
        footprint = Footprint(cluster)
        footprint.start()
        try:
            yield Hostile(cluster, footprint)
        finally:
            footprint.stop()


def unharmed(attacked: Hostile) -> Iterator[Hostile]:
    """What must be true after every attack; surrounds one test."""
    before = attacked.pids()
    yield attacked
    invariants.check(attacked.cluster, labelled=(TENANT, NEIGHBOUR))
    for namespace in (TENANT, NEIGHBOUR):
        scenarios.clear(attacked.kube, namespace)
    invariants.check(attacked.cluster, labelled=(TENANT, NEIGHBOUR))
    assert attacked.footprint.killed == []
    assert attacked.pids() == before
    attacked.neighbour_is_served()
