"""
Memory limits by the driver: one for each container on each of its GPUs, by the container's control group.

A container's hard limit is its memory limit. Where a share of the GPU may burst, each container there has its booked
memory as soft limit, which the driver keeps for it. Elsewhere no container can take what another has booked, so there
is no soft limit: it is a guarantee that outlasts its group in the counts of the groups above it (NVML,
`memory limits`).

The driver of version 615 and later refuses an allocation by which a control group's processes would exceed their limit
(NVML, `nvmlDeviceSetMemoryLimits_v1`; cgroup v2, no MIG). The agent sets the limit as soon as the container's group
exists, reads it back, sets it again from time to time, and removes it when the container has ended. It outlives the
agent, so a restart changes nothing.

A container's group exists before the pod's status has the container's id. Until then the pod's uid in the group's path
identifies the pod, and the group gets the smallest share among the pod's containers without an id: too little memory
gives a program an error for a moment, too much could take another pod's memory.

A share that the agent cannot read, such as one that a later version wrote, holds its GPUs. Its containers keep the
limits that they have. The others there get what they have booked and no more, since a burst could take its memory.

Off by default: we have not tried the call and the form of the path on a card.

Pure except for what it applied; the driver and the groups are passed in. Must not: talk to the API server.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from contract.isolation import LEAST_DRIVER
from contract.model import Gpu, GpuShare
from nodeagent.gpus.library import DriverLimits, MemoryLimit
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.effects import NO_EFFECTS, Effects
from nodeagent.isolation.mechanism import Handle, Mechanism, MechanismEntry, NodePods
from nodeagent.sharing.residents import Resident
from nodeagent.sharing.unread import unread_on
from nodeagent.sharing.usage import container_of
from runtime.settings import setting

log = logging.getLogger(__name__)

PAUSE = 0.5
"""Seconds between two looks for containers whose group is new."""
_AGAIN = 120
"""Every 120th round sets all limits again and reads them back: another program may have changed one."""
_NOWHERE = "no folder kubepods is in the node's /sys/fs/cgroup, so kubelet keeps its pods' groups elsewhere"
_PODS = ("kubepods", "kubepods.slice")
_CLASSES = ("burstable", "besteffort", "burstable.slice", "besteffort.slice")
_POD = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f_-]{27})(?:\.slice)?$")


@dataclass(frozen=True, slots=True)
class Group:
    """A container's control group: the uid of its pod, and its path on the host."""

    pod: str
    path: str


class Limiter:
    """
    Keeps the driver's limits equal to the shares. `groups` returns the groups of the containers of pods, by pod uids;
    None where it does not find those of any pod, and then no container is limited.

    `trouble`: why limits are not enforced; empty while they are. `cards`: the UUIDs of all cards and slices here. One
    thread uses it, but for `cards`.
    """

    def __init__(self, limits: DriverLimits, groups: Callable[[Collection[str]], Mapping[str, Group] | None]) -> None:
        self._limits = limits
        self._groups = groups
        self._applied: dict[tuple[str, str], MemoryLimit] = {}
        self.trouble = ""
        self.cards: frozenset[str] = frozenset()

    def apply(self, residents: Iterable[Resident], *, again: bool = False) -> None:
        """Make the limits those of these pods. `again`: also set, and read back, those that were set before."""
        here = tuple(resident for resident in residents if resident.allocation is not None or resident.unread)
        groups = self._groups({resident.uid for resident in here})
        failed = _NOWHERE if groups is None else ""
        groups = groups or {}
        wanted = {**self._kept(here, groups), **wanted_limits(here, groups, unread_on(here, self.cards))}
        for key, limit in wanted.items():
            if again or self._applied.get(key) != limit:
                trouble = self._limits.limit_memory(*key, limit)
                failed = failed or trouble
                if trouble:
                    self._applied.pop(key, None)
                else:
                    self._applied[key] = limit
        for key in self._applied.keys() - wanted.keys():
            # It may fail because the group no longer exists, so the result does not matter.
            self._limits.limit_memory(*key, None)
            del self._applied[key]
        self.trouble = failed

    def _kept(
        self, residents: Iterable[Resident], groups: Mapping[str, Group]
    ) -> Mapping[tuple[str, str], MemoryLimit]:
        """The limits of containers whose share can no longer be read."""
        unread = {resident.uid for resident in residents if resident.unread is not None}
        paths = {group.path for group in groups.values() if group.pod in unread}
        return {key: limit for key, limit in self._applied.items() if key[1] in paths}


class LimitedByDriver:
    """
    The mechanism. It has a thread and a driver library of its own, since a container's limit must exist before its
    program allocates.
    """

    def __init__(self, limiter: Limiter, pods: NodePods, *, cgroup: str) -> None:
        self._limiter = limiter
        self._pods = pods
        self._cgroup = cgroup
        self._works = self._possible = False
        self._rounds = 0

    def look(self, observation: Observation) -> Effects:
        """Whether the driver can limit at all, and which cards there are; where none can be seen, those before."""
        if not observation.problem:
            self._limiter.cards = frozenset(card.uuid for card in observation.cards if card.uuid)
        self._possible = not observation.problem and not possible(observation.driver, self._cgroup)
        return NO_EFFECTS

    def limits(self, gpus: Sequence[Gpu]) -> bool:
        """Whether the last round succeeded. From any thread."""
        return self._works

    def run(self, stopping: threading.Event, *, pause: float = PAUSE) -> None:
        """Bring the limits up to date repeatedly until stopped."""
        while not stopping.is_set():
            self.round()
            stopping.wait(pause)

    def round(self) -> None:
        """Bring the limits up to date once."""
        if not self._possible:
            self._works = False
            return
        before = self._limiter.trouble
        self._limiter.apply(self._pods.all(), again=self._rounds % _AGAIN == 0)
        self._rounds += 1
        self._works = not self._limiter.trouble
        if self._limiter.trouble not in ("", before):
            log.warning("the driver does not limit containers", extra={"reason": self._limiter.trouble})

    @property
    def mechanism(self) -> Mechanism:
        """As the table has it."""
        return Mechanism(self.limits, self.look, workers={"limits": self.run})


