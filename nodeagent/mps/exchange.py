"""
The files that the supervisor of the MPS daemons, the node agent and the containers exchange, below one host folder.

    <root>/wanted.json          the GPUs that need a daemon: written by the node agent
    <root>/report.json          the state of the daemons: written by their supervisor
    <root>/shm                  what daemons and clients share as /dev/shm
    <root>/<uuid>/pipe          the daemon's sockets; in a container: `PIPE_IN_CONTAINER`
    <root>/<uuid>/keys          the socket that takes every command; no container gets it
    <root>/<uuid>/log           the daemon's output
    <root>/<uuid>/daemon        its process id and start time
    <root>/<uuid>/claimed       present if the supervisor set the card's compute mode
    <root>/<uuid>/partitions    the partition of each share that has one

Supervisor and agent may be of different versions for a while, since the supervisor is replaced only by hand. So a
reader leaves out what it does not understand, and ignores a report that is too old: silence must never look like
health.

Pure. Must not: read or write files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from contract.encoding.reading import Malformed
from contract.encoding.wire import load

_FIRST_OF_VOLTA = (7, 0)
_CUDA_13_1 = 590
"""The driver that came with CUDA 13.1."""
_MULTIUSER = 555
"""The first driver known to take `-multiuser-server`; the daemons of 550 and 535 refuse to start with it."""
_STATUS = 550
"""The first driver known to have `get_server_status`; the daemon of 535 does not."""
_LATEST = 1 << 40
"""Seconds since the epoch that no clock shows; more of them may be more than a float holds."""
ROOT = "/run/gpufraction/mps"
"""On the host. Short, since the path of a socket may have 107 characters; empty after the host's restart."""
PIPE_IN_CONTAINER = "/tmp/nvidia-mps"
"""MPS's default, so that a client finds it without a variable."""


@dataclass(frozen=True, slots=True)
class MpsPaths:
    """The folder's parts."""

    root: Path

    @property
    def wanted(self) -> Path:
        return self.root / "wanted.json"

    @property
    def report(self) -> Path:
        return self.root / "report.json"

    def of(self, uuid: str) -> Path:
        """The folder of one GPU."""
        return self.root / uuid


@dataclass(frozen=True, slots=True)
class GpuReport:
    """
    One GPU's daemon. `serving`: limits are enforced. `taking`: the GPU may take new pods. `why`: the problem, or empty.
    `servers`: process ids as the driver reports them. `clients`, `most_clients`: numbers of processes.
    `partitioned`: the daemon gives out partitions. `partitions`: their names, by the key of the share. `chunks`: of the
    card. `rounded`: what rounding to chunks does to shares, or empty.
    """

    phase: str
    serving: bool = False
    taking: bool = True
    why: str = ""
    servers: tuple[int, ...] = ()
    clients: int = 0
    most_clients: int = 0
    starts: int = 0
    partitioned: bool = False
    partitions: Mapping[str, str] = field(default_factory=dict)
    chunks: int = 0
    rounded: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """All of a node's daemons. `at`: seconds since the epoch, by this node's clock."""

    at: float = 0.0
    gpus: Mapping[str, GpuReport] = field(default_factory=dict)

    @property
    def servers(self) -> frozenset[int]:
        """Process ids of all MPS servers."""
        return frozenset(pid for gpu in self.gpus.values() for pid in gpu.servers)


NOTHING = Report()


def most_clients(capability: str, driver: str) -> int:
    """
    Client processes that MPS serves on one GPU; 0 if it cannot limit them.

    60 since CUDA 13.1, 48 before it. Cards before Volta have no limits of memory or threads per client.
    """
    major, _, minor = capability.partition(".")
    if not (major.isdecimal() and minor.isdecimal()) or (int(major), int(minor)) < _FIRST_OF_VOLTA:
        return 0
    return 60 if _branch(driver) >= _CUDA_13_1 else 48


def knows_multiuser(driver: str) -> bool:
    """Whether that driver's daemon can have one server for clients of all users; no if the driver is unknown."""
    return _branch(driver) >= _MULTIUSER


