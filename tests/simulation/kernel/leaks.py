"""
Looks for Python's own clocks, threads, random numbers and sockets that programs could still reach.

`found` walks everything that modules of our packages hold: globals, attributes of classes, defaults and closures of
functions, and what is in their objects and containers. It does not walk libraries, because what they do by themselves
does not matter here.

    python -m tests.simulation.kernel.leaks MODULE ...    loads these by the loader, and prints what it finds
"""

from __future__ import annotations

import _thread
import concurrent.futures
import concurrent.futures.thread
import datetime
import functools
import gc
import importlib
import queue
import random
import secrets
import select
import selectors
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tests.simulation.kernel import loader, primitives

REAL = (
    _thread,
    concurrent.futures,
    concurrent.futures.thread,
    gc,
    queue,
    random,
    secrets,
    select,
    selectors,
    signal,
    socket,
    ssl,
    subprocess,
    threading,
    time,
)
"""Modules whose classes and functions must not be reached."""
MEMBERS: Mapping[types.ModuleType, tuple[str, ...]] = {
    datetime: ("datetime", "date"),
    uuid: ("uuid1", "uuid4", "getnode"),
}
"""Members of other modules that must not be reached."""
HARMLESS: Mapping[types.ModuleType, frozenset[str]] = {
    socket: frozenset(("socket", "SocketType", "AddressFamily", "SocketKind", "MsgFlag", "AddressInfo", "Any")),
    ssl: frozenset(("SSLContext", "SSLSocket", "SSLObject", "TLSVersion", "VerifyMode", "VerifyFlags", "Options")),
    signal: frozenset(("Signals", "Handlers", "Sigmasks")),
    secrets: frozenset(("compare_digest",)),
    threading: frozenset(("ExceptHookArgs",)),
    time: frozenset(("struct_time", "strptime")),
}
"""Types for annotations, and functions that depend only on their arguments."""
INSTANCES: tuple[type, ...] = (
    type(_thread.allocate_lock()),
    type(threading.RLock()),
    threading.Thread,
    threading.Condition,
    threading.Event,
    threading.Semaphore,
    threading.local,
    queue.Queue,
    queue.SimpleQueue,
    random.Random,
    socket.socket,
    subprocess.Popen,
    concurrent.futures.Executor,
    concurrent.futures.Future,
    selectors.BaseSelector,
)
"""Objects that no module may hold."""
WRAPPERS = (
    types.MethodType,
    types.BuiltinMethodType,
    classmethod,
    staticmethod,
    property,
    functools.partial,
    functools._lru_cache_wrapper,
)
WRAPPED = ("__self__", "__func__", "fget", "fset", "fdel", "func", "args", "keywords", "__wrapped__")
"""Where objects of these types keep what they call."""


def _forbidden() -> dict[int, str]:
    """The name of each thing that must not be reached, by its identity."""
    names: dict[int, str] = {}
    for module in REAL:
        names[id(module)] = f"module {module.__name__}"
        for name, value in vars(module).items():
            if name not in HARMLESS.get(module, ()) and _is_of(value, module):
                names.setdefault(id(value), f"{module.__name__}.{name}")
    for module, members in MEMBERS.items():
        names[id(module)] = f"module {module.__name__}"
        names |= {id(getattr(module, name)): f"{module.__name__}.{name}" for name in members}
    return names


def _is_of(value: Any, module: types.ModuleType) -> bool:
    """Whether it is a class, function or method of that module, except those that only name an error or a number."""
    if isinstance(value, type):
        own = value.__module__.lstrip("_").partition(".")[0] == module.__name__.lstrip("_").partition(".")[0]
        return own and not issubclass(value, BaseException | int)
    if isinstance(value, types.MethodType | types.BuiltinMethodType) and isinstance(value.__self__, random.Random):
        return True
    home = getattr(value, "__module__", None) or ""
    return callable(value) and home.lstrip("_").partition(".")[0] == module.__name__.lstrip("_").partition(".")[0]


