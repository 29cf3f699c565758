"""
Locks, conditions, events, queues and threads whose waits are turns of the kernel.

They have the interfaces of `threading` and `queue`, as far as our programs use them. Anything missing raises
AttributeError at once. Timeouts are in seconds of the host's own clock.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.simulation.kernel import scheduler
from tests.simulation.kernel.scheduler import SECOND, Host, Kernel, Task


def _task() -> Task | None:
    kernel = scheduler.ACTIVE
    return None if kernel is None else kernel.current


def nanoseconds(seconds: float, host: Host) -> int:
    """The virtual time in which this many seconds pass on the host."""
    return int(seconds * SECOND / host.rate)


class _Patience:
    """How long a task continues to wait, in seconds of its host: the whole time, however often the task is woken."""

    __slots__ = ("_end", "_kernel")

    def __init__(self, kernel: Kernel, timeout: float | None) -> None:
        """`timeout`: in seconds; None or a negative number means forever."""
        self._kernel = kernel
        self._end: int | None = None
        if timeout is not None and timeout >= 0 and kernel.current is not None:
            self._end = kernel.now + nanoseconds(timeout, kernel.current.host)

    def wait(self, waiters: deque[Task]) -> bool:
        """Wait among those; false if the time is over."""
        return self._kernel.wait(waiters, None if self._end is None else self._end - self._kernel.now)


def _wait(waiters: deque[Task], timeout: float | None) -> bool:
    """Wait among those; false after the timeout."""
    kernel = scheduler.active()
    task = kernel.current
    if timeout is None or task is None:
        return kernel.wait(waiters)
    return kernel.wait(waiters, nanoseconds(timeout, task.host))


def _wake_one(waiters: deque[Task]) -> None:
    kernel = scheduler.ACTIVE
    if waiters and kernel is not None:
        kernel.wake_one(waiters)


def _maybe_preempt() -> None:
    kernel = scheduler.ACTIVE
    if kernel is not None:
        kernel.maybe_preempt()


class Lock:
    """`threading.Lock`. The first task that comes after a release gets it, as with the real one."""

    def __init__(self) -> None:
        self._held = False
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        kernel = scheduler.ACTIVE
        if kernel is not None:
            kernel.maybe_preempt()
        if self._held and not (blocking and self._awaited(timeout)):
            return False
        self._held = True
        return True

    def _awaited(self, timeout: float) -> bool:
        patience = _Patience(scheduler.active(), timeout)
        while self._held:
            if not patience.wait(self._waiters):
                return False
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        kernel = scheduler.ACTIVE
        if kernel is not None:
            if self._waiters:
                kernel.wake_one(self._waiters)
            kernel.maybe_preempt()

    def locked(self) -> bool:
        return self._held

    def _release_save(self) -> int:
        self.release()
        return 1

    def _acquire_restore(self, depth: int) -> None:
        self.acquire()

    def _is_owned(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock:
    """`threading.RLock`."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        task = _task()
        if self._depth and self._owner is task:
            self._depth += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._depth = task, 1
        return True

    def release(self) -> None:
        if not self._depth or self._owner is not _task():
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            self._lock.release()

    def _release_save(self) -> int:
        depth, self._depth, self._owner = self._depth, 0, None
        self._lock.release()
        return depth

    def _acquire_restore(self, depth: int) -> None:
        self._lock.acquire()
        self._owner, self._depth = _task(), depth

    def _is_owned(self) -> bool:
        return self._depth > 0 and self._owner is _task()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """`threading.Condition`."""

    def __init__(self, lock: Lock | RLock | None = None) -> None:
        self._lock = lock if lock is not None else RLock()
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """No other task has a turn between the release and the wait, or a notification could be missed."""
        task = scheduler.active().current
        if task is None or not self._lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        preempt, task.preempt = task.preempt, False
        depth = self._lock._release_save()
        task.preempt = preempt
        woken = _wait(self._waiters, timeout)
        self._lock._acquire_restore(depth)
        return woken

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        kernel = scheduler.active()
        task = kernel.current
        assert task is not None
        end = None if timeout is None else kernel.now + nanoseconds(timeout, task.host)
        result = predicate()
        while not result:
            left = None
            if end is not None:
                left = (end - kernel.now) * task.host.rate / SECOND
                if left <= 0:
                    break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        if not self._lock._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        for _ in range(min(n, len(self._waiters))):
            _wake_one(self._waiters)

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """`threading.Event`."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: deque[Task] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiters and scheduler.ACTIVE is not None:
            _wake_one(self._waiters)
        _maybe_preempt()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._set and (timeout is None or timeout > 0):
            _wait(self._waiters, timeout)
        return self._set


class Semaphore:
    """`threading.Semaphore`."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._waiters: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not self._value and not (blocking and self._awaited(timeout)):
            return False
        self._value -= 1
        return True

    def _awaited(self, timeout: float | None) -> bool:
        patience = _Patience(scheduler.active(), timeout)
        while not self._value:
            if not patience.wait(self._waiters):
                return False
        return True

    def release(self, n: int = 1) -> None:
        for _ in range(n):
            self._value += 1
            _wake_one(self._waiters)
        _maybe_preempt()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class BoundedSemaphore(Semaphore):
    """`threading.BoundedSemaphore`."""

    def __init__(self, value: int = 1) -> None:
        super().__init__(value)
        self._most = value

    def release(self, n: int = 1) -> None:
        if self._value + n > self._most:
            raise ValueError("Semaphore released too many times")
        super().release(n)


