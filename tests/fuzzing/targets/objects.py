"""The objects that informers and agents read: pods, nodes, GPUNodes, claims, Kueue's objects, ConfigMaps, Leases."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from allocator.cache import podinfo
from allocator.features.elasticgpuclaims import objects as claims
from allocator.features.elasticgpuclaims import shares
from allocator.features.kueue import workloads
from allocator.features.kueue.checks import FitChecks
from allocator.features.kueue.workloads import UnreadableObject
from allocator.features.provisioning import objects as requests
from allocator.neighbours import storage
from allocator.neighbours.followed import key_of
from contract import bounds, names, pods
from contract.dialects import DIALECTS
from contract.dialects import resourceclaims as share_claims
from contract.dialects.base import PodReader, Refusal
from contract.encoding import codec, resourceclaims
from contract.encoding.quantity import BadQuantity
from contract.encoding.reading import Malformed, words
from contract.model import Gpu, PodRequest
from contract.nodes import (
    attributes,
    capacity,
    excluded,
    heartbeat,
    idle,
    inventories,
    pool_status,
    proofs,
    repeated,
    reports,
    reservations,
)
from contract.nodes.pool_status import PoolsStatus, PoolStatus
from contract.options import DEFAULTS
from nodeagent.conditions import listed
from nodeagent.gpus.library import Card
from nodeagent.publishing import status as published
from nodeagent.sharing import cordoning, ownership, residents
from runtime.kubernetes import lease
from runtime.kubernetes.lease import LeaseTiming, Observed
from tests.builders import node, pod
from tests.fuzzing.judge import NotJson, Target, bounded, document, length, mapping, presentable, same
from tests.fuzzing.targets.annotations import ALLOCATIONS, REQUESTS
from tests.unit.allocator.one_gpu import running, waiting, worker

JSON = dict[str, Any]
_NOT_JSON = (NotJson,)


def _dumped(*found: Any) -> tuple[bytes, ...]:
    return tuple(json.dumps(each, default=str).encode() for each in found)


# -- pods ---------------------------------------------------------------------------------------------------------


def _pods() -> tuple[bytes, ...]:
    plain = pod("p").asks("nvidia.com/gpu", 1).asks("nvidia.com/gpumem", 3000).needs(cpu="1", memory="1Gi")
    rich = plain.init("i").needs(cpu="2").tolerates("gpu", value="yes", effect="NoSchedule").host_port(80).uid("u-1")
    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["5"]}], "matchFields": []}
                ]
            }
        },
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x"}]},
    }
    held = running(worker("held"), ALLOCATIONS[0])
    ended = {
        **held,
        "status": {
            "phase": "Succeeded",
            "conditions": [
                {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-05T08:00:00Z"},
                {"type": str(names.ALLOCATED_CONDITION), "status": "True", "reason": "r", "message": "m"},
            ],
        },
    }
    return _dumped(
        plain.json(),
        rich.spec(affinity=affinity, topologySpreadConstraints=[{"maxSkew": 1}], nodeSelector={"a": "b"}).json(),
        waiting(worker("w", mib=1000)),
        held,
        ended,
    )


def _pod(data: bytes) -> None:
    """A function that is documented to accept anything accepts anything."""
    found = mapping(data)
    podinfo.pod_event(found, pods.trim)
    podinfo.pod_event(found)
    podinfo.named(found)
    podinfo.made_of(found)
    podinfo.may_hold(found)


def _typed_pod(data: bytes) -> None:
    """A pod whose fields have the API's types can be read, whatever their values are."""
    found = mapping(data)
    small = pods.trim(found)
    bounded(length(small), length(found), "the trimmed pod", times=1)
    info = podinfo.read_pod(small)
    if info.waiting is not None:
        bounded(length(info.waiting.outline), length(small), "the outline", times=2)
        presentable(info.waiting.unreadable, "why the pod is not placed")
    residents.resident(residents.trim(found))
    refusal = bounds.problem(found)
    if refusal is not None:
        presentable(str(refusal), "the refusal")
    request = DIALECTS.read(found)
    if request is not None and not isinstance(request, PodRequest):
        presentable(str(request), "the refusal")
    for each in DIALECTS.misspelt(found):
        presentable(str(each), "the refusal")


# -- nodes and GPUNodes -------------------------------------------------------------------------------------------