def shortcomings(driver: str, *, multiuser: bool) -> str:
    """The wanted functions that the daemon of that driver lacks, as a sentence, or empty."""
    found = []
    if multiuser and 0 < _branch(driver) < _MULTIUSER:
        found.append("a container of another user waits until the earlier clients have ended")
    if 0 < _branch(driver) < _STATUS:
        found.append("faults of its servers are not detected")
    return f"the MPS daemon of driver {driver} is an old one: {', and '.join(found)}" if found else ""


def _branch(driver: str) -> int:
    branch = driver.partition(".")[0]
    return int(branch) if branch.isascii() and branch.isdecimal() else 0


def report_to_text(report: Report) -> str:
    """The content of the report's file."""
    return json.dumps({"version": 1, "at": report.at, "gpus": {u: asdict(g) for u, g in report.gpus.items()}})


def report_from_text(text: str, *, now: float, patience: float) -> Report | None:
    """The report; None if it cannot be read or is older than `patience` seconds."""
    document = _object(text)
    at, gpus = document.get("at"), document.get("gpus")
    if not isinstance(at, int | float) or not isinstance(gpus, dict) or abs(at) > _LATEST:
        return None
    # A time in the future comes from a clock that was set back since.
    if not -patience <= now - at <= patience:
        return None
    return Report(float(at), {uuid: _gpu(item) for uuid, item in gpus.items() if isinstance(item, dict)})


Shares = Mapping[str, Mapping[str, int]]
"""By GPU that is to be partitioned: percent of its cores, by the key of the share (see `nodeagent.mps.partitions`)."""


def wanted_to_text(uuids: Iterable[str], shares: Shares | None = None) -> str:
    """The content of the file of wanted GPUs."""
    partitions = {"partitions": {uuid: dict(keys) for uuid, keys in sorted(shares.items())}} if shares else {}
    return json.dumps({"version": 1, "gpus": sorted(uuids), **partitions})


def wanted_from_text(text: str) -> frozenset[str] | None:
    """The wanted GPUs; None if the text is no such list."""
    gpus = _object(text).get("gpus")
    return frozenset(map(str, gpus)) if isinstance(gpus, list) else None


def shares_from_text(text: str) -> Shares:
    """The GPUs that are to be partitioned, in the file of wanted GPUs; what cannot be read is left out."""
    shares = _object(text).get("partitions")
    return {
        str(uuid): {str(key): cores for key, cores in keys.items() if isinstance(cores, int)}
        for uuid, keys in (shares.items() if isinstance(shares, dict) else ())
        if isinstance(keys, dict)
    }


def partitions_to_text(pid: int, partitions: Mapping[str, str]) -> str:
    """The content of the file of a GPU's partitions."""
    return json.dumps({"version": 1, "daemon": pid, "partitions": dict(partitions)})


def partitions_from_text(text: str, pid: int) -> Mapping[str, str]:
    """The partitions that this daemon gave out, by the key of the share; none where another one did."""
    document = _object(text)
    found = document.get("partitions")
    return _texts(found) if document.get("daemon") == pid else {}


def _texts(found: object) -> Mapping[str, str]:
    return {str(key): text for key, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}


def _object(text: str) -> dict[str, Any]:
    try:
        return load(text, "the file")
    except Malformed:
        return {}


def _gpu(item: Mapping[str, Any]) -> GpuReport:
    servers = item.get("servers")
    return GpuReport(
        phase=str(item.get("phase", "")),
        serving=item.get("serving") is True,
        # An unknown value takes no pods.
        taking=item.get("taking") is True,
        why=str(item.get("why", "")),
        servers=tuple(pid for pid in servers if isinstance(pid, int)) if isinstance(servers, list) else (),
        clients=_count(item, "clients"),
        most_clients=_count(item, "most_clients"),
        starts=_count(item, "starts"),
        partitioned=item.get("partitioned") is True,
        partitions=_texts(item.get("partitions")),
        chunks=_count(item, "chunks"),
        rounded=str(item.get("rounded", "")),
    )


def _count(item: Mapping[str, Any], key: str) -> int:
    value = item.get(key)
    return value if isinstance(value, int) else 0
