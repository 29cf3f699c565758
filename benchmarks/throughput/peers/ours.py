"""Our own side, read as any peer is: what the annotation of a stored pod gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import Reading
from contract import names
from contract.encoding import codec
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
KILLS = ("allocator",)


def _known(pod: JSON) -> str:
    return str(pod["metadata"]["name"]) if names.ALLOCATION in _annotations(pod) else ""


def _annotations(pod: JSON) -> Mapping[str, str]:
    return pod["metadata"].get("annotations") or {}


def _booked(kube: Kube, namespace: str) -> Sequence[Booking]:
    pods = kube.list(paths.pods(namespace)).items
    return [each for pod in pods if pod["spec"].get("nodeName") for each in bookings(pod)]


def bookings(pod: JSON) -> list[Booking]:
    """What a pod with a node holds. Raises `Malformed` for an annotation that cannot be read."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    text = _annotations(pod).get(names.ALLOCATION)
    if text is None:
        return [Booking(name, node, "", 0)]
    allocation = codec.allocation_from_text(text)
    shares = [share for container in allocation.containers for share in container.shares]
    return [Booking(name, node, share.uuid, share.memory) for share in shares]


READING = Reading(known=_known, booked=_booked)
