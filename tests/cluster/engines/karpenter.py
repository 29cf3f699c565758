"""Runs Karpenter's own program with a control plane; its `kwok` provider creates a node by writing the object."""

from __future__ import annotations

import contextlib
import json
import re
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.engines import engine
from playground.machinery.objects.nodes import parse_taint
from playground.programs import installing
from playground.programs.probes import free_port, healthy
from playground.programs.process import Program
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.cluster.engines.autoscaler import GROUP_LABEL, Group

JSON = dict[str, Any]
PROGRAM, DEFINITIONS = "karpenter", "karpenter-crds.yaml"
GROUP_VERSION, CLASS_VERSION = "karpenter.sh/v1", "karpenter.kwok.sh/v1alpha1"
NODEPOOL = "karpenter.sh/nodepool"
_CLASS = {"group": "karpenter.kwok.sh", "kind": "KWOKNodeClass", "name": "default"}
_LEAVING = "30s"
_EVALUATIONS = "karpenter_voluntary_disruption_decision_evaluation_duration_seconds_count"
_EVALUATED = re.compile(rf"^{_EVALUATIONS}\{{.*\}} (\d+)", re.MULTILINE)


def assets() -> Path | str:
    """The folder with the program and its CRDs, or one line that says what is missing."""
    return engine.assets(PROGRAM, DEFINITIONS)


@dataclass(frozen=True)
class Karpenter:
    """The running program, and what it created."""

    kube: Kube
    program: Program
    url: str
    pool: str
    """The path of its NodePool."""

    def limit(self, resources: Mapping[str, str] | None) -> None:
        """The most that the nodes of its NodePool may have together; None for no limit."""
        self.kube.patch_merge(self.pool, {"spec": {"limits": resources}})

    def nodes(self) -> list[JSON]:
        """Its nodes."""
        return list(self.kube.list(paths.path("v1", "nodes"), {"labelSelector": NODEPOOL}).items)

    def evaluations(self) -> int:
        """How often it has looked, by any of its methods, for nodes that it may remove."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=5) as answer:
            return sum(map(int, _EVALUATED.findall(answer.read().decode())))

    def after_evaluations(self, count: int) -> None:
        """Wait until it has looked this many more times. What it has not removed by then it will not remove."""
        before = self.evaluations()
        wait_for(lambda: self.evaluations() >= before + count, lambda: f"it stands still: {self.program.tail()}", 120)


@contextlib.contextmanager
def running(
    cluster: Cluster, folder: Path, directory: Path, group: Group, startup_taints: Sequence[str] = ()
) -> Iterator[Karpenter]:
    """
    Run it with a NodePool whose nodes are those of the group. At the end its nodes are removed.

    `startup_taints`: keys of taints that another program removes, as Karpenter expects.
    """
    directory.mkdir(parents=True)
    definitions = list(installing.documents(folder / DEFINITIONS))
    for document in definitions:
        installing.apply(cluster.kube, document, within=60)
    wait_for(lambda: engine.are_served(cluster.kube, definitions), "its kinds are not served", 30)
    types = directory / "types.json"
    types.write_text(json.dumps([_instance_type(group)]))
    kubeconfig = directory / "kubeconfig.yaml"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("karpenter", ("system:masters",))))
    metrics, health = free_port(), free_port()
    program = Program(
        PROGRAM,
        [
            *("--disable-leader-election=true", f"--metrics-port={metrics}", f"--health-probe-port={health}"),
            *(f"--instance-types-file-path={types}", "--log-level=debug"),
        ],
        log=directory / f"{PROGRAM}.log",
        environment={"KUBECONFIG": str(kubeconfig), "SYSTEM_NAMESPACE": "kube-system"},
        command=(str(folder / PROGRAM),),
    )
    pools, classes = paths.path(GROUP_VERSION, "nodepools"), paths.path(CLASS_VERSION, "kwoknodeclasses")
    node_class = {"apiVersion": CLASS_VERSION, "kind": "KWOKNodeClass", "metadata": {"name": "default"}}
    cluster.kube.create(classes, {**node_class, "spec": {}})
    cluster.kube.create(pools, _node_pool(group, startup_taints))
    program.start()
    found = Karpenter(cluster.kube, program, f"http://127.0.0.1:{metrics}", f"{pools}/{group.name}")
    try:

        def ready() -> bool:
            program.check()
            return healthy(f"http://127.0.0.1:{health}/readyz")

        wait_for(ready, lambda: f"it does not start: {program.tail()}", 60)
        yield found
    finally:
        with contextlib.suppress(KubeNotFound):
            cluster.kube.delete(found.pool)  # and with it, its nodes
        with contextlib.suppress(Exception):
            wait_for(lambda: not found.nodes(), lambda: f"nodes stay: {program.tail()}", 60)
        program.terminate()
        program.wait()
        with contextlib.suppress(KubeNotFound):
            cluster.kube.delete(f"{classes}/default")


def _instance_type(group: Group) -> JSON:
    """A node of the group as a cloud offers it."""
    offered = {"karpenter.sh/capacity-type": "on-demand", "topology.kubernetes.io/zone": "zone-a"}
    requirements = [{"key": key, "operator": "In", "values": [value]} for key, value in offered.items()]
    return {
        "name": group.name,
        "architecture": "amd64",
        "operatingSystems": ["linux"],
        "offerings": [{"Price": 1.0, "Available": True, "Requirements": requirements}],
        "resources": {"cpu": group.cpu, "memory": group.memory, "pods": "110", "ephemeral-storage": "100Gi"},
    }


def _node_pool(group: Group, startup_taints: Sequence[str]) -> JSON:
    wanted = {"node.kubernetes.io/instance-type": group.name, "karpenter.sh/capacity-type": "on-demand"}
    spec = {
        "nodeClassRef": _CLASS,
        "requirements": [{"key": key, "operator": "In", "values": [value]} for key, value in wanted.items()],
        "taints": [parse_taint(each) for each in group.taints],
        "startupTaints": [{"key": key, "effect": "NoSchedule"} for key in startup_taints],
        "expireAfter": "Never",
        "terminationGracePeriod": _LEAVING,
    }
    labels: Mapping[str, str] = {**group.labels, GROUP_LABEL: group.name}
    disruption = {
        "consolidationPolicy": "WhenEmptyOrUnderutilized",
        "consolidateAfter": "5s",
        "budgets": [{"nodes": "100%"}],
    }
    return {
        "apiVersion": GROUP_VERSION,
        "kind": "NodePool",
        "metadata": {"name": group.name},
        "spec": {"template": {"metadata": {"labels": dict(labels)}, "spec": spec}, "disruption": disruption},
    }
