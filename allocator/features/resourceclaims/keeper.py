"""
Allocates the ResourceClaims of placed pods again if somebody has removed their allocation.

The pods are the source of truth: a pod with a share holds it, even if its claims are lost. But such a pod cannot start,
or start again after a reboot, if its claim has no allocation. So the leader checks at each start of its leadership, and
from time to time.

`lacking` decides, from two lists. kube-controller-manager releases the claims of pods that have ended.

kube-scheduler does not try a pod whose claim is being deleted, and reports this nowhere. `hindered` finds such pods for
the core, which releases their shares as it does for other pods that are not bound.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.podinfo import PodInfo, UnboundPod, pod_event, unbound_pod
from allocator.faults import Faulted, surfaced
from allocator.scheduler.parts import Core, FeaturePart
from allocator.workers import periodic, share_claims
from allocator.workers.resource_claims import NotWritten
from contract import kinds, names, pods
from contract.dialects import resourceclaims as dialect
from contract.encoding import moments
from contract.model import Allocation, PodRequest
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

JSON = dict[str, Any]
log = logging.getLogger(__name__)
EVERY = 60.0
"""Seconds between two checks."""
_LIST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A pod with a share by ResourceClaims, and its claims."""

    pod: JSON
    """`pods.outline` of it."""
    claims: frozenset[str]
    request: PodRequest
    allocation: Allocation
    unbound: PodInfo | None = None
    """The result of reading a pod without a node; None also if it could not be read."""


def holder(pod: Mapping[str, Any]) -> ClaimHolder | None:
    """Read a pod; None if it holds no share by claims of its author."""
    request = pods.holding(pod)
    metadata = pod.get("metadata") or {}
    if request is None or not request.own_claims or names.GATE in pods.gates(pod):
        return None
    if pods.finished(pod) or metadata.get("deletionTimestamp"):
        return None
    allocation, outline = pods.allocation_of(pod, request), pods.outline(pod)
    if allocation is None:
        return None
    named = (share_claims.claim_name(outline, entry) for entry in dialect.entries(outline["spec"]))
    unbound = None if (pod.get("spec") or {}).get("nodeName") else pod_event(pod, pods.trim).info
    return ClaimHolder(outline, frozenset(filter(None, named)), request, allocation, unbound)


def lacking(claims: Iterable[Mapping[str, Any]], holders: Iterable[ClaimHolder]) -> tuple[ClaimHolder, ...]:
    """The pods whose claim exists but is not allocated, or not reserved for them."""
    without: dict[tuple[str, str], frozenset[str]] = {}
    for claim in claims:
        metadata, status = claim.get("metadata") or {}, claim.get("status") or {}
        reserved = frozenset(each.get("uid") for each in status.get("reservedFor") or ())
        allocated = bool(status.get("allocation"))
        without[metadata.get("namespace", ""), metadata.get("name", "")] = reserved if allocated else frozenset()
    found = []
    for each in holders:
        namespace, uid = each.pod["metadata"].get("namespace", ""), pods.uid(each.pod)
        listed = (without.get((namespace, name)) for name in each.claims)
        if any(reserved is not None and uid not in reserved for reserved in listed):
            found.append(each)
    return tuple(found)


def hindered(claims: Iterable[Mapping[str, Any]], holders: Iterable[ClaimHolder]) -> tuple[UnboundPod, ...]:
    """The pods without a node that have a claim that is being deleted."""
    metadatas = [each["metadata"] for each in claims if (each.get("metadata") or {}).get("deletionTimestamp")]
    deleting = {(each.get("namespace", ""), each.get("name", "")) for each in metadatas}
    found = []
    for each in holders:
        namespace = each.pod["metadata"].get("namespace", "")
        going = min((name for name in each.claims if (namespace, name) in deleting), default="")
        if going and each.unbound is not None:
            message = f"its ResourceClaim {going} is being deleted"
            found.append(unbound_pod(each.unbound, each.allocation.node, message))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PodsHindered:
    """All pods with a share that kube-scheduler does not try because of their claims."""

    found: tuple[UnboundPod, ...]


class ClaimedPods:
    """The core's state of them. The shell holds the lock."""

    def __init__(self, core: Core) -> None:
        self._allocated = core.state.cache.allocated

    def part(self) -> FeaturePart:
        """The effect for the core."""
        return FeaturePart(handlers={PodsHindered: self._hinder})

    def _hinder(self, event: PodsHindered, now: float) -> None:
        self._allocated.hinder(event.found, now)


class ClaimKeeper:
    """
    `once` is one check. `leading`: a replica that does not lead does nothing. `every`: seconds between two checks.
    `declare` takes `PodsHindered`.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        leading: Callable[[], bool],
        declare: Callable[[PodsHindered], None] = lambda event: None,
        timeout: float = 10.0,
        every: float = EVERY,
        wall: Callable[[], float] = time.time,
        faulted: Faulted = surfaced,
    ) -> None:
        self._kube = kube
        self._leading = leading
        self._declare = declare
        self._timeout = timeout
        self._every = every
        self._wall = wall
        self._faulted = faulted

    def run(self, stop: threading.Event, *, pause: float = 1.0) -> None:
        """Run once when this replica begins to lead, and then repeatedly, until stopped."""
        periodic.while_leading(
            self.once,
            stop,
            self._leading,
            every=self._every,
            pause=pause,
            missed="resource claims of pods not looked at",
        )

    def once(self) -> tuple[ClaimHolder, ...]:
        """One run. Raises `KubeError` if the lists cannot be read."""
        claims = self._kube.list(paths.resourceclaims(), of=kinds.SHARE_CLAIMS, timeout=_LIST_TIMEOUT).items
        listed = self._kube.list(paths.pods(), of=kinds.PODS, trim=_holding, timeout=_LIST_TIMEOUT).items
        claims, holders = [each for each in claims if each], [each["holder"] for each in listed if each]
        self._declare(PodsHindered(hindered(claims, holders)))
        found = lacking(claims, holders)
        for each in found:
            self._restore(each)
        return found

    def _restore(self, each: ClaimHolder) -> None:
        if not self._leading():
            return
        about = {"pod": pods.key(each.pod), "claims": sorted(each.claims)}
        try:
            at = moments.stamp(self._wall())
            share_claims.write(self._kube, each.pod, each.request, each.allocation, at=at, timeout=self._timeout)
            log.warning("resource claims of a pod allocated again", extra=about)
        except (KubeError, NotWritten) as error:
            log.info("resource claims left as they are", extra={**about, "reason": str(error)})
        except Exception:
            self._faulted("share-claims", pods.key(each.pod))


def _holding(pod: JSON) -> JSON:
    """The fields that are read of a pod with a share by claims; nothing for all others."""
    found = holder(pod)
    return {"holder": found} if found is not None else {}
