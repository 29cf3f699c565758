"""
What a program still remembers of pods that are gone: their uids, looked for in everything that its controller holds.

The walk goes through the objects of our own modules, and through mappings, sequences and sets. It takes no lock, since
nothing else runs meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from contract import pods
from tests.simulation.feature import Violation
from tests.simulation.run import Run

_OURS = ("allocator.", "contract.", "runtime.")
_PASSING: tuple[str, ...] = ()
"""Parts that may remember for a while, since they are bounded by number or time: how their way ends, and why."""


def of(run: Run, programs: Iterable[tuple[str, Any]]) -> list[Violation]:
    """Where each program remembers a pod that is gone, by the way from its controller."""
    here = {pods.uid(pod) for pod in run.world.api.store.scan("pods")}
    gone = run.pods_seen - here
    wrong = []
    for name, controller in programs:
        places: dict[str, set[str]] = {}
        for way, text in texts(controller):
            if text in gone and not way.endswith(_PASSING):
                places.setdefault(way, set()).add(text)
        wrong += [f"{name} remembers {len(found)} pods that are gone in {way}" for way, found in sorted(places.items())]
    return wrong


def texts(value: Any) -> Iterator[tuple[str, str]]:
    """Every text that can be reached from the value, with the way to it."""
    seen: set[int] = set()
    left: deque[tuple[str, Any]] = deque([("controller", value)])
    while left:
        way, found = left.popleft()
        if isinstance(found, str):
            yield way, found
            continue
        if id(found) in seen or isinstance(found, int | float | bytes | type | None):
            continue
        seen.add(id(found))
        left.extend(_inside(way, found))


def _inside(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield way, key
            yield f"{way}[]", item
    elif isinstance(value, list | tuple | set | frozenset | deque) and not hasattr(value, "_fields"):
        yield from ((f"{way}[]", item) for item in list(value))
    elif type(value).__module__.startswith(_OURS) or hasattr(value, "_fields"):
        for name in _attributes(value):
            yield f"{way}.{name}", getattr(value, name)


def _attributes(value: Any) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    found = [*getattr(value, "__dict__", ()), *slots, *getattr(value, "_fields", ())]
    return [name for name in dict.fromkeys(found) if hasattr(value, name)]


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
