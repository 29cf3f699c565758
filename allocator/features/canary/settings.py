"""
The administrator's settings of canaries.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class CanarySettings:
    """Pods that try to exceed their share, on unused cards."""

    enabled: bool = setting(
        False,
        "Create canaries on nodes whose agents wait for a proof of isolation; needs the rights of "
        "manifests/components/canary, which sets it.",
    )
