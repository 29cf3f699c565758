"""Kueue's own program alongside a real control plane, and the objects that configure it."""

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
"""Kueue reads its metrics' certificate in a folder of /etc that no setting changes; it has an /etc of its own."""


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
    """The program that runs, and the objects that configure it."""

    kube: Kube
    program: Program

    def flavor(self, name: str, labels: Mapping[str, str], *, topology: str = "") -> None:
        """A ResourceFlavor for nodes with these labels, in a Topology where one is named."""
        topologies = {"topologyName": topology} if topology else {}
        self.create("resourceflavors", "ResourceFlavor", name, {"nodeLabels": dict(labels), **topologies})

    def queue(
        self, name: str, flavor: str, quota: Mapping[str, str], *, cohort: str = "", preemption: JSON | None = None
    ) -> None:
        """A ClusterQueue of one flavor for all namespaces, and its LocalQueue of the same name in `default`."""
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
        """The Workload that it made for an object of `default`."""
        found = self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items
        (only,) = (w for w in found if uid in {o["uid"] for o in w["metadata"].get("ownerReferences") or ()})
        return only

    def workloads(self) -> list[JSON]:
        """The Workloads of `default`."""
        return list(self.kube.list(paths.path(GROUP_VERSION, "workloads", "default")).items)

    def charged(self) -> list[JSON]:
        """What each pod set of `default` is charged that has a quota now: amounts by resource."""
        admitted = [each["status"]["admission"] for each in self.workloads() if each.get("status", {}).get("admission")]
        return [assigned["resourceUsage"] for each in admitted for assigned in each["podSetAssignments"]]

    def holds_nothing(self) -> bool:
        """Whether no workload of `default` has a quota."""
        return not self.charged()


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, directory: Path, configuration: Mapping[str, Any]) -> Iterator[Kueue]:
    """As `manager.running`, with what our tests have of Kueue."""
    ours = {
        "namespace": NAMESPACE,
        "featureGates": {"VisibilityOnDemand": False},
        "integrations": {"frameworks": ["batch/job", "pod", "deployment"]},
    }
    with manager.running(KUEUE, cluster, folder, directory, {**ours, **configuration}) as program:
        yield Kueue(cluster.kube, program)
