"""Programs that are cut off from the API server: alone, together, or one after another."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import EVERY, aimed, program_of, some_hosts
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run
from tests.simulation.world.network import Call, Fate, Stream, Verdict

_WAYS: dict[str, Fate] = {"packets lost": "silent", "connections refused": "unsent", "answers lost": "unanswered"}
_DURING = (
    "all invariants hold; a leader that is cut off stops when its term ends, and another waits until the Lease is old"
)


def _one(draw: Draw) -> Arguments:
    return {"hosts": some_hosts(draw), "way": draw.rng.choice(tuple(_WAYS))}


def _all(draw: Draw) -> Arguments:
    return {"hosts": draw.rng.choice(("allocators", EVERY)), "way": draw.rng.choice(tuple(_WAYS))}


def part(run: Run, meant: Callable[[str], bool], way: str) -> Callable[[], None]:
    """
    Cut programs off until the returned function is called. If packets are lost, connections outlive the partition.
    """
    network = run.world.network
    frozen: list[Stream] = []

    def rule(call: Call) -> Verdict | None:
        return Verdict(_WAYS[way]) if meant(call.program) else None

    def freeze(stream: Stream) -> None:
        stream.freeze()
        frozen.append(stream)

    network.rules.insert(0, rule)
    stop = network.strike(lambda stream: meant(stream.program), freeze)
    if way == "connections refused":
        network.cut(lambda stream: meant(stream.program))

    def join() -> None:
        network.rules.remove(rule)
        stop()
        for each in frozen:
            each.thaw()

    return join


def _begin(run: Run, arguments: Arguments) -> Callable[[], None]:
    return part(run, aimed(run, arguments["hosts"]), arguments["way"])


def _swizzle(draw: Draw) -> Arguments:
    """The order in which links stop, the order in which they return, and the seconds between two."""
    links = [f"allocator-{i}" for i in range(draw.replicas)] + [f"nodeagent-{node}" for node in draw.nodes]
    return {
        "stop": draw.rng.sample(links, len(links)),
        "resume": draw.rng.sample(links, len(links)),
        "pace": draw.rng.choice((0.2, 1.0, 4.0)),
        "way": draw.rng.choice(tuple(_WAYS)),
    }


def _stop_and_resume(run: Run, arguments: Arguments) -> Callable[[], None]:
    parted: dict[str, Callable[[], None]] = {}
    pace = int(arguments["pace"] * SECOND)

    def stop() -> None:
        for link in arguments["stop"]:
            parted[link] = part(run, {program_of(run, link).name}.__contains__, arguments["way"])
            run.kernel.block(pace)

    def resume() -> None:
        for link in arguments["resume"]:
            if link in parted:
                parted.pop(link)()
                run.kernel.block(pace)

    stop()
    return resume


FEATURE = Feature(
    "partitions",
    faults=(
        Fault("partition.one", 3, _one, _begin, seconds=(1.0, 60.0), during=_DURING),
        Fault(
            "partition.all", 1, _all, _begin, seconds=(1.0, 60.0), during=f"{_DURING}; with all cut off nobody leads"
        ),
        Fault("partition.swizzled", 2, _swizzle, _stop_and_resume, seconds=(0.0, 20.0), during=_DURING),
    ),
)
