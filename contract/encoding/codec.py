"""
The text of our annotations, to the model and back.

Whatever the text is, reading it raises `Malformed` and no other exception. Each text has a version, so that a reader
recognizes a newer one.

A pod's author may have written the text. So names, a dialect's too, are names as Kubernetes has them, and no text of
another form goes further: it would become part of a path, a series, a message on other objects or a line on somebody's
terminal. A share that is held counts whatever such a text is: what only identifies something is
read as a name that stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from contract import names
from contract.encoding.plain import stand_in
from contract.encoding.quantity import GIB, MIB, mib
from contract.encoding.reading import Malformed, Reader, are_kinds, is_uid, shown
from contract.model import (
    LONGEST_WORD,
    MOST_ASKING,
    MOST_GPUS,
    MOST_MEMORY,
    PARTITION_KIND,
    UNKNOWN_DIALECT,
    WHOLE,
    Allocation,
    ContainerAllocation,
    FractionRequest,
    GpuShare,
    PodRequest,
    Wishes,
)

_VERSION = 1
_LONGEST = 256 << 10
"""Characters of a text that is read: Kubernetes stores no more annotations of an object."""
_UNITS = (MIB, GIB)
"""Units in which a dialect may count memory. Others' tables show all pods in the smallest that one of them has."""
_NO_KIND = f"{names.GROUP}/none"
"""A CDI kind that no node has: the runtime refuses a container with such a device, which so gets no GPU."""


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def _load(text: object, what: str) -> dict[str, Any]:
    if not isinstance(text, str):
        raise Malformed(f"{what} is not text")
    if len(text) > _LONGEST:
        raise Malformed(f"{what} has {len(text)} characters, more than an object's annotations may have")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a JSON object")
    if value.get("v") != _VERSION:
        raise Malformed(f"{what} has version {shown(value.get('v'))}, this program reads {_VERSION}")
    return value


# -- the request --------------------------------------------------------------------------------------------------


def request_to_json(request: PodRequest) -> dict[str, Any]:
    """A request as JSON, without fields that have their default."""
    document: dict[str, Any] = {"v": _VERSION, "dialect": request.dialect}
    if request.same_gpus:
        document["sameGpus"] = True
    if request.node_policy:
        document["nodePolicy"] = request.node_policy
    if request.gpu_policy:
        document["gpuPolicy"] = request.gpu_policy
    if request.unit:
        document["unit"] = request.unit
    if request.priority:
        document["priority"] = request.priority
    if request.claim:
        document["claim"] = request.claim
    document["containers"] = [_fraction_to_json(fraction) for fraction in request.containers]
    return document


def _fraction_to_json(fraction: FractionRequest) -> dict[str, Any]:
    document: dict[str, Any] = {"name": fraction.container, "count": fraction.count}
    optional = {
        "memory": fraction.memory,
        "percent": fraction.percent,
        "cores": fraction.cores,
        "exclusive": fraction.exclusive,
        "init": fraction.init,
        "useModels": list(fraction.wishes.use_models),
        "avoidModels": list(fraction.wishes.avoid_models),
        "useUuids": list(fraction.wishes.use_uuids),
        "avoidUuids": list(fraction.wishes.avoid_uuids),
        "leastMemory": fraction.wishes.least_memory,
        "modelsInOrder": fraction.wishes.ordered,
        "oneNuma": fraction.one_numa,
        "limit": fraction.limit,
    }
    document.update({key: value for key, value in optional.items() if value})
    return document


def request_to_text(request: PodRequest) -> str:
    return _dump(request_to_json(request))


def request_from_json(document: object, *, bounded: bool = True) -> PodRequest:
    """
    Read a request. Raises `Malformed`.

    `bounded`: also for a request beyond today's bounds. It is False for a pod that holds its share, which must be
    counted however large it was allowed to be when it was admitted.
    """
    top = Reader(document, "request")
    claim = top.name("claim", "") if bounded else top.named("claim", "")
    items = top.objects("containers", most=MOST_ASKING if bounded else None)
    containers = _sharing_wishes(_fraction(item, by_claim=bool(claim), bounded=bounded) for item in items)
    if not containers:
        raise Malformed("request.containers is empty")
    if len({fraction.container for fraction in containers}) != len(containers):
        raise Malformed("request.containers names a container twice")
    together = top.flag("sameGpus")
    if together and not (all(f.memory for f in containers) and len({f.count for f in containers}) == 1):
        raise Malformed("request.sameGpus needs bytes of memory and the same count in every container")
    if together and any(fraction.limit for fraction in containers):
        raise Malformed("request.sameGpus is beside a memory limit above the request")
    request = PodRequest(
        dialect=top.label_or("dialect", UNKNOWN_DIALECT),
        containers=containers,
        same_gpus=together,
        node_policy=top.policy("nodePolicy"),
        gpu_policy=top.policy("gpuPolicy"),
        unit=unit if (unit := top.amount("unit", 0)) in _UNITS else 0,
        priority=top.amount("priority", 0, most=1),
        claim=claim,
    )
    if bounded and request.excess is not None:
        raise Malformed(f"request has {request.excess[0]}")
    return request


