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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from nodeagent.files import read_text, write_atomically
from nodeagent.gpus.library import Card, GpuLibrary
from nodeagent.gpus.observation import look
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
    "cores are capped by percentages and not reserved: static partitions need an MPS daemon of version 13010 or later "
    "and a GPU of the Ampere generation or later"
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


@dataclass(slots=True)
class _Gpu:
    """What is kept of one GPU between two rounds. Only `Supervisor` changes it."""

    uuid: str
    daemon: Daemon
    partitioner: Partitioner
    state: DaemonState
    starts: int = 0
    servers: tuple[int, ...] = ()
    """Process ids in the daemon's last answer. A silent or dead daemon's servers and clients may still exist."""
    clients: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class _Round:
    """
    The input of one round. `driver`: the version that a library reported last. `named`: the GPUs that need a daemon;
    None without the agent's file. `shares`: the GPUs that are to be partitioned.
    """

    cards: Mapping[str, Card]
    driver: str
    named: frozenset[str] | None
    shares: Shares


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
        self._library = library
        self._places = MpsPaths(root)
        self._command = command
        self._multiuser = multiuser
        self._timeout = timeout
        self._pace = pace or RestartPace()
        self._clock = clock
        self._wall = wall
        self._driver = ""
        self._gpus: dict[str, _Gpu] = {}
        self.report = Report()

    def run(self, stopping: threading.Event, *, interval: float) -> None:
        """Do rounds until stopped. The daemons continue."""
        while not stopping.is_set():
            self.step()
            stopping.wait(interval)

    def step(self) -> Report:
        """One round."""
        now = self._round()
        named = now.named if now.named is not None else frozenset()
        reports = {}
        for uuid in sorted({*self._known(), *self._gpus, *(named & now.cards.keys())}):
            gpu = self._gpu(uuid)
            reports[uuid] = self._tend(gpu, now)
            self._drop_unused(gpu)
        self.report = Report(self._wall(), reports)
        try:
            write_atomically(self._places.report, report_to_text(self.report))
        except OSError as error:
            log.warning("the report could not be written", extra={"reason": str(error)})
        return self.report

    def end(self, *, within: float) -> None:
        """Ask all daemons to end, kill those that do not within `within` seconds, and reset the compute modes."""
        deadline = self._clock() + within
        gpus = [self._gpu(uuid) for uuid in self._known()]
        left = [gpu.daemon for gpu in gpus if gpu.daemon.pid()]
        for daemon in left:
            daemon.quit()
        while left and self._clock() < deadline:
            time.sleep(0.05)
            left = [daemon for daemon in left if daemon.pid()]
        for daemon in left:
            daemon.kill()
        for gpu in gpus:
            if gpu.daemon.claimed:
                self._do(gpu, Action.DEFAULT)
        self._places.report.unlink(missing_ok=True)

    def _known(self) -> tuple[str, ...]:
        """GPUs with a folder: those for which a daemon was started since the host's boot."""
        with contextlib.suppress(OSError):
            return tuple(sorted(path.name for path in self._places.root.iterdir() if path.name.startswith("GPU-")))
        return ()

    def _gpu(self, uuid: str) -> _Gpu:
        """The GPU's record, made on first use. `_drop_unused` drops it."""
        if uuid not in self._gpus:
            daemon = Daemon(self._places.of(uuid), uuid, command=self._command, timeout=self._timeout)
            state = DaemonState(since=self._clock())
            self._gpus[uuid] = _Gpu(uuid, daemon, Partitioner(daemon, uuid), state)
        return self._gpus[uuid]

    def _drop_unused(self, gpu: _Gpu) -> None:
        """Drop the record of a GPU that needs no daemon and for which none was started since the host's boot."""
        if gpu.state.phase is Phase.OFF and not self._places.of(gpu.uuid).exists():
            del self._gpus[gpu.uuid]

    def _round(self) -> _Round:
        observation = look(self._library)
        self._driver = observation.driver or self._driver
        cards = {card.uuid: card for card in observation.cards if card.uuid and not card.parent}
        text = read_text(self._places.wanted)
        return _Round(cards, self._driver, wanted_from_text(text), shares_from_text(text))

    def _tend(self, gpu: _Gpu, now: _Round) -> GpuReport:
        card = now.cards.get(gpu.uuid)
        seen = self._see(gpu, card, now)
        before = gpu.state
        gpu.state, actions = step(before, seen, self._clock(), self._pace)
        _log_change(gpu, before)
        for action in actions:
            self._do(gpu, action, self._flags(gpu, card, now) if action is Action.START else ())
        return self._report(gpu, card, now, seen.clients)

    def _report(self, gpu: _Gpu, card: Card | None, now: _Round, clients: int) -> GpuReport:
        after = gpu.state
        partitioned = after.serving and gpu.daemon.partitioned()
        given = _given(gpu, now) if partitioned else NOT_PARTITIONED
        capped = _NOT_RESERVED if after.serving and gpu.uuid in now.shares and not partitioned else ""
        most = most_clients(card.capability, now.driver) if card is not None else 0
        full = f"all {most} clients of MPS are in use; further processes fail" if 0 < most <= clients else ""
        lacks = shortcomings(now.driver, multiuser=self._multiuser) if after.serving else ""
        return GpuReport(
            phase=str(after.phase),
            serving=after.serving,
            taking=after.taking,
            why=after.why or given.why or full or capped or lacks,
            servers=gpu.servers,
            clients=clients,
            most_clients=most,
            starts=gpu.starts,
            partitioned=partitioned,
            partitions=given.partitions,
            chunks=given.chunks,
            rounded=given.rounded,
        )

    def _see(self, gpu: _Gpu, card: Card | None, now: _Round) -> Seen:
        daemon = gpu.daemon
        pid = daemon.pid()
        # Without the file of wanted GPUs a daemon stays as it is.
        wanted = gpu.uuid in now.named if now.named is not None else pid > 0
        exclusive = self._library.exclusive(gpu.uuid) if card is not None else None
        ours = gpu.clients | frozenset(gpu.servers)
        listed = None if card is None else card.processes
        strangers = listed is None or any(pid not in ours for pid, _ in listed)
        other = pid > 0 and daemon.partitioned() != _partitions(gpu, card, now)
        seen = Seen(
            wanted=wanted,
            alive=pid > 0,
            strangers=strangers,
            exclusive=exclusive,
            claimed=daemon.claimed,
            # Without its card or the file nothing is known, and a restart would end programs.
            other_mode=other and card is not None and wanted and now.named is not None,
        )
        servers = daemon.pids("get_server_list") if pid else ()
        if not pid or servers is None:
            return seen
        # A daemon that answers has made all its sockets.
        _tidy(gpu)
        status = [daemon.ask(f"get_server_status {server}") or "" for server in servers[:_MOST_SERVERS]]
        clients = [daemon.pids(f"get_client_list {server}") or () for server in servers[:_MOST_SERVERS]]
        gpu.servers = servers
        gpu.clients = frozenset(pid for some in clients for pid in some)
        faulted = any(text.split() == ["FAULT"] for text in status)
        return replace(seen, answers=True, faulted=faulted, clients=sum(map(len, clients)))

    def _do(self, gpu: _Gpu, action: Action, flags: tuple[str, ...] = ()) -> None:
        """Take the action. `flags`: those of a daemon that is started."""
        daemon = gpu.daemon
        try:
            match action:
                case Action.START:
                    gpu.starts += 1
                    daemon.start(*flags)
                case Action.QUIT:
                    daemon.quit()
                case Action.KILL:
                    daemon.kill()
                case Action.EXCLUSIVE:
                    # Record it first: a mode that we set without a record would never be reset.
                    daemon.claim(True)
                    self._set_mode(gpu.uuid, exclusive=True)
                case Action.DEFAULT:
                    if self._set_mode(gpu.uuid, exclusive=False):
                        daemon.claim(False)
        except OSError as error:
            log.warning(
                "action on the MPS daemon failed", extra={"what": str(action), "gpu": gpu.uuid, "reason": str(error)}
            )

    def _flags(self, gpu: _Gpu, card: Card | None, now: _Round) -> tuple[str, ...]:
        multiuser = ("-multiuser-server",) if self._multiuser and knows_multiuser(now.driver) else ()
        return (*multiuser, *((FLAG,) if _partitions(gpu, card, now) else ()))

    def _set_mode(self, uuid: str, *, exclusive: bool) -> bool:
        trouble = self._library.set_exclusive(uuid, exclusive)
        if trouble:
            log.warning("the compute mode was not set", extra={"gpu": uuid, "reason": trouble})
        return not trouble


def _partitions(gpu: _Gpu, card: Card | None, now: _Round) -> bool:
    """Whether the GPU's next daemon gives out partitions."""
    return gpu.uuid in now.shares and card is not None and gpu.partitioner.possible(card.capability, now.driver)


def _given(gpu: _Gpu, now: _Round) -> Partitioned:
    """The GPU's partitions. Without the file of wanted GPUs they stay as they are."""
    return gpu.partitioner.last if now.named is None else gpu.partitioner.apply(now.shares.get(gpu.uuid, {}))


def _log_change(gpu: _Gpu, before: DaemonState) -> None:
    after = gpu.state
    if (after.phase, after.why) != (before.phase, before.why):
        level = logging.WARNING if after.why and after.phase is not Phase.BLOCKED else logging.INFO
        log.log(level, "MPS", extra={"gpu": gpu.uuid, "phase": str(after.phase), "reason": after.why})


def _tidy(gpu: _Gpu) -> None:
    try:
        gpu.daemon.tidy()
    except OSError as error:
        log.warning("the MPS daemon's files could not be set up", extra={"gpu": gpu.uuid, "reason": str(error)})
