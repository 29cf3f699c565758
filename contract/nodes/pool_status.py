"""
What the leading allocator publishes of the declared pools, for people: the text of a ConfigMap of our namespace.

`document` writes it and `read` reads it. Nothing decides by it: the requests and the nodes themselves are what counts,
so a text that is lost or out of date misleads nobody but its reader, who is shown when it was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from contract.encoding.reading import Malformed, shown

FILE = "pools.json"
"""The ConfigMap's key."""
FRESHENED = 60.0
"""Seconds after which the text is written again though nothing changed; it is old after a few times as many."""

State = Literal["", "asked", "coming", "not-asked", "paused", "full", "idle-node", "unknown"]
"""
What goes on in a pool, the first that applies: it could not be asked; it gave nothing and is not asked for a while;
nodes are asked for; nodes have come and are not ready; an idle node does not serve the pods that wait; it has as many
nodes as it may have and pods wait; too little is known of what a node has. Empty: nothing.
"""
BLOCKED: tuple[State, ...] = ("not-asked", "paused", "full", "idle-node", "unknown")
"""States in which the allocator asks for no node of the pool, even if pods wait for one."""


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """A pool of the options that declares `node`. Times are seconds since 1970."""

    name: str
    most: int
    """Nodes that it may have."""
    spare: int = 0
    """Empty nodes that are kept by the options."""
    ready: int = 0
    """Its nodes that have published their GPUs and take pods."""
    coming: int = 0
    """Its nodes that exist and are not ready."""
    asked: int = 0
    """Nodes that were asked for and have not come."""
    since: float = 0.0
    """Since when the first of those is asked for; 0 where none is."""
    state: State = ""
    waits: bool = False
    """Whether a pod waits that an empty node would serve, and for which none is asked."""
    failures: int = 0
    """Requests in a row that gave nothing."""
    until: float = 0.0
    """When a pool in the state `paused` is asked again."""
    outcome: str = ""
    """How the last of those requests failed, in a word."""
    why: str = ""
    """Why a pool could not be asked, or what the autoscaler said."""


@dataclass(frozen=True, slots=True)
class PoolsStatus:
    """All of them. `at`: when that was written; `trouble`: why nothing could be asked for anywhere, or empty."""

    at: float
    pools: tuple[PoolStatus, ...] = ()
    trouble: str = ""


def document(status: PoolsStatus) -> str:
    """The text."""
    pools = [asdict(pool) for pool in status.pools]
    return json.dumps({"at": status.at, "trouble": status.trouble, "pools": pools}, indent=1)


def read(text: str) -> PoolsStatus:
    """The text read, without fields that are not known here, such as those of a later version. Raises `Malformed`."""
    try:
        found: Any = json.loads(text)
        return PoolsStatus(_finite(found["at"]), tuple(_pools(found["pools"])), str(found.get("trouble", "")))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise Malformed(f"{FILE}: found {shown(text)}; it is written by the allocator") from error


def _pools(found: Iterable[dict[str, Any]]) -> Iterable[PoolStatus]:
    known = {entry.name: _READERS[str(entry.type)] for entry in fields(PoolStatus)}
    for each in found:
        pool = PoolStatus(**{name: known[name](value) for name, value in each.items() if name in known})
        if pool.state not in get_args(State):
            raise ValueError(pool.state)
        yield pool


def _finite(value: Any) -> float:
    number = float(value)
    if not math.isfinite(number):
        raise ValueError("not a time")
    return number


def _whole(value: Any) -> int:
    if not isinstance(value, int):
        raise ValueError("not a number")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {"str": str, "State": str, "int": _whole, "float": _finite, "bool": bool}
