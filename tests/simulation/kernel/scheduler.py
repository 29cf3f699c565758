"""
Runs one thread at a time, in virtual time: decides which task runs next, and when time advances.

A *task* is what a thread is to a program, a *host* is what a process is. A task runs until it blocks. Then the task
whose turn is next runs. If no task is ready, time jumps to the next timer. The order among tasks that are ready is
drawn from the seed: a task draws its place in the line each time it becomes ready, from its own stream of numbers, so
that a task that goes away changes little for the others.

Each turn takes `TURN` nanoseconds, so time also passes if tasks never wait.

Primitives belong to one host, or to hosts that are never killed: a lock that a killed host holds stays held.
"""

from __future__ import annotations

import heapq
import random
import sys
import traceback
import types
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

SECOND = 1_000_000_000
TURN = 1_000
"""Nanoseconds of virtual time that a turn takes."""
BEGINNING = 1_800_000_000
"""Seconds since the epoch when a simulation begins."""


CHECKPOINT = 1_000
"""Turns between two checkpoints of the trace."""
DEPTH = 8
"""How many calls of a task `stacks` shows."""


class Deadlock(Exception):
    """No task can run, and no timer is set; the message has the stack of every task."""


class Escaped(Exception):
    """A program used something that the simulation does not have: a socket, a process, a signal."""


class Host:
    """
    One process or machine: its name, its clocks, its tasks.

    rate: how many of its seconds pass in one second of virtual time; `drift` changes it. offset: seconds that its wall
    clock is ahead. excepthook: its `threading.excepthook`.
    """

    def __init__(self, name: str, seed: int | str) -> None:
        self.name = name
        self.alive = True
        self.rate = 1.0
        self.offset = 0.0
        self._drifts_since = 0
        self._passed_before = 0
        self.excepthook: Callable[[Any], None] | None = None
        self.paused_until = 0
        self.rng = stream(seed, name)
        self._names: dict[str, int] = {}

    def passed(self, now: int) -> int:
        """Nanoseconds that have passed on it since the simulation began. A change of the rate never sets them back."""
        return self._passed_before + int((now - self._drifts_since) * self.rate)

    def drift(self, now: int, rate: float) -> None:
        """From now on its clocks run at this rate. Waits in progress end when they would have ended before."""
        self._passed_before, self._drifts_since, self.rate = self.passed(now), now, rate

    def named(self, name: str) -> str:
        """A name that no other task of this host has or had."""
        count = self._names[name] = self._names.get(name, 0) + 1
        return f"{self.name}/{name}" if count == 1 else f"{self.name}/{name}#{count}"


