"""
Reads a pod's JSON: the fields that a placement needs, and the state of its share. Pure functions.

Pods are trimmed once, when they arrive from the webhook's question or the watch: a full pod is ten times larger.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from contract import bounds, names
from contract.encoding import codec, quantity
from contract.encoding.reading import Malformed
from contract.model import WHOLE, Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from contract.scheduling import needs, node_pin, protection
from contract.scheduling.demand import ALL_COUNTED, ConcurrentDemand, Uncounted, uncounted
from contract.scheduling.nodefilters import features as declared_features

JSON = dict[str, Any]

_METADATA = (
    "name",
    "generateName",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "labels",
    "ownerReferences",
)
PLACED_BY = (
    "nodeName",
    "nodeSelector",
    "tolerations",
    "overhead",
    "resources",
    "hostNetwork",
    "schedulingGates",
    "schedulerName",
    "runtimeClassName",
    "priority",
    "preemptionPolicy",
    "topologySpreadConstraints",
    "resourceClaims",
    "schedulingGroup",
)
"""Fields of a spec that a placement needs whole, besides its containers, volumes and affinity."""
_VOLUMES = frozenset(
    (
        "persistentVolumeClaim",
        "ephemeral",
        "gcePersistentDisk",
        "awsElasticBlockStore",
        "azureDisk",
        "cinder",
        "portworxVolume",
        "iscsi",
        "rbd",
    )
)
"""The kinds of volumes that decide where their pod can go."""
_STATUS = ("phase", "reason", "conditions", "nominatedNodeName")
_STATUSES = {"initContainers": "initContainerStatuses", "containers": "containerStatuses"}
_STATE = ("resources", "allocatedResources")
_STARTS = ("name", "state", "restartCount")
_CONTAINER = ("name", "resources", "ports", "restartPolicy")
_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp", "deletionTimestamp")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_SOME = {"some": True}
_BEYOND = "beyond"
MIRROR = "kubernetes.io/config.mirror"
"""Annotation of a mirror pod. It shows a static pod, which its kubelet runs regardless of the API server's state."""
_FOREIGN = "kubectl.kubernetes.io/"
_MOST_DIGITS = 20
"""Of a resourceVersion, which has 64 bits; Python refuses to read thousands of digits."""


def trim(pod: Mapping[str, Any]) -> JSON:
    """The pod with only the fields that the allocator reads. It shares structure with `pod`; change neither."""
    refused = _refused(pod)
    if refused is not None:
        return refused
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    slim: JSON = {key: metadata[key] for key in _METADATA if key in metadata}
    if len(slim.get("labels") or ()) > bounds.MOST_LABELS:
        slim["labels"] = {}  # no rule of another pod applies to it; kube-scheduler decides in the end
    annotations = metadata.get("annotations")
    if annotations:
        slim["annotations"] = {key: value for key, value in annotations.items() if not key.startswith(_FOREIGN)}
    body: JSON = {key: spec[key] for key in PLACED_BY if spec.get(key)}
    if spec.get("hostUsers") is False:
        body["hostUsers"] = False
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            body[kind] = [_container(c) for c in spec[kind]]
    volumes = [_volume(v) for v in spec.get("volumes") or [] if not _VOLUMES.isdisjoint(v)]
    if volumes:
        body["volumes"] = volumes
    if spec.get("affinity") is not None:
        body["affinity"] = _affinity(spec["affinity"])
    outcome: JSON = {key: status[key] for key in _STATUS if status.get(key)}
    if status.get("containerStatuses") or status.get("initContainerStatuses") or status.get("resources"):
        outcome.update(_resizes(spec, status))
        if (annotations or {}).get(names.START) == names.ALONE:
            _add_starts(outcome, status)
    ours = names.GATE in gates(pod) or names.ALLOCATION in (annotations or {})
    if ours and body.get("resourceClaims") and status.get("resourceClaimStatuses"):
        outcome["resourceClaimStatuses"] = status["resourceClaimStatuses"]
    return {"metadata": slim, "spec": body, "status": outcome}


def _container(container: Mapping[str, Any]) -> JSON:
    slim = {key: container[key] for key in _CONTAINER if key in container}
    if container.get("restartPolicyRules") and declared_features.restarts_all(container):
        slim["restartPolicyRules"] = [{"action": declared_features.RESTART_ACTION}]
    return slim


