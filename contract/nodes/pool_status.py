"""
The leading allocator's readable status of the declared pools: the text of a ConfigMap in our namespace.

`document` writes it and `read` reads it. Nothing decides by it: only the requests and the nodes themselves count. A
lost or outdated text misleads only its reader, who sees when it was written.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from contract.encoding.reading import Malformed, shown
from contract.encoding.wire import TEXT, listed, load, record, typed

FILE = "pools.json"
"""The ConfigMap's key."""
FRESHENED = 60.0
"""Seconds after which the text is written again even if nothing changed; it is old after a few times as many."""

State = Literal["", "asked", "coming", "not-asked", "paused", "full", "idle-node", "unknown"]
"""
The state of a pool, the first that applies: it could not be asked; its last request failed and it pauses; nodes are
requested; nodes exist and are not ready; an idle node does not serve the waiting pods; it has as many nodes as it may
have and pods wait; too little is known about its nodes. Empty: nothing.
"""
BLOCKED: tuple[State, ...] = ("not-asked", "paused", "full", "idle-node", "unknown")
"""States in which the allocator requests no node of the pool, even if pods wait for one."""


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
    """Nodes that were requested and do not exist yet."""
    since: float = 0.0
    """Since when the first of those is requested; 0 if none is."""
    state: State = ""
    waits: bool = False
    """Whether a pod waits that an empty node would serve, but for which no node is requested."""
    failures: int = 0
    """Requests in a row that gave nothing."""
    until: float = 0.0
    """When a node is requested again of a pool in the state `paused`."""
    outcome: str = ""
    """How the last of those requests failed, in one word."""
    why: str = ""
    """Why a pool could not be asked, or the autoscaler's message."""


@dataclass(frozen=True, slots=True)
class PoolsStatus:
    """All of them. `at`: when that was written; `trouble`: why nothing could be requested anywhere, or empty."""

    at: float
    pools: tuple[PoolStatus, ...] = ()
    trouble: str = ""


_STATUS = record(
    PoolsStatus,
    {"at": typed(float), "trouble": TEXT, "pools": listed(typed(PoolStatus, whole=True)).required()},
    whole=True,
)


def document(status: PoolsStatus) -> str:
    """The text."""
    return json.dumps(_STATUS.to_json(status), indent=1)


def read(text: str) -> PoolsStatus:
    """The text read, without fields that are not known here, such as those of a later version. Raises `Malformed`."""
    try:
        return _STATUS.from_json(load(text, FILE))
    except Malformed as error:
        raise Malformed(f"{FILE}: found {shown(text)}; only the allocator writes it") from error
