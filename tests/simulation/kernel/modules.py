"""
The modules that programs get instead of Python's own, so that nothing reaches the machine's clocks, threads or
randomness.

A member that a module here lacks raises `Escaped` with its name when a program calls it.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import gc
import queue
import random
import secrets
import select
import selectors
import signal
import socket
import ssl
import subprocess
import threading
import time
import types
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from greenlet import GreenletExit

from tests.simulation.kernel import primitives, scheduler
from tests.simulation.kernel.scheduler import BEGINNING, SECOND, Host

_IMPORTING = Host("import", 0)
"""The host whose clock and random numbers modules see while they are imported."""


def _host() -> Host:
    kernel = scheduler.ACTIVE
    return _IMPORTING if kernel is None or kernel.current is None else kernel.current.host


def _rng() -> random.Random:
    kernel = scheduler.ACTIVE
    return _IMPORTING.rng if kernel is None or kernel.current is None else kernel.current.rng


def _now() -> int:
    return 0 if scheduler.ACTIVE is None else scheduler.ACTIVE.now


# -- time -------------------------------------------------------------------------------------------------------------


def monotonic_ns(*_: object) -> int:
    """Nanoseconds of the host's clock, which may run faster or slower than virtual time."""
    return 100 * SECOND + _host().passed(_now())


def monotonic(*_: object) -> float:
    return monotonic_ns() / SECOND


def time_ns() -> int:
    """Nanoseconds since the epoch, by the host's wall clock."""
    host = _host()
    return BEGINNING * SECOND + host.passed(_now()) + int(host.offset * SECOND)


def wall() -> float:
    return time_ns() / SECOND


def sleep(seconds: float) -> None:
    kernel = scheduler.active()
    assert kernel.current is not None
    if seconds <= 0:
        kernel.give_way()
    else:
        kernel.block(primitives.nanoseconds(seconds, kernel.current.host))


class _Instances(type):
    """An instance of the real class counts as one of ours, because libraries create those."""

    real: type

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.real)


class DateTime(datetime.datetime, metaclass=_Instances):
    """`datetime.datetime` by the host's wall clock."""

    real = datetime.datetime

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        """Every machine's own time zone is UTC."""
        now = datetime.datetime.fromtimestamp(wall(), tz or datetime.UTC)
        return now if tz is not None else now.replace(tzinfo=None)

    @classmethod
    def utcnow(cls) -> Any:
        return cls.now()

    @classmethod
    def today(cls) -> Any:
        return cls.now()


class Date(datetime.date, metaclass=_Instances):
    """`datetime.date` by the host's wall clock."""

    real = datetime.date

    @classmethod
    def today(cls) -> Any:
        return DateTime.now().date()


def _strftime(form: str, when: Any = None) -> str:
    return time.strftime(form, when if when is not None else time.gmtime(wall()))


# -- chance -----------------------------------------------------------------------------------------------------------


class Random(random.Random):
    """`random.Random`; without a seed, one of the task's own numbers."""

    def __init__(self, seed: Any = None) -> None:
        super().__init__(_rng().getrandbits(64) if seed is None else seed)


def _drawn(name: str) -> Callable[..., Any]:
    return lambda *arguments, **named: getattr(_rng(), name)(*arguments, **named)


def _token_hex(size: int = 32) -> str:
    return _rng().randbytes(size).hex()


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=_rng().getrandbits(128), version=4)


# -- a pool of threads ------------------------------------------------------------------------------------------------


