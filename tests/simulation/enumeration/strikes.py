"""
The faults that hit one write of a program.

`crash-at`: its writer crashes alongside it (Sieve's *intermediate state*). `hide-at`: one of its readers does not see
it until something else is written (*stale state*, *unobserved state*). Both count the writes of that kind from the
moment when the step begins, over all instances of the program, and strike one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from playground.api.store.store import Change
from tests.simulation.enumeration import writes
from tests.simulation.feature import Arguments, Draw, Fault, Feature
from tests.simulation.kernel.primitives import Event
from tests.simulation.kernel.scheduler import SECOND
from tests.simulation.run import Run
from tests.simulation.world.network import Call, Stream, Verdict
from tests.simulation.world.programs import Program

Moment = Literal["before", "late", "unanswered", "lost", "after"]
MOMENTS: Mapping[Moment, str] = {
    "before": "the writer crashes and has not sent it",
    "late": "the writer sends it and crashes; it is carried out when another leads",
    "unanswered": "it is carried out, and the writer crashes before the answer comes",
    "lost": "it is carried out, and the answer is lost; the writer goes on",
    "after": "the writer crashes some milliseconds after the answer",
}
Way = Literal["stale", "taken-over", "unseen", "restarted"]
WAYS: Mapping[Way, str] = {
    "stale": "the reader's watch shows it only after the next write",
    "taken-over": "the reader's watch stands still, and the leader crashes after the next write",
    "unseen": "the history is compacted after the next write, so that the reader lists instead",
    "restarted": "the reader restarts, and its new watch stands still until after the next write",
}
STRUCK = "struck"
"""The note of an outcome that says how many strikes there were."""
_LATE = 15.0
"""Seconds from the moment a client gives up until its late write is carried out. By then another allocator leads."""
_AFTER = 0.005
"""Seconds in which the writer can get the answer."""
_NEXT_WITHIN = 20.0
"""Seconds after which a reader sees again if nothing else is written."""
_TAKES_OVER_WITHIN = 60.0
_DECIDES_FOR = 12
"""Seconds for which a new leader decides before its watch continues."""


COMMITTED = "store: "
"""Prefix of the kinds that count commits of the store, for any writer: `store: pods DELETED`."""


def commit_kind(change: Change) -> str:
    """The kind of a commit."""
    return f"{COMMITTED}{_plural(change)} {change.type}"


def resource_of(kind: str) -> str:
    """The plural of the resource that a kind of write or commit is about."""
    if kind.startswith(COMMITTED):
        return kind.removeprefix(COMMITTED).partition(" ")[0]
    return writes.BY_KEY[kind].sent[1]


def _plural(change: Change) -> str:
    return change.resource.partition(".")[0]


class _Counter:
    """Recognises the one write that is struck."""

    def __init__(self, run: Run, arguments: Arguments) -> None:
        self._run = run
        self._kind, self._nth = str(arguments["write"]), int(arguments["nth"])
        self._count = 0
        self.call: Call | None = None

    def strikes(self, call: Call) -> bool:
        """Whether it is this request. True only once."""
        if not self._is_it(writes.kind_of(call)):
            return False
        self.call = call
        return True

    def strikes_commit(self, change: Change) -> bool:
        """Whether it is this commit. True only once."""
        return self._is_it(commit_kind(change))

    def _is_it(self, kind: str | None) -> bool:
        if kind != self._kind:
            return False
        self._count += 1
        if self._count != self._nth:
            return False
        notes = self._run.outcome.notes
        notes[STRUCK] = notes.get(STRUCK, 0) + 1
        return True


# -- the writer crashes -----------------------------------------------------------------------------------------------


class _Crash:
    """Makes the writer crash alongside one write."""

    def __init__(self, run: Run, arguments: Arguments) -> None:
        self._run = run
        self._moment: Moment = arguments["moment"]
        self._away = float(arguments["away"])
        self._counter = _Counter(run, arguments)
        run.world.network.rules.append(self._rule)
        run.world.network.seen.append(self._seen)

    def end(self) -> None:
        """Stop striking."""
        self._run.world.network.rules.remove(self._rule)
        self._run.world.network.seen.remove(self._seen)

    def _rule(self, call: Call) -> Verdict | None:
        """Called on the writer's task."""
        if not self._counter.strikes(call):
            return None
        match self._moment:
            case "before":
                self._crash(call)
                self._run.kernel.block()  # no task of this host runs again
            case "late":
                self._soon(call, 0.0)
                return Verdict("late", seconds=_LATE)
            case "lost":
                self._run.tell(call.host, f"gets no answer to: {writes.kind_of(call)}")
                return Verdict("unanswered")
        return None

    def _seen(self, call: Call, status: int) -> None:
        """Called on a task of the server, after the request was carried out."""
        if call is not self._counter.call:
            return
        if self._moment == "unanswered":
            self._crash(call)
        elif self._moment == "after":
            self._soon(call, self._run.world.network.latency[1] + _AFTER)

    def _soon(self, call: Call, seconds: float) -> None:
        def wait() -> None:
            self._run.kernel.block(int(seconds * SECOND))
            self._crash(call)

        self._run.kernel.spawn(self._run.world.admin, wait, "crash")

    def _crash(self, call: Call) -> None:
        run = self._run
        program = next((each for each in run.world.programs() if each.host and each.host.name == call.host), None)
        if program is None:
            return  # another instance runs by now
        run.tell(program.name, f"crashes ({self._moment}: {writes.kind_of(call)})")
        program.kill()
        run.restart(program, self._away)