@dataclass(frozen=True)
class DriverSettings:
    """Limits by the driver."""

    driver_limits: bool = setting(
        False,
        "Have the driver (615 and later, cgroup v2) limit each container to its share of memory. The agent must run "
        "as root and see the host's control groups below host_root. Off by default, since it has not been tested on a "
        "GPU.",
    )


def build(handle: Handle, chosen: DriverSettings) -> Mechanism | None:
    """Limits by the driver, where they are enabled and the agent can open the driver."""
    if handle.driver is None or not chosen.driver_limits:
        return None
    groups = handle.root / "sys/fs/cgroup"
    limiter = Limiter(handle.driver(), lambda pods: container_groups(groups, pods))
    return LimitedByDriver(limiter, handle.pods, cgroup=handle.cgroup).mechanism


ENTRY = MechanismEntry(build, DriverSettings, group="")


def wanted_limits(
    residents: Iterable[Resident], groups: Mapping[str, Group], unread: Collection[str] = ()
) -> dict[tuple[str, str], MemoryLimit]:
    """
    Limits by GPU and group; `groups` is by container id. A container without a group gets its limit in a later round.
    `unread`: the GPUs that a share of unknown size may hold.

    A restarted container has a new id, and while the API server is away the pod's status still has the old one. So an
    id without a group counts as unknown.
    """
    by_uid = {resident.uid: resident for resident in residents}
    bursting = {share.uuid for resident in by_uid.values() for share in _shares(resident) if share.burst} | {*unread}
    wanted: dict[tuple[str, str], MemoryLimit] = {}
    for cid, group in groups.items():
        resident = by_uid.get(group.pod)
        if resident is None or resident.allocation is None:
            continue
        named = {cid: name for cid, name in resident.containers if cid in groups}
        for container in resident.allocation.containers:
            if container.container != named.get(cid, container.container):
                continue
            if cid not in named and container.container in named.values():
                continue
            for share in container.shares:
                key = (share.uuid, group.path)
                limit = _limit(share, guaranteed=share.uuid in bursting, bursts=share.uuid not in unread)
                least = wanted.get(key, limit)
                wanted[key] = MemoryLimit(min(limit.hard, least.hard), min(limit.soft, least.soft))
    return wanted


def _limit(share: GpuShare, *, guaranteed: bool, bursts: bool) -> MemoryLimit:
    # With oversubscription a share may exceed the card's memory; the driver refuses such a limit.
    most = share.gpu_memory or share.limit
    hard = share.limit if bursts else share.memory
    return MemoryLimit(min(hard, most), min(share.memory, most) if guaranteed else 0)


def _shares(resident: Resident) -> Iterator[GpuShare]:
    for container in resident.allocation.containers if resident.allocation is not None else ():
        yield from container.shares


def possible(driver: str, cgroup: str) -> str:
    """Why this machine's driver cannot limit memory, or empty."""
    major = driver.partition(".")[0]
    if not major.isdecimal() or int(major) < LEAST_DRIVER:
        return f"the driver is {driver or 'unknown'}; {LEAST_DRIVER} or later is needed"
    return "" if cgroup == "v2" else "the node has no cgroup v2"


def container_groups(root: Path, pods: Collection[str]) -> dict[str, Group] | None:
    """
    The control groups of these pods' containers by container id. `root` is the host's /sys/fs/cgroup. None: kubelet has
    no groups there.

    A pod's group has its uid in its name, below `kubepods` or `kubepods.slice` and its class of service:
    `kubepods/burstable/pod<uid>`, or `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice` with
    `_` for `-`. All this may be one folder further down, which kubelet's `cgroupRoot` names and whose name is then
    before `kubepods`. Only those folders are read, since this is called twice a second.
    """
    names = {uid.replace("-", "_"): uid for uid in pods}
    found: dict[str, Group] = {}
    tops = _tops(root)
    for folder in _pod_folders(tops) if names else ():
        match = _POD.search(folder.name)
        uid = names.get(match[1].replace("-", "_")) if match else None
        if uid is None:
            continue
        for inner in _folders(folder):
            cid = container_of(f"/{inner.name}")
            if cid:
                found[cid] = Group(uid, f"/sys/fs/cgroup/{inner.relative_to(root)}")
    return found if tops else None


def _pod_folders(tops: Iterable[Path]) -> Iterator[Path]:
    for top in tops:
        for folder in _folders(top):
            if folder.name.endswith(_CLASSES):
                yield from _folders(folder)
            else:
                yield folder


def _tops(root: Path) -> list[Path]:
    groups = _folders(root)
    found = [path for path in groups if path.name in _PODS]
    if found:
        return found
    below = (path for group in groups for path in _folders(group))
    return [path for path in below if path.name in _PODS or path.name.endswith("-kubepods.slice")]


def _folders(path: Path) -> list[Path]:
    """The folders in a folder; none if it does not exist any more."""
    try:
        with os.scandir(path) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return []