class Future:
    """`concurrent.futures.Future`, as far as programs use it."""

    def __init__(self) -> None:
        self._done = primitives.Event()
        self._result: Any = None
        self._error: BaseException | None = None

    def result(self, timeout: float | None = None) -> Any:
        if not self._done.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._done.wait(timeout):
            raise TimeoutError
        return self._error

    def done(self) -> bool:
        return self._done.is_set()

    def _cancel(self) -> None:
        self._error = concurrent.futures.CancelledError()
        self._done.set()

    def _carry_out(self, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self._result = call(*args, **kwargs)
        except GreenletExit:
            raise
        except BaseException as error:
            self._error = error
        self._done.set()


class ThreadPoolExecutor:
    """`concurrent.futures.ThreadPoolExecutor`."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        self._most = max_workers or 8
        self._prefix = thread_name_prefix or "pool"
        self._work = primitives.Queue()
        self._threads: list[primitives.Thread] = []
        self._idle = 0
        self._closed = False

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future()
        self._work.put((future, call, args, kwargs))
        if self._idle < self._work.qsize() and len(self._threads) < self._most:
            thread = primitives.Thread(target=self._run, name=f"{self._prefix}_{len(self._threads)}")
            self._threads.append(thread)
            thread.start()
        return future

    def map(self, call: Callable[..., Any], *iterables: Any, timeout: float | None = None) -> Any:
        futures = [self.submit(call, *args) for args in zip(*iterables, strict=False)]
        return (future.result(timeout) for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._closed = True
        while cancel_futures and not self._work.empty():
            future, *_ = self._work.get()
            future._cancel()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads if wait else ():
            thread.join()

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def _run(self) -> None:
        while True:
            self._idle += 1
            item = self._work.get()
            self._idle -= 1
            if item is None:
                return
            future, call, args, kwargs = item
            future._carry_out(call, args, kwargs)


# -- the table --------------------------------------------------------------------------------------------------------


class Simulated(types.ModuleType):
    """
    A module with our members and those of the real one that neither wait nor read the machine: its types, errors and
    constants. All other names can be used, but raise `Escaped` when called.
    """

    def __init__(self, real: types.ModuleType, ours: Mapping[str, Any], allowed: tuple[str, ...] = ()) -> None:
        super().__init__(real.__name__, real.__doc__)
        self.__dict__["_real"], self.__dict__["_allowed"] = real, frozenset(allowed)
        self.__dict__.update(ours)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_real"], name)
        if name not in self.__dict__["_allowed"] and not _is_harmless(found):
            found = _refusing(f"{self.__name__}.{name}")
        self.__dict__[name] = found
        return found


def _is_harmless(found: Any) -> bool:
    return isinstance(found, int | float | str | bytes | tuple) or (
        isinstance(found, type) and issubclass(found, BaseException | int)
    )


def _refusing(name: str) -> Any:
    class Refusing:
        """Replaces a member that the simulation does not have, also as a base class or in an annotation."""

        def __init__(self, *_: Any, **__: Any) -> None:
            raise scheduler.Escaped(f"{name} is not simulated")

    Refusing.__qualname__ = name
    return Refusing


class _Threading(Simulated):
    """`threading`, with the excepthook of the host."""

    @property
    def excepthook(self) -> Any:
        return _host().excepthook

    @excepthook.setter
    def excepthook(self, hook: Callable[[Any], None]) -> None:
        _host().excepthook = hook


def _nothing(*_: Any, **__: Any) -> None:
    """Does nothing: what concerns the whole process, such as garbage collection, belongs to the simulation."""


_THREADING = _Threading(
    threading,
    {
        "Lock": primitives.Lock,
        "RLock": primitives.RLock,
        "Condition": primitives.Condition,
        "Event": primitives.Event,
        "Semaphore": primitives.Semaphore,
        "BoundedSemaphore": primitives.BoundedSemaphore,
        "Thread": primitives.Thread,
        "local": primitives.Local,
        "current_thread": primitives.current_thread,
        "get_ident": lambda: primitives.current_thread().ident or 0,
        "main_thread": lambda: primitives._OUTSIDE,
    },
    ("ExceptHookArgs",),
)
_CLOCKS = {
    **dict.fromkeys(("monotonic", "perf_counter", "thread_time", "process_time", "clock_gettime"), monotonic),
    **dict.fromkeys(("monotonic_ns", "perf_counter_ns", "thread_time_ns", "process_time_ns"), monotonic_ns),
    "time": wall,
    "time_ns": time_ns,
    "sleep": sleep,
    "strftime": _strftime,
    "gmtime": lambda seconds=None: time.gmtime(wall() if seconds is None else seconds),
    "localtime": lambda seconds=None: time.gmtime(wall() if seconds is None else seconds),
}
_DRAWS = ("random", "uniform", "randint", "randrange", "choice", "choices", "sample", "shuffle", "getrandbits")
_FUTURES = Simulated(
    concurrent.futures,
    {"ThreadPoolExecutor": ThreadPoolExecutor, "Executor": ThreadPoolExecutor, "Future": Future},
)
_DATETIME = Simulated(
    datetime, {"datetime": DateTime, "date": Date}, ("time", "timedelta", "timezone", "tzinfo", "UTC")
)

SIMULATED: Mapping[str, types.ModuleType] = {
    "threading": _THREADING,
    "queue": Simulated(queue, {"Queue": primitives.Queue, "SimpleQueue": primitives.Queue}),
    "time": Simulated(time, _CLOCKS, ("struct_time", "strptime")),
    "datetime": _DATETIME,
    "random": Simulated(random, {"Random": Random, **{name: _drawn(name) for name in _DRAWS}}),
    "secrets": Simulated(
        secrets,
        {"token_hex": _token_hex, "randbelow": lambda most: _rng().randrange(most), "token_urlsafe": _token_hex},
        ("compare_digest",),
    ),
    "uuid": Simulated(uuid, {"uuid4": _uuid4}, ("UUID", "uuid5", "NAMESPACE_DNS", "NAMESPACE_URL", "NAMESPACE_OID")),
    "gc": Simulated(gc, dict.fromkeys(("collect", "freeze", "set_threshold", "disable", "enable"), _nothing)),
    "concurrent.futures": _FUTURES,
    "socket": Simulated(socket, {"gethostname": lambda: _host().name}, ("socket", "AddressFamily", "SocketKind")),
    "ssl": Simulated(ssl, {}, ("SSLContext", "SSLSocket", "SSLObject")),
    "select": Simulated(select, {}),
    "selectors": Simulated(selectors, {}),
    "signal": Simulated(signal, {}, ("Signals",)),
    "subprocess": Simulated(subprocess, {}),
}