def _crash_at(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _Crash(run, arguments).end


# -- a reader does not see it -----------------------------------------------------------------------------------------


class _Hidden:
    """Holds back the watches of some readers, from a write on."""

    def __init__(self, run: Run, arguments: Arguments) -> None:
        self._run = run
        self._reader, self._resource = str(arguments["reader"]), str(arguments["resource"])
        self._way: Way = arguments["way"]
        self._counter = _Counter(run, arguments)
        self._readers: list[Program] = []
        self._next = Event()
        self._commits = 0
        self._holding = self._carried_out = False
        network = run.world.network
        network.rules.append(self._rule)
        network.seen.append(self._seen)
        network.opened.append(self._opened)
        run.world.observers.append(self._committed)

    def end(self) -> None:
        """Stop hiding."""
        network = self._run.world.network
        network.rules.remove(self._rule)
        network.seen.remove(self._seen)
        network.opened.remove(self._opened)
        self._run.world.observers.remove(self._committed)
        self._thaw()

    def _chosen(self) -> list[Program]:
        """`leader` and `follower` mean the allocators with that role now; any other word is a kind of program."""
        world = self._run.world
        leader = world.leader()
        if self._reader == "leader":
            return [leader] if leader is not None else []
        if self._reader == "follower":
            return [each for each in world.allocators if each is not leader and each.alive]
        return [each for each in world.programs() if writes.program_of(each.name) == self._reader]

    def _reads(self, stream: Stream) -> bool:
        if stream.kind != self._resource:
            return False
        return any(each.host is stream.host for each in self._readers)

    def _rule(self, call: Call) -> None:
        if self._counter.strikes(call):
            self._hide(str(writes.kind_of(call)))

    def _hide(self, kind: str) -> None:
        self._readers, self._holding = self._chosen(), True
        names = " and ".join(each.name for each in self._readers)
        self._run.tell("fault", f"{names} see no {self._resource} from this write on: {kind}")
        for each in self._streams():
            each.freeze()
        self._run.kernel.spawn(self._run.world.admin, self._go_on, "hidden")

    def _streams(self) -> list[Stream]:
        return [each for each in self._run.world.network.streams if self._reads(each)]

    def _opened(self, stream: Stream) -> None:
        if self._holding and self._reads(stream):
            stream.freeze()

    def _seen(self, call: Call, status: int) -> None:
        if call is self._counter.call:
            self._carried_out = True

    def _committed(self, change: Change) -> None:
        """Take in a commit: either the one to hide, or the next write of the resource after it."""
        if self._counter.strikes_commit(change):
            self._carried_out = True
            self._hide(commit_kind(change))
        elif self._carried_out and _plural(change) == self._resource:
            self._next.set()

    def _go_on(self) -> None:
        """Runs on a task, from the write on."""
        kernel = self._run.kernel
        if self._way == "restarted":
            kernel.block(SECOND // 50)
            for each in self._readers:
                each.kill()
                each.start()
                self._run.tell(each.name, "restarts")
        self._next.wait(_NEXT_WITHIN)
        kernel.block(SECOND // 5)
        if self._way == "taken-over":
            self._take_over()
        if self._way == "unseen":
            self._run.world.api.store.compact()
            for stream in self._streams():
                stream.sever()
        self._thaw()

    def _take_over(self) -> None:
        run = self._run
        leader = run.world.leader()
        if leader is not None:
            run.tell(leader.name, "crashes")
            leader.kill()
            run.restart(leader, _TAKES_OVER_WITHIN)
        end = run.kernel.now + int(_TAKES_OVER_WITHIN * SECOND)
        while run.world.leader() in (None, leader) and run.kernel.now < end:
            run.kernel.block(SECOND // 10)
        run.kernel.block(_DECIDES_FOR * SECOND)

    def _thaw(self) -> None:
        if not self._holding:
            return
        self._holding = False
        for each in self._streams():
            each.thaw()
        self._run.tell("fault", f"{self._resource} are seen again")


def _hide_at(run: Run, arguments: Arguments) -> Callable[[], None]:
    return _Hidden(run, arguments).end


# -- drawn ------------------------------------------------------------------------------------------------------------


def _some_write(draw: Draw) -> dict[str, Any]:
    return {"write": draw.rng.choice(writes.KINDS).key, "nth": draw.rng.randint(1, 5)}


def _drawn_crash(draw: Draw) -> Arguments:
    moment = draw.rng.choice(list(MOMENTS))
    return {**_some_write(draw), "moment": moment, "away": draw.rng.choice((1.0, 30.0))}


def _drawn_hiding(draw: Draw) -> Arguments:
    reader = draw.rng.choice(("leader", "follower", "nodeagent"))
    resources = ("gpunodes", "nodes") if reader == "nodeagent" else ("pods", "pods", "gpunodes", "nodes")
    way = draw.rng.choice([each for each in WAYS if each != "taken-over" or reader == "follower"])
    return {**_some_write(draw), "reader": reader, "resource": draw.rng.choice(resources), "way": way}


FEATURE = Feature(
    "strikes",
    faults=(
        Fault("crash-at", 3, _drawn_crash, _crash_at, (20.0, 60.0)),
        Fault("hide-at", 3, _drawn_hiding, _hide_at, (20.0, 60.0)),
    ),
)