def _nodes() -> tuple[bytes, ...]:
    full = {
        "metadata": {
            "name": "n1",
            "labels": {"pool": "a", str(names.OWNERSHIP): "held"},
            "annotations": {str(names.CORDON): "0,GPU-1,x"},
            "creationTimestamp": "2026-01-05T08:00:00Z",
            "resourceVersion": "7",
        },
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "x", "effect": "NoSchedule"}], "unschedulable": True},
        "status": {
            "allocatable": {
                "cpu": "8",
                "memory": "32Gi",
                "ephemeral-storage": "100Gi",
                "pods": "110",
                "nvidia.com/gpu": "2",
                "nvidia.com/mig-1g.5gb": "1",
            },
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return _dumped(full)


def _node(data: bytes) -> None:
    found = mapping(data)
    small = attributes.trim(found)
    bounded(length(small), length(found), "the trimmed node", times=1)
    facts = attributes.facts(small)
    if len(facts.taints) > attributes.MOST_TAINTS + 1:
        raise AssertionError("more taints than are read")
    ownership.read(found)
    listed = words((found["metadata"].get("annotations") or {}).get(names.CORDON)) if found.get("metadata") else ()
    for condition in cordoning.read(listed, (Card(0, "GPU-1", "Tesla T4", 1, used_bytes=0, utilisation=0),)).conditions:
        presentable(condition.message, "the condition")
    capacity.vendor_gpus((found.get("status") or {}).get("allocatable") or {})


def _gpunodes() -> tuple[bytes, ...]:
    gpu = {
        "uuid": "GPU-1",
        "index": 0,
        "model": "Tesla T4",
        "memoryBytes": 1 << 34,
        "usableBytes": 1 << 34,
        "health": "Healthy",
        "reason": "",
        "numaNode": 0,
        "nvlinks": 2,
        "links": [{"uuid": "GPU-2", "path": "NV2"}],
        "pciAddress": "0000:01:00.0",
        "computeCapability": "7.5",
        "parent": "",
    }
    full = {
        "metadata": {"name": "n1", "annotations": {str(names.BEYOND): "{}"}},
        "status": {
            "driverVersion": "550",
            "cudaVersion": "12.4",
            "problem": "",
            "kernelVersion": "6",
            "cgroupMode": "v2",
            "delivery": {
                "runtimeClasses": ["", "nvidia"],
                "cdiKind": "nvidia.com/gpu",
                "byAnnotation": False,
                "mounts": "",
                "oneGpuPerContainer": False,
                "partitions": False,
                "byClaim": False,
            },
            "isolation": ["watch"],
            "pool": "a",
            "options": [
                {"name": "deviceSplitCount", "value": "10"},
                {"name": "deviceMemoryScaling", "value": "1.5"},
                {"name": "memoryLimitRatio", "value": "2"},
                {"name": "disablecorelimit", "value": "true"},
            ],
            "gpus": [gpu, {**gpu, "uuid": "GPU-2", "index": 1, "health": "Cordoned"}],
            "idle": [{"pod": "u-1", "since": "2026-01-05T08:00:00Z"}],
            "observedAt": "2026-01-05T09:00:00Z",
            "heartbeatSeconds": 120,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "r",
                    "message": "m",
                    "lastTransitionTime": "2026-01-05T08:00:00Z",
                }
            ],
        },
    }
    return _dumped(full, node("n1").gpu("Tesla T4", mib=15109).gpu("NVIDIA A100", mib=81920).gpunode())


def _gpunode(data: bytes) -> None:
    found = document(data)
    idle.idle_from_object(found) if isinstance(found, dict) else None
    bounded(heartbeat.heartbeat_of(found).every, heartbeat.LONGEST, "the heartbeat", times=1, more=0)
    bounded(len(reports.reports_from_object(found)), reports.MOST_REPORTS, "the reports", times=1, more=0)
    noted = repeated.from_text(data[:512].decode("latin-1"))
    same(repeated.from_text(repeated.to_text(noted)), tuple(sorted(noted)), "reading notes that were written")
    proof = proofs.from_text(data[:512].decode("latin-1"))
    if proof is not None:
        same(proofs.from_text(proofs.to_text(proof)), proof, "reading a proof that was written")
    inventory = inventories.inventory_from_object(found)
    again = {"metadata": {"name": inventory.node}, "status": inventories.inventory_to_status(inventory)}
    same(inventories.inventory_from_object(again), inventory, "reading an inventory that was written")
    capacity.digest(capacity.promises(inventory.gpus))


