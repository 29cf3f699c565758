"""
The shares of a node that compute nothing, as its agent publishes them in the status of the GPUNode (`status.idle`).

A pod is named by its uid, since tenants who may read GPUNodes must not learn which other teams' pods there are. A
damaged field counts as absent: no pod is idle because of a field that cannot be read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from contract.encoding import moments
from contract.encoding.wire import TIME, UID, readable, record

MOST_IDLE = 256
"""Idle shares that one GPUNode lists, those with the longest idle time first."""
FIELD = "idle"


@dataclass(frozen=True, slots=True, order=True)
class IdleShare:
    """A pod on whose GPUs none of its containers has computed `since` then: whole seconds since 1970, by its node."""

    since: int
    pod: str
    """The pod's uid."""


@dataclass(frozen=True, slots=True)
class IdleReport:
    """A GPUNode's report about its idle shares."""

    shares: Mapping[str, int] = field(default_factory=dict)
    """The time since which each computes nothing, by the pod's uid."""
    observed: int | None = None
    """When the agent last wrote the status; None if it never did. By the same clock as `shares`."""

    def lasted(self, pod: str) -> int | None:
        """Seconds for which the pod had been idle when the agent last wrote; None where it is not idle."""
        since = self.shares.get(pod)
        return None if since is None or self.observed is None else max(0, self.observed - since)


NO_REPORT = IdleReport()


_SHARE = record(IdleShare, {"pod": UID, "since": TIME})


def idle_to_status(shares: Iterable[IdleShare]) -> list[dict[str, str]] | None:
    """The field of the status; None if no share is idle, which removes the field."""
    return [_SHARE.to_json(share) for share in sorted(shares)[:MOST_IDLE]] or None


def idle_from_object(gpunode: object) -> IdleReport:
    """Read a GPUNode. Never raises."""
    status = gpunode.get("status") if isinstance(gpunode, Mapping) else None
    if not isinstance(status, Mapping):
        return NO_REPORT
    observed = moments.seconds(status.get("observedAt"))
    shares = {share.pod: share.since for share in readable(_SHARE, status.get(FIELD), MOST_IDLE)}
    return IdleReport(shares, None if observed is None else int(observed))
