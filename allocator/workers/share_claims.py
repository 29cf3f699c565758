"""
Allocates the ResourceClaims by which a pod requests its share, before its scheduling gate is removed.

    kube-controller-manager makes the claim (of a template) ──▶ finalizer ──▶ status: allocation and reservation in one
    write ──▶ the pod's patch takes the gate off and pins it

A crash in between is harmless: the pod still waits, and the next decision about it finds the claim, as in
`resource_claims`. The claims of one pod are written one after the other. Those that an earlier decision has allocated
are reset first.

A claim is read again here, and must have the requests that were counted when the pod was created, because its template
may have been created again since. A claim that another pod uses is not changed, unless the allocation's share is for
several pods (`Allocation.shared`). Then any of them writes the same allocation, and the others add their reservations.

Must not: create or remove a claim, or write to a pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from allocator.selectors import problem
from allocator.workers.resource_claims import TRIES, Deadline, NotWritten, written
from contract.dialects import resourceclaims as dialect
from contract.dialects.base import PodReader, Refusal
from contract.encoding import resourceclaims
from contract.model import MOST_CONSUMERS, Allocation, ClaimEntry, DeviceRequest, GpuShare, PodRequest
from contract.options import DEFAULTS
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeNotFound

JSON = dict[str, Any]
Pairs = dict[str, list[tuple[str, GpuShare]]]
"""The shares of each claim, by the pod's name for it, with the request that each is for."""


