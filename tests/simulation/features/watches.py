"""Watches that deliver too little, too late, or nothing."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.features.aiming import EVERY, aimed, some_hosts
from tests.simulation.run import Run
from tests.simulation.world.network import Call, Stream, Verdict

PLURALS = ("pods", "pods", "pods", "nodes", "gpunodes", "anything", "anything")
_STALE = "all invariants hold: a program that decides by an old view gets a conflict, or waits"
_AFTER = "everything that fits is placed; programs list again within a minute"


def _aim(draw: Draw) -> dict[str, object]:
    return {"hosts": some_hosts(draw), "kind": draw.rng.choice(PLURALS)}


def _lag(draw: Draw) -> Arguments:
    return {**_aim(draw), "lag": draw.rng.choice((0.5, 2.0, 10.0, 60.0, 170.0, 300.0))}


def _behind(draw: Draw) -> Arguments:
    return {"hosts": draw.rng.choice(("leader", "allocators", EVERY)), "kind": "anything", "lag": 120.0}


def _refusal(draw: Draw) -> Arguments:
    return {**_aim(draw), "status": draw.rng.choice((403, 410, 429, 500, 503))}


def chosen(run: Run, arguments: Arguments) -> Callable[[Stream], bool]:
    """Whether the fault strikes a watch, by its program and kind."""
    meant, kind = aimed(run, arguments["hosts"]), arguments["kind"]
    return lambda stream: meant(stream.program) and kind in ("anything", stream.kind)


def _cut(run: Run, arguments: Arguments) -> None:
    run.tell("fault", f"{run.world.network.cut(chosen(run, arguments))} watches are cut")


def _opening(run: Run, arguments: Arguments, verdict: Verdict) -> Callable[[], None]:
    """Give this verdict to watches that open. Open watches are cut, so that some open again."""
    meant, kind = aimed(run, arguments["hosts"]), arguments["kind"]

    def rule(call: Call) -> Verdict | None:
        which = kind == "anything" or call.path.rpartition("/")[2] == kind
        return verdict if call.is_watch and which and meant(call.program) else None

    run.world.network.rules.append(rule)
    run.world.network.cut(chosen(run, arguments))
    return lambda: run.world.network.rules.remove(rule)


def _refuse(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _opening(run, arguments, Verdict("refused", status=arguments["status"]))


def _ignore(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _opening(run, arguments, Verdict("silent"))


def _freeze(run: Run, arguments: Arguments) -> Callable[[], None]:
    network, meant = run.world.network, chosen(run, arguments)
    frozen: list[Stream] = []

    def freeze(stream: Stream) -> None:
        stream.freeze()
        frozen.append(stream)

    stop = network.strike(meant, freeze)

    def thaw() -> None:
        stop()
        for each in frozen:
            each.thaw()

    return thaw


def _delay(run: Run, arguments: Arguments) -> Callable[[], None]:
    network, meant = run.world.network, chosen(run, arguments)
    stop = network.strike(meant, lambda stream: stream.delay(arguments["lag"]))

    def catch_up() -> None:
        stop()
        for each in network.streams:
            if meant(each):
                each.delay(0.0)

    return catch_up


def _mute(run: Run, arguments: Arguments) -> Callable[[], None]:
    network, meant = run.world.network, chosen(run, arguments)
    stop = network.strike(meant, lambda stream: stream.mute(True))

    def speak() -> None:
        stop()
        for each in network.streams:
            each.mute(False)

    return speak


def _expire(run: Run, arguments: Arguments) -> None:
    run.world.api.store.compact()
    run.tell("fault", f"{run.world.network.cut(chosen(run, arguments))} watches end, and their history is gone")


def _coalesce(run: Run, arguments: Arguments) -> Callable[[], None]:
    """The chosen programs see only the last state: nothing during the fault, then a list."""
    thaw = _freeze(run, arguments)

    def expire() -> None:
        _expire(run, arguments)
        thaw()

    return expire


FEATURE = Feature(
    "watches",
    faults=(
        Fault("watches.cut", 2, _aim, _cut, during="all invariants hold", after=_AFTER),
        Fault("watches.refused", 1, _refusal, _refuse, seconds=(1.0, 40.0), during=_STALE, after=_AFTER),
        Fault("watches.silent", 1, _aim, _ignore, seconds=(1.0, 40.0), during=_STALE, after=_AFTER),
        Fault("watches.frozen", 3, _aim, _freeze, seconds=(1.0, 60.0), during=_STALE, after=_AFTER),
        Fault("watches.lagging", 2, _lag, _delay, seconds=(5.0, 120.0), during=_STALE, after=_AFTER),
        Fault(
            "apiserver.behind",
            1,
            _behind,
            _delay,
            seconds=(20.0, 120.0),
            during=f"{_STALE}. Reads are of now, as they are of a real API server that asks etcd",
            after=_AFTER,
        ),
        Fault(
            "watches.bookmarks",
            2,
            _aim,
            _mute,
            seconds=(5.0, 200.0),
            during=f"{_STALE}. The connection is alive, so no client can find out",
            after=_AFTER,
        ),
        Fault("watches.expired", 2, _aim, _expire, during="all invariants hold", after=_AFTER),
        Fault("watches.coalesced", 3, _aim, _coalesce, seconds=(1.0, 60.0), during=_STALE, after=_AFTER),
    ),
)
