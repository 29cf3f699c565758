"""Programs that are killed, stopped, restarted or paused, and programs that are replaced while they still run."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import program_of
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

GRACE = 30.0
"""Seconds from SIGTERM to SIGKILL."""


def some_program(draw: Draw) -> str:
    """The name of a program, most often the leader."""
    allocators = [f"allocator-{i}" for i in range(draw.replicas)]
    webhooks = [f"webhook-{i}" for i in range(draw.replicas)]
    agents = [f"nodeagent-{node}" for node in draw.nodes]
    return draw.rng.choice(["leader", "leader", "leader", *allocators, *webhooks, draw.rng.choice(agents)])


def _killed(draw: Draw) -> Arguments:
    return {"program": some_program(draw), "away": draw.rng.choice((0.0, 0.1, 1.0, 5.0, 20.0))}


def _named(draw: Draw) -> Arguments:
    return {"program": some_program(draw)}


def _paused(draw: Draw) -> Arguments:
    """A pause: moments, longer than a term, or longer than a Lease."""
    return {"program": some_program(draw), "away": draw.rng.choice((0.1, 1.0, 5.0, 11.0, 20.0, 60.0))}


def _replaced(draw: Draw) -> Arguments:
    return {"program": some_program(draw), "by": draw.rng.choice(("SIGTERM", "SIGKILL"))}


def _kill(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, "is killed")
    program.kill()
    run.restart(program, arguments["away"])


def _stop(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, "gets SIGTERM")
    end(run, program)


def end(run: Run, program: Program) -> None:
    """Send SIGTERM, and SIGKILL to the same process when its grace period is over."""
    host = program.host
    program.stop()

    def kill() -> None:
        run.kernel.block(int(GRACE * SECOND))
        if program.alive and program.host is host:
            run.tell(program.name, "is killed after its grace period")
            program.kill()
            run.restart(program)

    run.kernel.spawn(run.world.manager, kill, "grace")


def _pause(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, f"is paused for {arguments['away']} s")
    program.pause(arguments["away"])


def _replace(run: Run, arguments: Arguments) -> Callable[[], None]:
    """Start another instance; the old one ends with the fault."""
    old = program_of(run, arguments["program"])
    new = run.world.replace(old)
    run.tell(new.name, "has a second instance")

    def leave() -> None:
        if old.alive and arguments["by"] == "SIGTERM":
            end(run, old)
        old.kill() if arguments["by"] == "SIGKILL" else None

    return leave


FEATURE = Feature(
    "crashes",
    faults=(
        Fault(
            "program.killed",
            6,
            _killed,
            _kill,
            during="all invariants hold; what it was about to write may come after its end, and another leads when the"
            " Lease is old",
            ends_terms=True,
        ),
        Fault(
            "program.stopped",
            2,
            _named,
            _stop,
            during="all invariants hold; it releases the Lease, so another leads within seconds",
            ends_terms=True,
        ),
        Fault(
            "program.paused",
            3,
            _paused,
            _pause,
            during="all invariants hold; a leader that wakes after its term writes nothing that takes effect",
            ends_terms=True,
        ),
        Fault(
            "program.replaced",
            3,
            _replaced,
            _replace,
            seconds=(0.5, 40.0),
            during="all invariants hold; two instances of one place are two candidates, and their names differ",
        ),
    ),
)
