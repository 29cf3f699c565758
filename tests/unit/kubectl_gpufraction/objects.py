"""Objects as the API server has them: inventories, nodes, placed pods, waiting pods, and pods of the older system."""

from __future__ import annotations

from typing import Any

from contract import names, pods
from contract.dialects import DIALECTS
from contract.encoding import codec
from contract.encoding.quantity import GIB, MIB
from contract.model import Allocation, ContainerAllocation, Gpu, GpuShare, Inventory, PodRequest
from contract.nodes.inventories import inventory_to_status
from contract.options import Options
from tests.builders import pod

JSON = dict[str, Any]
CARD = 15109


def gpunode(name: str, *mib: int, model: str = "Tesla T4", unhealthy: int = -1) -> JSON:
    """An inventory of cards of these sizes."""
    gpus = tuple(
        Gpu(f"GPU-{name}-{i}", i, model, size * MIB, size * MIB, i != unhealthy, "XID 79" if i == unhealthy else "")
        for i, size in enumerate(mib)
    )
    return {"metadata": {"name": name}, "status": inventory_to_status(Inventory(name, gpus, "550.54"))}


def node(name: str, allocatable: dict[str, str] | None = None, *, cordoned: bool = False) -> JSON:
    """A Ready Node."""
    status = {
        "addresses": [{"type": "Hostname", "address": name}, {"type": "InternalIP", "address": "10.0.0.1"}],
        "conditions": [{"type": "Ready", "status": "True"}],
        "allocatable": allocatable or {},
    }
    return {"metadata": {"name": name}, "spec": {"unschedulable": True} if cordoned else {}, "status": status}


def admitted(
    name: str,
    resource: str,
    amount: int | str,
    *,
    on: str = "",
    gpu: int = 0,
    unit: int = GIB,
    priority: int = 0,
    created: str = "2026-01-05T08:00:00Z",
    waits: str = "",
    limit: str = "",
) -> JSON:
    """A pod after admission: placed on a GPU of a node, or waiting with a reason. `limit`: of its memory."""
    wants = pod(name).uid(name).created(created).spec(priority=priority).asks(resource, amount)
    made = (wants.asks(names.GPU_MEMORY_LIMIT, limit) if limit else wants).json()
    request = DIALECTS.read(made, Options(aliyun_unit=unit))
    assert isinstance(request, PodRequest)
    fraction = request.containers[0]
    memory = fraction.memory_on(CARD * MIB)
    counted = pods.accounting(fraction, memory * fraction.count)
    made["spec"]["containers"][0]["resources"] = {"limits": counted, "requests": counted}
    annotations = {str(names.REQUEST): codec.request_to_text(request)}
    if on:
        burst = fraction.burst_on(CARD * MIB)
        share = GpuShare(f"GPU-{on}-{gpu}", gpu, memory, fraction.cores, CARD * MIB, burst=burst)
        allocation = Allocation(f"id-{name}", on, (ContainerAllocation(fraction.container, (share,)),))
        annotations |= {str(names.ALLOCATION): codec.allocation_to_text(allocation)}
        annotations |= dict(DIALECTS.render(made, request, allocation, 1).annotations)
        made["spec"]["nodeName"] = on
        made["status"] = {"phase": "Running"}
    else:
        made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
        condition = {
            "type": str(names.ALLOCATED_CONDITION),
            "status": "False",
            "reason": "Memory",
            "message": waits,
            "lastTransitionTime": "2026-01-05T09:00:00Z",
        }
        made["status"] = {"phase": "Pending", "conditions": [condition]}
    made["metadata"]["annotations"] = annotations
    return made


def by_claim(name: str, claim: str, *, on: str = "", gpu: int = 0) -> JSON:
    """A pod of two containers that names a claim, placed on the claim's share, or waiting."""
    made = pod(name).uid(name).container("a").container("b").annotated("egpuc.elasticgpu.io/x", claim).json()
    request = DIALECTS.read(made)
    assert isinstance(request, PodRequest)
    annotations = {**made["metadata"]["annotations"], str(names.REQUEST): codec.request_to_text(request)}
    if on:
        share = share_of_claim(claim, on, gpu)["metadata"]
        held = codec.allocation_from_text(share["annotations"][names.ALLOCATION])
        containers = tuple(ContainerAllocation(f.container, held.containers[0].shares) for f in request.containers)
        allocation = Allocation(f"id-{name}", on, containers, share["name"])
        annotations[str(names.ALLOCATION)] = codec.allocation_to_text(allocation)
        made["spec"]["nodeName"], made["status"] = on, {"phase": "Running"}
    else:
        made["spec"]["schedulingGates"] = [{"name": str(names.GATE)}]
    made["metadata"]["annotations"] = annotations
    return made


def share_of_claim(claim: str, on: str, gpu: int = 0, *, mib: int = 2048) -> JSON:
    """The ElasticGPU of a claim in the namespace `default`."""
    share = GpuShare(f"GPU-{on}-{gpu}", gpu, mib * MIB, 10, CARD * MIB)
    held = Allocation(f"egpu/{claim}", on, (ContainerAllocation("claim", (share,)),), f"egpu-{claim}")
    return {
        "metadata": {"name": f"egpu-{claim}", "annotations": {str(names.ALLOCATION): codec.allocation_to_text(held)}},
        "spec": {"claimRef": {"namespace": "default", "name": claim}},
    }


def theirs(name: str, units: int, on: str, **annotations: str) -> JSON:
    """A pod that gpushare itself placed."""
    made = pod(name).asks("aliyun.com/gpu-mem", units).on(on).phase("Running").json()
    made["metadata"]["annotations"] = annotations
    return made
