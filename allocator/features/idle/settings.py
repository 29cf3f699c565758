"""
The administrator's settings of idle shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class IdleSettings:
    """Pods whose share computes nothing."""

    evict: bool = setting(
        False,
        "Whether idle pods of equal or lower priority may be evicted for a waiting pod: pods whose share has been "
        "idle for the time that they or their namespaces agreed to with gpufraction.io/idle-after. They are warned "
        "first, and only as few as needed are evicted. Needs the component allocator-eviction, and agents that read "
        "pods.",
    )
    grace: float = setting(
        300.0,
        "Time from the warning of an idle pod to its eviction, unless it uses its GPU by then. It takes longer until "
        "the node's agent has confirmed that the pod is still idle, which it does with each `heartbeat`.",
        unit="duration",
        minimum=1,
    )
