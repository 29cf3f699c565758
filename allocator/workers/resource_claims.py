"""
Writes the ResourceClaim of a placed pod, before its scheduling gate is removed.

    create (no status yet) ──▶ status: allocation and reservedFor in one write ──▶ the pod's patch takes the gate off

A crash in between is harmless: the pod still waits, and the next decision about it finds the claim. A claim with
another decision's allocation is reset first, because Kubernetes allows removing an allocation, but not changing it.

Two leaders may write at the same time for a moment. The allocation names the version of the pod in its decision, and a
new leader gives every waiting pod a new version. Each write names the claim's own version, so the later decision stays.

Must not: remove a claim (`sweeper` does), or write to a pod.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from contract.encoding import resourceclaims
from contract.encoding.reading import Malformed
from contract.model import Allocation, PodRequest
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeForbidden, KubeInvalid, KubeNotFound

JSON = dict[str, Any]
TRIES = 4
"""Attempts to write one status: a claim that others keep writing is left for the next decision."""
_LEAST = 0.05
"""Seconds: with less time left, no further request is started."""


class NotWritten(Exception):
    """
    The pod has no claim with this allocation; the message is the reason, and nothing was written to the pod.

    `refused`: the API server refuses it, and retries do not help.
    """

    def __init__(self, why: str, *, refused: bool = False) -> None:
        super().__init__(why)
        self.refused = refused


class Deadline:
    """A call returns the remaining seconds; None without a limit. Raises `NotWritten` if no time is left."""

    def __init__(self, timeout: float | None, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until = clock() + timeout if timeout is not None else None

    def __call__(self) -> float | None:
        if self._until is None:
            return None
        seconds = self._until - self._clock()
        if seconds < _LEAST:
            raise NotWritten("no time was left for the pod's ResourceClaim")
        return seconds


@contextmanager
def written() -> Iterator[None]:
    """Converts errors of the API server and of malformed claims to `NotWritten`."""
    try:
        yield
    except Malformed as error:
        raise NotWritten(f"the pod's ResourceClaim is not ours: {error}", refused=True) from error
    except KubeNotFound as error:
        raise NotWritten("the pod's ResourceClaim was removed at the same time") from error
    except KubeError as error:
        refused = isinstance(error, KubeForbidden | KubeInvalid)
        raise NotWritten(f"the pod's ResourceClaim was not written: {error}", refused=refused) from error


def write(
    kube: Kube,
    pod: Mapping[str, Any],
    request: PodRequest,
    allocation: Allocation,
    *,
    timeout: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """
    Write the allocation to the claim that the pod names; no-op if it names none. Raises `NotWritten`.

    `timeout`: seconds for all requests together. Returns the remaining seconds, for the write to the pod.
    """
    if not resourceclaims.named_by(pod.get("spec") or {}):
        if allocation.by_claim:
            raise NotWritten("the node delivers by a ResourceClaim, and the pod names none", refused=True)
        return timeout
    left = Deadline(timeout, clock)
    body = resourceclaims.claim_for(pod, request, allocation)
    status = resourceclaims.status_for(pod, allocation)
    with written():
        claim = _created(kube, body, left)
        for _ in range(TRIES):
            patch = _next(claim, body, status)
            if patch is None:
                return left()
            try:
                claim = kube.patch_merge(_path(body, "status"), patch, timeout=left())
            except (KubeConflict, KubeNotFound):  # another writer changed or removed it
                claim = _created(kube, body, left)
    raise NotWritten("other clients wrote to the pod's ResourceClaim at the same time")


def _created(kube: Kube, body: JSON, left: Callable[[], float | None]) -> JSON:
    """The stored claim, created now if it did not exist. Raises `KubeNotFound` if it is removed in between."""
    collection = paths.resourceclaims(body["metadata"]["namespace"])
    try:
        return kube.create(collection, body, timeout=left())
    except KubeNotFound as error:
        raise NotWritten(f"no ResourceClaim can be created (Kubernetes 1.34 and later have them): {error}") from error
    except KubeConflict:
        return kube.get(_path(body), timeout=left())


def _next(claim: Mapping[str, Any], body: JSON, status: JSON) -> JSON | None:
    """The next patch to the claim's status; None if it has this allocation. Raises `NotWritten` and `Malformed`."""
    metadata = claim.get("metadata") or {}
    wanted = body["metadata"]["ownerReferences"][0]["uid"]
    if resourceclaims.owner_uid(claim) != wanted or resourceclaims.requests_of(claim) != resourceclaims.requests_of(
        body
    ):
        raise NotWritten(f"there is another ResourceClaim named {body['metadata']['name']}", refused=True)
    if metadata.get("deletionTimestamp"):
        raise NotWritten("the pod's ResourceClaim is being deleted")
    named = {"metadata": {"resourceVersion": metadata.get("resourceVersion", "")}}
    there, ours = resourceclaims.version(claim), resourceclaims.version({"status": status})
    if there is None:
        return {**named, "status": status}
    if ours is not None and there[0] == ours[0]:
        reserved = (claim.get("status") or {}).get("reservedFor") or []
        return None if reserved else {**named, "status": {"reservedFor": status["reservedFor"]}}
    if ours is not None and there[1] > ours[1]:
        raise NotWritten("a later leader has decided about the pod")
    return {**named, "status": {"allocation": None, "reservedFor": None}}


def _path(body: JSON, sub: str | None = None) -> str:
    return paths.resourceclaims(body["metadata"]["namespace"], body["metadata"]["name"], sub)
