"""Whether the conditions of waiting pods show when they will probably start."""

from __future__ import annotations

from dataclasses import dataclass

from runtime.settings import setting


@dataclass(frozen=True)
class EstimateSettings:
    """Estimates of when waiting pods start."""

    enabled: bool = setting(
        False,
        "Whether the condition of a waiting pod says when it will probably start, estimated from how long pods of the "
        "same owner ran. If there is no estimate, the condition says so.",
    )
    every: float = setting(
        30.0,
        "Interval between estimates. Each simulates the first 32 pods of the queue, without delaying decisions.",
        unit="duration",
        minimum=5,
    )
