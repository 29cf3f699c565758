"""
Node objects, as the kubelets of the embedded cluster would register them.

Pure: a short description in, a Node out. GPUs are not part of it: the publishing agent puts their capacity on the node.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from playground.api.kinds.values import JSON, timestamp

DEFAULT_VERSION = "v1.34.0"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node. Amounts are quantities, taints are `key=value:Effect` or `key:Effect` as kubectl takes them."""

    name: str
    cpu: str = "16"
    memory: str = "64Gi"
    storage: str = "200Gi"
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[str, ...] = ()
    address: str = "10.0.0.1"
    version: str = DEFAULT_VERSION


def node_object(spec: NodeSpec, now: float) -> JSON:
    """The Node, ready at `now` (epoch seconds). Raises ValueError for an invalid taint."""
    capacity = {
        "cpu": spec.cpu,
        "memory": spec.memory,
        "ephemeral-storage": spec.storage,
        "pods": str(spec.pods),
    }
    builtin = {
        "kubernetes.io/hostname": spec.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    taints = [parse_taint(text) for text in spec.taints]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": spec.name, "labels": {**builtin, **spec.labels}},
        "spec": {"providerID": f"playground://{spec.name}", **({"taints": taints} if taints else {})},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": node_conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": spec.address},
                {"type": "Hostname", "address": spec.name},
            ],
            "nodeInfo": _node_info(spec),
        },
    }


def node_conditions(now: float, *, ready: bool = True) -> list[JSON]:
    """What kubelet reports of its node; where it is not ready, what the node controller says in its place."""
    at = timestamp(now)
    pressures = (
        ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    )
    reported = [(type_, "False" if ready else "Unknown", reason, message) for type_, reason, message in pressures]
    if ready:
        reported.append(("Ready", "True", "KubeletReady", "kubelet is posting ready status"))
    else:
        reported.append(("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."))
    return [
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
        }
        for type_, status, reason, message in reported
    ]


def parse_taint(text: str) -> JSON:
    """`key=value:Effect` or `key:Effect`. Raises ValueError."""
    head, _, effect = text.rpartition(":")
    key, _, value = head.partition("=")
    if not key or effect not in ("NoSchedule", "PreferNoSchedule", "NoExecute"):
        raise ValueError(f"taint {text!r}: expected key=value:Effect, such as gpu=yes:NoSchedule")
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _node_info(spec: NodeSpec) -> JSON:
    return {
        "architecture": "amd64",
        "bootID": f"boot-{spec.name}",
        "containerRuntimeVersion": "containerd://1.7.27",
        "kernelVersion": "6.8.0",
        "kubeProxyVersion": spec.version,
        "kubeletVersion": spec.version,
        "machineID": spec.name,
        "operatingSystem": "linux",
        "osImage": "Playground",
        "systemUUID": spec.name,
    }
