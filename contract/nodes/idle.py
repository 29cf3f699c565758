"""
The shares of a node that compute nothing, as its agent publishes them in the status of the GPUNode (`status.idle`).

A pod is named by its uid, since tenants who may read GPUNodes must not learn which other teams' pods there are. What is
damaged counts as absent: nobody is idle because of a field that cannot be read. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from contract.encoding.reading import is_uid

MOST_IDLE = 256
"""Idle shares that one GPUNode lists; those that have been idle for the longest time."""
FIELD = "idle"


@dataclass(frozen=True, slots=True, order=True)
class IdleShare:
    """A pod on whose GPUs none of its containers has computed `since` then: whole seconds since 1970, by its node."""

    since: int
    pod: str
    """The pod's uid."""


@dataclass(frozen=True, slots=True)
class IdleReport:
    """What a GPUNode says of its idle shares."""

    shares: Mapping[str, int] = field(default_factory=dict)
    """Since when each computes nothing, by the pod's uid."""
    observed: int | None = None
    """When the agent last wrote the status; None where it never did. By the same clock as `shares`."""

    def lasted(self, pod: str) -> int | None:
        """Seconds for which the pod had been idle when the agent last wrote; None where it is not idle."""
        since = self.shares.get(pod)
        return None if since is None or self.observed is None else max(0, self.observed - since)


NO_REPORT = IdleReport()


def idle_to_status(shares: Iterable[IdleShare]) -> list[dict[str, str]] | None:
    """The field of the status; None where nobody is idle, which removes it."""
    longest = sorted(shares)[:MOST_IDLE]
    return [{"pod": share.pod, "since": _written(share.since)} for share in longest] or None


def idle_from_object(gpunode: Mapping[str, Any]) -> IdleReport:
    """Read a GPUNode. Never raises."""
    status = gpunode.get("status")
    if not isinstance(status, Mapping):
        return NO_REPORT
    listed, shares = status.get(FIELD), dict[str, int]()
    for item in listed[:MOST_IDLE] if isinstance(listed, list) else ():
        pod, since = (item.get("pod"), _read(item.get("since"))) if isinstance(item, Mapping) else (None, None)
        if isinstance(pod, str) and is_uid(pod) and since is not None:
            shares[pod] = since
    return IdleReport(shares, _read(status.get("observedAt")))


def _written(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read(text: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp())
    except (ValueError, OverflowError):
        return None
