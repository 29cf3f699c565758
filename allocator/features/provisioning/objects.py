"""
Writes and reads requests for nodes as Kubernetes objects.

A request is for *nodes*, not for GPUs. Each of its pods takes a whole node of the pool, by anti-affinity and by more
than half of the node's CPU or memory. It avoids existing nodes by their names or, if Karpenter adds the nodes, by the
pods with shares on them. So it works the same with the vendor's device plugin on or off. It takes one of two forms:

- **ProvisioningRequest** (`autoscaling.x-k8s.io/v1`, class `best-effort-atomic-scale-up`) with its PodTemplate, if
  the cluster serves that kind: no pod is created.
- **Placeholder pods** otherwise. They are deleted as soon as the node's GPUs are published.

A pool's spare nodes are a **CapacityBuffer** (`autoscaling.x-k8s.io/v1beta1`) with its PodTemplate.

All of them carry the label `gpufraction.io/pool`. Pure. Sources: the API types of Cluster Autoscaler
(`cluster-autoscaler/apis`), and Kubernetes' PodTemplate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allocator.features.provisioning.wishes import NodeRequest
from allocator.workers.replicas import NO_IMAGE
from contract import names
from contract.encoding import moments, quantity
from contract.model import Compute, NodeState

JSON = dict[str, Any]
PROVISIONING_REQUESTS = ("autoscaling.x-k8s.io/v1", "provisioningrequests", "ProvisioningRequest")
CAPACITY_BUFFERS = ("autoscaling.x-k8s.io/v1beta1", "capacitybuffers", "CapacityBuffer")
POD_TEMPLATES = ("v1", "podtemplates", "PodTemplate")
CLASS = "best-effort-atomic-scale-up.autoscaling.x-k8s.io"
_LONGEST = 4096
"""Characters of an autoscaler's message that are read."""
_MOST_NAMED = 2_000
"""The most nodes that a template excludes by name."""
_HOSTNAME = "kubernetes.io/hostname"
_FROM_TENANTS: JSON = {
    "namespaceSelector": {"matchLabels": {str(names.INJECT_LABEL): names.INJECT_ENABLED}},
    # A DaemonSet's pod may be the first on a new node, and must not exclude the placeholder.
    "labelSelector": {"matchExpressions": [{"key": "pod-template-generation", "operator": "DoesNotExist"}]},
    "topologyKey": _HOSTNAME,
}
"""Avoid the nodes with a pod of a served namespace, except pods of DaemonSets, which have that label."""
_SPARE = "-spare"


@dataclass(frozen=True, slots=True)
class RequestForm:
    """The input of a request. `name`: of the object; `image`: of placeholder pods, which only sleep."""

    name: str
    pool: str
    empty: NodeState
    selector: Mapping[str, str]
    """Labels of the pool's nodes, from their group."""
    off: tuple[str, ...]
    """Names of the nodes that its pods must avoid."""
    image: str = NO_IMAGE
    karpenter: bool = False
    """Whether Karpenter adds the nodes. Karpenter ignores a pod whose node affinity has a hostname or `matchFields`."""


def pod_template(form: RequestForm) -> JSON:
    """The PodTemplate of a request or a buffer."""
    return {
        "apiVersion": "v1",
        "kind": POD_TEMPLATES[2],
        "metadata": _metadata(form),
        "template": {"metadata": {"labels": _labels(form)}, "spec": _spec(form)},
    }


def provisioning_request(form: RequestForm, count: int, valid: float) -> JSON:
    """The ProvisioningRequest; `valid`: seconds for which the autoscaler tries."""
    return {
        "apiVersion": PROVISIONING_REQUESTS[0],
        "kind": PROVISIONING_REQUESTS[2],
        "metadata": _metadata(form),
        "spec": {
            "provisioningClassName": CLASS,
            "parameters": {"ValidUntilSeconds": str(int(valid))},
            "podSets": [{"count": count, "podTemplateRef": {"name": form.name}}],
        },
    }


