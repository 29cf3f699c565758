"""
NVIDIA's device plugin with time-slicing: replicas of each card as an extended resource, which kube-scheduler counts.

It needs nothing but kube-scheduler. The kubelet chooses the card when the pod starts there, and memory is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.throughput.peers import kubernetes
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import CARD, CARDS, SHARE, Host, Peer, Reading
from playground.programs.process import Program
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
RESOURCE = "nvidia.com/gpu.shared"
_REPLICAS = CARD // SHARE


def _dress(node: JSON) -> None:
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts][RESOURCE] = str(CARDS * _REPLICAS)


def _pod(pod: JSON) -> None:
    pod["spec"]["containers"][0]["resources"]["limits"] = {RESOURCE: "1"}


def _start(host: Host) -> Mapping[str, Program]:
    return {kubernetes.SCHEDULER.name: kubernetes.scheduler(host)}


def _booked(kube: Kube, namespace: str) -> Sequence[Booking]:
    pods = kube.list(paths.pods(namespace)).items
    bound = (pod for pod in pods if pod["spec"].get("nodeName"))
    return [Booking(pod["metadata"]["name"], pod["spec"]["nodeName"], "", 0) for pod in bound]


PEER = Peer(
    name="time-slicing",
    title="NVIDIA's time-slicing",
    programs=(kubernetes.SCHEDULER,),
    dress=_dress,
    start=_start,
    kills=(kubernetes.SCHEDULER.name,),
    pod=_pod,
    reading=Reading(known=lambda pod: "", booked=_booked, counted=False),
)