def _sharing_wishes(fractions: Iterable[FractionRequest]) -> tuple[FractionRequest, ...]:
    """The fractions, with one object for equal wishes: one annotation of a pod often holds for all its containers."""
    known: dict[Wishes, Wishes] = {}
    found = []
    for fraction in fractions:
        first = known.setdefault(fraction.wishes, fraction.wishes)
        found.append(fraction if first is fraction.wishes else replace(fraction, wishes=first))
    return tuple(found)


def _fraction(item: Reader, *, by_claim: bool, bounded: bool) -> FractionRequest:
    words = item.words if bounded else partial(item.lines, most=4 * LONGEST_WORD)
    fraction = FractionRequest(
        container=item.label("name"),
        count=item.amount("count", most=MOST_GPUS),
        memory=item.amount("memory", 0, most=MOST_MEMORY),
        percent=item.amount("percent", 0, most=WHOLE),
        cores=item.amount("cores", 0, most=WHOLE),
        exclusive=item.flag("exclusive"),
        init=item.flag("init"),
        wishes=Wishes(
            words("useModels"),
            words("avoidModels"),
            words("useUuids"),
            words("avoidUuids"),
            item.amount("leastMemory", 0),
            item.flag("modelsInOrder"),
        ),
        one_numa=item.flag("oneNuma"),
        limit=item.amount("limit", 0, most=MOST_MEMORY),
    )
    if by_claim:
        if fraction != FractionRequest(fraction.container):
            raise Malformed(f"request of container {shown(fraction.container)} names amounts beside a claim")
        return fraction
    if fraction.count < 1 or bool(fraction.memory) == bool(fraction.percent):
        raise Malformed(f"request of container {shown(fraction.container)} needs a count and either memory or percent")
    if fraction.limit and not max(fraction.memory, fraction.percent) < fraction.limit <= (
        MOST_MEMORY if fraction.memory else WHOLE
    ):
        raise Malformed(f"request of container {shown(fraction.container)} has a limit that is not above the request")
    if fraction.exclusive and fraction.cores != WHOLE:
        # An exclusive share without all cores would take a whole GPU, and no quota would count all of it.
        raise Malformed(f"request of container {shown(fraction.container)} is exclusive without all cores")
    return fraction


def request_from_text(text: object, *, bounded: bool = True) -> PodRequest:
    """Read the `request` annotation. Raises `Malformed`."""
    return request_from_json(_load(text, "request"), bounded=bounded)


# -- the allocation -----------------------------------------------------------------------------------------------


def allocation_to_json(allocation: Allocation) -> dict[str, Any]:
    return {
        "v": _VERSION,
        "id": allocation.id,
        "node": allocation.node,
        "containers": [
            {
                "name": container.container,
                "gpus": [
                    {
                        "uuid": share.uuid,
                        "index": share.index,
                        "memory": share.memory,
                        "cores": share.cores,
                        "of": share.gpu_memory,
                        **({"cdi": share.cdi} if share.cdi else {}),
                        **({"nri": True} if share.nri else {}),
                        **({"dra": True} if share.dra else {}),
                        **({"coresFree": True} if share.cores_free else {}),
                        **({"asWhole": True} if share.as_whole else {}),
                        **({"burst": share.burst} if share.burst else {}),
                    }
                    for share in container.shares
                ],
            }
            for container in allocation.containers
        ],
        **({"claim": allocation.claim} if allocation.claim else {}),
    }


def allocation_to_text(allocation: Allocation) -> str:
    return _dump(allocation_to_json(allocation))


