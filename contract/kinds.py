"""
The fields that programs read of others' objects: one row for each kind that a program lists or watches.

Users choose how large their objects are. An object can have 1.5 MiB, decoded JSON takes about ten times its size, and a
collection has as many objects as users make. Therefore each program keeps only the fields of its row, and makes each
object small before it decodes the next one (`runtime.kubernetes.client`). An object that still has more than `most`
bytes is replaced by what `beyond` makes of it, and that is logged.

Such an object never frees anything: a share stays counted, and a card that may be excluded stays excluded. So an object
that says that something is taken is reduced to that part; one that only offers something, or requests it, may be left
out.

`tests/unit/runtime/kubernetes/test_kinds.py` finds a list or a watch that names no row. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names, pods
from contract.model import MOST_CONSUMERS
from contract.nodes import attributes, excluded

JSON = dict[str, Any]
Fields = Mapping[str, Any]
"""A tree of the fields that are kept. A key without its own tree is kept as a whole."""
_KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One row. `keep` may raise anything for an object of another shape than its API promises."""

    plural: str
    most: int
    """Bytes of one object as JSON, after the fields that are not kept were dropped."""
    answer: str
    """The replacement of an object that has more."""
    fields: Fields = field(default_factory=dict)
    """Empty: all of them."""
    trim: Callable[[JSON], JSON] | None = None
    """Other parts that are dropped."""
    page: int = 500
    """Objects that are requested at once, at most; fewer where everybody may make large ones and few are ours."""
    beyond: Callable[[JSON], JSON] | None = None
    """Returns the replacement of an object with more than `most`; None: the object is left out."""

    def keep(self, document: JSON) -> JSON:
        """The object with the fields that are kept. It shares structure with `document`."""
        kept = project(document, self.fields) if self.fields else document
        return self.trim(kept) if self.trim is not None else kept

    def is_beyond(self, kept: JSON, length: int) -> bool:
        """Whether an object is too large. `length` is that of the text from which it was read, which is quick to
        compare."""
        return length > self.most and len(json.dumps(kept, default=repr, separators=(",", ":"))) > self.most


def project(value: JSON, fields: Fields) -> JSON:
    """The named fields of an object, and of each object in a list."""
    kept = {}
    for key, below in fields.items():
        if key in value:
            found = value[key]
            if below and isinstance(found, dict):
                found = project(found, below)
            elif below and isinstance(found, list):
                found = [project(each, below) if isinstance(each, dict) else each for each in found]
            kept[key] = found
    return kept


def _keys(*wanted: str) -> dict[str, Fields]:
    return {key: {} for key in wanted}


_OBJECT = _keys("apiVersion", "kind")
_IDENTITY = _keys("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_METADATA = {
    **_IDENTITY,
    **_keys("generateName", "generation", "labels", "annotations", "ownerReferences", "finalizers"),
}
"""All but `managedFields`, which are as long as everything else."""
_WHOLE: Fields = {**_OBJECT, "metadata": _METADATA, **_keys("spec", "status")}


def _without_managed_fields(document: JSON) -> JSON:
    metadata = {key: value for key, value in (document.get("metadata") or {}).items() if key != "managedFields"}
    return {**document, "metadata": metadata}


def identity(document: JSON) -> JSON:
    """The object's name and version, as far as it has them."""
    metadata = document.get("metadata")
    return {"metadata": project(metadata, _IDENTITY) if isinstance(metadata, dict) else {}}


def name_of(document: JSON) -> str:
    """`namespace/name`, or the name of what has no namespace; empty if it has none."""
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return ""
    return "/".join(str(metadata[key]) for key in ("namespace", "name") if metadata.get(key))


ANYTHING = ObjectKind("", 1 << 62, "it is taken as it is")
"""For tools and tests that read their own objects; no program reads by this row."""

# -- pods ---------------------------------------------------------------------------------------------------------

_CONDITIONS = (str(names.ALLOCATED_CONDITION), "PodScheduled", "PodResizePending", "Ready")
_MOST_OF_A_POD = 1_024 * _KIB
_TOO_LARGE = (
    f"metadata, spec: found more than {_MOST_OF_A_POD >> 10} KiB of labels, annotations and spec; shorten them, and "
    f"create the pod again"
)
_SPEC_OF_A_HOLDER = ("nodeName", "priority", "hostNetwork", "overhead", "resources", "initContainers", "containers")

