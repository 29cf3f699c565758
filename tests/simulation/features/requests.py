"""Requests that are refused, lost, late or done without an answer."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import KINDS, aimed, is_kind, some_hosts
from tests.simulation.run import Run
from tests.simulation.world.network import Call, Fate, Verdict, drawn

_STATUSES = (403, 409, 429, 429, 500, 503, 504)
"""A 409 and a 500 do not reveal their origin: it may be a proxy, or a plugin behind the API server."""
_DELAYS = (0.2, 1.0, 3.0, 8.0, 30.0)


def _aim(draw: Draw) -> dict[str, object]:
    return {
        "hosts": some_hosts(draw),
        "kind": draw.rng.choice(KINDS),
        "probability": draw.rng.choice((1.0, 0.5, 0.2)),
        "name": draw.new("strike"),
    }


def _refused(draw: Draw) -> Arguments:
    status = draw.rng.choice(_STATUSES)
    wait = draw.rng.choice((0, 1, 10)) if status in (429, 503) else 0
    return {**_aim(draw), "status": status, "retry_after": wait}


def _delayed(draw: Draw) -> Arguments:
    return {**_aim(draw), "delay": draw.rng.choice(_DELAYS)}


def strike(run: Run, arguments: Arguments, verdict: Verdict) -> Callable[[], None]:
    """Give this verdict to the requests that the arguments select, until the returned function is called."""
    meant, strikes = aimed(run, arguments["hosts"]), drawn(run.plan.seed, arguments["name"], arguments["probability"])

    def rule(call: Call) -> Verdict | None:
        return verdict if meant(call.program) and is_kind(arguments["kind"], call) and strikes(call) else None

    run.world.network.rules.append(rule)
    return lambda: run.world.network.rules.remove(rule)


def _fault(fate: Fate, during: str, *, weight: float = 1.0, delayed: bool = False) -> Fault:
    def begin(run: Run, arguments: Arguments) -> Callable[[], None]:
        verdict = Verdict(
            fate,
            status=arguments.get("status", 0),
            seconds=arguments.get("delay", 0.0),
            retry_after=arguments.get("retry_after", 0),
        )
        return strike(run, arguments, verdict)

    draw = _refused if fate == "refused" else _delayed if delayed else _aim
    return Fault(f"requests.{fate}", weight, draw, begin, seconds=(0.5, 40.0), during=during, after=_AFTER)


_AFTER = "everything that fits is placed; programs that back off try again within a minute"

FEATURE = Feature(
    "requests",
    faults=(
        _fault(
            "refused",
            "all invariants hold; a leader that cannot renew leads no longer than its term, and pods wait",
            weight=2.0,
        ),
        _fault("unsent", "all invariants hold; nothing was done, and pods wait"),
        _fault("dropped", "all invariants hold; nothing was done, but the client cannot know"),
        _fault("silent", "all invariants hold; nothing was done, and the client waits until its timeout"),
        _fault(
            "unanswered",
            "all invariants hold; each write was done but seems lost, so its writer reads the object before it goes on",
            weight=2.0,
        ),
        _fault(
            "late",
            "all invariants hold; a write may take effect when another leads, and must not then: it names the version"
            " that it was decided by",
            weight=3.0,
            delayed=True,
        ),
        _fault("twice", "all invariants hold; the second of two equal writes meets a conflict, or changes nothing"),
        _fault("slow", "all invariants hold; decisions are as late as their requests", delayed=True),
    ),
)