def _storage() -> tuple[bytes, ...]:
    selector = {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]}
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
    claim = {
        "metadata": {
            "name": "c",
            "namespace": "n",
            "uid": "u",
            "annotations": {"pv.kubernetes.io/bind-completed": "y"},
        },
        "spec": {"volumeName": "v", "resources": {"requests": {"storage": "1Gi"}}, "selector": selector},
        "status": {"phase": "Bound"},
    }
    volume: dict[str, Any] = {
        "metadata": {"name": "v", "labels": {"zone": "a__b"}},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "claimRef": {"namespace": "n", "name": "c", "uid": "u"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            "csi": {"driver": "d", "volumeHandle": "h"},
        },
    }
    by_label = [{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]
    storage_class = {"metadata": {"name": "s"}, "provisioner": "p", "allowedTopologies": by_label}
    csi_node = {"metadata": {"name": "n"}, "spec": {"drivers": [{"name": "d", "allocatable": {"count": 3}}]}}
    capacity_of = {"metadata": {"name": "x"}, "storageClassName": "s", "nodeTopology": selector, "capacity": "1Gi"}
    disk = {**volume, "spec": {**volume["spec"], "gcePersistentDisk": {"pdName": "p"}}}
    device = {"driver": "d", "pool": "p", "device": "x"}
    device_claim = {
        "metadata": {"name": "r", "namespace": "n", "ownerReferences": [{"uid": "u", "controller": True}]},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}},
        "status": {
            "allocation": {
                "nodeSelector": {"nodeSelectorTerms": terms},
                "devices": {"results": [{**device, "bindingConditions": ["A"], "bindingFailureConditions": ["B"]}]},
            },
            "devices": [{**device, "conditions": [{"type": "B", "status": "True"}]}],
        },
    }
    device_class = {"metadata": {"name": "c"}, "spec": {"extendedResourceName": "example.com/card"}}
    return _dumped(claim, volume, disk, storage_class, csi_node, capacity_of, device_claim, device_class)


def _stored(data: bytes) -> None:
    """Claims, volumes and related objects, each read as each of their kinds."""
    found = mapping(data)
    for kind in storage.KINDS.values():
        kind.read(kind.of.keep(found))
        key_of(found)


def _published(data: bytes) -> None:
    """What the agent reads from its own GPUNode, to keep what is still true."""
    found = mapping(data)
    status = found.get("status")
    if isinstance(status, dict):
        for each in listed(status).values():
            published._read(each)


# -- claims -------------------------------------------------------------------------------------------------------


def _elastic() -> tuple[bytes, ...]:
    metadata = {
        "name": "c",
        "namespace": "team-a",
        "uid": "u-1",
        "resourceVersion": "3",
        "finalizers": ["x"],
        "creationTimestamp": "2026-01-05T08:00:00Z",
    }
    share = {
        "metadata": {**metadata, "annotations": {str(names.ALLOCATION): codec.allocation_to_text(ALLOCATIONS[1])}},
        "spec": {"claimRef": {"namespace": "team-a", "name": "c", "uid": "u-1"}},
        "status": {"phase": "Bound", "reason": "", "message": ""},
    }
    asking = {
        "metadata": metadata,
        "spec": {"elasticGPUClassName": "shared", "resources": {"requests": {"elasticgpu.io/gpu-memory": "5"}}},
        "status": {"phase": "Pending"},
    }
    kind = {
        "metadata": {"name": "shared"},
        "provisioner": claims.PROVISIONER,
        "reclaimPolicy": "Retain",
        "egpuBindingMode": "Immediate",
        "parameters": {"memoryUnit": "MiB"},
    }
    return _dumped(share, asking, kind)


def _elasticgpus(data: bytes) -> None:
    found = mapping(data)
    share, asked, kind = claims.share(found), claims.claim(found), claims.gpu_class(found)
    bounded(len(share.name), len(data), "a name", times=1)
    for each in (None, replace(kind, name="gold")):
        terms = shares.wanted(asked, each)
        if isinstance(terms, shares.Problem):
            presentable(terms.message, "what is wrong with a claim", most=LONGEST_PROBLEM)


