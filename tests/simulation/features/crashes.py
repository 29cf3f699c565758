"""Programs that are killed, stopped, restarted and paused."""

from __future__ import annotations

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import program_of
from tests.simulation.run import Run


def some_program(draw: Draw) -> str:
    """The name of one, the leader more often than others."""
    allocators = [f"allocator-{i}" for i in range(draw.replicas)]
    webhooks = [f"webhook-{i}" for i in range(draw.replicas)]
    agents = [f"nodeagent-{node}" for node in draw.nodes]
    return draw.rng.choice(["leader", "leader", "leader", *allocators, *webhooks, draw.rng.choice(agents)])


def _one(draw: Draw) -> Arguments:
    return {"program": some_program(draw), "away": round(draw.rng.choice((0.1, 1.0, 5.0, 20.0)), 2)}


def _kill(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, "is killed")
    program.kill()
    run.restart(program, arguments["away"])


def _stop(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, "gets SIGTERM")
    program.stop()


def _pause(run: Run, arguments: Arguments) -> None:
    program = program_of(run, arguments["program"])
    run.tell(program.name, f"is paused for {arguments['away']} s")
    program.pause(arguments["away"])


FEATURE = Feature(
    "crashes",
    faults=(
        Fault("program.killed", 6, _one, _kill),
        Fault("program.stopped", 2, _one, _stop),
        Fault("program.paused", 3, _one, _pause),
    ),
)
