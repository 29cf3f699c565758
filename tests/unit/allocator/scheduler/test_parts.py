"""What a feature's part may do to the core: nothing that affects others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from allocator.cache.cache import Cache
from allocator.engine.engine import Engine
from allocator.scheduler.core import Controller
from allocator.scheduler.events import DriftFound, Relist, TickPhase
from allocator.scheduler.parts import FeaturePart
from allocator.settings import Settings


@dataclass
class Faults:
    """Records where errors were isolated."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, place: str, about: str) -> str:
        self.found.append((place, about))
        return "id"


def controller(part: FeaturePart, faults: Faults) -> Controller:
    """A leading controller, with a feature that has this part."""
    return Controller(
        cache=Cache(engine=Engine()),
        settings=Settings(),
        clock=lambda: 1.0,
        new_id=lambda: "1",
        leading=lambda: True,
        wake=lambda: None,
        faulted=faults,
        parts=[lambda core: part],
    )


def failing(now: float) -> list[object]:
    """A feature's tick that raises an error."""
    raise ZeroDivisionError


def test_an_error_in_a_features_tick_costs_the_core_no_effect() -> None:
    faults, last = Faults(), object()
    ticks: dict[TickPhase, Callable[[float], list[object]]] = {TickPhase.TAKE_OVER: failing}
    made = controller(FeaturePart(ticks=ticks), faults)
    made.handle(DriftFound())
    assert (made.tick(TickPhase.TAKE_OVER), faults.found) == ([Relist(None)], [("feature", "take-over")])
    sound = controller(FeaturePart(ticks={TickPhase.TAKE_OVER: lambda now: [last]}), faults)
    sound.handle(DriftFound())
    assert sound.tick(TickPhase.TAKE_OVER) == [Relist(None), last]


def test_an_event_has_one_part_that_takes_it_in() -> None:
    with pytest.raises(AssertionError, match="one part"):
        controller(FeaturePart(handlers={DriftFound: lambda event, now: None}), Faults())