def _resizes(spec: Mapping[str, Any], status: Mapping[str, Any]) -> JSON:
    """
    The running and the granted resources of resized containers, and of the pod if it has its own resources. Only for
    pods where it differs from the spec: hardly any of 100,000.
    """
    found: JSON = {}
    for kind in ("initContainers", "containers"):
        statuses = status.get(_STATUSES[kind])
        if not statuses:
            continue
        requested = {c.get("name"): (c.get("resources") or {}).get("requests") or {} for c in spec.get(kind) or ()}
        differ = [each for each in statuses if _is_resized(each, requested.get(each.get("name")))]
        if differ:
            found[_STATUSES[kind]] = [_state(each, ("name", *_STATE)) for each in differ]
    if (spec.get("resources") or {}).get("requests") and status.get("resources"):
        found.update(_state(status, _STATE))
    return found


def _add_starts(outcome: JSON, status: Mapping[str, Any]) -> None:
    """Add the start time of each container, and how often it was restarted."""
    for kind in _STATUSES.values():
        resized = {each.get("name"): each for each in outcome.get(kind) or ()}
        found = [
            {**resized.get(each.get("name"), {}), **{key: each[key] for key in _STARTS if key in each}}
            for each in status.get(kind) or ()
        ]
        if found:
            outcome[kind] = found


def _state(status: Mapping[str, Any], kept: tuple[str, ...]) -> JSON:
    slim = {key: status[key] for key in kept if key in status}
    runs = status["resources"]
    return {**slim, "resources": {"requests": runs["requests"]} if runs.get("requests") else {}}


def _is_resized(status: Mapping[str, Any], requested: Mapping[str, Any] | None) -> bool:
    """Whether a container runs with, or was granted, something other than it requests now."""
    runs = status.get("resources")
    if runs is None or requested is None:
        return False
    return (runs.get("requests") or {}) != requested or (status.get("allocatedResources") or requested) != requested


def _volume(volume: Mapping[str, Any]) -> JSON:
    """A volume without the template of the claim that is created for it."""
    return {key: {} if key == "ephemeral" else value for key, value in volume.items()}


def _refused(pod: Mapping[str, Any]) -> JSON | None:
    """
    The trimmed form of a waiting pod beyond the bounds: its identity, and why it is not placed.

    Admission refuses such pods, so this one was stored before the bounds existed, or without admission.
    """
    if names.GATE not in gates(pod):
        return None
    refusal = bounds.problem(pod)
    return too_large(pod, str(refusal)) if refusal is not None else None


def too_large(pod: Mapping[str, Any], why: str) -> JSON:
    """The form of a waiting pod of which only the identity is read. `why`: why it is not placed, and what helps."""
    metadata = pod.get("metadata") or {}
    return {
        "metadata": {key: metadata[key] for key in _IDENTITY if key in metadata},
        "spec": {"schedulingGates": [{"name": str(names.GATE)}]},
        "status": _ours_of(pod.get("status") or {}),
        _BEYOND: why,
    }


def _affinity(affinity: Mapping[str, Any]) -> JSON:
    """
    The pod's requirements and preferences for nodes and other pods, and whether it has other rules about other pods.
    More required terms than are read are left to kube-scheduler.
    """
    slim: JSON = {}
    for kind in ("podAffinity", "podAntiAffinity"):
        terms = affinity.get(kind)
        if terms is not None:
            required, preferred = terms.get(_REQUIRED) or [], _preferred(terms)
            read = {_REQUIRED: required} if required and not bounds.beyond_pod_terms(required) else {}
            slim[kind] = {**read, **preferred} or (_SOME if terms else {})
    of_nodes = affinity.get("nodeAffinity")
    if of_nodes is not None:
        required = of_nodes.get(_REQUIRED)
        slim["nodeAffinity"] = {**({} if required is None else {_REQUIRED: required}), **_preferred(of_nodes)}
    return slim


def _preferred(terms: Mapping[str, Any]) -> JSON:
    """The preferred terms. Terms beyond the bound are left out, because a preference need not be met."""
    preferred = terms.get(_PREFERRED)
    return {_PREFERRED: preferred} if preferred and not bounds.beyond_pod_terms(preferred) else {}


def beyond(pod: Mapping[str, Any]) -> str:
    """The bound that a trimmed waiting pod exceeds, so that it is not placed; empty for all others."""
    return str(pod.get(_BEYOND, ""))


