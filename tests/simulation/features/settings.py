"""Our own programs are rolled to other settings and back, one after the other."""

from __future__ import annotations

from tests.simulation.feature import Arguments, Draw, Feature, Operation
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

CHOICES: dict[str, tuple[tuple[str, ...], ...]] = {
    "allocator": (
        ("--placement-when=stored",),
        ("--placement-when=admission",),
        ("--placement-pin=affinity",),
        ("--placement-pin=nodeName",),
        ("--placement-node-policy=binpack", "--placement-gpu-policy=spread"),
        ("--placement-node-policy=spread",),
        ("--placement-node-policy=fragmentation",),
        ("--placement-scale-down=block",),
        ("--placement-unsatisfiable=wait",),
        ("--queue-order=fair",),
        ("--assume-ttl=5s",),
        ("--starvation-timeout=5s", "--starvation-reservation-limit=20s"),
        ("--starvation-timeout=0s",),
        ("--sharing-max-unconfirmed=1",),
        ("--unbound=delete", "--unbound-after=20s"),
        ("--repair-every=10s",),
        ("--election-lease=6s",),
        ("--agent-silence=30s",),
    ),
    "webhook": (("--hide-gpus=true",), ("--hide-gpus=false",)),
    "nodeagent": (("--heartbeat=10s",), ("--heartbeat=20s",)),
}
"""Settings that a program may be rolled to, or have from the beginning."""
_SERVES_WITHIN, _LOOK = 60.0, 0.5


def _drawn(draw: Draw) -> Arguments:
    program = draw.rng.choice(("allocator", "allocator", "allocator", "webhook", "nodeagent"))
    return {
        "program": program,
        "flags": list(draw.rng.choice(CHOICES[program])),
        "back": draw.rng.choice((None, 5.0, 20.0)),
    }


def _roll(run: Run, arguments: Arguments) -> None:
    """Roll to these settings, and after `back` seconds to the previous ones."""
    program, before = arguments["program"], run.world.flags.get(arguments["program"], ())
    roll(run, program, (*before, *arguments["flags"]))
    if arguments["back"] is not None:
        run.sleep(arguments["back"])
        roll(run, program, before)


def roll(run: Run, program: str, flags: tuple[str, ...]) -> None:
    """Stop each instance, start it with these flags, and wait until it serves before the next one stops."""
    run.tell("administrator", f"rolls the {program} to {' '.join(flags) or 'its defaults'}")
    run.world.flags[program] = flags
    for each in instances(run, program):
        starts = each.starts
        each.stop()
        _await(run, each, starts)


def instances(run: Run, program: str) -> list[Program]:
    """All instances of a program."""
    found = {"allocator": run.world.allocators, "webhook": run.world.webhooks}
    return list(found.get(program) or run.world.agents.values())


def _await(run: Run, program: Program, starts: int) -> None:
    """Wait until it runs again; the run restarts a program that ends."""
    waited = 0.0
    while waited < _SERVES_WITHIN and not (program.starts > starts and program.running is not None):
        run.sleep(_LOOK)
        waited += _LOOK


FEATURE = Feature("settings", operations=(Operation("settings.roll", 3, _drawn, _roll),), knobs=CHOICES)
