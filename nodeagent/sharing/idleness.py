"""
Since when the shares of this node compute nothing.

A share is all that a pod has of this node's GPUs. It is idle from the first look at which none of its containers had
used any of its GPUs, for as long as every later look shows the same. An unknown state is never idle: a GPU whose
driver does not report which processes compute, a container that has not started, a failed look, an agent that has just
started. After each of them the time begins again.

    busy or unknown ──nothing used──▶ quiet ──for `least`──▶ idle, and published
          ▲                             │                       │
          └───── used, or not known ────┴───────────────────────┘

A share that computes from time to time must not cost a write each time. So it is published later each time: first
after `least`, then after twice that, up to 16 min. An hour after a published share last computed again, it is
`least` once more.

Pure except for what it remembers; times are passed in, in seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Iterator

from contract.backoff import backoff
from contract.nodes.idle import IdleShare
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.usage import NodeUsage

_LATEST = 960.0
"""The most seconds until a share that computes from time to time is published."""
_FORGIVEN = 3600.0
"""Seconds after which a share's earlier publication no longer counts."""


class IdleTracker:
    """
    Remembers since when shares compute nothing. One thread calls `see`; others may read.

    `least`: seconds until a share is published. `gap`: seconds; two looks that are further apart do not show what
    happened between them.
    """

    def __init__(self, *, least: float = 60.0, gap: float = 60.0) -> None:
        self._least = least
        self._gap = gap
        self._since: dict[str, int] = {}
        """By the uids of the pods that computed nothing at the last look."""
        self._returned: dict[str, tuple[int, float]] = {}
        """How often a share was published and computed again, and when it last did."""
        self._seen: tuple[float, frozenset[IdleShare]] = (float("-inf"), frozenset())

    def see(self, usage: NodeUsage, now: float) -> bool:
        """Take in a look. True if other shares are idle than before."""
        looked, before = self._seen
        if not 0 <= now - looked <= self._gap:
            self._since.clear()
        self._since = {uid: self._since.get(uid, int(now)) for uid in computing_nothing(usage)}
        idle = frozenset(
            IdleShare(since, uid) for uid, since in self._since.items() if now - since >= self._patience(uid, now)
        )
        still = {share.pod for share in idle}
        self._returned = {uid: each for uid, each in self._returned.items() if now - each[1] <= _FORGIVEN}
        for share in before:
            if share.pod not in still:
                self._returned[share.pod] = (self._returned.get(share.pod, (0, 0.0))[0] + 1, now)
        self._seen = (now, idle)
        return idle != before

    def idle(self, now: float) -> frozenset[IdleShare]:
        """The shares that are to be published; none where the last look was too long ago."""
        looked, shares = self._seen
        return shares if 0 <= now - looked <= self._gap else frozenset()

    def _patience(self, uid: str, now: float) -> float:
        times, at = self._returned.get(uid, (0, now))
        return backoff(times + 1, self._least, max(self._least, _LATEST)) if now - at <= _FORGIVEN else self._least


def computing_nothing(usage: NodeUsage) -> Iterator[str]:
    """The uids of the pods whose containers used none of their GPUs, according to this look."""
    quiet: dict[str, tuple[Resident, int]] = {}
    other: set[str] = set()
    for use in usage.uses:
        resident = use.resident
        running = use.container in {name for _, name in resident.containers}
        if use.active is not False or not running:
            other.add(resident.uid)
        else:
            quiet[resident.uid] = (resident, quiet.get(resident.uid, (resident, 0))[1] + 1)
    for uid, (resident, looks) in quiet.items():
        if uid not in other and looks == _shares(resident):
            yield uid


def _shares(resident: Resident) -> int:
    allocation = resident.allocation
    return sum(len(container.shares) for container in allocation.containers) if allocation is not None else 0
