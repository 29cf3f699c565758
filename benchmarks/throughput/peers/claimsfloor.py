"""
The least cost of a share by a ResourceClaim if another program than kube-scheduler chooses the card.

A pod waits behind a gate, and kube-controller-manager makes its claim from a template. Then an allocator writes the
claim's finalizer, its allocation with the reservation, and one patch that removes the pod's gate and pins the pod. The
benchmark plays that allocator: it takes one node after the other, and its own time is not counted. No webhook looks at
the pod, and its author gets no message.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.throughput.peers import acting, dra, kubernetes
from benchmarks.throughput.peers.acting import Work
from benchmarks.throughput.peers.peer import CARDS, SHARE, Host, Peer, Reading, gib
from contract.encoding import resourceclaims
from contract.scheduling import node_pin
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
_DRIVER = "gpu.floor.example"
_GATE = f"{_DRIVER}/allocation"
_TEMPLATE, _NAME = "share", "gpu"
_AT = "2026-01-05T08:00:00Z"


def _start(host: Host) -> Mapping[str, Program]:
    request = {"name": _NAME, "exactly": {"deviceClassName": _DRIVER, "capacity": {"requests": {"memory": gib(SHARE)}}}}
    host.kube.create(
        paths.resourceclaimtemplates(host.namespace),
        {
            "apiVersion": resourceclaims.API,
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": _TEMPLATE},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    )
    controllers = kubernetes.controllers(host, "resourceclaim-controller")
    return {kubernetes.SCHEDULER.name: kubernetes.scheduler(host), kubernetes.CONTROLLERS.name: controllers}


@contextlib.contextmanager
def _acting(host: Host) -> Iterator[None]:
    cards = itertools.cycle((node, f"gpu-{index}") for index in range(CARDS) for node in host.nodes)

    def react(happened: str, claim: JSON) -> Work | None:
        if happened != "ADDED" or (claim.get("status") or {}).get("allocation"):
            return None
        node, device = next(cards)
        return lambda: write(host.kube, claim, node, device)

    with acting.reacting(host.kube, paths.resourceclaims(host.namespace), react):
        yield


def write(kube: Kube, claim: JSON, node: str, device: str) -> None:
    """Allocate a claim and let its pod go. Raises `KubeError`."""
    metadata = claim["metadata"]
    path, owner = paths.resourceclaims(metadata["namespace"], metadata["name"]), metadata["ownerReferences"][0]
    kube.patch_merge(path, {"metadata": {"finalizers": [resourceclaims.FINALIZER]}})
    there = {"key": "metadata.name", "operator": "In", "values": [node]}
    result = {"request": _NAME, "driver": _DRIVER, "pool": node, "device": device}
    share = {"shareID": metadata["uid"], "consumedCapacity": {"memory": gib(SHARE)}}
    status = {
        "allocation": {
            "devices": {"results": [{**result, **share}]},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [there]}]},
            "allocationTimestamp": _AT,
        },
        "reservedFor": [{"resource": "pods", "name": owner["name"], "uid": owner["uid"]}],
    }
    kube.patch_merge(f"{path}/status", {"status": status})
    operations = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": _GATE},
        *node_pin.pin_operations({}, node),
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    kube.patch_json(paths.pods(metadata["namespace"], owner["name"]), operations)


def _pod(pod: JSON) -> None:
    spec = pod["spec"]
    spec["schedulingGates"] = [{"name": _GATE}]
    spec["resourceClaims"] = [{"name": _NAME, "resourceClaimTemplateName": _TEMPLATE}]
    spec["containers"][0]["resources"]["claims"] = [{"name": _NAME}]


PEER = Peer(
    name="claims-floor",
    title="floor: gate and claim",
    programs=dra.PEER.programs,
    dress=lambda node: None,
    start=_start,
    kills=(),
    pod=_pod,
    reading=Reading(
        known=dra.PEER.reading.known, booked=dra.PEER.reading.booked, shown=dra.PEER.reading.shown, counted=False
    ),
    acting=_acting,
)
