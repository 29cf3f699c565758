"""
The text of our annotations, to the model and back.

Whatever the text is, reading it raises `Malformed` and no other exception. Each text has a version, so that a reader
recognizes a newer one.

A pod's author may have written the text. So names, a dialect's too, are names as Kubernetes has them, and no text of
another form goes further: it would become part of a path, a series, a message on other objects or a line on somebody's
terminal. A held share counts whatever its text is: an invalid identifier is replaced by a name that stands for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from contract import names
from contract.encoding import selectors, wire
from contract.encoding.plain import is_plain, stand_in
from contract.encoding.quantity import GIB, MIB, mib
from contract.encoding.reading import Malformed, are_kinds, is_label, is_subdomain, is_uid, shown
from contract.model import (
    LONGEST_WORD,
    MOST_ALTERNATIVES,
    MOST_GPUS,
    MOST_MEMORY,
    MOST_SELECTORS,
    MOST_SHARING,
    MOST_WORDS,
    PARTITION_KIND,
    POLICIES,
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
_SELECTING_VERSION = 2
"""
Of a request that not every program of version 1 would keep to: one with expressions, with GPUs of one model, or with
containers on different GPUs. They would place its pod on other GPUs, so they must not read it.
"""
_LONGEST = 256 << 10
"""Characters of a text that is read: Kubernetes stores no more annotations of an object."""
_LONGEST_UUID = 128
"""Characters of the longest text that may be the UUID of a card."""
_UNITS = (MIB, GIB)
"""Units in which a dialect may count memory. Other tools' tables show all pods in the smallest one."""
_NO_KIND = f"{names.GROUP}/none"
"""A CDI kind that no node has: the runtime refuses a container with such a device, which so gets no GPU."""


