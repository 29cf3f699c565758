"""
Assigns the partitions of one card: lists the existing ones, removes and adds partitions, and records their owners.

The record names the daemon by its process id, so a restarted supervisor knows the partitions again, and those of an
ended daemon are not taken for the next one's. Must not: decide (`nodeagent.mps.partitions` does).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.files import read_text, write_atomically
from nodeagent.mps.daemon import Daemon
from nodeagent.mps.exchange import partitions_from_text, partitions_to_text
from nodeagent.mps.partitions import LIST, created, layout, rounding, steps, supported

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Partitioned:
    """The partitions of a card, by the key of the share. `why`: what is not as wanted, or empty."""

    partitions: Mapping[str, str] = field(default_factory=dict)
    chunks: int = 0
    rounded: str = ""
    why: str = ""


NOT_PARTITIONED = Partitioned()


class Partitioner:
    """The partitions of one card. One thread uses it."""

    def __init__(self, daemon: Daemon, uuid: str) -> None:
        self._daemon = daemon
        self._uuid = uuid
        self._version: tuple[str, str] | None = None
        self.last = NOT_PARTITIONED

    def possible(self, capability: str, driver: str) -> bool:
        """Whether the installed daemon can partition a card of this compute capability."""
        if self._version is None or self._version[0] != driver:
            self._version = (driver, self._daemon.version())
        return supported(self._version[1], capability)

    def apply(self, shares: Mapping[str, int]) -> Partitioned:
        """Bring the card's partitions closer to these shares, percent by key; what there is afterwards."""
        self.last = self._apply(shares)
        return self.last

    def _apply(self, shares: Mapping[str, int]) -> Partitioned:
        daemon, uuid = self._daemon, self._uuid
        found = layout(daemon.ask(LIST) or "")
        if found is None:
            return Partitioned(why="the MPS daemon does not list its partitions")
        pid = daemon.pid()
        known = partitions_from_text(read_text(daemon.partitions), pid)
        todo = steps(found, known, shares)
        for name in todo.remove:
            daemon.ask(f"sm_partition rm {uuid} {name}")
        now, failed = dict(todo.known), list(todo.without)
        for key, chunks in todo.add.items():
            name = created(daemon.ask(f"sm_partition add {uuid} {chunks}") or "")
            if name:
                now[key] = name
                self._record(pid, now)
            else:
                failed.append(key)
        if now != known:
            self._record(pid, now)
        why = f"too few chunks are left on the GPU for {len(failed)} pods, which do not start" if failed else ""
        return Partitioned(now, found.chunks, rounding(shares.values(), found), why)

    def _record(self, pid: int, partitions: Mapping[str, str]) -> None:
        try:
            write_atomically(self._daemon.partitions, partitions_to_text(pid, partitions))
        except OSError as error:
            log.warning("the partitions could not be recorded", extra={"gpu": self._uuid, "reason": str(error)})
