"""
A cluster in which pods depend on each other and on volumes, as in a large cluster with more than GPU shares.

A workload has 20 pods and labels of its own, and ten workloads share a namespace. Of ten workloads three have
anti-affinity (two by node, one by zone, of which one selects namespaces), two a topology spread constraint, and one is
a StatefulSet, whose pods differ by their labels and have a claim each. Pure: the same number gives the same object.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from allocator.neighbours.followed import key_of
from allocator.neighbours.storage import KINDS
from contract.scheduling.clusterfilters.objects import FrozenLabels, PodRules, PodTerm, PodVolume, SpreadConstraint
from contract.scheduling.clusterfilters.selectors import LabelSelector

JSON = dict[str, Any]
_REPLICAS, _WORKLOADS, _KINDS = 20, 10, 10
_STRIDE = 7_919
"""A prime, so that all nodes get pods of each kind of workload."""
_ZONE, _HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_ZONES = 5
_DRIVER = "csi.example.com"
_CLASS = "zonal"


def is_stateful(number: int) -> bool:
    """Whether the pod of this number is of a StatefulSet."""
    return (number // _REPLICAS) % _KINDS == 0


def place(number: int, nodes: int) -> int:
    """The number of the node that the pod of this number is on; pods of one workload are on different ones."""
    return number * _STRIDE % nodes


def name(number: int) -> str:
    """The name of the pod of this number."""
    return f"app-{number // _REPLICAS}-{number % _REPLICAS}"


def namespace(number: int) -> str:
    """The namespace of the pod of this number."""
    return f"team-{number // _REPLICAS // _WORKLOADS}"


PLAIN: JSON = {
    "metadata": {},
    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "250m", "memory": "512Mi"}}}]},
}
"""A pod without anything about others."""


def pod(number: int, node: str, template: JSON = PLAIN) -> JSON:
    """The pod of this number, running on the node; `template` has everything that is not about other pods."""
    workload = number // _REPLICAS
    app = f"app-{workload}"
    labels = {
        "app.kubernetes.io/name": app,
        "app.kubernetes.io/instance": f"{app}-prod",
        "app.kubernetes.io/part-of": namespace(number),
        "app.kubernetes.io/managed-by": "Helm",
    }
    spec: JSON = {**template["spec"], "nodeName": node}
    if is_stateful(number):
        labels |= {
            "controller-revision-hash": f"{app}-6c8d9f7b5",
            "statefulset.kubernetes.io/pod-name": name(number),
            "apps.kubernetes.io/pod-index": str(number % _REPLICAS),
        }
        mounted = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{name(number)}"}}
        spec["volumes"] = [*(template["spec"].get("volumes") or ()), mounted]
    else:
        labels["pod-template-hash"] = f"{workload:010x}"
    selector = {"matchLabels": {"app.kubernetes.io/name": app}}
    match workload % _KINDS:
        case 1 | 2:
            spec["affinity"] = _apart({"topologyKey": _HOST, "labelSelector": selector})
        case 3:
            anywhere = {"namespaceSelector": {"matchLabels": {"shared": "yes"}}} if workload % 20 == 3 else {}
            spec["affinity"] = _apart({"topologyKey": _ZONE, "labelSelector": selector, **anywhere})
        case 4 | 5:
            spec["topologySpreadConstraints"] = [
                {"topologyKey": _ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": selector}
            ]
    metadata = {**template["metadata"], "name": name(number), "namespace": namespace(number), "labels": labels}
    return {**template, "metadata": metadata, "spec": spec}


def _apart(term: JSON) -> JSON:
    return {"podAntiAffinity": {_REQUIRED: [term]}}


# -- volumes ------------------------------------------------------------------------------------------------------


def storage(pods: int, nodes: Sequence[str]) -> Iterator[tuple[str, JSON]]:
    """
    Every object of volumes with its plural, for these nodes: a claim, a volume and an attachment for each pod of a
    StatefulSet.
    """
    provides = {"provisioner": _DRIVER, "volumeBindingMode": "WaitForFirstConsumer"}
    yield "storageclasses", {"metadata": {"name": _CLASS}, **provides}
    yield "csidrivers", {"metadata": {"name": _DRIVER}, "spec": {"storageCapacity": False}}
    for node in nodes:
        driver = {"name": _DRIVER, "nodeID": node, "topologyKeys": [_ZONE], "allocatable": {"count": 30}}
        yield "csinodes", {"metadata": {"name": node}, "spec": {"drivers": [driver]}}
    for number in filter(is_stateful, range(pods)):
        at = place(number, len(nodes))
        yield from _disk(number, nodes[at], f"zone-{at % _ZONES}")


def _disk(number: int, node: str, zone: str) -> Iterator[tuple[str, JSON]]:
    claim, volume = f"data-{name(number)}", f"pvc-{number:032x}"
    size = {"storage": "100Gi"}
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": _CLASS, "volumeMode": "Filesystem"}
    metadata = {
        "name": claim,
        "namespace": namespace(number),
        "uid": f"00000000-0000-0000-0000-{number:012x}",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes"},
    }
    spec = {**common, "volumeName": volume, "resources": {"requests": size}}
    yield "persistentvolumeclaims", {"metadata": metadata, "spec": spec, "status": {"phase": "Bound"}}
    there = {"key": _ZONE, "operator": "In", "values": [zone]}
    reference = {"kind": "PersistentVolumeClaim", "apiVersion": "v1", "resourceVersion": "1"}
    made = {
        **common,
        "capacity": size,
        "csi": {"driver": _DRIVER, "volumeHandle": f"vol-{number:017x}", "volumeAttributes": {"type": "ssd"}},
        "claimRef": {**reference, **{key: metadata[key] for key in ("name", "namespace", "uid")}},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
        "persistentVolumeReclaimPolicy": "Delete",
    }
    yield "persistentvolumes", {"metadata": {"name": volume}, "spec": made, "status": {"phase": "Bound"}}
    attached = {"attacher": _DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
    yield "volumeattachments", {"metadata": {"name": f"csi-{number:064x}"}, "spec": attached}


def stored(pods: int, nodes: Sequence[str]) -> dict[str, list[tuple[tuple[str, str], object]]]:
    """The same as the allocator keeps them: the parts that it reads of each, by plural and key."""
    found: dict[str, list[tuple[tuple[str, str], object]]] = {plural: [] for plural in KINDS}
    for plural, made in storage(pods, nodes):
        kind = KINDS[plural]
        found[plural].append((key_of(made), kind.read(kind.of.keep(made))))
    return found


# -- pods that ask for a share ------------------------------------------------------------------------------------


def asking(pods: int) -> dict[str, PodRules]:
    """The rules about other pods in pods that request a share, by their names in the table."""
    stateful = next(filter(is_stateful, range(pods // 2, pods)))
    mine = LabelSelector((("app", "In", ("trainer",)),))
    labels = FrozenLabels({"app": "trainer", "pod-template-hash": "7d9f8b6c5"})
    own, here = frozenset({"team-0"}), "team-0"
    apart = PodTerm(_HOST, mine, own, LabelSelector(absent=True))
    return {
        "labels only": PodRules(here, labels),
        "anti-affinity to its own": PodRules(here, labels, anti_affinity=(apart,)),
        "spread over zones": PodRules(here, labels, spread=(SpreadConstraint(_ZONE, mine, 1),)),
        "a volume in a zone": PodRules(
            namespace(stateful),
            labels,
            volumes=(PodVolume(f"data-{name(stateful)}"),),
        ),
    }
