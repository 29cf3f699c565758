"""
Isolation by MPS, the agent's part: the report of the daemons' supervisor, and which GPUs need a daemon.

    report ──▶ MpsState ──▶ effects: a GPU whose daemon is away takes no new pods
    inventory ────┴──▶ wanted_gpus: which GPUs need a daemon

The agent requests a daemon only if new containers reach it, since no other container could use the GPU.

Pure except for `look`, which reads one file, and `MpsDaemons`, which keeps another. Must not: start a daemon
(`nodeagent.mps.supervisor` does).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from contract.metrics import nodeagent as specs
from contract.model import WITHHELD, Allocation, Gpu, Inventory
from contract.nodes.reports import MPS_FAULT
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.files import KeptFiles, read_text
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.cdi import Edits, mount
from nodeagent.isolation.effects import Effects
from nodeagent.isolation.mechanism import Demands, Handle, Mechanism, MechanismEntry, Reached
from nodeagent.mps.exchange import (
    NOTHING,
    PIPE_IN_CONTAINER,
    MpsPaths,
    Report,
    Shares,
    most_clients,
    report_from_text,
    shares_from_text,
    wanted_from_text,
    wanted_to_text,
)
from nodeagent.mps.lifecycle import Phase
from nodeagent.mps.partitions import COMMON, cores_of
from nodeagent.sharing.unread import unread_on
from runtime.settings import setting

DAEMONS = "MpsDaemons"
"""The condition that lists what serving daemons cannot do; absent if there is nothing to list."""
PARTITIONS = "CoresReserved"
"""The condition for whether cores are reserved by partitions; absent unless they must be."""
PARTITION_VARIABLE = "CUDA_MPS_SM_PARTITION"
"""MPS clients of a daemon that assigns partitions must have it."""
_PATIENCE = 30.0
"""Seconds after which a report is too old."""
_EVER = float("inf")
_NOT_SHARED = WITHHELD[1]


@dataclass(frozen=True, slots=True)
class MpsState:
    """The supervisor's last report. `stale`: it is too old for a living supervisor."""

    report: Report = NOTHING
    stale: bool = False

    @property
    def in_use(self) -> bool:
        """Whether any GPU has or needs a daemon."""
        return any(gpu.phase != Phase.OFF for gpu in self.report.gpus.values())

    @property
    def for_new_containers(self) -> frozenset[str]:
        """GPUs whose daemon new containers use, including those that take none at the moment."""
        return frozenset(uuid for uuid, gpu in self.report.gpus.items() if gpu.serving or not gpu.taking)

    def serves(self, gpus: Iterable[Gpu]) -> bool:
        """Whether each of these GPUs has a daemon that limits its clients now."""
        found = self.report.gpus
        return not self.stale and all(gpu.uuid in found and found[gpu.uuid].serving for gpu in gpus)

    def why_closed(self, uuid: str) -> str:
        """Why that GPU's daemon would not serve a new container; empty if it would, or if there is no daemon."""
        gpu = self.report.gpus.get(uuid)
        if gpu is None:
            return ""
        if self.stale and (gpu.serving or not gpu.taking):
            return "the supervisor of the MPS daemons does not report"
        return "" if gpu.taking else f"MPS is {gpu.phase}" + (f": {gpu.why}" if gpu.why else "")

    @property
    def effects(self) -> Effects:
        """GPUs whose daemon is away are closed; a fault of one client ends the CUDA calls of all on its GPU."""
        found = self.report.gpus
        served = {uuid: gpu for uuid, gpu in found.items() if gpu.phase != Phase.OFF}
        return Effects(
            closed={uuid: why for uuid in found if (why := self.why_closed(uuid))},
            own=self.report.servers,
            faulted={uuid: MPS_FAULT for uuid, gpu in found.items() if gpu.phase == Phase.FAULTED},
            figures={
                specs.MPS_SERVING: {uuid: float(gpu.serving and not self.stale) for uuid, gpu in served.items()},
                specs.MPS_CLIENTS: {uuid: gpu.clients for uuid, gpu in served.items()},
                specs.MPS_CLIENTS_LIMIT: {uuid: gpu.most_clients for uuid, gpu in served.items()},
                specs.MPS_STARTS: {uuid: gpu.starts for uuid, gpu in served.items()},
            },
        )

    @property
    def partitioned(self) -> frozenset[str]:
        """GPUs whose daemon gives out partitions."""
        return frozenset(uuid for uuid, gpu in self.report.gpus.items() if gpu.partitioned)

    @property
    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """Of each GPU whose daemon gives out partitions, their names by the key of the share."""
        return {uuid: gpu.partitions for uuid, gpu in self.report.gpus.items() if gpu.partitioned}

    def reserved(self, gpus: Collection[str]) -> Condition:
        """Whether cores are reserved on these GPUs, if they must be."""
        found = self.report.gpus
        capped = sorted(set(gpus) - self.partitioned)
        if capped:
            message = f"cores are capped by percentages and not reserved on {len(capped)} of {len(gpus)} GPUs: "
            whys = sorted({found[uuid].why for uuid in capped if uuid in found and found[uuid].why})
            return Condition(False, GPUNodeReason.CAPPED, "; ".join([message + ", ".join(capped), *whys]), PARTITIONS)
        rounded = sorted(f"{uuid}: {found[uuid].rounded}" for uuid in gpus if found[uuid].rounded)
        chunks = ", ".join(map(str, sorted({found[uuid].chunks for uuid in gpus})))
        message = f"each GPU has {chunks} chunks of multiprocessors; a pod has whole chunks to itself"
        return Condition(True, GPUNodeReason.PARTITIONED, "; ".join([message, *rounded]), PARTITIONS)

    def conditions(self) -> tuple[Condition, ...]:
        """What serving daemons cannot do although it is configured. For the others, the GPU's health has the reason."""
        gpus = {} if self.stale else self.report.gpus
        whys = sorted({gpu.why for gpu in gpus.values() if gpu.serving and gpu.why})
        return (Condition(False, GPUNodeReason.LIMITED, "; ".join(whys), DAEMONS),) if whys else ()


