"""How often the allocator checks whether nodes are needed."""

from __future__ import annotations

import pytest

from allocator.features.provisioning.worker import pause_after


@pytest.mark.parametrize(
    ("tried", "took", "pause"),
    [(True, 0.01, 2.0), (True, 3.0, 12.0), (True, 100.0, 30.0), (False, 0.01, 0.25), (True, -3600.0, 2.0)],
    ids=["quick", "thousands of pods of many shapes", "too slow", "the queue goes first", "the clock was set back"],
)
def test_the_pause_grows_with_what_a_pass_takes(tried: bool, took: float, pause: float) -> None:
    assert pause_after(tried, took) == pause
