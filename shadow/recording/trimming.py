"""
The part of a pod that is kept: its author's request, without its identity, its place and other systems' additions.

The webhook and the allocator read nothing else. Environment variables are kept only if they concern GPUs, because
others may hold secrets; volumes and images are not kept. Pods that are otherwise equal have one template. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS
from contract.dialects.base import ANNOTATION
from contract.encoding import moments, quantity
from contract.encoding.plain import NAME, plain
from contract.model import Compute
from contract.nodes.capacity import vendor_gpus
from contract.scheduling import needs
from shadow.systems import SYSTEMS

JSON = dict[str, Any]
LARGEST_TEMPLATE = 32 << 10
"""Bytes of a template; of a larger pod only resources and annotations for GPU shares are kept, or nothing."""
_ENVIRONMENT = ("NVIDIA_", "CUDA_", "GPU_")
_LONGEST_VALUE = 256
_MOST_ENVIRONMENT = 32
_DROPPED = frozenset(("nodeName", "schedulingGates", "resourceClaims", "volumes"))
_OWN_LABELS = frozenset(
    (
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/job-completion-index",
    )
)
"""Labels that siblings differ in."""
_HASH = "pod-template-hash"
_KNOWN = frozenset(
    word.name for dialect in DIALECTS for word in dialect.glossary if word.on == ANNOTATION and "<" not in word.name
)
_PREFIXES = tuple(prefix for dialect in DIALECTS for prefix in dialect.annotation_prefixes)
_PASSING = tuple(prefix for system in SYSTEMS for prefix in system.passing)
PLAIN = "besides"
"""In place of a pod that requests no GPU: its use of its node, in thousandths of CPU, bytes, and bytes."""


def asks(pod: Mapping[str, Any]) -> bool:
    """Whether a pod asks for a GPU or a share of one, in any dialect or of NVIDIA's plugin."""
    if DIALECTS.detect(pod) or names.REQUEST in pods.annotations_of(pod):
        return True
    containers = (pod.get("spec") or {}).get("containers") or ()
    return any(vendor_gpus((each.get("resources") or {}).get("limits") or {}) for each in containers)


def template_of(pod: Mapping[str, Any]) -> JSON | None:
    """The template of a pod that asks for a GPU; None where it is too large."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    slim = pods.trim({"metadata": metadata, "spec": {**spec, "schedulingGates": []}})
    labels, annotations = _labels(metadata), _annotations(metadata)
    kind, name = _owner(metadata)
    body = {key: value for key, value in slim["spec"].items() if key not in _DROPPED}
    for kinds in ("initContainers", "containers"):
        if kinds in body:
            whole = spec.get(kinds) or ()
            body[kinds] = [_with_environment(*each) for each in zip(body[kinds], whole, strict=True)]
    made: JSON = {"metadata": {"labels": labels, "annotations": annotations}, "spec": body, "owner": [kind, name]}
    if _size(made) <= LARGEST_TEMPLATE:
        return made
    small = {"containers": [_resources(each) for each in spec.get("containers") or ()]}
    made = {"metadata": {"annotations": annotations}, "spec": small, "owner": [kind, name], "cut": True}
    return made if _size(made) <= LARGEST_TEMPLATE else None


def besides(pod: Mapping[str, Any]) -> JSON:
    """The template of a pod that asks for no GPU, on a node with cards: the room that it takes there."""
    try:
        found = needs.effective_compute(pod.get("spec") or {})
    except (quantity.BadQuantity, TypeError, AttributeError):
        found = Compute()
    return {PLAIN: [found.cpu, found.memory, found.storage]}


def _size(document: JSON) -> int:
    return len(json.dumps(document, separators=(",", ":")))


def _labels(metadata: Mapping[str, Any]) -> JSON:
    found = metadata.get("labels") or {}
    if len(found) > 64:
        return {}
    return {
        key: value
        for key, value in sorted(found.items())
        if key not in _OWN_LABELS and not key.startswith(_PASSING) and isinstance(value, str)
    }


def _annotations(metadata: Mapping[str, Any]) -> JSON:
    return {
        key: value
        for key, value in sorted((metadata.get("annotations") or {}).items())
        if isinstance(value, str) and _is_kept(key)
    }


def _is_kept(key: str) -> bool:
    """Whether an annotation concerns a share, and its author wrote it."""
    return key in _KNOWN or key == names.REQUEST or (key.startswith(_PREFIXES) and not key.startswith(_PASSING))


def _with_environment(slim: JSON, whole: Mapping[str, Any]) -> JSON:
    kept = list(_environment(whole))[:_MOST_ENVIRONMENT]
    return {**slim, "env": kept} if kept else slim


def _environment(container: Mapping[str, Any]) -> Iterator[JSON]:
    for each in container.get("env") or ():
        name, value = each.get("name"), each.get("value", "")
        if isinstance(name, str) and name.startswith(_ENVIRONMENT) and isinstance(value, str):
            yield {"name": plain(name, NAME), "value": plain(value, _LONGEST_VALUE)}


def _resources(container: Mapping[str, Any]) -> JSON:
    return {"name": str(container.get("name", "")), "resources": container.get("resources") or {}}


def _owner(metadata: Mapping[str, Any]) -> tuple[str, str]:
    """Kind and name of the workload; a ReplicaSet's is its Deployment's, by the hash in the name."""
    owners = [each for each in metadata.get("ownerReferences") or () if each.get("controller")]
    if not owners:
        return "Pod", plain(str(metadata.get("generateName") or metadata.get("name") or ""), NAME)
    kind, name = str(owners[0].get("kind", "")), str(owners[0].get("name", ""))
    text = str((metadata.get("labels") or {}).get(_HASH, ""))
    if kind == "ReplicaSet" and text and name.endswith(f"-{text}"):
        kind, name = "Deployment", name.removesuffix(f"-{text}")
    return plain(kind, NAME), plain(name, NAME)


def bound_at(pod: Mapping[str, Any], default: float) -> float:
    """When kube-scheduler, or another one, chose the pod's node; the default where the pod does not state it."""
    return _since(pod, "PodScheduled") or default


def ended_at(pod: Mapping[str, Any], default: float) -> float:
    """When the last container of a finished pod ended; the default where the pod does not state it."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    found = [
        moments.seconds(((each.get("state") or {}).get("terminated") or {}).get("finishedAt")) for each in statuses
    ]
    return max((each for each in found if each is not None), default=default)


def _since(pod: Mapping[str, Any], condition: str) -> float | None:
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == condition and each.get("status") == "True":
            return moments.seconds(each.get("lastTransitionTime"))
    return None
