"""
Kubernetes' own consumable capacity (KEP-5075): devices of ResourceSlices that many claims share by their memory.

kube-scheduler chooses the card, and the controller of ResourceClaims makes each pod's claim from its template. Both are
Kubernetes' own programs with their default feature gates, of 1.36 or later. A driver's agents publish the slices, which
are made here as NVIDIA's driver makes them: one slice a node, one device a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.throughput.peers import kubernetes
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import CARD, CARDS, MODEL, SHARE, Host, Peer, Reading, gib
from contract.encoding import quantity
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
_VERSION = "resource.k8s.io/v1"
_CLASS = _DRIVER = "gpu.bench.example"
_TEMPLATE, _NAME = "share", "gpu"
_SEEDING = 8


def _start(host: Host) -> Mapping[str, Program]:
    _create(host)
    controllers = kubernetes.controllers(host, "resourceclaim-controller")
    return {kubernetes.SCHEDULER.name: kubernetes.scheduler(host), kubernetes.CONTROLLERS.name: controllers}


def _create(host: Host) -> None:
    kube = host.kube
    kube.create(paths.path(_VERSION, "deviceclasses"), _device_class())
    kube.create(paths.path(_VERSION, "resourceclaimtemplates", host.namespace), _template())
    with ThreadPoolExecutor(_SEEDING) as pool:
        list(pool.map(lambda node: kube.create(paths.path(_VERSION, "resourceslices"), _slice(node)), host.nodes))


def _device_class() -> JSON:
    selector = {"cel": {"expression": f"device.driver == '{_DRIVER}'"}}
    return {
        "apiVersion": _VERSION,
        "kind": "DeviceClass",
        "metadata": {"name": _CLASS},
        "spec": {"selectors": [selector]},
    }


def _template() -> JSON:
    memory = {"memory": gib(SHARE)}
    request = {"name": _NAME, "exactly": {"deviceClassName": _CLASS, "capacity": {"requests": memory}}}
    return {
        "apiVersion": _VERSION,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": _TEMPLATE},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }


def _slice(node: str) -> JSON:
    return {
        "apiVersion": _VERSION,
        "kind": "ResourceSlice",
        "metadata": {"name": f"{node}-gpus"},
        "spec": {
            "driver": _DRIVER,
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [_device(index) for index in range(CARDS)],
        },
    }


def _device(index: int) -> JSON:
    return {
        "name": f"gpu-{index}",
        "allowMultipleAllocations": True,
        "attributes": {"productName": {"string": MODEL}, "type": {"string": "gpu"}},
        "capacity": {"memory": {"value": gib(CARD)}},
    }


def _pod(pod: JSON) -> None:
    spec = pod["spec"]
    spec["resourceClaims"] = [{"name": _NAME, "resourceClaimTemplateName": _TEMPLATE}]
    spec["containers"][0]["resources"]["claims"] = [{"name": _NAME}]


# -- reading ------------------------------------------------------------------------------------------------------


def _claims(namespace: str) -> str:
    return paths.path(_VERSION, "resourceclaims", namespace)


def _known(claim: JSON) -> str:
    """A claim that is allocated and reserved for a pod shows that pod's card."""
    return next(_reserved(claim), "") if _results(claim) else ""


def _reserved(claim: JSON) -> Iterator[str]:
    for consumer in (claim.get("status") or {}).get("reservedFor") or ():
        yield consumer["name"]


def _results(claim: JSON) -> Sequence[JSON]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or ()


def _booked(kube: Kube, namespace: str) -> Sequence[Booking]:
    pods = kube.list(paths.pods(namespace)).items
    claims = kube.list(_claims(namespace)).items
    return bookings(pods, claims)


def bookings(pods: Sequence[JSON], claims: Sequence[JSON]) -> list[Booking]:
    """
    The holdings of pods with a node, by their claims.

    A deleted pod's claim counts until its allocation is taken back, since kube-scheduler counts it that long too; but
    only the claims of the pods in `pods` do.
    """
    nodes = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName")}
    found = [
        Booking(pod, nodes[pod], f"{result['pool']}/{result['device']}", _memory(result))
        for claim in claims
        for pod in _reserved(claim)
        if pod in nodes
        for result in _results(claim)
    ]
    shown = {each.pod for each in found}
    return found + [Booking(pod, node, "", 0) for pod, node in nodes.items() if pod not in shown]


def _memory(result: JSON) -> int:
    """The part of its device that a result consumes: all of it, where none is stated."""
    consumed = (result.get("consumedCapacity") or {}).get("memory")
    return CARD if consumed is None else quantity.integer(consumed)


PEER = Peer(
    name="dra",
    title="Kubernetes' DRA",
    programs=(kubernetes.SCHEDULER, kubernetes.CONTROLLERS),
    dress=lambda node: None,
    start=_start,
    kills=(kubernetes.SCHEDULER.name,),
    pod=_pod,
    reading=Reading(known=_known, booked=_booked, shown=_claims),
)