def placeholder(form: RequestForm) -> JSON:
    """A placeholder pod: a request for one node."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(form), "spec": _spec(form)}


def capacity_buffer(form: RequestForm, spare: int) -> JSON:
    """The CapacityBuffer that keeps some nodes of a pool empty."""
    return {
        "apiVersion": CAPACITY_BUFFERS[0],
        "kind": CAPACITY_BUFFERS[2],
        "metadata": _metadata(form),
        "spec": {"podTemplateRef": {"name": form.name}, "replicas": spare},
    }


def spare_name(pool: str) -> str:
    """The name of the pool's CapacityBuffer and of its PodTemplate; no request has such a name."""
    return f"{pool}{_SPARE}"


def is_spare_name(name: str) -> bool:
    """Whether `spare_name` made the name."""
    return name.endswith(_SPARE)


def request_of(document: Mapping[str, Any]) -> NodeRequest | None:
    """A ProvisioningRequest or a placeholder pod of ours, read; None if it is unreadable or ending."""
    metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    pool = (metadata.get("labels") or {}).get(names.POOL)
    try:
        count = sum(int(each["count"]) for each in spec["podSets"]) if "podSets" in spec else 1
    except (TypeError, ValueError, KeyError):
        return None
    created = moments.created(document)
    if not pool or count < 1 or not created or metadata.get("deletionTimestamp"):
        return None
    node = spec.get("nodeName")
    bound = None if "podSets" in spec else (node,) if node else ()
    return NodeRequest(str(metadata.get("name")), pool, count, created, _refusal(document), bound)


def _refusal(document: Mapping[str, Any]) -> str:
    """The autoscaler's message, if the autoscaler has given up."""
    for condition in (document.get("status") or {}).get("conditions") or []:
        if isinstance(condition, Mapping) and (condition.get("type"), condition.get("status")) == ("Failed", "True"):
            message = f"{condition.get('reason', '')}: {condition.get('message', '')}"[:_LONGEST]
            return " ".join("".join(each if each.isprintable() else " " for each in message).split())[:200]
    return ""


def _metadata(form: RequestForm) -> JSON:
    return {"name": form.name, "namespace": names.NAMESPACE, "labels": _labels(form)}


def _labels(form: RequestForm) -> dict[str, str]:
    return {names.POOL: form.pool}


def _spec(form: RequestForm) -> JSON:
    """A pod that takes a whole node of the pool, and does nothing there."""
    apart: list[JSON] = [{"labelSelector": {"matchLabels": _labels(form)}, "topologyKey": _HOSTNAME}]
    affinity: JSON = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": apart}}
    tolerations: list[JSON] = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": taint.effect}
        for taint in form.empty.taints
    ]
    if form.off and form.karpenter:
        apart.append(_FROM_TENANTS)
        # It must run before the node's GPUs are published: a tenant's pod that is placed there meanwhile would be
        # refused by kube-scheduler, which may not try it again for minutes once the placeholder is gone.
        tolerations.append({"key": str(names.STARTUP_TAINT), "operator": "Exists", "effect": "NoSchedule"})
    elif form.off:
        off = sorted(form.off)[:_MOST_NAMED]
        terms = [{"matchExpressions": [{"key": _HOSTNAME, "operator": "NotIn", "values": off}]}]
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {
        "nodeSelector": dict(form.selector),
        "tolerations": tolerations,
        "affinity": affinity,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "restartPolicy": "Always",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [
            {
                "name": "placeholder",
                "image": form.image,
                "command": ["sleep", "infinity"],
                # Images for GPUs request all GPUs from the container runtime; a placeholder must see none.
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
                "resources": {"requests": more_than_half(form.empty.allocatable, form.empty.requested)},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }


def more_than_half(allocatable: Compute, requested: Compute) -> dict[str, str]:
    """
    An amount of CPU and of memory that fits on a node only once: a little more than half of the node's amount.

    It is not the whole amount, so that other pods, such as DaemonSets that are added later, still fit.
    """
    cpu, memory = allocatable.cpu - requested.cpu, allocatable.memory - requested.memory
    amounts = {}
    if cpu > 0:
        amounts["cpu"] = f"{cpu // 2 + 1}m"
    if memory > 0:
        amounts["memory"] = f"{quantity.mib(memory) // 2 + 1}Mi"
    return amounts
