"""
Isolation by MPS, the agent's part: the report of the daemons' supervisor, and which GPUs need a daemon.

    report ──▶ MpsState ──▶ judged: a GPU whose daemon is away takes no new pods
    inventory ────┴──▶ wanted_gpus: which GPUs need a daemon

Pure but for `look`, which reads one file, and for the faults that `Faults` remembers. Must not: start a daemon
(`nodeagent.mps.supervisor` does).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from contract.model import WITHHELD, Allocation, Gpu, Inventory
from contract.nodes.reports import MPS_FAULT, PodReport
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.files import read_text
from nodeagent.gpus.observation import Observation
from nodeagent.mps.exchange import NOTHING, Report, Shares, most_clients, report_from_text
from nodeagent.mps.lifecycle import Phase
from nodeagent.mps.partitions import COMMON, cores_of
from nodeagent.sharing.residents import Resident

DAEMONS = "MpsDaemons"
"""The condition that lists what serving daemons cannot do; absent if there is nothing to list."""
PARTITIONS = "CoresReserved"
"""The condition for whether cores are reserved by partitions; absent unless they shall be."""
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
    def partitioned(self) -> frozenset[str]:
        """GPUs whose daemon gives out partitions."""
        return frozenset(uuid for uuid, gpu in self.report.gpus.items() if gpu.partitioned)

    @property
    def partitions(self) -> Mapping[str, Mapping[str, str]]:
        """Of each GPU whose daemon gives out partitions, their names by the key of the share."""
        return {uuid: gpu.partitions for uuid, gpu in self.report.gpus.items() if gpu.partitioned}

    def reserved(self, gpus: Collection[str]) -> Condition:
        """Whether cores are reserved on these GPUs, where they shall be."""
        found = self.report.gpus
        capped = sorted(set(gpus) - self.partitioned)
        if capped:
            message = f"cores are capped by percentages and not reserved on {len(capped)} of {len(gpus)} GPUs: "
            whys = sorted({found[uuid].why for uuid in capped if uuid in found and found[uuid].why})
            return Condition(False, GPUNodeReason.CAPPED, "; ".join([message + ", ".join(capped), *whys]), PARTITIONS)
        told = sorted(f"{uuid}: {found[uuid].rounded}" for uuid in gpus if found[uuid].rounded)
        chunks = ", ".join(map(str, sorted({found[uuid].chunks for uuid in gpus})))
        message = f"each GPU has {chunks} chunks of multiprocessors; a pod's cores are whole chunks of its own"
        return Condition(True, GPUNodeReason.PARTITIONED, "; ".join([message, *told]), PARTITIONS)

    def conditions(self) -> tuple[Condition, ...]:
        """What serving daemons cannot do although it is set. For the others the GPU's health has the reason."""
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
    gpus: Collection[str], allocations: Collection[Allocation], before: Shares, *, wanted: bool, known: bool
) -> Shares:
    """
    The shares of the GPUs that are to be partitioned: percent of the cores, by the key of the share.

    `gpus`: those that need a daemon; `before`: what was wanted before; `wanted`: whether cores shall be reserved;
    `known`: whether all pods here are known. A GPU changes between partitions and percentages only while no pod has a
    share of it: a program that names no partition fails under a daemon that gives them out.

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
    chosen = {uuid for uuid in gpus if (uuid in before if uuid in found else wanted)}
    return {uuid: found.get(uuid, {}) for uuid in sorted(chosen)}


def judged(observation: Observation, mps: MpsState) -> Observation:
    """The observation, with each GPU unhealthy whose daemon would not serve a new container."""
    return replace(
        observation,
        cards=tuple(
            replace(card, healthy=False, reason=why) if card.healthy and (why := mps.why_closed(card.uuid)) else card
            for card in observation.cards
        ),
    )


def without_servers(observation: Observation, mps: MpsState) -> Observation:
    """The observation without the MPS servers' own processes, whose memory is their clients'."""
    servers = mps.report.servers
    if not servers:
        return observation
    return replace(
        observation,
        cards=tuple(
            card
            if card.processes is None
            else replace(card, processes=tuple((pid, used) for pid, used in card.processes if pid not in servers))
            for card in observation.cards
        ),
    )


class Faults:
    """
    Finds the pods on a GPU whose MPS server has a fault, for as long as it lasts. One thread uses it.

    The fault of one client ends the CUDA calls of every client of that server, and the server takes no new ones until
    all of them have ended. The other owners see errors in programs that did nothing wrong.
    """

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], int] = {}
        """By the pod's uid and the GPU."""

    def reports(self, report: Report, residents: Iterable[Resident], now: float) -> frozenset[PodReport]:
        """One for each pod and GPU. `now`: seconds since 1970."""
        faulted = {uuid for uuid, gpu in report.gpus.items() if gpu.phase == Phase.FAULTED}
        affected = {
            (resident.uid, share.uuid): place
            for resident in residents
            for place, container in enumerate(resident.allocation.containers if resident.allocation else ())
            for share in container.shares
            if share.uuid in faulted
        }
        self._since = {key: self._since.get(key, int(now)) for key in affected}
        return frozenset(
            PodReport(self._since[uid, gpu], uid, MPS_FAULT, place, gpu) for (uid, gpu), place in affected.items()
        )
