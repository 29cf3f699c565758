"""
The ResourceClaim that delivers a card to a container (Dynamic Resource Allocation, resource.k8s.io/v1).

    webhook     adds one claim to a pod with a share: `with_claim`
    allocator   makes the claim: `claim_for`, `status_for`. Where the node delivers in another way, the claim has no
                device, so that kube-scheduler and kubelet are content with it
    agent       reads from the claim alone what each container gets: `prepared`

A claim has a request for each container with a share, named after the container. kube-scheduler never allocates our
claims, because there is no DeviceClass with our name and no ResourceSlice of our driver.

A tenant's own claim of the DeviceClass `share.gpufraction.io` delivers in the same way: `shared_status`. Its pod names
no other claim of ours.

Pure. Must not: decide on which card a share is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from contract import names
from contract.encoding import codec, quantity
from contract.encoding.reading import Malformed, shown
from contract.encoding.wire import FLAG, GPU_UUID, OBJECT, TEXT, Schema, listed, load, mapped, matching, record, struct
from contract.model import Allocation, GpuShare, PodRequest

JSON = dict[str, Any]

API = "resource.k8s.io/v1"
SINCE = (1, 34)
"""The first Kubernetes version with this API."""
MOST_RESULTS = 32
"""Devices, and requests, of one claim (resource.k8s.io/v1, AllocationResultsMaxSize)."""
_LABELS = {"app.kubernetes.io/name": "gpufraction", "app.kubernetes.io/managed-by": "gpufraction-allocator"}
FINALIZER = "resource.kubernetes.io/delete-protection"
"""Kubernetes' finalizer: with it, kube-controller-manager removes the allocation of an unused claim."""
_KIND = "Share"
_NOT_IN_LABELS = re.compile(r"[^a-z0-9]+")
_LONGEST_LABEL = 63


# -- the pod ------------------------------------------------------------------------------------------------------


def fits_claim(request: PodRequest, each: int = 0) -> bool:
    """
    Whether one claim can contain all shares of the pod. Otherwise the pod gets no claim, and no node that needs one.

    `each`: the GPUs of every container, if the pod names an ElasticGPUClaim, because such a pod has no count.
    """
    shares = sum(each or fraction.count for fraction in request.containers)
    return max(len(request.containers), shares) <= MOST_RESULTS


def name_from(unique: str) -> str:
    """The name of a pod's claim. `unique`: text that no tenant chooses, such as the uid of the admission review."""
    return f"{names.CLAIM_PREFIX}{hashlib.sha256(unique.encode()).hexdigest()[:32]}"


def is_ours(name: object) -> bool:
    """Whether a claim's name is one of ours."""
    return isinstance(name, str) and name.startswith(names.CLAIM_PREFIX)


def named_by(spec: Mapping[str, Any]) -> str:
    """The name of our claim that the pod names; empty if it names none."""
    for entry in spec.get("resourceClaims") or ():
        if isinstance(entry, Mapping) and entry.get("name") == names.POD_CLAIM:
            name = entry.get("resourceClaimName")
            return name if isinstance(name, str) and is_ours(name) else ""
    return ""


def without_claim(spec: Mapping[str, Any]) -> JSON:
    """A pod's spec without our claims. It shares its unchanged parts with the original."""
    listed = spec.get("resourceClaims")
    if not isinstance(listed, list):
        return dict(spec)
    ours = {
        entry.get("name")
        for entry in listed
        if entry.get("name") == names.POD_CLAIM or is_ours(entry.get("resourceClaimName"))
    }
    if not ours:
        return dict(spec)
    kept = [entry for entry in listed if entry.get("name") not in ours]
    after: JSON = {key: value for key, value in spec.items() if key != "resourceClaims"}
    if kept:
        after["resourceClaims"] = kept
    for kind in ("initContainers", "containers"):
        if isinstance(spec.get(kind), list):
            after[kind] = [_without(container, ours) for container in spec[kind]]
    return after


def _without(container: JSON, ours: set[Any]) -> JSON:
    resources = container.get("resources") or {}
    claims = resources.get("claims") or []
    kept = [claim for claim in claims if claim.get("name") not in ours]
    if len(kept) == len(claims):
        return container
    rest = {key: value for key, value in resources.items() if key != "claims"}
    return {**container, "resources": {**rest, "claims": kept} if kept else rest}