class Task:
    """
    A thread of a host. `wakeups` counts how often it became ready, so that a timer of an earlier wait does not wake it.

    queued: the waiters among whom it waits. local: its values of each `threading.local`. preempt: false if it must not
    lose its turn.
    """

    __slots__ = (
        "blocked",
        "done",
        "greenlet",
        "host",
        "joiners",
        "local",
        "name",
        "number",
        "preempt",
        "queued",
        "rng",
        "thread",
        "wakeups",
        "woken",
    )

    def __init__(self, host: Host, name: str, number: int, seed: int | str) -> None:
        self.host = host
        self.name = name
        self.number = number
        self.rng = stream(seed, name)
        self.greenlet: Any = None
        self.thread: Any = None
        self.wakeups = 0
        self.blocked = False
        self.woken = False
        self.done = False
        self.preempt = True
        self.joiners: deque[Task] = deque()
        self.queued: deque[Task] | None = None
        self.local: dict[Any, dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The hashes after this many turns. now: in virtual nanoseconds."""

    turns: int
    now: int
    trace: int
    effects: int


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn, counted from 1: when it began in virtual nanoseconds, and the task that had it."""

    number: int
    now: int
    task: str


def stream(seed: int | str, name: str) -> random.Random:
    """Random numbers that depend only on the seed and the name."""
    return random.Random(f"{seed}/{name}")


class Kernel:
    """
    The scheduler of tasks. `preempt`: how likely a task loses its turn when it takes or releases a lock.

    failed: called with the task and the exception that ended it. effects: another hash that checkpoints include.
    recorded: the numbers of the turns that are kept in `record`.
    """

    def __init__(self, seed: int | str, *, preempt: float = 0.02) -> None:
        self.seed = seed
        self.preempt = preempt
        self.now = 0
        self.turns = 0
        self.trace = 0
        """The hash of all choices so far."""
        self.current: Task | None = None
        self.failed: Callable[[Task, BaseException], None] = _raise
        self.effects: Callable[[], int] = lambda: 0
        self.checkpoints: list[Checkpoint] = []
        self.recorded = range(0)
        self.record: list[Turn] = []
        self._hub = getcurrent()
        self._ready: list[tuple[float, int, Task]] = []
        self._timers: list[tuple[int, int, Task, int]] = []
        self._count = 0
        self._tasks: list[Task] = []
        self._ending = False

    # -- what primitives call -------------------------------------------------------------------------------------

    def spawn(self, host: Host, target: Callable[[], object], name: str) -> Task:
        """Create a task that is ready at once."""
        self._count += 1
        task = Task(host, host.named(name), self._count, self.seed)
        task.greenlet = greenlet(lambda: self._body(task, target), self._hub)
        self._tasks.append(task)
        if len(self._tasks) > 4096:
            self._tasks = [each for each in self._tasks if not each.done]
        self._make_ready(task)
        return task

    def block(self, nanoseconds: int | None = None) -> bool:
        """Wait until woken, or for this many nanoseconds of virtual time. Returns whether the task was woken."""
        task = self.current
        if task is None:
            raise Deadlock("code outside of every task waits")
        task.blocked, task.woken = True, False
        if nanoseconds is not None:
            self._count += 1
            heapq.heappush(self._timers, (self.now + max(nanoseconds, 0), self._count, task, task.wakeups))
        self._hub.switch()
        return task.woken

    def wake(self, task: Task) -> None:
        """End the wait of a task; do nothing if it does not wait."""
        if task.blocked:
            task.woken = True
            self._make_ready(task)

    def wait(self, waiters: deque[Task], nanoseconds: int | None = None) -> bool:
        """
        Wait among those until woken, or for this many nanoseconds of virtual time. Returns whether the task was woken.
        """
        task = self.current
        if task is None:
            raise Deadlock("code outside of every task waits for another")
        waiters.append(task)
        task.queued = waiters
        woken = self.block(nanoseconds)
        task.queued = None
        if not woken and task in waiters:
            waiters.remove(task)
        return woken

    def wake_one(self, waiters: deque[Task]) -> None:
        """End the wait of the first of those that still waits."""
        while waiters:
            task = waiters.popleft()
            if task.blocked and task.host.alive:
                self.wake(task)
                return

    def give_way(self) -> None:
        """Lose the turn, and be ready again at once."""
        task = self.current
        if task is not None:
            self._make_ready(task)
            self._hub.switch()

    def maybe_preempt(self) -> None:
        """Lose the turn at random, as a thread can anywhere."""
        task = self.current
        if task is not None and task.preempt and task.rng.random() < self.preempt:
            self._make_ready(task)
            self._hub.switch()

    def pause(self, host: Host, seconds: float) -> None:
        """Let no task of the host run for this long."""
        host.paused_until = max(host.paused_until, self.now + int(seconds * SECOND))

    def seconds(self) -> float:
        """Virtual time since the beginning, in seconds."""
        return self.now / SECOND

    def tasks(self, host: Host) -> list[Task]:
        """The tasks of that host that have not ended."""
        return [each for each in self._tasks if each.host is host and not each.done]

    # -- the next task --------------------------------------------------------------------------------------------

    def run(self, until: int, done: Callable[[], bool] = lambda: False) -> None:
        """Run tasks until that time, or until `done` is true after a turn."""
        while self.now < until and not done():
            if not self._turn(until):
                return

    def _turn(self, until: int) -> bool:
        """One turn, or one jump of time; false if time has reached its end."""
        if self._timers and self._timers[0][0] <= self.now:
            self._expire()
        if not self._ready:
            if not self._timers:
                raise Deadlock(self.stacks())
            self.now = min(self._timers[0][0], until)
            return self.now < until
        _, _, task = heapq.heappop(self._ready)
        if task.done or not task.host.alive:
            self._pass_on(task)
            return True
        if task.host.paused_until > self.now:
            self._set_aside(task)
            return True
        self.now += TURN
        self.turns += 1
        self.trace = zlib.crc32(b"%d %d" % (self.now, task.number), self.trace)
        if self.turns in self.recorded:
            self.record.append(Turn(self.turns, self.now, task.name))
        self.current = task
        task.greenlet.switch()
        self.current = None
        if not self.turns % CHECKPOINT:
            self.checkpoints.append(Checkpoint(self.turns, self.now, self.trace, self.effects()))
        return True

    def _pass_on(self, task: Task) -> None:
        """A task of a killed host was woken and never ran. Another task that waits for the same thing gets its turn."""
        if task.woken and task.queued is not None:
            waiters, task.queued = task.queued, None
            self.wake_one(waiters)

    def _set_aside(self, task: Task) -> None:
        """Set aside a task of a paused host: it is ready again after the pause, however its wait has ended."""
        task.blocked = True
        self._count += 1
        heapq.heappush(self._timers, (task.host.paused_until, self._count, task, task.wakeups))

    def _expire(self) -> None:
        while self._timers and self._timers[0][0] <= self.now:
            _, _, task, wakeups = heapq.heappop(self._timers)
            if task.blocked and task.wakeups == wakeups:
                self._make_ready(task)

    def _make_ready(self, task: Task) -> None:
        task.blocked = False
        task.wakeups += 1
        heapq.heappush(self._ready, (task.rng.random(), task.number, task))

    def _body(self, task: Task, target: Callable[[], object]) -> None:
        try:
            target()
        except GreenletExit:
            raise
        except BaseException as error:
            self.failed(task, error)
        finally:
            if task.host.alive:
                task.done = True
                for joiner in task.joiners:
                    self.wake(joiner)

    def stacks(self, host: Host | None = None) -> str:
        """Where every task waits, and where the running one is: the innermost calls of each."""
        lines = []
        for task in self._tasks:
            if task.done or not task.host.alive or (host is not None and task.host is not host):
                continue
            lines.append(f"{task.name}:")
            frame: types.FrameType | None = task.greenlet.gr_frame
            if task.greenlet is getcurrent():
                lines[-1] = f"{task.name}, whose turn it is:"
                frame = sys._getframe(1)
            if frame is not None:
                lines += [text.rstrip() for text in traceback.format_stack(frame)[-DEPTH:]]
        return "\n".join(lines)


def _raise(task: Task, error: BaseException) -> None:
    print(f"{task.name}:", file=sys.stderr)
    raise error


ACTIVE: Kernel | None = None
"""The kernel of this process; the simulated modules use it."""


def activate(kernel: Kernel) -> Kernel:
    """Make it the kernel that primitives use."""
    global ACTIVE
    ACTIVE = kernel
    return kernel


def active() -> Kernel:
    """
    The kernel of this process. Raises `Escaped` if there is none yet, for a module that blocks while it is imported.
    """
    if ACTIVE is None:
        raise Escaped("no simulation runs, and a module wants to wait or to start a thread")
    return ACTIVE
