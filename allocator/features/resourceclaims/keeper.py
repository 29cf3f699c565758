"""
Allocates the ResourceClaims of placed pods again where somebody has taken their allocation away.

What is on the pods is the truth: a pod with a share holds it, whatever becomes of its claims. A claim without its
allocation keeps such a pod from starting, though, or from starting again after a reboot. So the leader looks at each
start of its leadership, and now and then.

`lacking` decides, from two lists. Claims of pods that have ended are for kube-controller-manager to release.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.faults import Faulted, surfaced
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
"""Seconds between two looks."""
_LIST_TIMEOUT = 30.0


@dataclass(frozen=True, slots=True)
class ClaimHolder:
    """A pod with a share by ResourceClaims, and the claims that it names."""

    pod: JSON
    """`pods.outline` of it."""
    claims: frozenset[str]
    request: PodRequest
    allocation: Allocation


def holder(pod: Mapping[str, Any]) -> ClaimHolder | None:
    """Read a pod; None for one that holds no share by claims of its author's."""
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
    return ClaimHolder(outline, frozenset(filter(None, named)), request, allocation)


def lacking(claims: Iterable[Mapping[str, Any]], holders: Iterable[ClaimHolder]) -> tuple[ClaimHolder, ...]:
    """Those whose claim is there and not allocated, or not reserved for them."""
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


class ClaimKeeper:
    """`once` is one look. `leading`: a replica that does not lead does nothing. `every`: seconds between two looks."""

    def __init__(
        self,
        kube: Kube,
        *,
        leading: Callable[[], bool],
        timeout: float = 10.0,
        every: float = EVERY,
        wall: Callable[[], float] = time.time,
        faulted: Faulted = surfaced,
    ) -> None:
        self._kube = kube
        self._leading = leading
        self._timeout = timeout
        self._every = every
        self._wall = wall
        self._faulted = faulted

    def run(self, stop: threading.Event, *, pause: float = 1.0) -> None:
        """Look at once when this replica begins to lead, and then again and again, until stopped."""
        periodic.while_leading(
            self.once,
            stop,
            self._leading,
            every=self._every,
            pause=pause,
            missed="resource claims of pods not looked at",
        )

    def once(self) -> tuple[ClaimHolder, ...]:
        """One look, and what follows from it. Raises `KubeError` where the lists cannot be read."""
        claims = self._kube.list(paths.resourceclaims(), of=kinds.SHARE_CLAIMS, timeout=_LIST_TIMEOUT).items
        listed = self._kube.list(paths.pods(), of=kinds.PODS, trim=_holding, timeout=_LIST_TIMEOUT).items
        found = lacking((each for each in claims if each), [each["holder"] for each in listed if each])
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
    """What is read of a pod with a share by claims; nothing of all others."""
    found = holder(pod)
    return {"holder": found} if found is not None else {}
