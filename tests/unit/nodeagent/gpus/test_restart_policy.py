"""When the agent restarts because of the driver, and when a restart would not help."""

from __future__ import annotations

import pytest

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.gpus.observation import Observation
from nodeagent.gpus.restart_policy import REASONS, RestartPolicy

WELL = Observation((), "550.54.15", "12.4")
OUTDATED = Observation(problem="of different versions", reason=GPUNodeReason.LIBRARY_OUTDATED)
BROKEN = Observation(problem="Unknown Error (NVML code 999)", reason=GPUNodeReason.LIBRARY_BROKEN)
REFUSED = Observation(problem="may not", reason=GPUNodeReason.NO_PERMISSION)
UNLOADED = Observation(problem="not loaded", reason=GPUNodeReason.DRIVER_GONE)
MISSING = Observation(problem="not found", reason=GPUNodeReason.LIBRARY_MISSING)

LOOKS: dict[str, tuple[list[Observation], int]] = {
    "a driver that stays": ([WELL] * 9, 0),
    "a driver that was replaced": ([WELL, OUTDATED, OUTDATED], 3),
    "a driver that was away meanwhile": ([WELL, UNLOADED, UNLOADED, OUTDATED, OUTDATED], 5),
    "a moment": ([WELL, OUTDATED, WELL, OUTDATED], 0),
    "a driver that was not reloaded since its files were replaced": ([OUTDATED] * 9, 0),
    "that one when it was reloaded, and replaced again": ([OUTDATED, WELL, OUTDATED, OUTDATED], 4),
    "devices that were taken away": ([WELL, *[BROKEN] * 6], 7),
    "devices that may not be opened any more": ([WELL, *[REFUSED] * 6], 7),
    "one kind of failure after the other, neither for long": ([WELL, *[BROKEN] * 5, *[REFUSED] * 5], 0),
    "devices that were never there": ([BROKEN] * 9, 0),
    "no driver any more": ([WELL, *[UNLOADED] * 9], 0),
    "no library": ([WELL, *[MISSING] * 9], 0),
}


@pytest.mark.parametrize(("looks", "restarts"), LOOKS.values(), ids=LOOKS.keys())
def test_it_restarts_where_that_helps(looks: list[Observation], restarts: int) -> None:
    """`restarts`: after which look it restarts; 0 for none."""
    policy = RestartPolicy()
    verdicts = [policy.seen(observation) for observation in looks]
    assert [bool(why) for why in verdicts] == [number == restarts for number in range(1, len(looks) + 1)]
    assert not restarts or verdicts[-1] == REASONS[looks[-1].reason][1]