LONGEST_PROBLEM = 600
"""Characters: the message is in the claim's status, in an Event and on every pod that names the claim."""


def _claimed() -> tuple[bytes, ...]:
    allocation = ALLOCATIONS[1]
    owner = {
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1", "resourceVersion": "12"},
        "spec": {
            "resourceClaims": [{"name": str(names.POD_CLAIM), "resourceClaimName": f"{names.CLAIM_PREFIX}1"}],
            "containers": [{"name": "a"}, {"name": "b", "resources": {"claims": [{"name": "x"}]}}],
        },
    }
    claim = resourceclaims.claim_for(owner, REQUESTS[1], allocation)
    claim["metadata"]["uid"] = "c-1"
    return _dumped({**claim, "status": resourceclaims.status_for(owner, allocation)}, owner)


def _resourceclaim(data: bytes) -> None:
    found = mapping(data)
    found_requests = resourceclaims.requests_of(found)
    bounded(length(found_requests), len(data), "the claim's requests")
    resourceclaims.owner_uid(found)
    spec = found.get("spec")
    if isinstance(spec, dict):
        resourceclaims.named_by(spec)
        bounded(length(resourceclaims.without_claim(spec)), len(data), "the spec without our claim")
    prepared = resourceclaims.prepared(found, uid="c-1", node="n1")
    same(
        resourceclaims.from_checkpoint(resourceclaims.to_checkpoint({"c-1": prepared})),
        {"c-1": prepared},
        "reading a checkpoint that was written",
    )
    resourceclaims.version(found)


def _share_claims() -> tuple[bytes, ...]:
    """A claim of a tenant, and a pod that uses it."""
    exactly = {
        "deviceClassName": "share.gpufraction.io",
        "count": 2,
        "allocationMode": "ExactCount",
        "capacity": {"requests": {"memory": "8Gi", "cores": "30"}},
    }
    parameters = {
        "apiVersion": share_claims.API_VERSION,
        "kind": share_claims.KIND,
        "isolation": "mps",
        "memoryLimit": "16Gi",
    }
    devices = {
        "requests": [{"name": "gpu", "exactly": exactly}],
        "config": [{"requests": ["gpu"], "opaque": {"driver": names.GROUP, "parameters": parameters}}],
        "constraints": [{"requests": ["gpu"], "matchAttribute": "gpufraction.io/numa"}],
    }
    selecting = {"selectors": [{"cel": {"expression": "device.driver == 'gpufraction.io'"}}]}
    alternatives = [{"name": "a", **exactly, **selecting}, {"name": "b", **exactly}]
    spec = {
        "devices": devices,
        "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "t"}],
        "containers": [{"name": "a", "resources": {"claims": [{"name": "own", "request": "gpu"}]}}],
    }
    some = {"devices": {"requests": [{"name": "gpu", "firstAvailable": alternatives}]}}
    return _dumped(*({"metadata": {"annotations": {}}, "spec": each} for each in (spec, {**spec, **some})))


def _share_claim(data: bytes) -> None:
    found = mapping(data)
    spec = found.get("spec")
    reading = share_claims.read_claim(spec)
    if isinstance(reading, Refusal):
        presentable(str(reading), "the refusal")
        return
    entries = share_claims.entries(spec) if isinstance(spec, dict) else ()
    bounded(length(entries), len(data), "the entries")
    readings = {entry.name: reading for entry in entries if reading}
    request = share_claims.read_pod(PodReader(found, DEFAULTS), readings)
    if isinstance(request, PodRequest):
        same(codec.request_from_text(codec.request_to_text(request)), request, "reading a request that was written")
    elif request is not None:
        presentable(str(request), "the refusal")


def _checkpoint(data: bytes) -> None:
    found = resourceclaims.from_checkpoint(data.decode(errors="replace"))
    same(
        resourceclaims.from_checkpoint(resourceclaims.to_checkpoint(found)),
        found,
        "reading a checkpoint that was written",
    )


def _checkpoints() -> tuple[bytes, ...]:
    device = resourceclaims.PreparedDevice("a", "n1", "gpu-1", ("nvidia.com/gpu=GPU-1",))
    return (resourceclaims.to_checkpoint({"c-1": (device,)}).encode(),)


