"""Sends the options about kube-scheduler's profiles to the scheduler on each change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from allocator.scheduler.events import ProfilesDeclared
from contract.options import NO_OPTIONS, PoolOptions
from contract.scheduling.clusterfilters.objects import Profile

_EVERY = 5.0
"""Seconds between two looks at the options."""


class ProfileWatcher:
    """Looks at the options repeatedly; they may change at any time."""

    def __init__(
        self, options: Callable[[], PoolOptions | None], *, declare: Callable[[ProfilesDeclared], None]
    ) -> None:
        """`declare` is called with what changed."""
        self._options = options
        self._declare = declare
        self._last: Mapping[str, Profile] = {}

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_EVERY):
            self.once()

    def once(self) -> None:
        """One look."""
        found = (self._options() or NO_OPTIONS).profiles
        if found != self._last:
            self._last = found
            self._declare(ProfilesDeclared(found))
