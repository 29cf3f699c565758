"""
Removes ResourceClaims whose pods are deleted, and creates missing ones again.

A crash between a claim and its pod's patch leaves a claim behind that no pod will use; its owner is deleted by then,
and the garbage collector removes it. This is a second safety net, and the only one for a claim that somebody removed: a
pod with a share but no claim would wait forever. It runs at each start of a leadership, and from time to time.

`sweep` decides, from two lists. Only the leader writes, and it requests each pod again before it removes anything.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.faults import Faulted, surfaced
from allocator.workers import periodic, resource_claims
from allocator.workers.resource_claims import NotWritten
from contract import kinds, names, pods
from contract.encoding import resourceclaims
from contract.model import Allocation, PodRequest
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)
EVERY = 60.0
"""Seconds between two looks."""
_LIST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ClaimState:
    """What is read of a claim of ours."""

    namespace: str
    name: str
    uid: str
    owner: str
    """The uid of its pod; empty if it has none."""
    owner_name: str
    reserved: bool
    """It is allocated, reserved for a pod, and not being deleted."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A pod that names a claim of ours, and whose containers have not ended for good."""

    pod: JSON
    """`pods.outline` of it."""
    claim: str
    request: PodRequest | None = None
    allocation: Allocation | None = None
    """None if the pod still waits, or is being deleted."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """What is to be done."""

    remove: tuple[ClaimState, ...] = ()
    restore: tuple[Holder, ...] = ()


def claim_state(claim: Mapping[str, Any]) -> ClaimState:
    """Read a claim."""
    metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
    owners = metadata.get("ownerReferences") or [{}]
    return ClaimState(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        owner=resourceclaims.owner_uid(claim),
        owner_name=str(owners[0].get("name", "")),
        reserved=bool(status.get("allocation") and status.get("reservedFor") and not metadata.get("deletionTimestamp")),
    )


def holder(pod: Mapping[str, Any]) -> Holder | None:
    """Read a pod; None for one that names no claim of ours or has ended."""
    claim = resourceclaims.named_by(pod.get("spec") or {})
    if not claim or pods.finished(pod):
        return None
    placed = names.GATE not in pods.gates(pod) and not (pod.get("metadata") or {}).get("deletionTimestamp")
    request = pods.holding(pod) if placed else None
    allocation = pods.allocation_of(pod, request) if request is not None else None
    return Holder(pods.outline(pod), claim, request, allocation)


def sweep(claims: Iterable[ClaimState], holders: Iterable[Holder]) -> Sweep:
    """
    What to remove and what to create again. The claims were listed before the pods, so the pod of each claim that was
    listed is among the holders, unless it was deleted.
    """
    there = {(claim.namespace, claim.name): claim for claim in claims}
    alive, restore = set(), []
    for each in holders:
        alive.add(pods.uid(each.pod))
        found = there.get((str(each.pod["metadata"].get("namespace", "")), each.claim))
        kept = found is not None and found.reserved and found.owner == pods.uid(each.pod)
        if each.allocation is not None and not kept:
            restore.append(each)
    return Sweep(tuple(claim for claim in there.values() if claim.owner not in alive), tuple(restore))


class ClaimSweeper:
    """`once` is one look. `leading`: a replica that does not lead does nothing. `every`: seconds between two looks."""

    def __init__(
        self,
        kube: Kube,
        *,
        leading: Callable[[], bool],
        timeout: float = 10.0,
        every: float = EVERY,
        faulted: Faulted = surfaced,
    ) -> None:
        self._kube = kube
        self._leading = leading
        self._timeout = timeout
        self._every = every
        self._faulted = faulted

    def run(self, stop: threading.Event, *, pause: float = 1.0) -> None:
        """Run once when this replica begins to lead, and then repeatedly, until stopped."""
        periodic.while_leading(
            self.once, stop, self._leading, every=self._every, pause=pause, missed="resource claims not looked at"
        )

    def once(self) -> Sweep:
        """One run. Raises `KubeError` if the lists cannot be read."""
        claims = [claim_state(each) for each in self._claims()]
        listed = self._kube.list(paths.pods(), of=kinds.PODS, trim=_holding, timeout=_LIST_TIMEOUT).items
        found = sweep(claims, (each["holder"] for each in listed if each))
        for claim in found.remove:
            self._guarded(claim.name, lambda claim=claim: self._remove(claim))  # type: ignore[misc]
        for each in found.restore:
            self._guarded(each.claim, lambda each=each: self._restore(each))  # type: ignore[misc]
        return found

    def _claims(self) -> list[JSON]:
        """Our claims, among all claims."""
        listed = self._kube.list(paths.resourceclaims(), of=kinds.RESOURCECLAIMS, trim=_ours, timeout=_LIST_TIMEOUT)
        return [each for each in listed.items if each]

    def _guarded(self, name: str, act: Callable[[], None]) -> None:
        if not self._leading():
            return
        try:
            act()
        except (KubeError, NotWritten) as error:
            log.info("resource claim left as it is", extra={"claim": name, "reason": str(error)})
        except Exception:
            self._faulted("resource-claims", name)

    def _remove(self, claim: ClaimState) -> None:
        try:
            pod = self._kube.get(paths.pods(claim.namespace, claim.owner_name)) if claim.owner_name else {}
        except KubeNotFound:
            pod = {}
        if pod and pods.uid(pod) == claim.owner and not pods.finished(pod):
            return
        try:
            where = paths.resourceclaims(claim.namespace, claim.name)
            self._kube.delete(where, {"preconditions": {"uid": claim.uid}})
        except (KubeNotFound, KubeConflict):
            return
        log.info("resource claim without a pod removed", extra={"claim": f"{claim.namespace}/{claim.name}"})

    def _restore(self, each: Holder) -> None:
        assert each.request is not None
        assert each.allocation is not None
        resource_claims.write(self._kube, each.pod, each.request, each.allocation, timeout=self._timeout)
        log.warning("missing resource claim made again", extra={"pod": pods.key(each.pod), "claim": each.claim})


def _ours(claim: JSON) -> JSON:
    """
    The claim if it is ours, else nothing. The name identifies our claims, because it cannot change: users can change
    labels.
    """
    return claim if resourceclaims.is_ours((claim.get("metadata") or {}).get("name")) else {}


def _holding(pod: JSON) -> JSON:
    """What is read of a pod that names a claim of ours; nothing for all others."""
    found = holder(pod)
    return {"holder": found} if found is not None else {}