# -- Kueue --------------------------------------------------------------------------------------------------------


def _kueue_seeds() -> tuple[bytes, ...]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": json.loads(_pods()[1])["spec"]}
    assignment = {
        "name": "main",
        "count": 2,
        "flavors": {"nvidia.com/gpu": "t4"},
        "topologyAssignment": {
            "levels": ["rack", "host"],
            "slices": [
                {
                    "domainCount": 2,
                    "valuesPerLevel": [{"universal": "r1"}, {"individual": {"prefix": "h", "roots": ["1", "2"]}}],
                    "podCounts": {"individual": [1, 1]},
                }
            ],
        },
    }
    older = {**assignment, "topologyAssignment": {"levels": ["rack"], "domains": [{"values": ["r1"], "count": 2}]}}
    update = {"name": "main", "labels": {"c": "d"}, "nodeSelector": {"e": "f"}, "tolerations": [{"operator": "Exists"}]}
    found = []
    for each in (assignment, older):
        found.append(
            {
                "metadata": {
                    "name": "w",
                    "namespace": "team-a",
                    "uid": "u-1",
                    "resourceVersion": "5",
                    "ownerReferences": [{"kind": "Pod", "uid": "u-2", "name": "p"}],
                },
                "spec": {
                    "priority": 5,
                    "priorityClassRef": {"group": "scheduling.k8s.io", "name": "high"},
                    "podSets": [{"name": "main", "count": 2, "template": template}],
                },
                "status": {
                    "conditions": [
                        {"type": "QuotaReserved", "status": "True", "lastTransitionTime": "2026-01-05T08:00:00Z"}
                    ],
                    "admission": {"clusterQueue": "q", "podSetAssignments": [each]},
                    "admissionChecks": [
                        {
                            "name": "gpus",
                            "state": "Pending",
                            "podSetUpdates": [update],
                            "lastTransitionTime": "2026-01-05T08:00:00Z",
                            "message": "",
                        }
                    ],
                    "reclaimablePods": [{"name": "main", "count": 1}],
                },
            }
        )
    check = {
        "metadata": {"name": "gpus", "resourceVersion": "2", "generation": 1},
        "spec": {"controllerName": str(names.FITS)},
        "status": {"conditions": [{"type": "Active", "status": "True"}]},
    }
    flavor = {"metadata": {"name": "t4"}, "spec": {"nodeLabels": {"a": "b"}, "tolerations": [{"operator": "Exists"}]}}
    return _dumped(*found, check, flavor)


def _kueue(data: bytes) -> None:
    found = mapping(data)
    trimmed = workloads.trim(found)
    read = workloads.workload(trimmed)
    if read is None:
        return
    for each in read.pod_sets:
        if len(each.domains) > 4096:
            raise AssertionError("more domains than are read")
    answer = workloads.answering(
        read, [check.name for check in read.checks], "Ready", "fits", now="2026-01-05T08:00:00Z"
    )
    bounded(length(answer), len(data), "the answer")


def _kueue_followed(data: bytes) -> None:
    """
    An object from the watch is taken in or refused as unreadable, and an object of each kind can be deleted again.
    """
    found = mapping(data)
    checks = FitChecks(hold=60.0, age_of=lambda stamp: 1.0)
    for plural in (workloads.CHECKS, workloads.FLAVORS, workloads.WORKLOADS):
        try:
            checks.changed(plural, found, 1.0)
        except UnreadableObject as error:
            presentable(str(error), "the error's message", most=len(data) + 4096) if str(error).isprintable() else None
        for check in checks.inactive():
            workloads.activating(check, now="2026-01-05T08:00:00Z")
        checks.due(2.0)
        checks.deleted(plural, found)


# -- requested nodes, lists, and the programs' own objects ----------------------------------------------------------


def _node_requests() -> tuple[bytes, ...]:
    metadata = {"name": "a-1", "labels": {str(names.POOL): "a"}, "creationTimestamp": "2026-01-05T08:00:00Z"}
    failed = {"conditions": [{"type": "Failed", "status": "True", "reason": "r", "message": "m"}]}
    return _dumped(
        {"metadata": metadata, "spec": {"podSets": [{"count": 2}]}, "status": failed},
        {"metadata": metadata, "spec": {"nodeName": "n1"}},
    )