def with_claim(spec: Mapping[str, Any], request: PodRequest, name: str) -> JSON:
    """A copy of a pod's spec in which each container with a share has its request of the claim `name`."""
    after = without_claim(spec)
    entry = {"name": str(names.POD_CLAIM), "resourceClaimName": name}
    after["resourceClaims"] = [*(after.get("resourceClaims") or []), entry]
    sharing = {fraction.container for fraction in request.containers}
    for kind in ("initContainers", "containers"):
        if isinstance(after.get(kind), list):
            after[kind] = [_with(each) if each.get("name") in sharing else each for each in after[kind]]
    return after


def _with(container: JSON) -> JSON:
    resources = container.get("resources") or {}
    own = {"name": str(names.POD_CLAIM), "request": container["name"]}
    return {**container, "resources": {**resources, "claims": [*(resources.get("claims") or []), own]}}


# -- the claim ----------------------------------------------------------------------------------------------------


def claim_for(pod: Mapping[str, Any], request: PodRequest, allocation: Allocation) -> JSON:
    """
    The claim of a pod that names one, without its status. The garbage collector removes it after the pod.

    Its owner is also its controller, so kube-controller-manager removes the claim of a finished pod. `allocation`: has
    the number of GPUs of each container, which the request lacks if the pod names an ElasticGPUClaim.
    """
    metadata = pod["metadata"]
    counts = {each.container: len(each.shares) for each in allocation.containers}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"], "controller": True}
    requests = [
        {
            "name": fraction.container,
            "exactly": {
                "deviceClassName": names.GROUP,
                "allocationMode": "ExactCount",
                "count": max(1, counts.get(fraction.container, 0)),
            },
        }
        for fraction in request.containers
    ]
    return {
        "apiVersion": API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": named_by(pod["spec"]),
            "namespace": metadata["namespace"],
            "labels": dict(_LABELS),
            "ownerReferences": [owner],
        },
        "spec": {"devices": {"requests": requests}},
    }


def status_for(pod: Mapping[str, Any], allocation: Allocation) -> JSON:
    """
    The claim's status after the decision: the cards, the node and the pod.

    `by`: the version of the pod that the decision read. An earlier leader read an earlier version; see `version`.
    """
    delivered = [each for each in allocation.containers if all(share.dra for share in each.shares)]
    results = [
        {
            "request": each.container,
            "driver": names.GROUP,
            "pool": allocation.node,
            "device": device_name(share.uuid),
        }
        for each in delivered
        for share in each.shares
    ]
    config = [
        _configured(each.container, {"gpus": [_card(allocation, share) for share in each.shares]}) for each in delivered
    ]
    config.append(_configured("", _mark(pod, allocation)))
    return _status(pod, allocation, results, config)


def _mark(pod: Mapping[str, Any], allocation: Allocation) -> JSON:
    return {"allocation": allocation.id, "by": str(pod["metadata"].get("resourceVersion", ""))}


def _status(
    pod: Mapping[str, Any], allocation: Allocation, results: Sequence[JSON], config: Sequence[JSON], **more: Any
) -> JSON:
    metadata = pod["metadata"]
    there = {"key": "metadata.name", "operator": "In", "values": [allocation.node]}
    return {
        "allocation": {
            "devices": {**({"results": list(results)} if results else {}), "config": list(config)},
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [there]}]},
            **more,
        },
        "reservedFor": [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}],
    }


def shared_status(
    pod: Mapping[str, Any], allocation: Allocation, given: Iterable[tuple[str, GpuShare]], *, at: str
) -> JSON:
    """
    The status of a tenant's claim after the decision. `given`: the shares of its requests, each with the request's
    name; `at`: the time of the decision. Where the node delivers in another way, the claim has no device.

    kube-scheduler reserves a claim for further pods, and would add a missing time, for which it has no permission. A
    claim that other pods may also use is marked as such, and gives each of them the same devices.
    """
    unique = allocation.shared or allocation.id
    pairs = [(request, share) for request, share in given if share.dra]
    results = [
        {
            "request": request,
            "driver": names.GROUP,
            "pool": allocation.node,
            "device": device_name(share.uuid),
            "shareID": _share_id(f"{unique}/{request}/{share.uuid}"),
            "consumedCapacity": {"memory": quantity.format_bytes(share.memory), "cores": str(share.cores)},
        }
        for request, share in pairs
    ]
    cards: dict[str, list[JSON]] = {}
    for request, share in pairs:
        cards.setdefault(request, []).append(_card(allocation, share))
    config = [_configured(request, {"gpus": gpus}) for request, gpus in cards.items()]
    mark = {**_mark(pod, allocation), "pod": str(pod["metadata"].get("uid", ""))}
    config.append(_configured("", {**mark, "several": True} if allocation.shared else mark))
    return _status(pod, allocation, results, config, allocationTimestamp=at)


