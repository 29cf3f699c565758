"""
Reads the requests of the ResourceClaims that pods name from the API server.

Each claim and template is read again: a new one is not in a cache yet, and a template may be deleted and created again
with the same name. Every replica reads, even if it does not lead.

Must not: decide on anything but whether a claim can be served.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from allocator.selectors import problem
from contract.dialects.base import Refusal
from contract.dialects.resourceclaims import SINCE, ClaimReading, Readings, read_claim
from contract.model import ClaimEntry
from contract.scheduling.gates import Version
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound

JSON = dict[str, Any]
_WITHIN = 0.6
"""Seconds for one claim: less than the webhook waits for the whole answer."""


@dataclass(frozen=True, slots=True)
class ClaimsRead:
    """The contents of a pod's claims, by the pod's own names for them."""

    readings: Readings
    allocated: frozenset[str] = frozenset()
    """Our claims without a template that already have their cards, so that pods use them now."""


class ClaimReader:
    """Reads claims and templates. `version`: the cluster's. `within`: seconds for one of them."""

    def __init__(self, kube: Kube, *, version: Version, within: float = _WITHIN) -> None:
        self._kube = kube
        self.version = version
        """Other code only reads it."""
        self._within = within

    def read(self, namespace: str, claims: Iterable[ClaimEntry]) -> ClaimsRead | Refusal:
        """The requests of each claim, or why the pod cannot be served. Raises `KubeError` if a read fails."""
        readings: dict[str, ClaimReading] = {}
        allocated: set[str] = set()
        for entry in claims:
            try:
                document = self._kube.get(_path(namespace, entry), timeout=self._within)
            except KubeNotFound:
                return Refusal(_field(entry), f"{_what(entry)}, which does not exist", "create it before the pod")
            found = self._found(entry, document)
            if isinstance(found, Refusal):
                return found
            readings[entry.name] = found
            if found and entry.claim and (document.get("status") or {}).get("allocation"):
                allocated.add(entry.name)
        return ClaimsRead(readings, frozenset(allocated))

    def _found(self, entry: ClaimEntry, document: JSON) -> ClaimReading | Refusal:
        spec, what = document.get("spec") or {}, _what(entry)
        spec, field = (spec.get("spec"), "spec.spec") if entry.template else (spec, "spec")
        found = read_claim(spec, f"{what}: {field}", problem)
        if found and self.version < SINCE:
            version, since = (".".join(map(str, each)) for each in (self.version, SINCE))
            cure = f"it drops capacity.requests; name resources such as gpufraction.io/gpu-memory, or use {since}"
            return Refusal(_field(entry), f"{what} for a share of a GPU on Kubernetes {version}", cure)
        return found


def _path(namespace: str, entry: ClaimEntry) -> str:
    if entry.template:
        return paths.resourceclaimtemplates(namespace, entry.template)
    return paths.resourceclaims(namespace, entry.claim)


def _what(entry: ClaimEntry) -> str:
    return f"ResourceClaimTemplate {entry.template}" if entry.template else f"ResourceClaim {entry.claim}"


def _field(entry: ClaimEntry) -> str:
    return f"spec.resourceClaims[{entry.name}]"
