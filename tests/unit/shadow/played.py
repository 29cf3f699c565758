"""
A simulated cluster: nodes and pods as other systems leave them, and the recording of what happens to them.

HAMi's nodes are those of the benchmark's side for HAMi, so that both read the same format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.throughput.peers import hami, kai
from contract.encoding import moments
from shadow.recording.recorder import Recorder
from shadow.recording.records import Record, encode
from shadow.replay.demand import DemandWindow, demand_of

JSON = dict[str, Any]
START = 1_780_000_000.0
GIB = 1 << 30


def plain_node(name: str, **labels: str) -> JSON:
    """A node without any card."""
    amounts = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "500Gi", "pods": "110"}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {
            "capacity": dict(amounts),
            "allocatable": dict(amounts),
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z"}],
        },
    }


def hami_node(name: str, cards: int = 4, mib: int = 81920, splits: int = 10) -> JSON:
    """A node as HAMi's agent leaves it."""
    node = plain_node(name, gpu="on")
    hami.dress(node)
    listed = [
        {
            "id": f"GPU-{name}-{index}",
            "index": index,
            "count": splits,
            "devmem": mib,
            "devcore": 100,
            "type": "NVIDIA A100-SXM4-80GB",
            "mode": "hami-core",
            "health": True,
        }
        for index in range(cards)
    ]
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = json.dumps(listed)
    return node


def nvidia_node(name: str, cards: int = 4, mib: int = 15360, replicas: int = 1, model: str = "Tesla-T4") -> JSON:
    """A node as NVIDIA's device plugin and feature discovery leave it, time-sliced if there are several replicas."""
    node = plain_node(name)
    kai.dress(node)
    sliced = replicas > 1
    node["metadata"]["labels"] |= {
        "nvidia.com/gpu.count": str(cards),
        "nvidia.com/gpu.memory": str(mib),
        "nvidia.com/gpu.product": f"{model}-SHARED" if sliced else model,
        "nvidia.com/gpu.replicas": str(replicas),
    }
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts]["nvidia.com/gpu"] = str(cards * replicas)
    return node


def pod(
    name: str,
    created: float = START,
    *,
    namespace: str = "team-a",
    limits: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node: str = "",
    phase: str = "Pending",
    scheduler: str = "default-scheduler",
    bound: float | None = None,
    owner: str = "train",
) -> JSON:
    """A pod of a Job, as a watch delivers it."""
    conditions = []
    if node:
        since = moments.stamp(created if bound is None else bound)
        conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": since}]
    container = {
        "name": "main",
        "image": "registry.example/train:1",
        "env": [{"name": "SECRET", "value": "s3cret"}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}],
        "resources": {
            "limits": {"cpu": "2", "memory": "8Gi", **(limits or {})},
            "requests": {"cpu": "2", "memory": "8Gi", **(limits or {})},
        },
    }
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "resourceVersion": "1",
            "creationTimestamp": moments.stamp(created),
            "labels": {"app": owner, **(labels or {})},
            "annotations": dict(annotations or {}),
            "ownerReferences": [{"kind": "Job", "name": owner, "uid": "o", "controller": True}],
        },
        "spec": {
            "schedulerName": scheduler,
            "nodeName": node,
            "containers": [container],
            "volumes": [{"name": "key", "secret": {"secretName": "key"}}],
        },
        "status": {"phase": phase, "conditions": conditions},
    }


def hami_pod(name: str, created: float = START, *, mib: int, card: str = "", node: str = "", **more: Any) -> JSON:
    """A pod that HAMi serves; with a node it has this card."""
    given = {}
    if node:
        given = {
            "hami.io/vgpu-node": node,
            "hami.io/vgpu-devices-allocated": f"{card},NVIDIA,{mib},{more.pop('cores', 0)}:;",
            "hami.io/bind-phase": "success",
        }
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib)}
    return pod(name, created, limits=limits, annotations=given, node=node, scheduler="hami-scheduler", **more)


class Played:
    """What happens, recorded when it happens."""

    def __init__(self, *nodes: JSON, recorder: Recorder | None = None, at: float = START) -> None:
        self.recorder = recorder or Recorder()
        self.records: list[Record] = []
        self.now = at
        self.take(self.recorder.begin(at))
        self.take(self.recorder.nodes_listed(nodes, at))
        self.take(self.recorder.pods_listed([], at))

    def take(self, records: Iterable[Record]) -> None:
        self.records += records

    def runs(self, name: str, created: float, on: float, until: float | None, **what: Any) -> None:
        """A pod of HAMi that is created, gets its card, and ends by itself."""
        given = {**what, "bound": on}
        card, node = given.pop("card"), given.pop("node")
        self.see(hami_pod(name, created, **{**what, "card": "", "node": ""}), created)
        self.see(hami_pod(name, created, card=card, node=node, phase="Running", **given), on)
        if until is not None:
            self.see(hami_pod(name, created, card=card, node=node, phase="Succeeded", **given), until)

    def see(self, found: JSON, at: float) -> None:
        self.now = max(self.now, at)
        self.take(self.recorder.pod_changed(found, at))

    def lines(self) -> list[str]:
        return [encode(record) for record in self.records]

    def window(self, until: float | None = None) -> DemandWindow:
        """The window that is read from it, up to this time at least."""
        found = demand_of(self.lines())
        if until is None:
            return found
        return DemandWindow(
            found.begin,
            max(found.end, until),
            found.nodes,
            found.pods,
            found.paused,
            found.left_out,
            found.unread,
        )
