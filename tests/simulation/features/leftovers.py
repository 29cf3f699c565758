"""
What a program still remembers of objects that are gone: their uids, looked for in everything that it holds.

The walk goes through the objects of our own modules, what functions are bound to, mappings, sequences and sets. It
takes no lock, since nothing else runs meanwhile.
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
    "._rounds._lacks",  # no more than the pods that were tried in the last cycle
    "._rounds._tried",  # the same, also of one that leads no more
    "._cards[][][][]",  # the objects of cards as one that leads no more wrote them last
    "._capacities._reported[][]",  # what one that leads no more reported last
    ".overcommit._overcommitted[]",  # the same
    ".overcommit._reported[][]",  # the same
    ".overcommit._uncounted[]",  # the same
    "._giving_way._warned",  # for as long as a warning stands
    "._records._news[].uid",  # Events that one that leads no more had not written; it writes them if it leads again
    "._taken_by[]._expected",  # nodes that one that leads no more expected last
    "._observed.refuted[]",  # one version of a Lease, until a later one looks released and is not
    "._found[].uid",  # no more than the pods that were idle when somebody waited last
    "._gangs[]._read[]",  # a plan as the annotation of a pod that is there has it
    ".share.claim_uid",  # the API server's own ElasticGPU says so
    ".allocation.shared",  # the annotation of a pod says so, whose own uid is alongside it
)
"""How the way to what may name something that is gone ends, and why that is bounded."""
_LAST = "._trial._trial."
"""On the way to the cluster in which a Workload was tried last: until the next one is."""


def of(run: Run, programs: Iterable[tuple[str, Any]]) -> list[Violation]:
    """Where each program remembers what is gone, by the way to it. Each comes with what the walk begins with."""
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
    """What a program that runs consists of: what its start returned, and what its threads run."""
    threads = [task.thread for task in run.kernel.tasks(program.host)] if program.host is not None else []
    targets = {thread.name: thread.target for thread in threads if thread is not None}
    return {"allocator": program.running.allocator, **targets}


def walk(value: Any) -> Iterator[tuple[str, Any]]:
    """All that can be reached from the value, with the way to it; an object once, texts each time."""
    seen: dict[int, Any] = {}  # with the objects, so that no other gets the place of one
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
    """Those of a named tuple."""
    found = getattr(type(value), "_fields", ())
    return found if isinstance(found, tuple) and isinstance(value, tuple) else ()


def _slots(kind: type) -> tuple[str, ...]:
    found = kind.__dict__.get("__slots__", ())
    return (found,) if isinstance(found, str) else tuple(found)
