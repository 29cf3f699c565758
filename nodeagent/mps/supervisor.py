"""
Runs the MPS daemons: looks at each GPU and its daemon, acts as `nodeagent.mps.lifecycle` decides, and reports.

It uses the driver, the daemons and files, and never the API server, so that trouble in the cluster cannot affect it.
The node agent writes the wanted GPUs into a file; without that file no daemon is started or ended.

Must not: decide, or let the trouble of one GPU affect the others.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from nodeagent.files import read_text, write_atomically
from nodeagent.gpus.library import Card, GpuLibrary
from nodeagent.gpus.observation import Observation, look
from nodeagent.mps.daemon import PROGRAM, Daemon
from nodeagent.mps.exchange import (
    GpuReport,
    MpsPaths,
    Report,
    Shares,
    knows_multiuser,
    most_clients,
    report_to_text,
    shares_from_text,
    shortcomings,
    wanted_from_text,
)
from nodeagent.mps.lifecycle import Action, DaemonState, Phase, RestartPace, Seen, step
from nodeagent.mps.partitioning import NOT_PARTITIONED, Partitioned, Partitioner
from nodeagent.mps.partitions import FLAG

log = logging.getLogger(__name__)

_NOT_RESERVED = (
    "cores are capped by percentages and not reserved: static partitions need an MPS daemon from version 13010 on and "
    "a card from Ampere on"
)
_MOST_SERVERS = 8
"""Servers of one daemon that are queried: there is one for each user that has clients."""


class Modes(GpuLibrary, Protocol):
    """The driver's part."""

    def exclusive(self, uuid: str) -> bool | None:
        """Whether the card's compute mode is EXCLUSIVE_PROCESS; None if unknown."""
        ...

    def set_exclusive(self, uuid: str, exclusive: bool) -> str:
        """Set the compute mode to EXCLUSIVE_PROCESS or DEFAULT. The error, or empty."""
        ...


