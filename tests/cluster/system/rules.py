"""
Pods whose placement depends on other pods and volumes, and the volumes, zones and namespaces for them.

If no controller of volumes and no provisioner runs, a test simulates them: it writes what they would write.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.builders import PodBuilder, pod

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
SPACE = "default"
NOW = {"gracePeriodSeconds": 0}
_CLAIMS, _VOLUMES, _CLASSES = "persistentvolumeclaims", "persistentvolumes", "storageclasses"
_MODES = ("ReadWriteOnce",)


def asking(name: str, app: str, **spec: Any) -> PodBuilder:
    """A pod with the label `app` and a small share that fits on any node."""
    made = pod(name).labelled("app", app).asks(names.GPU_MEMORY, "1Gi").spec(**spec)
    return made.tolerates("nvidia.com/gpu")


def without_share(name: str, node: str, namespace: str = SPACE, **spec: Any) -> PodBuilder:
    """A pod on this node that requests no share."""
    return pod(name, namespace).container("main").on(node).spec(**spec)


def required(kind: str, app: str, key: str = HOST, more: JSON | None = None) -> JSON:
    """Required affinity or anti-affinity to pods with the label; `more` are other fields of the term."""
    term = {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **(more or {})}
    return {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


def spread(app: str, key: str = ZONE, more: JSON | None = None) -> JSON:
    """A hard constraint: no domain has two pods with the label more than another."""
    selector = {"matchLabels": {"app": app}}
    even = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
    return {"topologySpreadConstraints": [{**even, **(more or {})}]}


def mounting(*claims: str) -> JSON:
    """The volumes of a pod with these claims."""
    return {"volumes": [{"name": claim, "persistentVolumeClaim": {"claimName": claim}} for claim in claims]}


# -- creating and waiting -----------------------------------------------------------------------------------------


def create(cluster: Cluster, *made: PodBuilder) -> None:
    """Create them in this order."""
    for each in made:
        manifest = each.manifest()
        cluster.kube.create(paths.pods(manifest["metadata"]["namespace"]), manifest)


def end(cluster: Cluster, *wanted: str, namespace: str = SPACE) -> None:
    """Remove these pods at once."""
    for name in wanted:
        cluster.kube.delete(paths.pods(namespace, name), NOW)


def await_nodes(cluster: Cluster, *wanted: str, namespace: str = SPACE) -> list[str]:
    """The nodes on which these pods run."""

    def running() -> dict[str, str]:
        found = [each for each in scenarios.all_pods(cluster.kube, namespace) if scenarios.is_running(each)]
        return {each["metadata"]["name"]: each["spec"]["nodeName"] for each in found}

    def others() -> str:
        found = [each for each in scenarios.all_pods(cluster.kube, namespace) if not scenarios.is_running(each)]
        return scenarios.shown(found)

    wait_for(lambda: running().keys() >= set(wanted), lambda: f"{running()} run, not {wanted}: {others()}")
    nodes = running()
    return [nodes[name] for name in wanted]


def await_waiting(cluster: Cluster, name: str, words: str) -> None:
    """Wait until the pod waits for this reason."""

    def message() -> str:
        found = cluster.kube.get(paths.pods(SPACE, name))
        return str(scenarios.condition(found).get("message", "")) if scenarios.waits(found) else ""

    wait_for(lambda: words in message(), lambda: f"{name} says {message()!r}, not {words!r}")


# -- zones and namespaces -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def labelled(kube: Kube, nodes: Mapping[str, str], key: str = ZONE) -> Iterator[None]:
    """Set the label with these values on the nodes, and afterwards restore the previous state."""
    before = {node: kube.get(paths.path("v1", "nodes", name=node))["metadata"]["labels"].get(key) for node in nodes}
    _label(kube, key, nodes)
    try:
        yield
    finally:
        _label(kube, key, before)


def _label(kube: Kube, key: str, nodes: Mapping[str, str | None]) -> None:
    for node, value in nodes.items():
        kube.patch_merge(paths.path("v1", "nodes", name=node), {"metadata": {"labels": {key: value}}})


def await_seen_nodes(cluster: Cluster) -> None:
    """
    Wait until the allocator has seen every earlier change of a node, using a pod that fits on the node only after the
    change.

    Nodes and pods arrive through two watches, so a pod may arrive before an earlier change of a node.
    """
    node = cluster.nodes[0].spec.name
    version = cluster.kube.get(paths.path("v1", "nodes", name=node))["metadata"]["resourceVersion"]
    probe = asking("probe", "probe", nodeSelector={"seen": version}).manifest()

    def placed() -> bool:
        return not cluster.kube.create(paths.pods(SPACE), probe, {"dryRun": "All"})["spec"].get("schedulingGates")

    with labelled(cluster.kube, {node: version}, "seen"):
        wait_for(placed, "the allocator does not see the node's label")


@contextlib.contextmanager
def cordoned(kube: Kube, *nodes: str) -> Iterator[None]:
    """The nodes take no new pods in this context."""
    for node in nodes:
        kube.patch_merge(paths.path("v1", "nodes", name=node), {"spec": {"unschedulable": True}})
    try:
        yield
    finally:
        for node in nodes:
            kube.patch_merge(paths.path("v1", "nodes", name=node), {"spec": {"unschedulable": None}})


@contextlib.contextmanager
def namespace(cluster: Cluster, name: str, **labels: str) -> Iterator[str]:
    """A namespace that gpufraction does not serve. It stays, without pods."""
    cluster.label_namespace(name)
    inject = {str(names.INJECT_LABEL): None}
    cluster.kube.patch_merge(paths.path("v1", "namespaces", name=name), {"metadata": {"labels": {**inject, **labels}}})
    try:
        yield name
    finally:
        for each in scenarios.all_pods(cluster.kube, name):
            end(cluster, each["metadata"]["name"], namespace=name)
        nothing = {"metadata": {"labels": dict.fromkeys(labels)}}
        cluster.kube.patch_merge(paths.path("v1", "namespaces", name=name), nothing)


# -- volumes ------------------------------------------------------------------------------------------------------


@dataclass
class Disks:
    """Claims, volumes and classes of one test. `remove` deletes all of them, whatever protects them."""

    kube: Kube
    _made: list[str] = field(default_factory=list)

    def storage_class(self, name: str, *, delayed: bool, zones: tuple[str, ...] = (), provisioner: str = "") -> None:
        """A class whose volumes are created by nothing, or by the provisioner that the test simulates."""
        made: JSON = {
            "metadata": {"name": name},
            "provisioner": provisioner or "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer" if delayed else "Immediate",
        }
        if zones:
            made["allowedTopologies"] = [{"matchLabelExpressions": [{"key": ZONE, "values": list(zones)}]}]
        self._create(paths.path("storage.k8s.io/v1", _CLASSES), made)

    def claim(self, name: str, *, storage_class: str = "", volume: str = "", modes: tuple[str, ...] = _MODES) -> None:
        """A claim for 1 GiB, for the volume of that name if one is given."""
        spec: JSON = {"accessModes": list(modes), "storageClassName": storage_class}
        spec["resources"] = {"requests": {"storage": "1Gi"}}
        if volume:
            spec["volumeName"] = volume
        self._create(paths.path("v1", _CLAIMS, SPACE), {"metadata": {"name": name}, "spec": spec})

    def volume(
        self,
        name: str,
        *,
        reach: tuple[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        storage_class: str = "",
        modes: tuple[str, ...] = _MODES,
        claim: str = "",
    ) -> None:
        """A volume of 1 GiB for nodes with the label `reach`, for one claim or for any claim that fits."""
        spec: JSON = {"accessModes": list(modes), "storageClassName": storage_class, "capacity": {"storage": "1Gi"}}
        spec["hostPath"] = {"path": "/data"}
        if reach is not None:
            there = {"key": reach[0], "operator": "In", "values": [reach[1]]}
            spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}}
        if claim:
            uid = self.kube.get(paths.path("v1", _CLAIMS, SPACE, claim))["metadata"]["uid"]
            spec["claimRef"] = {"namespace": SPACE, "name": claim, "uid": uid}
        metadata = {"name": name, "labels": dict(labels or {})}
        self._create(paths.path("v1", _VOLUMES), {"metadata": metadata, "spec": spec})
        if not claim:
            # As the controller of volumes would report it, if one runs.
            status = paths.path("v1", _VOLUMES, None, name, "status")
            self.kube.patch_merge(status, {"status": {"phase": "Available"}})

    def bind(self, claim: str, volume: str, **of_volume: Any) -> None:
        """Create a volume for the claim, and bind both as the controller of volumes does."""
        modes = tuple(self.kube.get(paths.path("v1", _CLAIMS, SPACE, claim))["spec"]["accessModes"])
        self.volume(volume, claim=claim, modes=modes, **of_volume)
        done = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}
        bound = {"metadata": done, "spec": {"volumeName": volume}}
        self.kube.patch_merge(paths.path("v1", _CLAIMS, SPACE, claim), bound)

    def bound(self, claim: str, volume: str, **of_volume: Any) -> None:
        """A claim and its volume."""
        modes = of_volume.pop("modes", _MODES)
        self.claim(claim, modes=modes, volume=volume)
        self.bind(claim, volume, **of_volume)

    def selected_node(self, claim: str) -> str:
        """The node for which kube-scheduler requests the volume; empty if it requests none."""
        metadata = self.kube.get(paths.path("v1", _CLAIMS, SPACE, claim))["metadata"]
        return str((metadata.get("annotations") or {}).get("volume.kubernetes.io/selected-node", ""))

    def remove(self) -> None:
        """Remove everything."""
        for where in reversed(self._made):
            with contextlib.suppress(KubeNotFound):
                self.kube.patch_merge(where, {"metadata": {"finalizers": None}})
                self.kube.delete(where)

    def _create(self, where: str, made: JSON) -> None:
        self.kube.create(where, made)
        self._made.append(f"{where}/{made['metadata']['name']}")