class _Walk:
    """A walk through everything that can be reached, each thing once."""

    def __init__(self, wrong: Callable[[Any], str | None]) -> None:
        """`wrong`: what a thing is that must not be reached; None for all other things, which are searched."""
        self._wrong = wrong
        self._seen: set[int] = set()
        self._kept: list[Any] = []
        """Everything that was seen stays alive, so that no identity is used twice."""

    def modules(self) -> Iterator[str]:
        for name, module in sorted(sys.modules.items()):
            if _is_ours(name):
                for attribute, value in list(vars(module).items()):
                    if attribute not in ("__builtins__", "__loader__", "__spec__"):
                        yield from self.look(value, f"{name}.{attribute}")

    def look(self, value: Any, path: str) -> Iterator[str]:
        """What is wrong with the value, and with what it holds."""
        waiting = [(value, path)]
        while waiting:
            value, path = waiting.pop()
            if (name := self._wrong(value)) is not None:
                yield f"{path} is {name}"
            elif id(value) not in self._seen:
                self._seen.add(id(value))
                self._kept.append(value)
                waiting += [(inner, f"{path}{step}") for step, inner in _held(value)]


def _instance(value: Any) -> str | None:
    """The kind of an object that no module may hold; None for all others."""
    # This reads the type, not the object: a library's proxy (Flask's `request`) answers for the object behind it.
    if issubclass(type(value), (random.SystemRandom, *INSTANCES)) and not _is_simulated(type(value)):
        return f"a {type(value).__module__}.{type(value).__qualname__}"
    return None


def _is_simulated(kind: type) -> bool:
    return kind.__module__.startswith("tests.simulation.")


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in loader.PACKAGES


def _held(value: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from it in one step, with the name of each step."""
    kind = type(value)
    if kind in (dict, types.MappingProxyType):
        for key, inner in list(value.items()):
            yield f"[{key!r}]", inner
            yield f" key {key!r}", key
    elif kind in (list, tuple, set, frozenset):
        yield from ((f"[{number}]", inner) for number, inner in enumerate(list(value)))
    elif kind is types.FunctionType:
        yield from _of_function(value)
    elif issubclass(kind, WRAPPERS):
        inner = {id(found := getattr(value, name)): (f".{name}", found) for name in WRAPPED if hasattr(value, name)}
        yield from inner.values()
    elif issubclass(kind, type):
        if _is_ours(value.__module__):
            yield from ((f".{name}", inner) for name, inner in list(vars(value).items()))
            yield ".__bases__", value.__bases__
    elif _is_ours(kind.__module__):
        yield from _of_object(value)


def _of_function(function: Any) -> Iterator[tuple[str, Any]]:
    if not _is_ours(function.__module__ or ""):
        return
    yield " by default", function.__defaults__
    yield " by default", function.__kwdefaults__
    yield ".__wrapped__", getattr(function, "__wrapped__", None)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f" closes over {name}", cell.cell_contents
        except ValueError:
            continue  # not bound yet


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    yield from ((f".{name}", inner) for name, inner in list(getattr(value, "__dict__", {}).items()))
    for base in type(value).__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def found(objects: Mapping[str, Any] | None = None) -> list[str]:
    """
    Every place from which one of our modules reaches something that it must not reach, and what that is.

    `objects`: further objects to walk, by name, such as running programs.
    """
    forbidden = _forbidden()
    walk = _Walk(lambda value: forbidden.get(id(value)) or _instance(value))
    wrong = list(walk.modules())
    for name, value in (objects or {}).items():
        wrong += walk.look(value, name)
    return wrong


def shared() -> list[str]:
    """
    Every place from which one of our modules reaches a simulated lock, queue or thread that was created at its import.

    All hosts share it: a host that is killed while it holds the lock stops the others. Separate processes would not do
    so.
    """
    return list(_Walk(_primitive).modules())


def _primitive(value: Any) -> str | None:
    kind = type(value)
    return f"a {kind.__qualname__}" if kind.__module__ == primitives.__name__ else None


def main(modules: Sequence[str]) -> int:
    """Load the modules by the loader and print the findings."""
    loader.install()
    for name in modules:
        importlib.import_module(name)
    wrong = found() + shared()
    print(f"{sum(map(_is_ours, sys.modules))} modules", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
