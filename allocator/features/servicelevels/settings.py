"""The waiting times that an administrator promises."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class ServiceLevelSettings:
    """Service levels."""

    start_within: float = setting(
        300.0,
        "Time after which a pod without a share counts as late in `gpufraction_shares_due_total`, on which the alerts "
        "on service levels are based. The time begins when no other system's scheduling gate holds the pod.",
        unit="duration",
        minimum=1,
    )
