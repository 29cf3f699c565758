"""
Whether the agent must start anew, because the driver was replaced under the library that it has loaded.

A process keeps the library that it loaded, and a container the one that it was given at its start: kubelet starts the
container again when the process ends, and the container runtime gives it the new one. Where the agent never read a GPU
with this library, its end would change nothing: the driver's files were replaced and the driver was not, and that takes
somebody to reload it. Then the agent stays, and says so.

Pure but for what it remembers. Must not: end anything.
"""

from __future__ import annotations

from nodeagent.library import LibraryOutdated
from nodeagent.status import Sight

WHY = "the driver was replaced; the agent starts anew, to be given the library that goes with it"


class Replaced:
    """One thread uses it."""

    def __init__(self) -> None:
        self._read, self._outdated = False, False

    def seen(self, sight: Sight) -> bool:
        """Whether to start anew, after this look: at the second one in a row, so that the first could be published."""
        outdated = sight.reason == LibraryOutdated.reason
        again, self._outdated = outdated and self._outdated, outdated
        self._read = self._read or not sight.problem
        return again and self._read