def _node_request(data: bytes) -> None:
    found = requests.request_of(mapping(data))
    if found is not None:
        presentable(found.refused, "the autoscaler's words", most=200)


def _excluded_seeds() -> tuple[bytes, ...]:
    return _dumped({"metadata": {"name": "unhealthy-gpu-n1", "uid": "u"}, "data": {"gpus": "0, GPU-1,x"}})


def _excluded(data: bytes) -> None:
    found = mapping(data)
    read = excluded.read(excluded.trim(found))
    if read is not None:
        presentable(read.wrong, "what is wrong")
        presentable(read.strangers((Gpu("GPU-7", 7, "T4", 1, 1),)).replace(read.node, ""), "the strangers")


def _pools(data: bytes) -> None:
    found = pool_status.read(data.decode(errors="replace"))
    same(pool_status.read(pool_status.document(found)), found, "reading pools that were written")


def _pool_seeds() -> tuple[bytes, ...]:
    status = PoolStatus("a", 10, 1, 2, 1, 1, 100.0, "paused", True, 2, 200.0, "Timeout", "why")
    return (pool_status.document(PoolsStatus(1.5, (status,), "trouble")).encode(),)


def _reserved(data: bytes) -> None:
    text = data.decode(errors="replace")
    found = reservations.reserved_nodes({"metadata": {"annotations": {str(names.RESERVED_NODES): text}}})
    bounded(len(found), 64, "nodes", times=1, more=0)
    presentable("".join(found), "the names of nodes")
    pairs = {(node, uid) for node, uids in found.items() for uid in uids}
    again = reservations.reserved_nodes({"metadata": {"annotations": reservations.annotation(pairs)}})
    same({(node, uid) for node, uids in again.items() for uid in uids}, pairs, "reading nodes that were written")


def _reserved_seeds() -> tuple[bytes, ...]:
    return (reservations.annotation([("a", "1"), ("a", "2"), ("b", "3")])[str(names.RESERVED_NODES)].encode(),)


def _lease_seeds() -> tuple[bytes, ...]:
    spec = {
        "holderIdentity": "a_1",
        "leaseDurationSeconds": 15,
        "leaseTransitions": 3,
        "acquireTime": "2026-01-05T08:00:00.000000Z",
        "renewTime": "2026-01-05T08:00:10.000000Z",
    }
    return _dumped({"metadata": {"name": "l", "resourceVersion": "5"}, "spec": spec}, {"metadata": {}, "spec": None})


def _lease(data: bytes) -> None:
    """Any record in the Lease can be looked at now and again later, and what is written can be read again."""
    found = mapping(data)
    observed = Observed()
    for now in (100.0, 101.0, 1000.0):
        observed, action = lease.step(
            found, "me", observed, now=now, wall="2026-01-05T08:01:00.000000Z", timing=LeaseTiming()
        )
        if isinstance(action, lease.LeaseWrite):
            bounded(length(action.body), len(data), "the Lease")
            observed, _ = lease.step(
                action.body, "other", observed, now=now, wall="2026-01-05T08:01:01.000000Z", timing=LeaseTiming()
            )
    lease.released(found, "me", observed, now=1000.0)


