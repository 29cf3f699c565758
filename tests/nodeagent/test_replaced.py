"""When the agent starts anew for a driver that was replaced, and when that would not help."""

from __future__ import annotations

import pytest

from nodeagent.replaced import Replaced
from nodeagent.status import Sight

WELL = Sight((), "550.54.15", "12.4")
OUTDATED = Sight(problem="of different versions", reason="LibraryOutdated")
GONE = Sight(problem="not loaded", reason="DriverGone")

LOOKS = {
    "a driver that stays": ([WELL, WELL], [False, False]),
    "a driver that was replaced": ([WELL, OUTDATED, OUTDATED], [False, False, True]),
    "a driver that was away meanwhile": ([WELL, GONE, GONE, OUTDATED, OUTDATED], [False, False, False, False, True]),
    "a moment": ([WELL, OUTDATED, WELL, OUTDATED], [False, False, False, False]),
    "a driver that was not reloaded since its files were replaced": ([OUTDATED] * 3, [False] * 3),
    "that one when it was reloaded": ([OUTDATED, WELL, OUTDATED, OUTDATED], [False, False, False, True]),
    "no driver at all": ([GONE] * 3, [False] * 3),
}


@pytest.mark.parametrize(("looks", "anew"), LOOKS.values(), ids=LOOKS.keys())
def test_it_starts_anew_where_that_brings_the_new_library(looks: list[Sight], anew: list[bool]) -> None:
    replaced = Replaced()
    assert [replaced.seen(sight) for sight in looks] == anew