NO_DAEMONS = MpsState()


def look(file: Path | None, *, now: float, patience: float) -> MpsState:
    """The report in `file` at `now` (seconds since the epoch), stale after `patience` seconds."""
    text = read_text(file) if file else ""
    fresh = report_from_text(text, now=now, patience=patience)
    old = report_from_text(text, now=now, patience=_EVER)
    return MpsState(fresh or old or NOTHING, fresh is None and old is not None)


def wanted_gpus(
    inventory: Inventory, before: Collection[str], used: Collection[str], *, reaches: bool
) -> frozenset[str]:
    """
    The GPUs that need a daemon. `before`: those that were wanted before; `used`: those with a pod's share; `reaches`:
    whether new containers reach a daemon.

    The daemon of a GPU that is no longer wanted ends, and with it the programs on the GPU. So a daemon is requested
    only if new containers reach it, but stays when they no longer do: an upgrade of the toolkit removes its files for a
    while. On a GPU that is taken out of sharing it stays until no pod has a share of it.
    """
    wanted = set()
    for gpu in inventory.gpus:
        ours = gpu.withheld != _NOT_SHARED
        stays = gpu.uuid in before and (ours or gpu.uuid in used)
        limitable = not gpu.parent and gpu.usable > 0 and most_clients(gpu.capability, inventory.driver) > 0
        if limitable and (stays or (ours and reaches)):
            wanted.add(gpu.uuid)
    return frozenset(wanted)


def wanted_shares(
    gpus: Collection[str],
    allocations: Collection[Allocation],
    before: Shares,
    *,
    wanted: bool,
    known: bool,
    unread: Collection[str] = (),
) -> Shares:
    """
    The shares of the GPUs that are to be partitioned: percent of the cores, by the key of the share.

    `gpus`: those that need a daemon; `before`: what was wanted before; `wanted`: whether cores must be reserved;
    `known`: whether all pods here are known. A GPU changes between partitions and percentages only while no pod has a
    share of it: a program that names no partition fails under a daemon that gives them out. The GPUs of `unread` may
    have an unreadable share: they stay as they are, and no partition there is removed.

    Pods without cores of their own, or that were placed before, use one partition together.
    """
    if not known:
        return {uuid: shares for uuid, shares in before.items() if uuid in gpus}
    found: dict[str, dict[str, int]] = {}
    for allocation in allocations:
        own = cores_of(allocation)
        for uuid in {share.uuid for container in allocation.containers for share in container.shares}:
            cores, keys = own.get(uuid, 0), found.setdefault(uuid, {})
            key = allocation.partition(uuid) if cores else COMMON
            keys[key] = max(keys.get(key, 0), cores)
    for uuid in unread:
        found[uuid] = {**before.get(uuid, {}), **found.get(uuid, {})}
    chosen = {uuid for uuid in gpus if (uuid in before if uuid in found else wanted)}
    return {uuid: found.get(uuid, {}) for uuid in sorted(chosen)}


