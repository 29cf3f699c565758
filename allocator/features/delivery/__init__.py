"""
Delivery by ResourceClaims: removes the claims of deleted pods, and creates missing claims again.
"""

from __future__ import annotations

from allocator.features.base import Feature, Running, Shell, nothing
from allocator.features.delivery.sweeper import ClaimSweeper
from runtime.settings import NoSettings


def _run(shell: Shell, chosen: NoSettings, inside: None) -> Running:
    if not shell.by_claims:
        return Running()
    sweeper = ClaimSweeper(shell.kube, leading=shell.leading, timeout=shell.write_timeout, faulted=shell.faulted)
    return Running(threads={"resource-claims": sweeper.run})


FEATURE = Feature(
    name="delivery",
    settings=NoSettings,
    inside=nothing,
    run=_run,
)
