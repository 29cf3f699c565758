"""Which allocator leads, and for which pods it reserves nodes, from its Lease. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from contract.encoding import moments

JSON = dict[str, Any]
DOUBT = 60.0
"""Seconds by which a user's clock may be wrong."""
_SILENT = 15.0
"""Seconds after which a Lease that was not renewed is free."""


def leader(lease: JSON | None, now: float, doubt: float = DOUBT) -> tuple[str, str]:
    """
    The replica that leads, and why none does; one of the two is empty. `now`: seconds since the epoch, which may differ
    from the cluster's clocks by `doubt` seconds.
    """
    spec = (lease or {}).get("spec") or {}
    # A replica's identity is its name and, after an underscore, a number of its own.
    holder = str(spec.get("holderIdentity") or "").partition("_")[0]
    if not holder:
        return "", "no allocator leads: pods wait"
    renewed = moments.seconds(spec.get("renewTime"))
    if renewed is None:
        return "", f"the Lease {names.LEASE} has no time of renewal"
    age = now - renewed
    if age > float(spec.get("leaseDurationSeconds") or _SILENT) + doubt:
        return "", f"no allocator leads: {holder} last renewed its Lease {age:.0f} s ago"
    return holder, ""


@dataclass(frozen=True, slots=True)
class LeaderStatus:
    """The content of the Lease. `missing`: why no allocator places pods now; empty if one does or if it is unknown."""

    missing: str = ""
    reserved: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The uids of the pods for which each node is reserved."""


NOTHING_KNOWN = LeaderStatus()