def _share_id(unique: str) -> str:
    """A UUID that is computed from this text, so that a repeated write is identical."""
    digits = hashlib.sha256(unique.encode()).hexdigest()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:32]}"


def _card(allocation: Allocation, share: GpuShare) -> JSON:
    return {"uuid": share.uuid, "cdi": codec.visible(allocation, share).split(",")}


def _configured(request: str, parameters: JSON) -> JSON:
    about = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": _KIND}
    return {
        "source": "FromClaim",
        **({"requests": [request]} if request else {}),
        "opaque": {"driver": names.GROUP, "parameters": {**about, **parameters}},
    }


def device_name(uuid: str) -> str:
    """A card's name as a device: a DNS label."""
    return _NOT_IN_LABELS.sub("-", uuid.lower()).strip("-")[:_LONGEST_LABEL].rstrip("-") or "gpu"


def _any(schema: Schema[Any]) -> Schema[tuple[Any, ...]]:
    """The list, or an empty one if it is absent."""
    return listed(schema).otherwise(())


_MARK = struct({"allocation": TEXT, "by": TEXT})
_MARKED = struct({"config": _any(struct({"opaque": struct({"parameters": OBJECT})}))})
_DECIDED = struct({"status": struct({"allocation": struct({"devices": _MARKED})})})


def version(claim: Mapping[str, Any]) -> tuple[str, int] | None:
    """
    The allocation's id, and the version of the pod in its decision; None for a claim without an allocation.

    Raises `Malformed` for an allocation that we did not write.
    """
    if not (claim.get("status") or {}).get("allocation"):
        return None
    for item in _DECIDED.from_json(claim, "claim")["status"]["allocation"]["devices"]["config"]:
        parameters = item["opaque"]["parameters"]
        if "allocation" in parameters:
            mark = _MARK.from_json(parameters, "parameters")
            return mark["allocation"], int(mark["by"]) if mark["by"].isascii() and mark["by"].isdigit() else 0
    raise Malformed("the claim's allocation does not name ours")