def _dump(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


# -- the request --------------------------------------------------------------------------------------------------

_BYTES, _PERCENT = wire.number(MOST_MEMORY), wire.number(WHOLE)
_WORDS = wire.listed(
    wire.matching(
        lambda word: len(word) <= LONGEST_WORD and is_plain(word, 4 * LONGEST_WORD),
        f"at most {LONGEST_WORD} characters that can be shown",
    ),
    2 * MOST_WORDS,  # the list may be joined from a dialect's own and ours
)
"""Models or UUIDs within the bounds for tenants."""
_EXPRESSIONS = wire.listed(
    wire.matching(selectors.is_accepted, f"an expression of at most {selectors.LONGEST} characters"), MOST_SELECTORS
)


def _request(words: wire.Schema[tuple[str, ...]], claim: wire.Schema[str], most: int | None) -> wire.Schema[PodRequest]:
    fraction = wire.record(
        FractionRequest,
        {
            "container": wire.LABEL.named("name"),
            "count": wire.number(MOST_GPUS).required(),
            "memory": _BYTES,
            "percent": _PERCENT,
            "cores": _PERCENT,
            "exclusive": wire.FLAG,
            "init": wire.FLAG,
            "wishes": wire.inline(
                Wishes,
                {
                    "use_models": words,
                    "avoid_models": words,
                    "use_uuids": words,
                    "avoid_uuids": words,
                    "least_memory": wire.AMOUNT,
                    "ordered": wire.FLAG.named("modelsInOrder"),
                    "selectors": _EXPRESSIONS,
                    "alternatives": wire.listed(_EXPRESSIONS, MOST_ALTERNATIVES),
                },
            ),
            "one_numa": wire.FLAG,
            "one_model": wire.FLAG,
            "apart": wire.FLAG,
            "limit": _BYTES,
            "alone": wire.FLAG,
        },
    )
    return wire.record(
        PodRequest,
        {
            "dialect": wire.Schema(
                lambda found: found if isinstance(found, str) and is_label(found) else UNKNOWN_DIALECT
            ),
            "same_gpus": wire.FLAG,
            "node_policy": wire.one_of(("", *POLICIES)),
            "gpu_policy": wire.one_of(("", *POLICIES)),
            "unit": wire.AMOUNT.then(lambda unit: unit if unit in _UNITS else 0),
            "priority": wire.number(1),
            "claim": claim,
            "containers": wire.listed(fraction, most).then(_sharing_wishes, list),
        },
    )


def _sharing_wishes(fractions: tuple[FractionRequest, ...]) -> tuple[FractionRequest, ...]:
    """The fractions, with one object for equal wishes: one annotation of a pod often holds for all its containers."""
    if len(fractions) < 2:
        return fractions
    known: dict[Wishes, Wishes] = {}
    found = []
    for fraction in fractions:
        first = known.setdefault(fraction.wishes, fraction.wishes)
        found.append(fraction if first is fraction.wishes else replace(fraction, wishes=first))
    return tuple(found)


_REQUEST = _request(_WORDS, wire.matching(is_subdomain, "at most 253 of a-z, 0-9, - and .", empty=True), MOST_SHARING)
_ADMITTED = _request(wire.listed(wire.line(4 * LONGEST_WORD)), wire.TEXT.then(lambda name: name and _named(name)), None)
"""For a pod that holds its share, which must be counted even if today's bounds are smaller."""


def _named(name: str) -> str:
    return name if is_subdomain(name) else stand_in(name)


def request_to_json(request: PodRequest) -> dict[str, Any]:
    """A request as JSON, without fields that have their default."""
    return {"v": _version_of(request), **_REQUEST.to_json(request)}


def _version_of(request: PodRequest) -> int:
    selecting = any(each.one_model or each.apart or each.wishes.selects for each in request.containers)
    return _SELECTING_VERSION if selecting else _VERSION


def request_to_text(request: PodRequest) -> str:
    return _dump(request_to_json(request))


def request_from_json(document: object, *, bounded: bool = True) -> PodRequest:
    """
    Read a request. Raises `Malformed`.

    `bounded`: also for a request beyond today's bounds. It is False for a pod that holds its share.
    """
    request = (_REQUEST if bounded else _ADMITTED).from_json(document, "request")
    containers = request.containers
    if not containers:
        raise Malformed("request.containers is empty")
    for fraction in containers:
        _check(fraction, by_claim=bool(request.claim))
    if len({fraction.container for fraction in containers}) != len(containers):
        raise Malformed("request.containers names a container twice")
    if request.same_gpus and not (all(f.memory for f in containers) and len({f.count for f in containers}) == 1):
        raise Malformed("request.sameGpus needs bytes of memory and the same count in every container")
    if request.same_gpus and request.bursts:
        raise Malformed("request.sameGpus is set together with a memory limit above the request")
    if bounded and request.excess is not None:
        raise Malformed(f"request has {request.excess[0]}")
    return request


def _check(fraction: FractionRequest, *, by_claim: bool) -> None:
    wrong = ""
    most = MOST_MEMORY if fraction.memory else WHOLE
    if by_claim:
        wrong = "" if fraction == FractionRequest(fraction.container) else "names amounts together with a claim"
    elif fraction.count < 1 or bool(fraction.memory) == bool(fraction.percent):
        wrong = "needs a count and either memory or percent"
    elif fraction.limit and not max(fraction.memory, fraction.percent) < fraction.limit <= most:
        wrong = "has a limit that is not above the request"
    elif fraction.exclusive and fraction.cores != WHOLE:
        # An exclusive share without all cores would take a whole GPU, and no quota would count all of it.
        wrong = "is exclusive without all cores"
    if wrong:
        raise Malformed(f"request of container {shown(fraction.container)} {wrong}")


def request_from_text(text: object, *, bounded: bool = True) -> PodRequest:
    """Read the `request` annotation. Raises `Malformed`."""
    document = wire.load(text, "request", most=_LONGEST, version=(_VERSION, _SELECTING_VERSION))
    return request_from_json(document, bounded=bounded)


# -- the allocation -----------------------------------------------------------------------------------------------

_SHARE = wire.record(
    GpuShare,
    {
        "uuid": wire.GPU_UUID,
        "index": wire.number(1 << 16),
        "memory": _BYTES,
        "cores": _PERCENT,
        "gpu_memory": _BYTES.named("of"),
        "cdi": wire.TEXT.then(lambda kinds: kinds if are_kinds(kinds) else _NO_KIND),
        "nri": wire.FLAG,
        "dra": wire.FLAG,
        "cores_free": wire.FLAG,
        "as_whole": wire.FLAG,
        "burst": _BYTES,
    },
)
_CONTAINER = wire.record(
    ContainerAllocation,
    {
        "container": wire.LABEL.named("name"),
        "shares": wire.listed(_SHARE, MOST_GPUS).named("gpus"),
        "alternative": wire.number(MOST_ALTERNATIVES - 1),
    },
)
_ALLOCATION = wire.record(
    Allocation,
    {
        "id": wire.TEXT.then(lambda written: written if is_uid(written) or not written else stand_in(written)),
        "node": wire.matching(is_subdomain, "at most 253 of a-z, 0-9, - and ."),
        "containers": wire.listed(_CONTAINER),  # unbounded: the bound may be newer than the pod
        "claim": wire.TEXT.then(lambda name: name and _named(name)),
        "shared": wire.TEXT.then(lambda uid: uid if is_uid(uid) or not uid else stand_in(uid)),
    },
)


def allocation_to_json(allocation: Allocation) -> dict[str, Any]:
    return {"v": _VERSION, **_ALLOCATION.to_json(allocation)}


def allocation_to_text(allocation: Allocation) -> str:
    return _dump(allocation_to_json(allocation))


def allocation_from_json(document: object) -> Allocation:
    """Read an allocation. Raises `Malformed`."""
    allocation = _ALLOCATION.from_json(document, "allocation")
    for each in allocation.containers:
        if not each.shares or len({share.uuid for share in each.shares}) != len(each.shares):
            raise Malformed(f"allocation of container {shown(each.container)} has no GPU, or a GPU twice")
    if not allocation.containers or not allocation.id:
        raise Malformed("allocation lacks its id, its node or its containers")
    if len({each.container for each in allocation.containers}) != len(allocation.containers):
        raise Malformed("allocation.containers names a container twice")
    return allocation


def allocation_from_text(text: object) -> Allocation:
    """Read the `allocation` annotation. Raises `Malformed`."""
    return allocation_from_json(wire.load(text, "allocation", most=_LONGEST, version=_VERSION))


def texts_of(text: object) -> tuple[str, frozenset[str]]:
    """
    The node that an allocation of any version names, and its short texts, among which are the UUIDs of its cards.

    Both are empty if the text has neither. Every version has the field `node`, and the UUIDs of the cards somewhere.
    """
    try:
        document = wire.load(text, "allocation", most=_LONGEST)
    except Malformed:
        return "", frozenset()
    found, rest = set[str](), [document]
    while rest:
        each = rest.pop()
        if isinstance(each, dict | list):
            rest += each.values() if isinstance(each, dict) else each
        elif isinstance(each, str) and len(each) <= _LONGEST_UUID:
            found.add(each)
    node = document.get("node")
    return node if isinstance(node, str) and is_subdomain(node) else "", frozenset(found)


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
    no limit, so a share below one MiB is written as 1. If a share may burst, limiters get the limit and the program
    gets the booked part, because what it takes at its start must be available.
    """
    values: dict[str, str] = {}
    for container in allocation.containers:
        shares, name = container.shares, container.container
        smallest = max(1, mib(min(share.memory for share in shares)))
        limit = max(1, mib(min(share.limit for share in shares)))
        cores = min(0 if share.cores_free else share.cores for share in shares)
        # A claim brings the devices: nothing that reads the variable may bring them too.
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
    The part of the visible memory that the container may take, as a decimal. `held`, `limit`: its memory on each GPU in
    MiB, at most the card's and as it is limited.

    It is never 0, which some programs read as no limit. A GPU whose memory is not known has the smallest part.
    """
    parts = min(_parts(share, held, limit) for share in shares)
    return "1" if parts >= _PARTS else f"0.{max(1, parts):06d}".rstrip("0")


def _parts(share: GpuShare, held: int, limit: int) -> int:
    if share.as_whole:
        return held * _PARTS // limit
    return (held << 20) * _PARTS // share.gpu_memory if share.gpu_memory else 0