def outline(pod: Mapping[str, Any]) -> JSON:
    """
    The part of a trimmed waiting pod that the writes of its placement and its condition need.

    It has a few hundred bytes: where a patch depends on the shape of a part only, its contents are left out.
    """
    metadata, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    slim: JSON = {key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in metadata}
    if metadata.get("labels"):
        slim["labels"] = dict(islice(metadata["labels"].items(), 1))  # whether there are any
    against = protection.read_of(metadata.get("annotations") or {})
    if against:
        slim["annotations"] = against
    body: JSON = {key: spec[key] for key in ("schedulingGates", "preemptionPolicy", "resourceClaims") if key in spec}
    body["containers"] = [{"name": container.get("name", "")} for container in spec.get("containers") or []]
    outcome = _ours_of(status)
    if spec.get("resourceClaims") and status.get("resourceClaimStatuses"):
        outcome["resourceClaimStatuses"] = status["resourceClaimStatuses"]
    if spec.get("resourceClaims"):
        body.update(_with_claims(spec))
    body.update(node_pin.outline(spec))
    return {"metadata": slim, "spec": body, "status": outcome}


def _with_claims(spec: Mapping[str, Any]) -> JSON:
    """The containers with the claims that they use: those of the pod's author are allocated by them."""
    return {
        kind: [_claiming(container) for container in spec[kind]]
        for kind in ("initContainers", "containers")
        if spec.get(kind)
    }


def _claiming(container: Mapping[str, Any]) -> JSON:
    slim: JSON = {key: container[key] for key in ("name", "restartPolicy") if key in container}
    claims = (container.get("resources") or {}).get("claims")
    return {**slim, "resources": {"claims": claims}} if claims else slim


def _ours_of(status: Mapping[str, Any]) -> JSON:
    found = [c for c in status.get("conditions") or [] if c.get("type") == names.ALLOCATED_CONDITION]
    return {"conditions": found} if found else {}


def key(pod: Mapping[str, Any]) -> str:
    """`namespace/name`, as kubectl shows it."""
    metadata = pod.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def uid(pod: Mapping[str, Any]) -> str:
    """The pod's uid; empty at admission, before it has one."""
    return str((pod.get("metadata") or {}).get("uid", ""))


def version(pod: Mapping[str, Any]) -> int | None:
    """
    The pod's resourceVersion, which orders two states of a pod by time; None if missing.

    Versions are growing decimal numbers (Kubernetes API concepts, "Resource versions"; comparable since 1.35, and in
    every earlier release that stores its objects in etcd).
    """
    text = (pod.get("metadata") or {}).get("resourceVersion")
    if not isinstance(text, str) or len(text) > _MOST_DIGITS or not (text.isascii() and text.isdigit()):
        return None
    return int(text)


def priority(pod: Mapping[str, Any]) -> int:
    """The value of the pod's PriorityClass, which the API server writes before admission calls us."""
    value = (pod.get("spec") or {}).get("priority")
    return value if isinstance(value, int) else 0


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, str]:
    """The pod's annotations, never None."""
    return (pod.get("metadata") or {}).get("annotations") or {}