def gives_the_same(claim: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two allocations of ours have the same node and cards, even from different decisions."""
    return _given_by(claim) == _given_by(other)


def _given_by(claim: Mapping[str, Any]) -> tuple[object, ...]:
    """The parts that stay as written. The API server rewrites amounts in its own form."""
    allocation = claim["status"]["allocation"]
    devices = _ALLOCATED.from_json(claim, "claim")["status"]["allocation"]["devices"]
    cards = sorted((each["request"], each["pool"], each["device"]) for each in devices["results"])
    names_of_cards = sorted(
        (request, card["uuid"], card["cdi"])
        for each in devices["config"]
        for request in each["requests"]
        for card in each["opaque"]["parameters"]["gpus"]
    )
    return allocation.get("nodeSelector"), cards, names_of_cards


def requests_of(claim: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The names of the claim's requests, each with its device class."""
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or []
    return tuple((str(r.get("name")), str((r.get("exactly") or {}).get("deviceClassName"))) for r in requests)


def holders(claim: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The pods for which a claim is reserved: uid and name of each."""
    reserved = (claim.get("status") or {}).get("reservedFor") or []
    return tuple((str(each.get("uid", "")), str(each.get("name", ""))) for each in reserved)


def owner_uid(claim: Mapping[str, Any]) -> str:
    """The uid of the pod that owns the claim; empty if no pod, or more than one object, does."""
    owners = (claim.get("metadata") or {}).get("ownerReferences") or []
    return str(owners[0].get("uid", "")) if len(owners) == 1 and owners[0].get("kind") == "Pod" else ""


# -- what a kubelet plugin answers from it ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """One device of a container, by the names that its runtime finds in CDI descriptions."""

    request: str
    pool: str
    device: str
    cdi: tuple[str, ...]


_DEVICE = record(PreparedDevice, {"request": TEXT, "pool": TEXT, "device": TEXT, "cdi": listed(TEXT)})
_CARD = struct({"uuid": GPU_UUID, "cdi": listed(matching(lambda name: "/" in name and "=" in name, "a CDI device"))})
_PARAMETERS = struct({"gpus": _any(_CARD), "pod": TEXT.otherwise(""), "several": FLAG.otherwise(False)})
_OPAQUE = struct({"driver": TEXT, "parameters": _PARAMETERS})
_DEVICES = struct(
    {
        "config": _any(struct({"requests": _any(TEXT), "opaque": _OPAQUE})),
        "results": _any(struct({"driver": TEXT, "pool": TEXT, "request": TEXT, "device": TEXT})),
    }
)
_RESERVED = struct({"resource": TEXT.otherwise(""), "uid": TEXT})
_STATUS = struct({"reservedFor": _any(_RESERVED), "allocation": struct({"devices": _DEVICES})})
_CLAIM = struct({"metadata": struct({"uid": TEXT, "name": TEXT}), "status": _STATUS})


def prepared(claim: Mapping[str, Any], *, uid: str, node: str) -> tuple[PreparedDevice, ...]:
    """
    The devices of the containers of the claim's pods on this node. `uid`: the uid of the claim in kubelet's call.

    Raises `Malformed` for a claim that our allocator did not write, that it wrote for another node, or that another pod
    uses: such a claim gives no devices. The owner of our own claim is its pod. A tenant's claim is for the pod that the
    allocator wrote into its allocation, or for all pods for which it is reserved. A policy lets only the allocator
    reserve it, and kubelet starts no other pod with it.
    """
    found = _CLAIM.from_json(claim, "claim")
    metadata, status = found["metadata"], found["status"]
    if metadata["uid"] != uid:
        raise Malformed(f"the claim does not have the uid {shown(uid)}: it was created again since")
    own = is_ours(metadata["name"])
    owner = owner_uid(claim) if own else _written_for(status["allocation"])
    several = not own and _is_for_several(status["allocation"])
    pods = ({"resource": "pods", "uid": each["uid"]} for each in status["reservedFor"]) if several else ()
    wanted = tuple(pods) or ({"resource": "pods", "uid": owner},)
    if not owner or status["reservedFor"] != wanted:
        raise Malformed("the claim is not one of gpufraction's that is reserved only for its own pods")
    devices = status["allocation"]["devices"]
    cards: dict[tuple[str, str], tuple[str, ...]] = {}
    for item in devices["config"]:
        opaque = item["opaque"]
        if opaque["driver"] != names.GROUP:
            raise Malformed(f"the claim has a configuration of the driver {shown(opaque['driver'])}")
        for request in item["requests"]:
            for card in opaque["parameters"]["gpus"]:
                if not card["cdi"]:
                    raise Malformed(f"the claim has no CDI devices for {card['uuid']}")
                cards[request, device_name(card["uuid"])] = card["cdi"]
    given = []
    for result in devices["results"]:
        request, pool, device = result["request"], result["pool"], result["device"]
        if (result["driver"], pool) != (names.GROUP, node):
            where = f"{shown(result['driver'])} on {shown(pool)}"
            raise Malformed(f"the claim's device {shown(device)} is on {where}, not on this node")
        if (request, device) not in cards:
            raise Malformed(f"the claim's device {shown(device)} has no configuration for {shown(request)}")
        given.append(PreparedDevice(_main(request), pool, device, cards[request, device]))
    return tuple(given)


def _main(request: str) -> str:
    """The request of an alternative (`gpu/large`). Containers name the request, and kubelet compares names as text."""
    return request.split("/", 1)[0]


def written_for(claim: Mapping[str, Any]) -> str:
    """The uid of the one pod for which a tenant's allocated claim was allocated; empty if it is ambiguous."""
    return _written_for(_ALLOCATED.from_json(claim, "claim")["status"]["allocation"])


_ALLOCATED = struct({"status": struct({"allocation": struct({"devices": _DEVICES})})})


def _written_for(allocation: Mapping[str, Any]) -> str:
    """The uid of the one pod for which a tenant's claim was allocated; empty if it is ambiguous."""
    pods = {item["opaque"]["parameters"]["pod"] for item in allocation["devices"]["config"]} - {""}
    return str(pods.pop()) if len(pods) == 1 else ""


def _is_for_several(allocation: Mapping[str, Any]) -> bool:
    """Whether a tenant's claim was allocated for several pods at the same time."""
    return any(item["opaque"]["parameters"]["several"] for item in allocation["devices"]["config"])


# -- checkpoint ---------------------------------------------------------------------------------------------------


_CHECKPOINT = struct({"claims": mapped(listed(_DEVICE))})


def to_checkpoint(known: Mapping[str, tuple[PreparedDevice, ...]]) -> str:
    """The prepared devices, by the claim's uid, as text."""
    claims = {uid: [_DEVICE.to_json(device) for device in devices] for uid, devices in known.items()}
    return json.dumps({"v": 1, "claims": claims}, indent=1, sort_keys=True) + "\n"


def from_checkpoint(text: str) -> dict[str, tuple[PreparedDevice, ...]]:
    """Read a checkpoint. Raises `Malformed`."""
    document = load(text, "the checkpoint", version=1)
    return cast(dict[str, tuple[PreparedDevice, ...]], _CHECKPOINT.from_json(document, "checkpoint")["claims"])
