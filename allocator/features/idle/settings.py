"""
What an administrator chooses of idle shares.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class IdleSettings:
    """Pods whose share computes nothing."""

    evict: bool = setting(
        False,
        "Whether a waiting pod may have pods of at most its priority evicted whose share has computed nothing for as "
        "long as they, or their namespaces, agreed to by gpufraction.io/idle-after: after a warning, and the fewest "
        "that make room. It needs the component allocator-eviction, and agents that read pods.",
    )
    grace: float = setting(
        300.0,
        "How long after its warning an idle pod is evicted, unless it computes by then. It lasts longer where the "
        "node's agent has not confirmed since that the pod is idle, which it does with each `heartbeat`.",
        unit="duration",
        minimum=1,
    )
