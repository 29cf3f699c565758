"""
The requests of the ResourceClaims of a Workload's pods.

Claims of templates are created with the pods, so this reads the templates instead. A claim without a template is one
share for all pods that name it, so it counts once, and not at all if it already has its cards.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocator.features.kueue.judge import NO_CLAIMS, NotSeen, TemplateClaims
from allocator.features.kueue.workloads import Workload
from allocator.workers.claim_reader import ClaimReader, ClaimsRead
from contract.dialects import resourceclaims
from contract.dialects.base import Refusal
from contract.model import MOST_CLAIMS, ClaimEntry
from runtime.kubernetes.client import KubeError


class TemplateClaimReader:
    """
    Reads the claims in the templates of Workloads, and remembers them until `forget`. Not thread-safe: one owner calls
    it.
    """

    def __init__(self, reader: ClaimReader) -> None:
        self._reader = reader
        self._read: dict[tuple[str, tuple[ClaimEntry, ...]], ClaimsRead | Refusal] = {}

    def forget(self) -> None:
        """Forget what was read, so that it is read again."""
        self._read.clear()

    def read(self, workload: Workload) -> dict[str, TemplateClaims | Refusal]:
        """The results by the names of the pod sets with claims. Raises `NotSeen` for claims that cannot be read now."""
        found: dict[str, TemplateClaims | Refusal] = {}
        counted: set[str] = set()
        named = 0
        for pod_set in workload.pod_sets:
            entries = resourceclaims.entries(pod_set.template.get("spec") or {})
            named += len(entries)
            if named > MOST_CLAIMS:  # each is one request to the API server
                cure = f"give at most {MOST_CLAIMS} in all pod sets"
                found[pod_set.name] = Refusal("spec.resourceClaims", f"{named} claims", cure)
            elif entries:
                read = self._once(workload.namespace, entries)
                found[pod_set.name] = read if isinstance(read, Refusal) else _claims(entries, read, counted)
        return found

    def _once(self, namespace: str, entries: tuple[ClaimEntry, ...]) -> ClaimsRead | Refusal:
        key = (namespace, entries)
        if key not in self._read:
            try:
                self._read[key] = self._reader.read(namespace, entries)
            except KubeError as error:
                raise NotSeen("a ResourceClaim or ResourceClaimTemplate") from error
        return self._read[key]


def _claims(entries: Iterable[ClaimEntry], read: ClaimsRead, counted: set[str]) -> TemplateClaims:
    """Read one pod set's claims. `counted`: the claims without a template of earlier pod sets; this call adds to it."""
    ours = [each for each in entries if read.readings[each.name]]
    if not ours:
        return NO_CLAIMS
    readings = {each.name: read.readings[each.name] for each in ours}
    alone = {each.claim for each in ours if each.claim}
    if len(alone) < len(ours):
        return TemplateClaims(readings, frozenset(alone))
    has_shares = all(each.claim in counted or each.name in read.allocated for each in ours)
    counted |= alone
    return TemplateClaims(readings, frozenset(alone), most=0 if has_shares else 1)
