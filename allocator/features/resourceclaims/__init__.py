"""
ResourceClaims of the DeviceClass `share.gpufraction.io` as a dialect: `reading` gives the webhook the requests of a
pod's claims, and `keeper` allocates deallocated claims again. `allocator.workers.share_claims` allocates.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass

from allocator.features.base import Feature, Running, Shell
from allocator.features.resourceclaims.keeper import ClaimedPods, ClaimKeeper
from allocator.features.resourceclaims.reading import answer
from contract.dialects.resourceclaims import SINCE
from contract.encoding import protocol
from runtime.settings import setting

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResourceClaimSettings:
    """ResourceClaims that tenants write."""

    resource_claims: bool = setting(
        False,
        "Serve ResourceClaims of the DeviceClass share.gpufraction.io (Kubernetes 1.36 and later); needs the rights of "
        "manifests/components/resourceclaims, which sets it.",
    )


def _run(shell: Shell, chosen: ResourceClaimSettings, inside: ClaimedPods) -> Running:
    assert shell.claims is not None  # the feature serves claims
    version = shell.claims.version
    routes = {("POST", protocol.CLAIMS_PATH): functools.partial(answer, shell.claims)}
    if version < SINCE:
        found, needed = (".".join(map(str, each)) for each in (version, SINCE))
        log.warning("no shares by ResourceClaims", extra={"found": f"Kubernetes {found}", "needed": needed})
        return Running(routes=routes)
    keeper = ClaimKeeper(
        shell.kube,
        leading=shell.leading,
        declare=shell.controller.handle,
        timeout=shell.write_timeout,
        faulted=shell.faulted,
    )
    return Running(threads={"share-claims": keeper.run}, routes=routes)


FEATURE = Feature(
    name="resourceclaims",
    settings=ResourceClaimSettings,
    inside=lambda core, chosen: ClaimedPods(core),
    part=ClaimedPods.part,
    run=_run,
    serves_claims=True,
    enabled=lambda chosen: chosen.resource_claims,
)