TARGETS = (
    Target(
        "pod",
        _pod,
        ("allocator.cache.podinfo:pod_event", "allocator.cache.podinfo:read_pod", "contract.pods:trim"),
        _pods,
        _NOT_JSON,
        modules=("contract.scheduling.needs", "contract.bounds"),
    ),
    Target(
        "pod-of-the-api",
        _typed_pod,
        (
            "allocator.cache.podinfo:read_pod",
            "contract.pods:trim",
            "contract.dialects.table:Dialects",
            "contract.scheduling.clusterfilters.objects:read_node_wishes",
            "contract.scheduling.clusterfilters.objects:read_rules",
            "contract.scheduling.clusterfilters.objects:read_spread",
            "contract.scheduling.clusterfilters.selectors:read_equal",
            "contract.scheduling.clusterfilters.selectors:read_selector",
            "nodeagent.sharing.residents:trim",
        ),
        _pods,
        _NOT_JSON,
        form="typed",
        modules=(
            "contract.scheduling.needs",
            "contract.bounds",
            "contract.dialects.base",
            "contract.dialects.native",
            "contract.dialects.hami",
            "contract.dialects.aliyun",
            "contract.dialects.elastic",
            "contract.dialects.claims",
            "contract.dialects.kai",
            "contract.dialects.nano",
        ),
        weight=4,
    ),
    Target(
        "node",
        _node,
        (
            "contract.nodes.attributes:trim",
            "contract.nodes.attributes:facts",
            "nodeagent.sharing.ownership:read",
            "nodeagent.sharing.cordoning:read",
        ),
        _nodes,
        _NOT_JSON,
        form="typed",
        modules=("contract.nodes.capacity",),
    ),
    Target(
        "gpunode",
        _gpunode,
        (
            "contract.nodes.inventories:inventory_from_object",
            "contract.nodes.heartbeat:heartbeat_of",
            "contract.nodes.idle:idle_from_object",
            "contract.nodes.reports:reports_from_object",
            "contract.nodes.repeated:from_text",
            "contract.nodes.proofs:from_text",
        ),
        _gpunodes,
        (Malformed, *_NOT_JSON),
        modules=("contract.nodes.capacity",),
    ),
    Target(
        "storage",
        _stored,
        tuple(
            f"contract.scheduling.clusterfilters.objects:{each}"
            for each in (
                "read_claim",
                "read_volume",
                "read_class",
                "read_csi_node",
                "read_capacity",
                "read_device_claim",
                "read_device_class",
            )
        ),
        _storage,
        (BadQuantity, *_NOT_JSON),
        form="typed",
    ),
    Target("gpunode-own", _published, ("nodeagent.conditions:listed",), _gpunodes, _NOT_JSON),
    Target(
        "elasticgpuclaims",
        _elasticgpus,
        (
            "allocator.features.elasticgpuclaims.objects:claim",
            "allocator.features.elasticgpuclaims.objects:gpu_class",
            "allocator.features.elasticgpuclaims.objects:share",
        ),
        _elastic,
        _NOT_JSON,
        modules=("allocator.features.elasticgpuclaims.shares",),
    ),
    Target(
        "resourceclaim",
        _resourceclaim,
        ("contract.encoding.resourceclaims:prepared", "contract.encoding.resourceclaims:version"),
        _claimed,
        (Malformed, *_NOT_JSON),
        form="typed",
    ),
    Target(
        "share-claim",
        _share_claim,
        (
            "contract.dialects.resourceclaims:read_claim",
            "contract.dialects.resourceclaims:read_pod",
            "contract.dialects.resourceclaims:entries",
        ),
        _share_claims,
        _NOT_JSON,
        form="typed",
    ),
    Target(
        "checkpoint",
        _checkpoint,
        ("contract.encoding.resourceclaims:from_checkpoint",),
        _checkpoints,
        (Malformed,),
    ),
    Target(
        "kueue-workload",
        _kueue,
        (
            "allocator.features.kueue.workloads:trim",
            "allocator.features.kueue.workloads:workload",
            "allocator.features.kueue.domains:domains",
        ),
        _kueue_seeds,
        (UnreadableObject, *_NOT_JSON),
    ),
    Target(
        "kueue-followed",
        _kueue_followed,
        (
            "allocator.features.kueue.checks:FitChecks",
            "allocator.features.kueue.workloads:flavor",
            "allocator.features.kueue.workloads:is_ours",
            "allocator.features.kueue.workloads:is_active",
        ),
        _kueue_seeds,
        _NOT_JSON,
        form="typed",
    ),
    Target(
        "node-request",
        _node_request,
        ("allocator.features.provisioning.objects:request_of",),
        _node_requests,
        _NOT_JSON,
        form="typed",
    ),
    Target(
        "excluded-cards",
        _excluded,
        ("contract.nodes.excluded:read", "contract.nodes.excluded:trim"),
        _excluded_seeds,
        _NOT_JSON,
        form="typed",
    ),
    Target("reserved-nodes", _reserved, ("contract.nodes.reservations:reserved_nodes",), _reserved_seeds),
    Target("pool-status", _pools, ("contract.nodes.pool_status:read",), _pool_seeds, (Malformed,)),
    Target("lease", _lease, ("runtime.kubernetes.lease:step",), _lease_seeds, _NOT_JSON, form="typed"),
)
