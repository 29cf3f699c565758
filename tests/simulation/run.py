"""
One run of a plan: brings the cluster up, does the steps at their times, ends all faults, and checks that the cluster
comes to rest.

The invariants of every feature are checked after each commit of the store, and the goals at the end. The first
violation ends the run. The events are kept as a list of lines, from which the story is made.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from contract import names
from playground.api.kinds.values import ADMIN, JSON
from playground.api.store.store import Change
from runtime.kubernetes.client import Kube, KubeError
from tests.simulation.feature import Fault, Feature, Operation
from tests.simulation.kernel import scheduler
from tests.simulation.kernel.scheduler import SECOND, Checkpoint, Kernel, Task, Turn
from tests.simulation.plan import Plan, Step
from tests.simulation.world.network import Call
from tests.simulation.world.programs import Program
from tests.simulation.world.world import Shape, World

BOOT_WITHIN = 120.0
"""Seconds of virtual time until the cluster serves."""
RESTART_AFTER = 2.0
"""Seconds until a program that ended is started again, as by a kubelet."""
SETTLES_WITHIN = 400.0
"""Seconds after the last step in which all goals must be reached."""
LOOK_EVERY = 5.0


@dataclass(frozen=True, slots=True)
class Line:
    """One event. at: seconds since the beginning of the run."""

    at: float
    actor: str
    action: str


@dataclass
class Outcome:
    """
    The result of a plan. `violation` is empty if everything held; `trace` and `effects` are the hashes of the run.
    """

    violation: str = ""
    lines: list[Line] = field(default_factory=list)
    trace: int = 0
    effects: int = 0
    checkpoints: list[Checkpoint] = field(default_factory=list)
    record: list[Turn] = field(default_factory=list)
    """The turns that `Run` was told to record."""
    seconds: float = 0.0
    turns: int = 0
    decisions: int = 0
    writes: int = 0
    faults: dict[str, int] = field(default_factory=dict)
    requests: dict[str, int] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    """Notes of faults and observers for the readers of the outcome; JSON."""


class Violated(Exception):
    """Something that must hold does not hold."""


class Run:
    """A run in progress; operations, faults and invariants receive it."""

    def __init__(self, plan: Plan, features: Iterable[Feature], *, recorded: range = range(0)) -> None:
        """`recorded`: the numbers of the turns that the outcome lists one by one."""
        self.plan = plan
        self.features = tuple(features)
        self.kernel = scheduler.activate(Kernel(plan.seed, preempt=plan.preempt))
        self.kernel.failed = self._task_failed
        self.kernel.recorded = recorded
        self.world = World(self.kernel, Shape(**plan.shape))
        self.kernel.effects = lambda: self.world.network.effects
        self.outcome = Outcome()
        self.began = 0
        """When the cluster had come up, in nanoseconds."""
        self.phase = "booting"
        self.submitted: dict[tuple[str, str], JSON] = {}
        """Pods that the API server accepted, by namespace and name, as they were sent."""
        self.uids: set[str] = set()
        """The uid of every object that ever existed."""
        self.notes: dict[str, Any] = {}
        """What features keep during a run, by a name that they choose."""
        self.heard: list[Callable[[str, str, Mapping[str, Any]], None]] = []
        """Called with each line that a program logs: its host, the text and the fields."""
        self._suspended: dict[str, float] = {}
        """Until when each invariant may be broken, in seconds."""
        self._open: dict[int, Callable[[], None]] = {}
        self._invariants = [(each.name, each.make(self)) for f in self.features for each in f.invariants]
        self._acts: dict[str, Operation | Fault] = {act.name: act for f in self.features for act in _acts(f)}
        self.world.observers.append(self._committed)
        self.world.network.seen.append(self._answered)
        self.world.ended.append(self._ended)
        self._log = _Log(self)

    # -- for operations and faults ------------------------------------------------------------------------------------

    @property
    def user(self) -> Kube:
        """A client of a user with all rights, over the network."""
        return self.world.kube(self.world.admin, ADMIN)

    def tell(self, actor: str, action: str) -> None:
        """Note an event for the story."""
        self.outcome.lines.append(Line(self.kernel.seconds(), actor, action))

    def fail(self, what: str) -> None:
        """Something that must hold does not hold. The first failure counts."""
        if not self.outcome.violation:
            self.outcome.violation = what
            self.tell("VIOLATION", what)

    def _missing(self, *, last: bool) -> list[str]:
        """The goals that are not reached."""
        goals = [goal for f in self.features for goal in f.goals if goal.last is last]
        return [f"{goal.name}: {text}" for goal in goals for text in goal.missing(self)]

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.kernel.block(int(seconds * SECOND))

    def was_suspended(self, invariant: str) -> bool:
        """Whether a fault of the run has ever excused the invariant."""
        return invariant in self._suspended

    def suspended(self, invariant: str) -> bool:
        """Whether a fault excuses the invariant now."""
        return self.kernel.seconds() < self._suspended.get(invariant, -1.0)

    # -- the run ------------------------------------------------------------------------------------------------------

    def boot(self) -> None:
        """Bring the cluster up. A fork of this process may then play any plan of the same seed and shape."""
        self.kernel.spawn(self.world.admin, self._direct, "direct")
        self._go_on(lambda: self.phase != "booting")

    def play(self, plan: Plan | None = None) -> Outcome:
        """Do everything; the plan is the run's own, or after `boot` another one."""
        if self.phase == "booting":
            self.boot()
        self.plan = plan or self.plan
        self._go_on(lambda: self.phase == "done")
        outcome, kernel = self.outcome, self.kernel
        outcome.trace, outcome.effects, outcome.turns = kernel.trace, self.world.network.effects, kernel.turns
        outcome.checkpoints, outcome.record = kernel.checkpoints, kernel.record
        outcome.seconds, outcome.requests = kernel.seconds(), dict(self.world.network.counts)
        return outcome

    def _go_on(self, done: Callable[[], bool]) -> None:
        """Let time pass until `done` or a violation."""
        logging.getLogger().addHandler(self._log)
        try:
            self.kernel.run(1 << 62, lambda: done() or bool(self.outcome.violation))
        except scheduler.Deadlock as dead:
            self.fail(f"no task can run:\n{dead}")
        finally:
            logging.getLogger().removeHandler(self._log)

    def _direct(self) -> None:
        """The task that does the steps."""
        self.kernel.spawn(self.world.admin, self.world.boot, "boot")
        while not (self.world.up and self.world.serves()):
            self.sleep(0.1)
            if self.kernel.seconds() > BOOT_WITHIN:
                self.fail("the cluster has not come up")
        for feature in self.features:
            feature.prepare(self)
        self.phase = "up"
        self.kernel.give_way()
        self.began, self.phase = self.kernel.now, "playing"
        self.tell("cluster", "is up")
        for number, step in enumerate(self.plan.steps):
            self.kernel.spawn(self.world.admin, lambda n=number, s=step: self._do(n, s), f"step-{number}")  # type: ignore[misc]
        self.sleep(self.plan.ends + 0.1)
        for number in list(self._open):
            # While one fault ends, which may take time, another may end by itself.
            if (end := self._open.pop(number, None)) is not None:
                end()
        self.phase = "settling"
        self.tell("cluster", "has no fault any more")
        self._settle()
        self.phase = "done"

    def _do(self, number: int, step: Step) -> None:
        self.sleep(step.at)
        act = self._acts.get(step.kind)
        if act is None:
            self.fail(f"the plan has a step that nobody knows: {step.kind}")
            return
        if isinstance(act, Operation):
            try:
                act.act(self, step.arguments)
            except KubeError as error:
                self.tell("user", f"{step.kind} was not done: {error}")
            return
        self._suspend(act, step)
        self.outcome.faults[act.name] = self.outcome.faults.get(act.name, 0) + 1
        self.tell("fault", f"{act.name} {_shown(step)}")
        end = act.begin(self, step.arguments)
        if end is None:
            return
        self._open[number] = end
        self.sleep(step.seconds)
        if self._open.pop(number, None) is not None:
            end()
            self.tell("fault", f"{act.name} is over")

    def _suspend(self, fault: Fault, step: Step) -> None:
        until = self.kernel.seconds() + step.seconds + fault.lingers
        for name in fault.suspends:
            self._suspended[name] = max(until, self._suspended.get(name, 0.0))

    def reread(self) -> None:
        """
        Make the invariants start again with the content of the store, after it changed without a change event: a
        restored etcd. What they find wrong in that content is not counted.
        """
        store = self.world.api.store
        self._invariants = [(each.name, each.make(self)) for f in self.features for each in f.invariants]
        state = store.snapshot()
        for resource in sorted(state.objects):
            for _, value in sorted(state.objects[resource].items()):
                version = int(value["metadata"]["resourceVersion"])
                for _, holds in self._invariants:
                    holds(Change("ADDED", resource, version, value))

    def _settle(self) -> None:
        """Check repeatedly until every goal is reached, twice in a row."""
        end = self.kernel.seconds() + SETTLES_WITHIN
        calm = 0
        while calm < 2:
            self.sleep(LOOK_EVERY)
            missing = self._missing(last=False) or self._missing(last=True)
            calm = 0 if missing else calm + 1
            if missing and self.kernel.seconds() > end:
                self.fail(f"{SETTLES_WITHIN:.0f} s after the last step: " + "; ".join(missing[:5]))
                return

    # -- what is watched ----------------------------------------------------------------------------------------------

    def _committed(self, change: Change) -> None:
        self.outcome.writes += 1
        self.uids.add(change.object["metadata"].get("uid", ""))
        for name, holds in self._invariants:
            wrong = holds(change)
            if wrong and not self.suspended(name):
                self.fail(f"{name}: {wrong}")

    def _answered(self, call: Call, status: int) -> None:
        if call.is_write and self.phase != "booting" and not call.path.endswith(f"/leases/{names.LEASE}"):
            self.tell(call.host, f"{call.method} {call.path} {status}")

    def _ended(self, program: Program, code: int) -> None:
        """Start a program again that ended by itself."""
        self.tell(program.name, f"ended with {code}")
        self.restart(program)

    def restart(self, program: Program, after: float = RESTART_AFTER) -> None:
        """Start the program again a moment later."""

        def again() -> None:
            self.sleep(after)
            if not program.retired:
                program.start()
                self.tell(program.name, "starts")

        self.kernel.spawn(self.world.manager, again, "restart")

    def _task_failed(self, task: Task, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        self.fail(f"{task.name} ended with an exception:\n{text}")


class _Log(logging.Handler):
    """Receives what programs log: a fault or a dead thread is a violation, the rest is for the story."""

    def __init__(self, run: Run) -> None:
        super().__init__(logging.INFO)
        self._run = run

    def emit(self, record: logging.LogRecord) -> None:
        run = self._run
        task = run.kernel.current
        host = task.host.name if task is not None else "?"
        text = record.getMessage()
        more = {key: value for key, value in vars(record).items() if key not in _STANDARD}
        shown = " ".join(f"{key}={value}" for key, value in more.items())
        run.tell(host, f"[{record.levelname.lower()}] {text} {shown}".rstrip())
        for each in run.heard:
            each(host, text, more)
        if record.exc_info and record.exc_info[1] is not None and not run.suspended("no error of ours"):
            trace = "".join(traceback.format_exception(record.exc_info[1]))
            run.fail(f"no error of ours: {host} logged {text!r} {shown}\n{trace}")


def _acts(feature: Feature) -> Iterator[Operation | Fault]:
    yield from feature.operations
    yield from feature.faults


_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def _shown(step: Step) -> str:
    parts = [f"{key}={value}" for key, value in step.arguments.items()]
    return " ".join([*parts, *([f"for {step.seconds:.1f} s"] if step.seconds else [])])