def write(
    kube: Kube,
    pod: Mapping[str, Any],
    request: PodRequest,
    allocation: Allocation,
    *,
    at: str,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """
    Write the allocation, decided `at` this time, to the claims that the pod names. Raises `NotWritten`.

    `timeout`: seconds for all requests together. Returns the remaining seconds, for the write to the pod.
    """
    left = Deadline(timeout, clock)
    with written():
        claims = _claims_of(kube, pod, left)
        given = _given(pod, request, allocation, {name: reading for name, (_, reading) in claims.items()})
        for name, (claim, _) in claims.items():
            if allocation.shared and claim["metadata"].get("uid") != allocation.shared:
                raise NotWritten(f"the ResourceClaim {claim['metadata']['name']} was created again")
            status = resourceclaims.shared_status(pod, allocation, given[name], at=at)
            _allocate(kube, pod, claim, status, left, several=bool(allocation.shared))
    return left()


def _claims_of(kube: Kube, pod: Mapping[str, Any], left: Deadline) -> dict[str, tuple[JSON, dialect.ClaimReading]]:
    """The claims of our class with their requests, by the pod's own names for them."""
    found = {}
    for entry in dialect.entries(pod.get("spec") or {}):
        name = claim_name(pod, entry)
        if name is None:
            raise NotWritten(f"the ResourceClaim for {entry.name} is not created yet")
        if not name:
            continue
        try:
            claim = kube.get(paths.resourceclaims(pod["metadata"]["namespace"], name), timeout=left())
        except KubeNotFound as error:
            raise NotWritten(f"the ResourceClaim {name} does not exist") from error
        reading = dialect.read_claim(claim.get("spec"), f"ResourceClaim {name}: spec", problem)
        if isinstance(reading, Refusal):
            raise NotWritten(str(reading), refused=True)
        if reading:
            _check(claim, entry, pod)
            found[entry.name] = claim, reading
    return found


def claim_name(pod: Mapping[str, Any], entry: ClaimEntry) -> str | None:
    """The name of an entry's claim; empty if none is needed, None if it does not exist yet."""
    if entry.claim:
        return entry.claim
    for each in (pod.get("status") or {}).get("resourceClaimStatuses") or ():
        if each.get("name") == entry.name:
            return str(each.get("resourceClaimName") or "")
    return None


def _check(claim: Mapping[str, Any], entry: ClaimEntry, pod: Mapping[str, Any]) -> None:
    metadata = claim.get("metadata") or {}
    if entry.template and resourceclaims.owner_uid(claim) != pod["metadata"]["uid"]:
        raise NotWritten(f"the ResourceClaim {metadata.get('name')} was not made for this pod", refused=True)
    if metadata.get("deletionTimestamp"):
        raise NotWritten(f"the ResourceClaim {metadata.get('name')} is being deleted")


def _given(pod: Mapping[str, Any], request: PodRequest, allocation: Allocation, readings: dialect.Readings) -> Pairs:
    """The shares by claim and request. A container's cards are in the order of its requests."""
    context = PodReader(pod, DEFAULTS)
    read = dialect.read_pod(context, readings)
    if isinstance(read, Refusal):
        raise NotWritten(str(read), refused=True)
    if read is None or not dialect.is_as_counted(request, read):
        raise NotWritten(
            "its ResourceClaims request something other than what was counted when the pod was created; create the "
            "pod again",
            refused=True,
        )
    containers = {each.container: each for each in allocation.containers}
    shares = {name: iter(each.shares) for name, each in containers.items()}
    given: Pairs = {name: [] for name in readings}
    for use in dialect.uses(context, readings):
        for name, each in use.requests:
            named = _named(each, containers[use.container.name].alternative)
            given[name] += [(named, next(shares[use.container.name])) for _ in range(each.count)]
    return given


def _named(request: DeviceRequest, alternative: int) -> str:
    """The request's name in an allocation: with the chosen alternative."""
    if not request.alternatives:
        return request.name
    if alternative >= len(request.alternatives):
        raise NotWritten(f"request {request.name} has no alternative {alternative}", refused=True)
    return f"{request.name}/{request.alternatives[alternative].name}"


def _allocate(kube: Kube, pod: Mapping[str, Any], claim: JSON, status: JSON, left: Deadline, *, several: bool) -> None:
    path = paths.resourceclaims(claim["metadata"]["namespace"], claim["metadata"]["name"])
    for _ in range(TRIES):
        patch = _next(claim, pod, status, several=several)
        if patch is None:
            return
        below = "/status" if "status" in patch else ""
        try:
            claim = kube.patch_merge(f"{path}{below}", patch, timeout=left())
        except KubeConflict:
            claim = kube.get(path, timeout=left())
    raise NotWritten(f"others wrote to the ResourceClaim {claim['metadata']['name']} at the same time")


def _next(claim: Mapping[str, Any], pod: Mapping[str, Any], status: JSON, *, several: bool) -> JSON | None:
    """
    The next patch to the claim or, with a status, to its status; None if it has this allocation. Raises `NotWritten`
    and `Malformed`. `several`: other pods may use the claim too.

    The finalizer is written first, as kube-scheduler does, because a write to a claim's status changes no metadata.
    """
    metadata, uid = claim["metadata"], pod["metadata"]["uid"]
    if metadata.get("deletionTimestamp"):
        raise NotWritten(f"the ResourceClaim {metadata['name']} is being deleted")
    reserved, named = list((claim.get("status") or {}).get("reservedFor") or ()), _version(claim)
    there, ours = resourceclaims.version(claim), resourceclaims.version({"status": status})
    assert ours is not None
    finalizers = metadata.get("finalizers") or []
    if several and there is not None and resourceclaims.gives_the_same(claim, {"status": status}):
        if resourceclaims.FINALIZER in finalizers:
            return _joined(metadata["name"], reserved, uid, status, named)
    else:
        other = next((name for holder, name in resourceclaims.holders(claim) if holder != uid), None)
        if other is not None:
            raise NotWritten(f"the ResourceClaim {metadata['name']} is used by pod {other}")
    if resourceclaims.FINALIZER not in finalizers:
        return {"metadata": {**named, "finalizers": [*finalizers, resourceclaims.FINALIZER]}}
    if there is None:
        return {"metadata": named, "status": status}
    if there[0] == ours[0]:
        return None if reserved else {"metadata": named, "status": {"reservedFor": status["reservedFor"]}}
    if resourceclaims.written_for(claim) == uid and there[1] > ours[1]:
        raise NotWritten("a later leader has decided about the pod")
    return {"metadata": named, "status": {"allocation": None, "reservedFor": None}}


def _version(claim: Mapping[str, Any]) -> JSON:
    return {"resourceVersion": claim["metadata"].get("resourceVersion", "")}


def _joined(name: str, reserved: list[JSON], uid: str, status: JSON, named: JSON) -> JSON | None:
    """The patch that reserves an allocated claim for one more pod; None if it is reserved. Raises `NotWritten`."""
    if any(each.get("uid") == uid for each in reserved):
        return None
    if len(reserved) >= MOST_CONSUMERS:
        raise NotWritten(f"the ResourceClaim {name} is used by {MOST_CONSUMERS} pods, which is the maximum")
    return {"metadata": named, "status": {"reservedFor": [*reserved, *status["reservedFor"]]}}