@dataclass(frozen=True)
class MpsLimiterSettings:
    """MPS."""

    mps: str = setting(
        "",
        "Folder of the MPS daemons' files on the host, mounted here under the same path; manifests/components/mps sets "
        "it and runs the daemons. Empty: none.",
    )
    partitions: bool = setting(
        False,
        "Whether cores are reserved by static partitions of MPS, if the daemon and the GPU support them and "
        "containers get GPUs by CDI: a pod then has whole chunks of multiprocessors to itself. Otherwise, and if this "
        "is off, cores are capped by a percentage.",
    )


class MpsDaemons:
    """The mechanism. The observer's thread calls `look`, the publishing thread everything else but `limits`."""

    def __init__(self, handle: Handle, chosen: MpsLimiterSettings) -> None:
        self._pods = handle.pods
        self._wall = handle.wall
        self._paths = MpsPaths(Path(chosen.mps))
        self._partitions = chosen.partitions
        self._files = KeptFiles()
        self._wanted: frozenset[str] = frozenset()
        self._by_cdi = False
        self._found = NO_DAEMONS

    def look(self, observation: Observation) -> Effects:
        """Read the supervisor's report."""
        self._found = look(self._paths.report, now=self._wall(), patience=_PATIENCE)
        return self._found.effects

    def limits(self, gpus: Iterable[Gpu]) -> bool:
        """Whether daemons serve all of them: pods get any of these GPUs."""
        return self._found.serves(gpus)

    def apply(self, inventory: Inventory, reached: Reached) -> Demands:
        """Write for the supervisor which GPUs need a daemon; nothing while no GPU can be seen."""
        self._by_cdi = reached.by_cdi
        if not inventory.problem:
            self._want(inventory, reached)
        # Also when only some are: a pod's own device serves on every GPU, all pods' device gives one chunk to all.
        partitions = self._by_cdi and bool(self._wanted & self._found.partitioned)
        return Demands(self._found.in_use, partitions)

    def conditions(self) -> tuple[Condition, ...]:
        """What daemons cannot do, and whether they reserve cores where they must."""
        return (*self._found.conditions(), *self._reserved())

    def edits(self, uuid: str, key: str | None) -> Edits | None:
        """The daemon's sockets and the pod's partition. Not ready while the daemon has not made it."""
        made = self._found.partitions.get(uuid)
        partition = made.get(key or COMMON, "") if made is not None else ""
        if key is not None and made is not None and not partition:
            return Edits(ready=False)
        if uuid not in self._found.for_new_containers:
            return None
        named = (f"{PARTITION_VARIABLE}={uuid}/{partition}",) if partition else ()
        return Edits(
            (f"CUDA_MPS_PIPE_DIRECTORY={PIPE_IN_CONTAINER}", *named),
            (
                mount(self._paths.of(uuid) / "pipe", PIPE_IN_CONTAINER, "rw"),
                # Daemon and clients share memory there.
                mount(self._paths.root / "shm", "/dev/shm", "rw"),
            ),
        )

    def _reserved(self) -> tuple[Condition, ...]:
        if not self._partitions:
            return ()
        if not self._by_cdi:
            message = "cores are capped by percentages and not reserved: containers do not get GPUs by CDI here"
            return (Condition(False, GPUNodeReason.NEEDS_CDI, message, PARTITIONS),)
        return (self._found.reserved(self._wanted),) if self._wanted else ()

    def _want(self, inventory: Inventory, reached: Reached) -> None:
        text, allocations = read_text(self._paths.wanted), tuple(self._pods.allocations())
        before = wanted_from_text(text) or frozenset()
        unread = unread_on(self._pods.all(), [gpu.uuid for gpu in inventory.gpus])
        used = {s.uuid for a in allocations for container in a.containers for s in container.shares} | unread
        self._wanted = wanted_gpus(inventory, before, used, reaches=reached.really)
        shares = wanted_shares(
            self._wanted,
            allocations,
            shares_from_text(text),
            wanted=self._partitions and self._by_cdi,
            known=self._pods.known,
            unread=unread,
        )
        self._files.keep(self._paths.wanted, wanted_to_text(self._wanted, shares))


def build(handle: Handle, chosen: MpsLimiterSettings) -> Mechanism | None:
    """MPS, where its folder is set."""
    if not chosen.mps:
        return None
    made = MpsDaemons(handle, chosen)
    return Mechanism(made.limits, made.look, made.edits, made.apply, made.conditions)


ENTRY = MechanismEntry(build, MpsLimiterSettings)
