"""The benchmark of queued pods needs other projects' programs, and says which are missing."""

from __future__ import annotations

from benchmarks import kueue
from playground.realapi.components import ENVIRONMENT


def test_without_a_control_plane_it_says_what_is_missing() -> None:
    (line,) = kueue.measure(1, 1, environment={})
    assert line.startswith("Kueue was not measured: ")
    assert ENVIRONMENT in line
