"""
What a program still remembers of objects that are gone: the search looks for their uids in everything that it holds.

The walk goes through the objects of our own modules, what functions are bound to, mappings, sequences and sets. It
takes no lock, because nothing else runs at the same time.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.simulation.feature import Violation
from tests.simulation.run import Run
from tests.simulation.world.programs import Program

_OURS = ("allocator.", "contract.", "runtime.")
_PASSING = (
    "._rounds._lacks",  # no more than the pods that were checked in the last cycle
    "._rounds._tried",  # the same, also in a former leader
    "._cards[][][][]",  # the objects of cards as a former leader last wrote them
    "._capacities._reported[][]",  # what a former leader last reported
    ".overcommit._overcommitted[]",  # the same
    ".overcommit._reported[][]",  # the same
    ".overcommit._uncounted[]",  # the same
    "._giving_way._warned",  # for as long as a warning lasts
    "._records._news[].uid",  # Events that a former leader had not written; it writes them if it leads again
    "._taken_by[]._expected",  # nodes that a former leader last expected
    "._observed.refuted[]",  # one version of a Lease, until a later one looks released and is not
    "._found[].uid",  # no more than the pods that were idle when a pod last waited
    "._gangs[]._read[]",  # a plan as stated in the annotation of an existing pod
    ".share.claim_uid",  # the API server's own ElasticGPU says so
    ".allocation.shared",  # the annotation of a pod says so, next to that pod's own uid
)
"""How the paths end that may lead to an object that is gone, and why each is bounded."""
_LAST = "._trial._trial."
"""Part of the path to the cluster in which a Workload was last tried; it lasts until the next one is tried."""


def of(run: Run, programs: Iterable[tuple[str, Any]]) -> list[Violation]:
    """Where each program remembers objects that are gone, by path. `programs`: names, and where the walk begins."""
    store = run.world.api.store
    gone = {uid for uid in run.uids if not store.has_uid(uid)}
    wrong = []
    for name, root in programs:
        places: dict[str, set[str]] = {}
        for way, found in walk(root):
            if isinstance(found, str) and found in gone and not way.endswith(_PASSING) and _LAST not in way:
                places.setdefault(way, set()).add(found)
        wrong += [
            f"{name} remembers {len(uids)} objects that are gone in {way}" for way, uids in sorted(places.items())
        ]
    return wrong


def root_of(run: Run, program: Program) -> dict[str, Any]:
    """What a running program consists of: what its start returned, and what its threads run."""
    threads = [task.thread for task in run.kernel.tasks(program.host)] if program.host is not None else []
    targets = {thread.name: thread.target for thread in threads if thread is not None}
    return {"allocator": program.running.allocator, **targets}


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Everything that can be reached from the value, with its path. Objects come once, texts each time."""
    seen: dict[int, Any] = {}  # kept with the objects, so that no new object gets the identity of an old one
    left: deque[tuple[str, Any]] = deque([("", value)])
    while left:
        way, found = left.popleft()
        if isinstance(found, str):
            yield way, found
        elif id(found) not in seen and not isinstance(found, int | float | bytes | type | None):
            seen[id(found)] = found
            yield way, found
            left.extend(_inside(way, found))


def _inside(way: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((way, key) for key in list(value))
        yield from ((f"{way}.{key}" if way == "" else f"{way}[]", item) for key, item in list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset | deque) and not _fields(value):
        yield from ((f"{way}[]", item) for item in list(value))
    elif isinstance(value, types.MethodType):
        yield way, value.__self__
    elif isinstance(value, types.FunctionType):
        yield from ((f"{way}()", cell.cell_contents) for cell in value.__closure__ or () if _is_filled(cell))
    elif isinstance(value, functools.partial):
        yield from ((f"{way}()", part) for part in (value.func, value.args, value.keywords))
    elif type(value).__module__.startswith(_OURS) or _fields(value):
        for name in _attributes(value):
            yield f"{way}.{name}".strip("."), getattr(value, name)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _attributes(value: Any) -> list[str]:
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    found = [*getattr(value, "__dict__", ()), *slots, *_fields(value)]
    return [name for name in dict.fromkeys(found) if hasattr(value, name)]


def _fields(value: Any) -> tuple[str, ...]:
    """The fields of a named tuple."""
    found = getattr(type(value), "_fields", ())
    return found if isinstance(found, tuple) and isinstance(value, tuple) else ()


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