_STATUS_OF_A_HOLDER = (
    "phase",
    "reason",
    "containerStatuses",
    "initContainerStatuses",
    "resources",
    "allocatedResources",
)


def _pod_beyond(pod: JSON) -> JSON:
    """
    The part of a too large trimmed pod with its usage of its node and of the cards.

    A waiting one says why it is not placed; in a pod without the gate, everything by which a share is counted is kept.
    """
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if names.GATE in pods.gates(pod):
        return pods.too_large(pod, _TOO_LARGE)
    annotations = metadata.get("annotations") or {}
    slim = project(metadata, _IDENTITY)
    slim["annotations"] = {key: value for key, value in annotations.items() if key.startswith(f"{names.GROUP}/")}
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    conditions = [each for each in status.get("conditions") or () if each.get("type") in _CONDITIONS]
    return {
        "metadata": {**slim, "ownerReferences": owners[:1]},
        "spec": {key: spec[key] for key in _SPEC_OF_A_HOLDER if key in spec},
        "status": {**{key: status[key] for key in _STATUS_OF_A_HOLDER if key in status}, "conditions": conditions},
    }


PODS = ObjectKind(
    "pods",
    _MOST_OF_A_POD,
    "a waiting pod gets the reason that it is too large; of every other pod, node, resources and share are counted",
    trim=pods.trim,
    beyond=_pod_beyond,
)
PODS_COMPARED = ObjectKind(
    "pods",
    4_096 * _KIB,
    "it is not compared with the allocator's state",
    _WHOLE,
)
"""For the repair, which reads each pod as it comes and keeps none."""


_CONTAINER_RECORDED = _keys("name", "resources", "ports", "restartPolicy", "env")
RECORDED_PODS = ObjectKind(
    "pods",
    512 * _KIB,
    "it is not recorded",
    {
        "metadata": {**_IDENTITY, **_keys("generateName", "labels", "annotations", "ownerReferences")},
        "spec": {
            **_keys(*pods.PLACED_BY),
            **_keys("affinity"),
            "initContainers": _CONTAINER_RECORDED,
            "containers": _CONTAINER_RECORDED,
        },
        "status": {
            **_keys("phase"),
            "conditions": _keys("type", "status", "lastTransitionTime"),
            "containerStatuses": {"name": {}, "state": {"terminated": {"finishedAt": {}}}},
        },
    },
    page=100,
)
"""For shadow mode, which keeps a small part of each (`shadow.recording.trimming`)."""


def _resident_beyond(pod: JSON) -> JSON:
    metadata = {key: value for key, value in (pod.get("metadata") or {}).items() if key != "labels"}
    return {"metadata": metadata, "status": project(pod.get("status") or {}, _keys("phase"))}


