"""
The bar against what the leader before was about to write: which waiting pods are still to be touched.

A commit names the version of its pod, so it cannot take effect once the pod has a later one. Where a new leader has
given every pod that waits a new version, a commit of the leader before that is still on its way, however long somebody
holds it up, finds nothing any more. A pod that another system's gate holds cannot have been placed by anybody, and one
that was created since was never seen by the leader before.

Pure notes; `allocator.workers.binder` does the touching. Without this, who is placed and who is told to wait would
depend on how long a network can hold a request back, and no clock of ours knows that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from allocator.queue.queue import QueuedPodInfo


class Fence:
    """Who is still to be touched, in one tenure. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._tenure: int | None = None
        self._left: dict[str, QueuedPodInfo] = {}

    def left(
        self, tenure: int, waiting: Iterable[QueuedPodInfo], waits: Callable[[str], bool]
    ) -> tuple[QueuedPodInfo, ...]:
        """
        Who is still to be touched. `waiting`: who is in line; counts when a tenure is asked about for the first time.
        Whoever is not in line any more is placed, or gone, and that was a later version too.
        """
        if tenure != self._tenure:
            self._tenure = tenure
            self._left = {entry.uid: entry for entry in waiting if not entry.foreign}
        self._left = {uid: entry for uid, entry in self._left.items() if waits(uid)}
        return tuple(self._left.values())

    def touched(self, uid: str) -> None:
        """The pod has a later version, or none will ever be written."""
        self._left.pop(uid, None)