class Supervisor:
    """`step` is one round. `clock` never goes back; `wall` is seconds since the epoch. One thread uses it."""

    def __init__(
        self,
        library: Modes,
        root: Path,
        *,
        command: tuple[str, ...] = (PROGRAM,),
        multiuser: bool = True,
        timeout: float = 5.0,
        pace: RestartPace | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._library, self._places = library, MpsPaths(root)
        self._command, self._multiuser, self._timeout = command, multiuser, timeout
        self._driver = ""
        self._pace, self._clock, self._wall = pace or RestartPace(), clock, wall
        self._states: dict[str, DaemonState] = {}
        self._starts: dict[str, int] = {}
        self._daemons: dict[str, Daemon] = {}
        self._servers: dict[str, tuple[int, ...]] = {}
        self._clients: dict[str, frozenset[int]] = {}
        self._shares: Shares = {}
        self._told = False
        self._partitioners: dict[str, Partitioner] = {}
        self.report = Report()

    def run(self, stopping: threading.Event, *, interval: float) -> None:
        """Do rounds until stopped. The daemons continue."""
        while not stopping.is_set():
            self.step()
            stopping.wait(interval)

    def step(self) -> Report:
        """One round."""
        observation = look(self._library)
        self._driver = observation.driver or self._driver
        cards = {card.uuid: card for card in observation.cards if card.uuid and not card.parent}
        text = read_text(self._places.wanted)
        named, self._shares = wanted_from_text(text), shares_from_text(text)
        self._told = named is not None
        gpus = {}
        for uuid in sorted({*self._known(), *self._states, *((named or frozenset()) & cards.keys())}):
            wanted = uuid in named if named is not None else self._daemon(uuid).pid() > 0
            gpus[uuid] = self._tend(uuid, cards.get(uuid), wanted, observation)
        self.report = Report(self._wall(), gpus)
        try:
            write_atomically(self._places.report, report_to_text(self.report))
        except OSError as error:
            log.warning("the report could not be written", extra={"reason": str(error)})
        return self.report

    def end(self, *, within: float) -> None:
        """Ask all daemons to end, kill those that do not within `within` seconds, and reset the compute modes."""
        deadline = self._clock() + within
        left = [uuid for uuid in self._known() if self._daemon(uuid).pid()]
        for uuid in left:
            self._daemon(uuid).quit()
        while left and self._clock() < deadline:
            time.sleep(0.05)
            left = [uuid for uuid in left if self._daemon(uuid).pid()]
        for uuid in left:
            self._daemon(uuid).kill()
        for uuid in self._known():
            if self._daemon(uuid).claimed:
                self._do(uuid, Action.DEFAULT)
        self._places.report.unlink(missing_ok=True)

    def _known(self) -> tuple[str, ...]:
        """GPUs with a folder: those for which a daemon was started since the host's boot."""
        with contextlib.suppress(OSError):
            return tuple(sorted(path.name for path in self._places.root.iterdir() if path.name.startswith("GPU-")))
        return ()

    def _daemon(self, uuid: str) -> Daemon:
        if uuid not in self._daemons:
            folder = self._places.of(uuid)
            self._daemons[uuid] = Daemon(folder, uuid, command=self._command, timeout=self._timeout)
            self._partitioners[uuid] = Partitioner(self._daemons[uuid], uuid)
        return self._daemons[uuid]

    def _partitions(self, uuid: str, card: Card | None) -> bool:
        """Whether the card's next daemon gives out partitions."""
        self._daemon(uuid)
        return (
            uuid in self._shares
            and card is not None
            and self._partitioners[uuid].possible(card.capability, self._driver)
        )

    def _tend(self, uuid: str, card: Card | None, wanted: bool, observation: Observation) -> GpuReport:
        state = self._states.get(uuid, DaemonState(since=self._clock()))
        seen = self._see(uuid, card, wanted)
        after, actions = step(state, seen, self._clock(), self._pace)
        if (after.phase, after.why) != (state.phase, state.why):
            level = logging.WARNING if after.why and after.phase is not Phase.BLOCKED else logging.INFO
            log.log(level, "MPS", extra={"gpu": uuid, "phase": str(after.phase), "reason": after.why})
        self._states[uuid] = after
        for action in actions:
            self._do(uuid, action, card)
        partitioned = after.serving and self._daemon(uuid).partitioned()
        given = self._given(uuid) if partitioned else NOT_PARTITIONED
        capped = _NOT_RESERVED if after.serving and uuid in self._shares and not partitioned else ""
        most = most_clients(card.capability, observation.driver) if card is not None else 0
        full = f"all {most} clients of MPS are in use; further processes fail" if 0 < most <= seen.clients else ""
        return GpuReport(
            phase=str(after.phase),
            serving=after.serving,
            taking=after.taking,
            why=after.why
            or given.why
            or full
            or capped
            or (shortcomings(self._driver, multiuser=self._multiuser) if after.serving else ""),
            servers=self._servers.get(uuid, ()),
            clients=seen.clients,
            most_clients=most,
            starts=self._starts.get(uuid, 0),
            partitioned=partitioned,
            partitions=given.partitions,
            chunks=given.chunks,
            rounded=given.rounded,
        )

    def _given(self, uuid: str) -> Partitioned:
        """The card's partitions. Without the file of wanted GPUs they stay as they are."""
        keeper = self._partitioners[uuid]
        return keeper.apply(self._shares.get(uuid, {})) if self._told else keeper.last

    def _see(self, uuid: str, card: Card | None, wanted: bool) -> Seen:
        daemon = self._daemon(uuid)
        pid = daemon.pid()
        exclusive = self._library.exclusive(uuid) if card is not None else None
        ours = self._clients.get(uuid, frozenset()) | frozenset(self._servers.get(uuid, ()))
        listed = None if card is None else card.processes
        strangers = listed is None or any(pid not in ours for pid, _ in listed)
        other = pid > 0 and daemon.partitioned() != self._partitions(uuid, card)
        seen = Seen(
            wanted=wanted,
            alive=pid > 0,
            strangers=strangers,
            exclusive=exclusive,
            claimed=daemon.claimed,
            # Without its card or the file nothing is known, and a restart would end programs.
            other_mode=other and card is not None and wanted and self._told,
        )
        servers = daemon.pids("get_server_list") if pid else ()
        if not pid or servers is None:
            # Keep its last answer: the servers and clients of a daemon that is silent or dead may still exist.
            return seen
        # A daemon that answers has made all its sockets.
        self._tidy(uuid)
        status = [daemon.ask(f"get_server_status {server}") or "" for server in servers[:_MOST_SERVERS]]
        clients = [daemon.pids(f"get_client_list {server}") or () for server in servers[:_MOST_SERVERS]]
        self._servers[uuid], self._clients[uuid] = servers, frozenset(pid for some in clients for pid in some)
        faulted = any(text.split() == ["FAULT"] for text in status)
        return replace(seen, answers=True, faulted=faulted, clients=sum(map(len, clients)))

    def _tidy(self, uuid: str) -> None:
        try:
            self._daemon(uuid).tidy()
        except OSError as error:
            log.warning("the MPS daemon's files could not be set up", extra={"gpu": uuid, "reason": str(error)})

    def _do(self, uuid: str, action: Action, card: Card | None = None) -> None:
        daemon = self._daemon(uuid)
        try:
            match action:
                case Action.START:
                    self._starts[uuid] = self._starts.get(uuid, 0) + 1
                    daemon.start(*self._flags(uuid, card))
                case Action.QUIT:
                    daemon.quit()
                case Action.KILL:
                    daemon.kill()
                case Action.EXCLUSIVE:
                    # Record it first: a mode that we set without a record would never be reset.
                    daemon.claim(True)
                    self._set_mode(uuid, exclusive=True)
                case Action.DEFAULT:
                    if self._set_mode(uuid, exclusive=False):
                        daemon.claim(False)
        except OSError as error:
            log.warning(
                "action on the MPS daemon failed", extra={"what": str(action), "gpu": uuid, "reason": str(error)}
            )

    def _flags(self, uuid: str, card: Card | None) -> tuple[str, ...]:
        multiuser = ("-multiuser-server",) if self._multiuser and knows_multiuser(self._driver) else ()
        return (*multiuser, *((FLAG,) if self._partitions(uuid, card) else ()))

    def _set_mode(self, uuid: str, *, exclusive: bool) -> bool:
        trouble = self._library.set_exclusive(uuid, exclusive)
        if trouble:
            log.warning("the compute mode was not set", extra={"gpu": uuid, "reason": trouble})
        return not trouble