_CONTAINER = _keys("name", "containerID")
RESIDENTS = ObjectKind(
    "pods",
    512 * _KIB,
    "its share stays counted, and what its containers use is not",
    {
        "metadata": {
            **_keys("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "labels"),
            "annotations": _keys(names.ALLOCATION, names.HELD_GPUS, names.REQUEST, pods.MIRROR),
        },
        "spec": _keys("nodeName"),
        "status": {"phase": {}, "initContainerStatuses": _CONTAINER, "containerStatuses": _CONTAINER},
    },
    beyond=_resident_beyond,
)
"""For the agent, the pods on its own node."""
PLACEHOLDERS = ObjectKind("pods", 256 * _KIB, "it counts as a deleted placeholder pod", _WHOLE)
"""Pods of our own namespace."""

# -- nodes and cards ----------------------------------------------------------------------------------------------

NODES = ObjectKind("nodes", 256 * _KIB, "the node accepts no new pods", trim=attributes.trim)
OWN_NODE = ObjectKind(
    "nodes",
    512 * _KIB,
    "the agent publishes nothing about the node",
    {
        **_OBJECT,
        "metadata": _METADATA,
        "spec": {},
        "status": _keys("capacity", "allocatable", "conditions", "nodeInfo", "addresses"),
    },
)
RECORDED_NODES = ObjectKind(
    "nodes",
    512 * _KIB,
    "its GPUs are not recorded",
    {
        "metadata": {**_IDENTITY, **_keys("labels", "annotations")},
        "spec": _keys("taints", "unschedulable"),
        "status": {**_keys("capacity", "allocatable"), "conditions": _keys("type", "status")},
    },
    page=100,
)
"""For shadow mode: other systems write a node's cards into its annotations."""
GPUNODES = ObjectKind("gpunodes", 512 * _KIB, "the node's GPUs accept no new pods", _WHOLE)


def _kept_out_beyond(configmap: JSON) -> JSON:
    return {**identity(configmap), "data": {"gpus": f"more-than-{KEPT_OUT.most}-bytes"}}


def _options_beyond(configmap: JSON) -> JSON:
    return {**identity(configmap), "data": {names.OPTIONS_FILE: f"more than {OPTIONS.most} bytes"}}


OPTIONS = ObjectKind(
    "configmaps",
    256 * _KIB,
    "the options are refused, and those that were read before stay in use",
    {"metadata": _METADATA, "data": _keys(names.OPTIONS_FILE)},
    beyond=_options_beyond,
)
"""The administrator's options, for an agent that cannot mount them."""
KEPT_OUT = ObjectKind(
    "configmaps",
    64 * _KIB,
    "a list of excluded GPUs excludes all GPUs of its node",
    trim=excluded.trim,
    beyond=_kept_out_beyond,
)
RUNTIMECLASSES = ObjectKind(
    "runtimeclasses",
    4 * _KIB,
    "it counts as a runtime class that does not exist",
    {"metadata": _keys("name"), "handler": {}},
)

LEASES = ObjectKind("leases", 64 * _KIB, "it counts as deleted, so a candidate waits", _WHOLE)

# -- namespaces ---------------------------------------------------------------------------------------------------


def _our_labels(namespace: JSON) -> JSON:
    metadata = namespace.get("metadata") or {}
    labels = metadata.get("labels") or {}
    ours = {key: value for key, value in labels.items() if key.startswith(f"{names.GROUP}/")}
    return {"metadata": {"name": metadata.get("name", ""), "labels": ours}}


NAMESPACES = ObjectKind(
    "namespaces", 16 * _KIB, "it counts as a namespace without gpufraction's labels", trim=_our_labels
)


NAMESPACE_LABELS = ObjectKind(
    "namespaces",
    16 * _KIB,
    "it counts as a namespace without labels, which no pod's affinity selects",
    {"metadata": _keys("name", "labels", "resourceVersion")},
    beyond=identity,
)

# -- volumes, which decide where a pod with a claim can go ---------------------------------------------------------

_OF_A_VOLUME = {**_IDENTITY, "labels": {}}
PERSISTENTVOLUMECLAIMS = ObjectKind(
    "persistentvolumeclaims",
    16 * _KIB,
    "it counts as a claim that does not exist, so its pods wait",
    {
        "metadata": {
            **_OF_A_VOLUME,
            "ownerReferences": _keys("uid", "controller"),
            "annotations": _keys(
                "pv.kubernetes.io/bind-completed",
                "volume.kubernetes.io/selected-node",
                "volume.beta.kubernetes.io/storage-class",
            ),
        },
        "spec": {},
        "status": {"phase": {}},
    },
)
PERSISTENTVOLUMES = ObjectKind(
    "persistentvolumes",
    64 * _KIB,
    "it counts as a volume that does not exist, so the pods of its claim wait",
    {
        "metadata": {**_OF_A_VOLUME, "annotations": _keys("volume.beta.kubernetes.io/storage-class")},
        "spec": {},
        "status": {"phase": {}},
    },
)
STORAGECLASSES = ObjectKind(
    "storageclasses",
    16 * _KIB,
    "it counts as a class that does not exist, so pods with unbound claims of it wait",
    {"metadata": _IDENTITY, **_keys("provisioner", "volumeBindingMode", "allowedTopologies")},
)
CSINODES = ObjectKind(
    "csinodes",
    64 * _KIB,
    "its node counts as one that can attach any number of volumes",
    {
        "metadata": {**_IDENTITY, "annotations": _keys("storage.alpha.kubernetes.io/migrated-plugins")},
        "spec": {"drivers": _keys("name", "allocatable")},
    },
)
CSIDRIVERS = ObjectKind(
    "csidrivers",
    16 * _KIB,
    "it counts as a driver that publishes no capacities",
    {"metadata": _IDENTITY, "spec": {"storageCapacity": {}}},
)
CSISTORAGECAPACITIES = ObjectKind(
    "csistoragecapacities",
    16 * _KIB,
    "it counts as no capacity",
    {"metadata": _IDENTITY, **_keys("storageClassName", "nodeTopology", "capacity", "maximumVolumeSize")},
)
_SELECTING: Fields = {"metadata": _IDENTITY, "spec": _keys("selector")}
_NOT_COUNTED = "it counts as one that selects no pods, so default topology spread constraints do not count by it"
SERVICES = ObjectKind("services", 16 * _KIB, _NOT_COUNTED, _SELECTING)
REPLICATIONCONTROLLERS = ObjectKind("replicationcontrollers", 16 * _KIB, _NOT_COUNTED, _SELECTING)
REPLICASETS = ObjectKind("replicasets", 16 * _KIB, _NOT_COUNTED, _SELECTING)
STATEFULSETS = ObjectKind("statefulsets", 16 * _KIB, _NOT_COUNTED, _SELECTING)
VOLUMEATTACHMENTS = ObjectKind(
    "volumeattachments",
    16 * _KIB,
    "it counts as a volume that is not attached",
    {"metadata": _IDENTITY, "spec": {"attacher": {}, "nodeName": {}, "source": {"persistentVolumeName": {}}}},
)

_DEVICE = _keys("driver", "pool", "device")
DEVICE_CLAIMS = ObjectKind(
    "resourceclaims",
    64 * _KIB,
    "it counts as a claim that does not exist, so its pods wait",
    {
        "metadata": {**_IDENTITY, "ownerReferences": _keys("uid", "controller")},
        "spec": {
            "devices": {
                "requests": {"exactly": _keys("deviceClassName"), "firstAvailable": _keys("deviceClassName")},
            }
        },
        "status": {
            "allocation": {
                "nodeSelector": {},
                "devices": {"results": {**_DEVICE, **_keys("bindingConditions", "bindingFailureConditions")}},
            },
            "devices": {**_DEVICE, "conditions": _keys("type", "status")},
            "reservedFor": _keys("uid"),
        },
    },
    page=20,
)
"""For filters, which look at the claims that pods name."""
DEVICECLASSES = ObjectKind(
    "deviceclasses",
    16 * _KIB,
    "it counts as a class that does not exist, so pods with claims of it wait",
    {"metadata": _IDENTITY, "spec": {"extendedResourceName": {}}},
)

# -- claims -------------------------------------------------------------------------------------------------------


def _is_allocated(claim: JSON) -> JSON:
    """The owner of a ResourceClaim, which distinguishes it from others, and whether it is allocated and reserved."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    owners = [project(each, _keys("kind", "name", "uid")) for each in (metadata.get("ownerReferences") or ())[:2]]
    slim = project(metadata, _keys("name", "namespace", "uid", "deletionTimestamp"))
    kept = {key: True for key in ("allocation", "reservedFor") if status.get(key)}
    return {"metadata": {**slim, "ownerReferences": owners}, "status": kept}


def _is_reserved(claim: JSON) -> JSON:
    """Whether a ResourceClaim is allocated or being deleted, and the uids of the pods for which it is reserved."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    reserved = [project(each, _keys("uid")) for each in (status.get("reservedFor") or ())[:MOST_CONSUMERS]]
    kept = {"allocation": True} if status.get("allocation") else {}
    slim = project(metadata, _keys("name", "namespace", "deletionTimestamp"))
    return {"metadata": slim, "status": {**kept, "reservedFor": reserved}}


RESOURCECLAIMS = ObjectKind(
    "resourceclaims",
    16 * _KIB,
    "it is neither removed nor created again",
    trim=_is_allocated,
    page=20,
)
SHARE_CLAIMS = ObjectKind(
    "resourceclaims",
    16 * _KIB,
    "it is not allocated again",
    trim=_is_reserved,
    page=20,
)
"""For the allocator, which allocates again the claims of its DeviceClass that have lost their allocation."""
_OF_A_CLAIM: Fields = {
    "metadata": {**_IDENTITY, "finalizers": {}},
    "spec": _keys("elasticGPUClassName", "egpuClassName", "elasticGPUName", "egpuName", "resources"),
    "status": _keys("phase", "reason", "message"),
}


def _text_of(parent: Any, most: int) -> JSON:
    """The texts of an object that are not long."""
    items = parent.items() if isinstance(parent, dict) else ()
    return {key: value for key, value in items if isinstance(value, str) and len(value) <= most}


def _claim_beyond(claim: JSON) -> JSON:
    """A bound claim stays bound; an unbound one requests nothing that could be read."""
    kept = identity(claim)
    finalizers = (claim.get("metadata") or {}).get("finalizers") or ()
    kept["metadata"]["finalizers"] = [each for each in finalizers if each == names.CLAIM_FINALIZER][:1]
    return {**kept, "spec": _text_of(claim.get("spec"), 253), "status": _text_of(claim.get("status"), _KIB)}


def _share_beyond(share: JSON) -> JSON:
    kept = identity(share)
    metadata = share.get("metadata") or {}
    finalizers, annotations = metadata.get("finalizers") or (), metadata.get("annotations") or {}
    kept["metadata"]["finalizers"] = [each for each in finalizers if each == names.SHARE_FINALIZER][:1]
    kept["metadata"]["annotations"] = annotations
    reference = (share.get("spec") or {}).get("claimRef")
    return {**kept, "spec": {"claimRef": _text_of(reference, 253)}, "status": _text_of(share.get("status"), _KIB)}


ELASTICGPUCLAIMS = ObjectKind(
    "elasticgpuclaims",
    16 * _KIB,
    "a bound claim keeps its share; an unbound one gets none",
    _OF_A_CLAIM,
    beyond=_claim_beyond,
)
ELASTICGPUCLASSES = ObjectKind(
    "elasticgpuclasses",
    16 * _KIB,
    "it counts as a class that does not exist",
    {"metadata": _IDENTITY, **_keys("provisioner", "reclaimPolicy", "egpuBindingMode", "parameters")},
)
ELASTICGPUS = ObjectKind(
    "elasticgpus",
    64 * _KIB,
    "its share stays counted",
    {
        "metadata": {**_IDENTITY, "finalizers": {}, "annotations": _keys(names.ALLOCATION, names.RECLAIM)},
        "spec": {"claimRef": _keys("namespace", "name", "uid")},
        "status": _keys("phase", "reason", "message"),
    },
    beyond=_share_beyond,
)
CARDS = ObjectKind("gpus", 64 * _KIB, "it counts as a GPU that is not shown, and is written again", _WHOLE)
"""The objects that show each card to users of ElasticGPUClaims; only the allocator writes them."""

# -- other systems ------------------------------------------------------------------------------------------------

WORKLOADS = ObjectKind(
    "workloads",
    256 * _KIB,
    "it counts as a Workload without quota, so its check stays pending",
    {"metadata": {**_IDENTITY, "ownerReferences": {}}, **_keys("spec", "status")},
    beyond=identity,
)
ADMISSIONCHECKS = ObjectKind("admissionchecks", 64 * _KIB, "it counts as a check that does not exist", _WHOLE)
RESOURCEFLAVORS = ObjectKind("resourceflavors", 64 * _KIB, "it counts as a flavor that does not exist", _WHOLE)
PROVISIONINGREQUESTS = ObjectKind("provisioningrequests", 64 * _KIB, "it counts as a deleted request", _WHOLE)
PODTEMPLATES = ObjectKind(
    "podtemplates",
    256 * _KIB,
    "it counts as a deleted template",
    {**_OBJECT, "metadata": _METADATA, "template": {}},
)
CAPACITYBUFFERS = ObjectKind("capacitybuffers", 64 * _KIB, "it counts as a deleted buffer", _WHOLE)

# -- the plugin, on the user's own machine ------------------------------------------------------------------------

EVENTS = ObjectKind("events", 64 * _KIB, "it is not shown")
SHOWN = ObjectKind("", 2_048 * _KIB, "it is not shown", trim=_without_managed_fields)
"""Any kind that a command shows or checks."""
