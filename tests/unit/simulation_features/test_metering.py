"""Time that is counted twice, or not at all, is found."""

from __future__ import annotations

from types import SimpleNamespace

from tests.simulation.features import metering
from tests.unit.simulation_features.fakes import run


def test_time_that_two_count_is_found() -> None:
    assert metering.too_much({"a": 10.0, "b": 20.0}, 30.0) is None
    assert metering.too_much({"a": 10.5, "b": 20.0}, 30.0) == "{'a': 10.5, 'b': 20.0} are 30.500 s, in 30.000 s"


def test_time_that_nobody_counts_is_found() -> None:
    assert metering.too_little({"a": 10.0, "b": 20.0}, 37.0) is None
    assert metering.too_little({"a": 10.0, "b": 20.0}, 39.0) == "{'a': 10.0, 'b': 20.0} are 30.000 s of 39.000 s"


def test_where_clocks_are_wrong_nobody_can_tell() -> None:
    found = run()
    assert metering.told(found)
    found.plan.steps = (SimpleNamespace(kind="clock.halved"),)
    assert not metering.told(found)
