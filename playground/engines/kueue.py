"""Kueue's program alongside a real control plane, and the objects that configure it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playground.cluster import Cluster
from playground.engines import manager
from playground.engines.manager import Manager
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
NAMESPACE = "kueue-system"
GROUP_VERSION = "kueue.x-k8s.io/v1beta2"
ADMISSION_GATE = "kueue.x-k8s.io/admission"
_WITH_ITS_OWN_ETC = """
cp /etc/hosts "$0/hosts"
mount -t tmpfs tmpfs /etc
cp "$0/hosts" /etc/hosts
mkdir -p /etc/kueue/metrics/certs
cp "$0"/certificates/tls.* /etc/kueue/metrics/certs/
exec "$@"
"""
"""Gives Kueue its own /etc, because no setting changes the folder of /etc that has the metrics certificate."""


def _command(directory: Path, program: Path) -> Sequence[str]:
    shell = ("sh", "-ec", _WITH_ITS_OWN_ETC, str(directory), str(program))
    return ("unshare", "--map-root-user", "--mount", *shell)


KUEUE = Manager(
    "kueue",
    "config.kueue.x-k8s.io/v1beta2",
    (
        paths.path(GROUP_VERSION, "resourceflavors"),
        {"apiVersion": GROUP_VERSION, "kind": "ResourceFlavor", "metadata": {"name": "probe"}, "spec": {}},
    ),
    _command,
)


@dataclass(frozen=True)
class Kueue:
    """The running Kueue, and the objects that configure it."""

    kube: Kube
    program: Program

    def flavor(self, name: str, labels: Mapping[str, str], *, topology: str = "") -> None:
        """Create a ResourceFlavor for nodes with these labels, in the named Topology if there is one."""
        topologies = {"topologyName": topology} if topology else {}
        self.create("resourceflavors", "ResourceFlavor", name, {"nodeLabels": dict(labels), **topologies})

    def queue(
        self, name: str, flavor: str, quota: Mapping[str, str], *, cohort: str = "", preemption: JSON | None = None
    ) -> None:
        """Create a ClusterQueue of one flavor for all namespaces, and a LocalQueue with the same name in `default`."""
        resources = [{"name": resource, "nominalQuota": amount} for resource, amount in quota.items()]
        group = {"coveredResources": list(quota), "flavors": [{"name": flavor, "resources": resources}]}
        spec: JSON = {"namespaceSelector": {}, "resourceGroups": [group]}
        if cohort:
            spec |= {"cohortName": cohort, "preemption": {"reclaimWithinCohort": "Any"}}
        if preemption:
            spec["preemption"] = preemption
        self.create("clusterqueues", "ClusterQueue", name, spec)
        self.create("localqueues", "LocalQueue", name, {"clusterQueue": name}, namespace="default")

    def create(self, plural: str, kind: str, name: str, spec: JSON, namespace: str | None = None) -> None:
        """Create one of Kueue's objects."""
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        document = {"apiVersion": GROUP_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
        self.kube.create(paths.path(GROUP_VERSION, plural, namespace), document)

    def workload_of(self, uid: str) -> JSON:
        """The Workload that Kueue created for an object in `default`."""
        found = self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items
        (only,) = (w for w in found if uid in {o["uid"] for o in w["metadata"].get("ownerReferences") or ()})
        return only

    def workloads(self) -> list[JSON]:
        """The Workloads in `default`."""
        return list(self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items)

    def charged(self) -> list[JSON]:
        """The amounts, by resource, that Kueue charges each pod set in `default` that has a quota reservation now."""
        admitted = [each["status"]["admission"] for each in self.workloads() if each.get("status", {}).get("admission")]
        return [assigned["resourceUsage"] for each in admitted for assigned in each["podSetAssignments"]]

    def holds_nothing(self) -> bool:
        """Whether no Workload in `default` has a quota reservation."""
        return not self.charged()


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path, configuration: Mapping[str, Any]) -> Iterator[Kueue]:
    """Run Kueue inside the context, as `manager.running` does, with the configuration that the tests need."""
    ours = {
        "namespace": NAMESPACE,
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod", "deployment"]},
    }
    with manager.running(KUEUE, cluster, folder, directory, {**ours, **configuration}) as program:
        yield Kueue(cluster.kube, program)
