"""
When a node's agent wrote its GPUNode (`status.observedAt`), and within which time it writes again (`heartbeatSeconds`).

The two fields are the agent's own, so a node speaks only for itself. What is damaged counts as absent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contract.encoding import moments

FIELD = "heartbeatSeconds"
LONGEST = 86_400
"""Seconds: the longest interval that counts."""
PATIENCE = 300.0
"""
Seconds for which an agent may be silent by default: longer than pulling a new version's image takes, so a roll-out
closes no node, and as long as Kubernetes by default leaves pods on a node that does not report.
"""
_UNPROMISED = 900.0
"""Seconds after which an agent of an older version, which writes every 5 minutes, is shown as silent."""
_MISSED = 2.25
"""Heartbeats after which an agent counts as silent: two were missed, and the second is not only late."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A GPUNode's report about its agent."""

    observed: int | None = None
    """When the agent last wrote, in seconds since 1970 by its own clock; None if it never did."""
    every: int = 0
    """Seconds within which it writes again; 0 if it does not say, as agents of older versions."""

    def bound(self, patience: float) -> float | None:
        """Seconds without a write after which the agent is silent, at least `patience`; None: it cannot be judged."""
        judged = patience > 0 and self.every > 0 and self.observed is not None
        return max(patience, _MISSED * self.every) if judged else None


UNHEARD = Heartbeat()


def heartbeat_of(gpunode: object) -> Heartbeat:
    """Read a GPUNode. Never raises."""
    status = gpunode.get("status") if isinstance(gpunode, Mapping) else None
    if not isinstance(status, Mapping):
        return UNHEARD
    observed, every = moments.seconds(status.get("observedAt")), status.get(FIELD)
    if not isinstance(every, int) or isinstance(every, bool) or not 0 < every <= LONGEST:
        every = 0
    return Heartbeat(None if observed is None else int(observed), every)


def shown_silent_after(gpunode: object) -> float:
    """
    Seconds without a write after which tools show the agent as silent: the allocator's bound, unless the administrator
    chose another.
    """
    return heartbeat_of(gpunode).bound(PATIENCE) or _UNPROMISED
