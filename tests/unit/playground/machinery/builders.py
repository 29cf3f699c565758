"""Pods and nodes in short form, for the tests of the machinery."""

from __future__ import annotations

from typing import Any

from playground.api.kinds.values import JSON
from playground.machinery.objects.nodes import NodeSpec, node_object
from playground.machinery.objects.resources import Account, Holding, allocatable_of, node_state, requests_of
from playground.machinery.scheduler.placement import Candidate, Wish

NOW = 1_700_000_000.0
GPU_MEMORY = "gpufraction.io/gpu-memory"


def pod(name: str = "p", *, limits: dict[str, str] | None = None, **spec: Any) -> JSON:
    container = {"name": "main", "image": "busybox", "resources": {"limits": limits or {}}}
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "labels": spec.pop("labels", {}),
        "annotations": spec.pop("annotations", {}),
    }
    return {"metadata": metadata, "spec": {"containers": [container], **spec}, "status": {}}


def node(name: str = "n1", *, extended: dict[str, str] | None = None, cordoned: bool = False, **spec: Any) -> JSON:
    made = node_object(NodeSpec(name, **spec), NOW)
    for amounts in (made["status"]["capacity"], made["status"]["allocatable"]):
        amounts.update(extended or {})
    if cordoned:
        made["spec"]["unschedulable"] = True
    return made


def account(**used: int) -> Account:
    """What other pods use; `gpu_memory` is the extended resource."""
    booked = Account()
    names = {"gpu_memory": GPU_MEMORY}
    if used:
        booked.book("others", Holding({names.get(name, name): much for name, much in used.items()}))
    return booked


def candidate(value: JSON, taken: Account | None = None) -> Candidate:
    return Candidate(node_state(value), allocatable_of(value), taken or Account())


def wish(value: JSON) -> Wish:
    from contract.scheduling.needs import needs_of

    return Wish(needs_of(value), requests_of(value))


def pinned_to(*names: str) -> JSON:
    fields = [{"key": "metadata.name", "operator": "In", "values": list(names)}]
    terms = {"nodeSelectorTerms": [{"matchFields": fields}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