class Queue:
    """`queue.Queue` and `queue.SimpleQueue`."""

    def __init__(self, maxsize: int = 0) -> None:
        self.maxsize = maxsize
        self._items: deque[Any] = deque()
        self._readers: deque[Task] = deque()
        self._writers: deque[Task] = deque()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        if self.full():
            self._make_room(block, timeout)
        self._items.append(item)
        _wake_one(self._readers)
        _maybe_preempt()

    def _make_room(self, block: bool, timeout: float | None) -> None:
        patience = _Patience(scheduler.active(), timeout)
        while self.full():
            if not block or not patience.wait(self._writers):
                raise queue.Full

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items:
            self._await_item(block, timeout)
        item = self._items.popleft()
        _wake_one(self._writers)
        return item

    def _await_item(self, block: bool, timeout: float | None) -> None:
        patience = _Patience(scheduler.active(), timeout)
        while not self._items:
            if not block or not patience.wait(self._readers):
                raise queue.Empty

    def put_nowait(self, item: Any) -> None:
        self.put(item, block=False)

    def get_nowait(self) -> Any:
        return self.get(block=False)

    def qsize(self) -> int:
        return len(self._items)

    def empty(self) -> bool:
        return not self._items

    def full(self) -> bool:
        return 0 < self.maxsize <= len(self._items)

    def task_done(self) -> None:
        raise NotImplementedError("no program of ours joins a queue")


class Thread:
    """`threading.Thread`: a task of the host that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self.name: str = name or str(getattr(target, "__name__", "thread"))
        self.daemon = bool(daemon)
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self._task: Task | None = None

    @property
    def target(self) -> Callable[..., object] | None:
        """What it runs."""
        return self._target

    def start(self) -> None:
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        kernel = scheduler.active()
        if kernel.current is None:
            raise scheduler.Escaped(f"thread {self.name} starts outside of every host")
        self._task = kernel.spawn(kernel.current.host, self._run, self.name)
        self._task.thread = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _run(self) -> None:
        try:
            self.run()
        except Exception as error:
            assert self._task is not None
            hook = self._task.host.excepthook
            if hook is None:
                raise
            hook(threading.ExceptHookArgs((type(error), error, error.__traceback__, self)))

    def join(self, timeout: float | None = None) -> None:
        if self._task is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._task is _task():
            raise RuntimeError("cannot join current thread")
        if not self._task.done:
            _wait(self._task.joiners, None if timeout is None else max(timeout, 0))

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    @property
    def ident(self) -> int | None:
        return None if self._task is None else self._task.number


def current_thread() -> Thread:
    task = _task()
    if task is None:
        return _OUTSIDE
    if task.thread is None:
        task.thread = Thread(name=task.name)
        task.thread._task = task
    found: Thread = task.thread
    return found


_OUTSIDE = Thread(name="MainThread")


class Local:
    """`threading.local`."""

    def __init__(self) -> None:
        object.__setattr__(self, "_outside", {})

    def _mine(self) -> dict[str, Any]:
        task = _task()
        if task is None:
            found: dict[str, Any] = object.__getattribute__(self, "_outside")
            return found
        return task.local.setdefault(self, {})

    def __getattribute__(self, name: str) -> Any:
        """The task's own value takes precedence over one of the class."""
        if not name.startswith("_"):
            mine = object.__getattribute__(self, "_mine")()
            if name in mine:
                return mine[name]
        return object.__getattribute__(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        del self._mine()[name]
