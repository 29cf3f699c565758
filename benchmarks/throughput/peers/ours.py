"""
Our own sides, read as any peer is, from the annotation of a stored pod. And the other needs of the side by
ResourceClaims: a template, and kube-controller-manager's controller of claims.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.throughput.peers import kubernetes
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import SHARE, Host, Reading, gib
from contract import names
from contract.encoding import codec, resourceclaims
from playground.programs.process import Program
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
    """The holdings of a pod with a node. Raises `Malformed` for an annotation that cannot be read."""
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    text = _annotations(pod).get(names.ALLOCATION)
    if text is None:
        return [Booking(name, node, "", 0)]
    allocation = codec.allocation_from_text(text)
    shares = [share for container in allocation.containers for share in container.shares]
    return [Booking(name, node, share.uuid, share.memory) for share in shares]


READING = Reading(known=_known, booked=_booked)


# -- by ResourceClaims --------------------------------------------------------------------------------------------

_TEMPLATE, _NAME = "share", "gpu"


def serve_claims(host: Host) -> Mapping[str, Program]:
    """Let pods of the namespace request by the template, and start the controller that makes their claims."""
    labels = {"metadata": {"labels": {str(names.RESOURCE_CLAIMS_LABEL): "enabled"}}}
    host.kube.patch_merge(paths.namespaces(host.namespace), labels)
    controllers = kubernetes.controllers(host, "resourceclaim-controller")
    host.kube.create(paths.resourceclaimtemplates(host.namespace), _template())
    return {kubernetes.CONTROLLERS.name: controllers}


def _template() -> JSON:
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": gib(SHARE)}}}
    return {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": _TEMPLATE},
        "spec": {"spec": {"devices": {"requests": [{"name": _NAME, "exactly": exactly}]}}},
    }


def name_claim(pod: JSON) -> None:
    """Change a pod in place so that it requests by the template."""
    spec = pod["spec"]
    spec["resourceClaims"] = [{"name": _NAME, "resourceClaimTemplateName": _TEMPLATE}]
    spec["containers"][0]["resources"]["claims"] = [{"name": _NAME}]