def allocation_from_json(document: object) -> Allocation:
    """Read an allocation. Raises `Malformed`."""
    top = Reader(document, "allocation")
    containers = []
    for item in top.objects("containers"):  # unbounded: the bound may be newer than the pod
        shares = tuple(
            GpuShare(
                uuid=gpu.uuid("uuid"),
                index=gpu.amount("index", most=1 << 16),
                memory=gpu.amount("memory", most=MOST_MEMORY),
                cores=gpu.amount("cores", most=WHOLE),
                gpu_memory=gpu.amount("of", most=MOST_MEMORY),
                cdi=_kinds(gpu.text("cdi", "")),
                nri=gpu.flag("nri"),
                dra=gpu.flag("dra"),
                cores_free=gpu.flag("coresFree"),
                as_whole=gpu.flag("asWhole"),
                burst=gpu.amount("burst", 0, most=MOST_MEMORY),
            )
            for gpu in item.objects("gpus", most=MOST_GPUS)
        )
        if not shares or len({share.uuid for share in shares}) != len(shares):
            raise Malformed(f"allocation of container {shown(item.text('name'))} has no GPU, or one of them twice")
        containers.append(ContainerAllocation(item.label("name"), shares))
    if not containers or not top.text("id") or not top.text("node"):
        raise Malformed("allocation lacks its id, its node or its containers")
    if len({container.container for container in containers}) != len(containers):
        raise Malformed("allocation.containers names a container twice")
    written = top.text("id")
    return Allocation(
        id=written if is_uid(written) else stand_in(written),
        node=top.name("node"),
        containers=tuple(containers),
        claim=top.named("claim", ""),
    )


def _kinds(text: str) -> str:
    return text if are_kinds(text) else _NO_KIND


def allocation_from_text(text: object) -> Allocation:
    """Read the `allocation` annotation. Raises `Malformed`."""
    return allocation_from_json(_load(text, "allocation"))


# -- what containers read -----------------------------------------------------------------------------------------


def visible(allocation: Allocation, share: GpuShare) -> str:
    """A GPU as `NVIDIA_VISIBLE_DEVICES` names it: by UUID, or qualified (CDI specification, "vendor/class=device")."""
    if not share.cdi:
        return share.uuid
    of_pod = {PARTITION_KIND: allocation.partition(share.uuid)}
    return ",".join(f"{kind}={of_pod.get(kind, share.uuid)}" for kind in share.cdi.split(","))


def container_annotations(allocation: Allocation) -> dict[str, str]:
    """
    The annotations that the containers' environment reads: devices and limits, by container.

    The limiters number a container's GPUs in their own order, or have one limit for all. So where the shares differ (a
    percentage of unequal cards), every GPU gets the smallest, since no limit may exceed its share. To limiters 0 means
    no limit, so a share below one MiB is written as 1. Limiters get the limit of a share that may burst, and the
    program its booked part: what it takes at its start must be there.
    """
    values: dict[str, str] = {}
    for container in allocation.containers:
        shares, name = container.shares, container.container
        smallest = max(1, mib(min(share.memory for share in shares)))
        limit = max(1, mib(min(share.limit for share in shares)))
        cores = min(0 if share.cores_free else share.cores for share in shares)
        # A claim brings the devices: nothing that reads the variable shall bring them too.
        by_claim = any(share.dra for share in shares)
        devices = names.NO_DEVICES if by_claim else ",".join(visible(allocation, share) for share in shares)
        values[names.per_container(names.DEVICES_PREFIX, name)] = devices
        if any(share.nri for share in shares) and names.nri_annotation(name):
            values[names.nri_annotation(name)] = devices
        # The driver refuses a limit above its card's memory, which an oversubscribed card may promise.
        cards = [max(1, mib(share.gpu_memory)) for share in shares if share.gpu_memory]
        held = min([smallest, *cards])
        values[names.per_container(names.MEMORY_MIB_PREFIX, name)] = str(held)
        if any(share.burst for share in shares):
            values[names.per_container(names.MEMORY_LIMIT_MIB_PREFIX, name)] = str(min([limit, *cards]))
        values[names.per_container(names.MEMORY_LIMIT_PREFIX, name)] = f"{limit}m"
        values[names.per_container(names.CORES_LIMIT_PREFIX, name)] = str(cores)
        values[names.per_container(names.MPS_MEMORY_PREFIX, name)] = ",".join(
            f"{position}={limit}M" for position in range(len(shares))
        )
        values[names.per_container(names.MPS_THREADS_PREFIX, name)] = str(cores or WHOLE)
        values[names.per_container(names.MEMORY_FRACTION_PREFIX, name)] = _fraction_text(shares, held, limit)
    return values


_PARTS = 1_000_000
"""The fraction has six places, so rounding takes at most a MiB of a card with a TiB."""


def _fraction_text(shares: Iterable[GpuShare], held: int, limit: int) -> str:
    """
    The part of the memory that the container sees which it may take, as a decimal. `held`, `limit`: its memory on each
    GPU in MiB, at most the card's and as it is limited.

    It is never 0, which some programs read as no limit. A GPU whose memory is not known has the smallest part.
    """
    parts = min(_parts(share, held, limit) for share in shares)
    return "1" if parts >= _PARTS else f"0.{max(1, parts):06d}".rstrip("0")


def _parts(share: GpuShare, held: int, limit: int) -> int:
    if share.as_whole:
        return held * _PARTS // limit
    return (held << 20) * _PARTS // share.gpu_memory if share.gpu_memory else 0