def gates(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The pod's scheduling gates, in order."""
    return tuple(gate.get("name", "") for gate in (pod.get("spec") or {}).get("schedulingGates") or [])


def finished(pod: Mapping[str, Any]) -> bool:
    """Whether the pod's containers have ended for good. A terminating pod is not finished: it still holds its GPU."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def nominated(pod: Mapping[str, Any]) -> str:
    """The node on which kube-scheduler makes room for the pod; empty if there is none, or once it is deleted."""
    deleted = (pod.get("metadata") or {}).get("deletionTimestamp")
    return "" if deleted or gates(pod) else str((pod.get("status") or {}).get("nominatedNodeName") or "")


def accounting(fraction: FractionRequest, memory: int, besides: Uncounted = ALL_COUNTED) -> dict[str, str]:
    """
    The accounting resources of a container whose shares have `memory` bytes in total; cores only where requested.

    `besides`: what its pod holds beyond what Kubernetes counts.
    """
    resources = {}
    more_memory, more_cores = besides.of(fraction.container)
    if memory and fraction.limit:
        resources[str(names.GPU_MEMORY_LIMIT)] = quantity.format_bytes(_limit_of(fraction, memory))
    if memory + more_memory:
        resources[str(names.GPU_MEMORY)] = quantity.format_bytes(memory + more_memory)
    cores = fraction.count * fraction.cores + more_cores
    if cores:
        resources[str(names.GPU_CORES)] = str(cores)
    return resources


def _limit_of(fraction: FractionRequest, memory: int) -> int:
    """Bytes that the container's limits add up to where its shares have `memory` bytes in total."""
    return memory * fraction.limit // (fraction.memory or fraction.percent)


def admitted(pod: Mapping[str, Any]) -> PodRequest | None:
    """
    The request of an admitted pod, or None.

    The annotation is valid only if every container's accounting resources agree with it: a tenant may write
    annotations, but kubelet and quotas count the resources. Memory by percent depends on the card, so any amount
    agrees, and so does none. What an init container holds besides (`demand.uncounted`) and memory limits are counted in
    a pod that is admitted now, and were not in earlier versions, so both agree. The order of containers must agree too:
    what a pod takes depends on which one starts first. A mirror pod is never admitted: kubelets write it past the
    policies, and a compromised node must not take the GPUs of others.
    """
    return _request(pod, alone=True)


def holding(pod: Mapping[str, Any]) -> PodRequest | None:
    """
    As `admitted`, for a pod that is not gated: also where its request exceeds today's bounds.

    Such a pod was admitted before the bounds existed. Its share must be counted, or it would be allocated twice.
    """
    return _request(pod, alone=True, bounded=False)


def admitted_before(pod: Mapping[str, Any]) -> PodRequest | None:
    """
    The request of an admitted pod that may have got more containers since.

    As `admitted`, but only the containers in the request must agree with it; the others may request anything. All that
    is held must be counted.
    """
    return _request(pod, alone=False)


def _request(pod: Mapping[str, Any], *, alone: bool, bounded: bool = True) -> PodRequest | None:
    text = annotations_of(pod).get(names.REQUEST)
    if text is None or MIRROR in annotations_of(pod):
        return None
    try:
        request = codec.request_from_text(text, bounded=bounded)
        if not _agrees(pod, request, alone=alone):
            return None
        return _as_counted(pod, request) if alone and any(each.percent for each in request.containers) else request
    except (Malformed, quantity.BadQuantity):
        return None


def _as_counted(pod: Mapping[str, Any], request: PodRequest) -> PodRequest:
    counted = ConcurrentDemand()
    for container, init in needs.containers(pod.get("spec") or {}):
        memory = quantity.integer(needs.request_of(container, names.GPU_MEMORY))
        counted.start(memory, 0, init=init, exclusive=False)
    return replace(request, counted=counted.peak_memory)


def _agrees(pod: Mapping[str, Any], request: PodRequest, *, alone: bool) -> bool:
    counting = {names.GPU_MEMORY, names.GPU_CORES, names.GPU_MEMORY_LIMIT}
    if request.claim and _has_some(pod.get("spec") or {}, counting):
        return False
    wanted = list(reversed(request.containers))
    exact = not any(each.percent for each in request.containers)
    besides = uncounted(request, {each.container: each.count * each.memory for each in request.containers})
    for container, init in needs.containers(pod.get("spec") or {}):
        if not alone and (not wanted or container.get("name") != wanted[-1].container):
            continue
        memory = quantity.integer(needs.request_of(container, names.GPU_MEMORY))
        cores = quantity.integer(needs.request_of(container, names.GPU_CORES))
        limit = quantity.integer(needs.request_of(container, names.GPU_MEMORY_LIMIT))
        if not wanted or container.get("name") != wanted[-1].container:
            if memory or cores or limit:
                return False
            continue
        fraction = wanted.pop()
        if (
            not _limits_agree(limit, fraction, alone=alone)
            or init != fraction.init
            or not any(
                cores == fraction.count * fraction.cores + more.of(fraction.container)[1]
                and (not fraction.memory or _agreeing(memory, fraction, more, exact=exact))
                for more in ((besides, ALL_COUNTED) if alone else (besides,))
            )
        ):
            return False
    return not wanted


def _has_some(spec: Mapping[str, Any], counting: Container[str]) -> bool:
    """Whether a container has some of these resources. Where a LimitRange would write one, admission writes 0."""
    return any(
        name in counting and not quantity.is_zero(amount)
        for container, _ in needs.containers(spec)
        for kind in ("limits", "requests")
        for name, amount in ((container.get("resources") or {}).get(kind) or {}).items()
    )


def _limits_agree(limit: int, fraction: FractionRequest, *, alone: bool) -> bool:
    """Whether this much is counted for a memory limit. In a pod of an earlier version (`alone`) nothing is."""
    if not fraction.limit:
        return not limit
    if not limit:
        return alone
    return not fraction.memory or limit == fraction.count * fraction.limit


def _agreeing(memory: int, fraction: FractionRequest, more: Uncounted, *, exact: bool) -> bool:
    """
    Whether this much is counted for a container. Alongside shares by percent, what is counted besides is not known.
    """
    own = fraction.count * fraction.memory
    return memory == own + more.of(fraction.container)[0] or (
        not exact and memory >= own and fraction.container == more.container
    )


def allocation_of(pod: Mapping[str, Any], request: PodRequest) -> Allocation | None:
    """The pod's allocation if it can be read and satisfies the request exactly, else None."""
    allocation = carried_allocation(pod)
    return allocation if allocation is not None and is_granted(request, allocation) else None


def is_granted(request: PodRequest, allocation: Allocation) -> bool:
    """Whether the allocation satisfies the request exactly."""
    if len(allocation.containers) != len(request.containers):
        return False
    pairs = zip(request.containers, allocation.containers, strict=True)
    if request.claim:
        # The claim has the amounts, so there is nothing to compare here.
        return bool(allocation.claim) and all(fraction.container == given.container for fraction, given in pairs)
    return not allocation.claim and all(_gives(fraction, given) for fraction, given in pairs)


def carried_allocation(pod: Mapping[str, Any]) -> Allocation | None:
    """
    The allocation in a pod's annotation, without a check of the accounting resources; None if it is missing or
    cannot be read.
    """
    try:
        return codec.allocation_from_text(annotations_of(pod).get(names.ALLOCATION))
    except Malformed:
        return None


@dataclass(frozen=True, slots=True)
class UnreadShare:
    """
    A share of which this version cannot read how much it is, and why.

    `node`: where it is. `texts`: short texts of its annotation, among which are the UUIDs of its cards.
    """

    node: str
    texts: frozenset[str]
    why: str

    def cards(self, uuids: Collection[str]) -> frozenset[str]:
        """The cards that it may hold, of all cards of its node."""
        return unread_cards(self.texts, uuids)


def unread_cards(texts: frozenset[str], uuids: Collection[str]) -> frozenset[str]:
    """The cards of a node that these texts name; all of them where they name none, since it may be any."""
    every = frozenset(uuids)
    return texts & every or every


def unread_share(pod: Mapping[str, Any]) -> UnreadShare | None:
    """
    The share that a pod carries and that this version cannot read, such as one that a later version wrote.

    None if it carries none. A share that can be read but is not what the pod requests does not count either.
    """
    annotations = annotations_of(pod)
    request, allocation = annotations.get(names.REQUEST), annotations.get(names.ALLOCATION)
    if request is None or allocation is None or MIRROR in annotations:
        return None
    try:
        codec.request_from_text(request, bounded=False)
    except Malformed as error:
        return _unread(allocation, pod, str(error))
    return unread_allocation(pod)


def unread_allocation(document: Mapping[str, Any]) -> UnreadShare | None:
    """As `unread_share`, by the allocation alone: of a pod or an ElasticGPU."""
    text = annotations_of(document).get(names.ALLOCATION)
    try:
        codec.allocation_from_text(text)
    except Malformed as error:
        return _unread(text, document, str(error)) if text is not None else None
    return None


def _unread(text: object, document: Mapping[str, Any], why: str) -> UnreadShare | None:
    node, texts = codec.texts_of(text)
    where = (document.get("spec") or {}).get("nodeName") or node
    return UnreadShare(str(where), texts, why) if where else None


def allocation_id(pod: Mapping[str, Any]) -> str:
    """The id in a pod's allocation annotation, without a check of the accounting resources; empty if there is none."""
    allocation = carried_allocation(pod)
    return allocation.id if allocation is not None else ""


def _gives(fraction: FractionRequest, given: ContainerAllocation) -> bool:
    """
    Whether a container's shares are what it requested: no quota would count a larger share, and a smaller one would
    hide a user of a GPU.

    A percentage is one of the card's usable memory, which is at most its whole memory. A limit may be missing: a leader
    of an earlier version gives none.
    """
    if (given.container, len(given.shares)) != (fraction.container, fraction.count):
        return False
    return all(share.cores == fraction.cores and _is_share(fraction, share) for share in given.shares)


def _is_share(fraction: FractionRequest, share: GpuShare) -> bool:
    if share.burst and share.limit > (fraction.limit if fraction.memory else _percent(fraction.limit, share)):
        return False
    if fraction.memory:
        return share.memory == fraction.memory
    return 0 < share.memory <= fraction.memory_on(share.gpu_memory)


def _percent(percent: int, share: GpuShare) -> int:
    """Bytes of a percentage of the share's GPU."""
    return share.gpu_memory * percent // WHOLE
