"""What an administrator promises of waiting times."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class ServiceLevelSettings:
    """Service levels."""

    start_within: float = setting(
        300.0,
        "How long a pod may wait for its share until it counts as late in `gpufraction_shares_due_total`, of which the "
        "alerts on service levels are made. The time begins when no other system's scheduling gate holds the pod.",
        unit="duration",
        minimum=1,
    )
