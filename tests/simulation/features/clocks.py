"""Clocks that jump, drift, or run far too slowly."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import program_of
from tests.simulation.features.cards import BOOKED_ONCE, NO_REJECTION
from tests.simulation.features.crashes import some_program
from tests.simulation.features.election import ONE_LEADER
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

SERVER = "apiserver"
_JUMPS = (-86400.0, -3600.0, -30.0, -1.0, 1.0, 30.0, 3600.0, 86400.0)
_RATES = (0.97, 0.99, 1.01, 1.03)


def _jump(draw: Draw) -> Arguments:
    return {"program": draw.rng.choice((some_program(draw), some_program(draw), SERVER)), "by": draw.rng.choice(_JUMPS)}


def _set_wall(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Set a wall clock; it is correct again when the fault ends."""
    if arguments["program"] == SERVER:
        run.world.server.offset = arguments["by"]
        return lambda: setattr(run.world.server, "offset", 0.0)
    name = program_of(run, arguments["program"]).name
    _each_instance(run, name, lambda program: program.set_wall(arguments["by"]))
    return lambda: _each_instance(run, name, lambda program: program.set_wall(0.0))


def _each_instance(run: Run, name: str, change: Callable[[Program], None]) -> None:
    """Change every instance of a program, because they share a machine."""
    for each in (*run.world.programs(), *run.world.leaving):
        if each.name == name:
            change(each)


def _drift(draw: Draw) -> Arguments:
    return {"program": some_program(draw), "rate": draw.rng.choice(_RATES)}


def _slow(draw: Draw) -> Arguments:
    return {"program": "leader", "rate": 0.5}


def _set_rate(run: Run, arguments: Arguments) -> Callable[[], None]:
    name = program_of(run, arguments["program"]).name
    run.tell(name, f"has clocks at a rate of {arguments['rate']}")
    _each_instance(run, name, lambda program: program.drift(arguments["rate"]))
    return lambda: _each_instance(run, name, lambda program: program.drift(1.0))


FEATURE = Feature(
    "clocks",
    faults=(
        Fault(
            "clock.jumps",
            3,
            _jump,
            _set_wall,
            seconds=(1.0, 120.0),
            during="all invariants hold; nobody leads or decides by a wall clock",
        ),
        Fault(
            "clock.drifts",
            2,
            _drift,
            _set_rate,
            seconds=(10.0, 120.0),
            during="all invariants hold: clocks may differ in speed by the ratio of the Lease's times, 15 to 10",
        ),
        Fault(
            "clock.halved",
            0.5,
            _slow,
            _set_rate,
            seconds=(30.0, 120.0),
            during="two may lead and book a card twice: the leader's term of 10 s takes 20 s, and others wait for 15 s",
            after="one leads; pods that hold a card twice keep it until they end, since no share moves",
            suspends=frozenset((ONE_LEADER, BOOKED_ONCE, NO_REJECTION)),
            lingers=float("inf"),
        ),
    ),
)
