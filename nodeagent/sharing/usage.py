"""
Which container uses how much memory of a GPU: joins the driver's processes, control groups and the pods' containers.

    GPU ──NVML──▶ process id ──/proc/<pid>/cgroup──▶ container id ──Pod status──▶ pod, container, share

Process ids are the host's, so the agent must see those (hostPID). The memory of a process that belongs to no container
with a share on that GPU is counted apart.

Pure: the content of `/proc` is passed in. Must not: judge.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from contract.model import GpuShare
from nodeagent.gpus.library import Card
from nodeagent.sharing.residents import Resident

_CONTAINER = re.compile(r"(?:^|[-/:])(?<!conmon-)([0-9a-f]{64})(?:\.scope)?(?:/|$)", re.MULTILINE)
"""A container id in a cgroup path, as containerd and CRI-O write it with either cgroup driver:
`cri-containerd-<id>.scope`, `crio-<id>.scope`, `/<id>`, `/crio-<id>`. Processes may be in a group below it. CRI-O's
monitor of a container may be alongside it, under the same id: `crio-conmon-<id>`."""


_Container = tuple[str, str]
"""A pod's uid and the container's name."""


@dataclass(frozen=True, slots=True)
class Use:
    """One container's use of one GPU: its share and its processes' memory, in bytes."""

    resident: Resident
    container: str
    gpu: str
    share: int
    cores: int
    used: int
    busy: int | None = None
    """Percent of the GPU's multiprocessors; None if the driver does not report it."""
    active: bool | None = None
    """Whether it has used the GPU at all in the last seconds; None if that is unknown."""
    burst: int = 0
    """Bytes above the share that it may use while nobody else needs them."""

    @property
    def limit(self) -> int:
        """Bytes that the container may use at most."""
        return self.share + self.burst


@dataclass(frozen=True, slots=True)
class NodeUsage:
    """Every container with a share, and for each GPU the bytes of other processes."""

    uses: tuple[Use, ...] = ()
    strangers: tuple[tuple[str, int], ...] = ()


def container_of(cgroup: str) -> str:
    """
    The container id in the text of `/proc/<pid>/cgroup`, or empty. For nested containers it is the outermost.
    """
    found = _CONTAINER.search(cgroup)
    return found[1] if found else ""


def measure(cards: Iterable[Card], residents: Iterable[Resident], cgroup_of: Callable[[int], str]) -> NodeUsage:
    """
    The use of all containers. `cgroup_of(pid)` is the text of that process's `/proc` file, empty if it has ended.

    A card whose driver does not list processes has no figures.
    """
    here = tuple(residents)
    owner = {cid: (resident.uid, name) for resident in here for cid, name in resident.containers}

    @functools.cache
    def owner_of(pid: int) -> _Container | None:
        return owner.get(container_of(cgroup_of(pid)))

    uses: list[Use] = []
    strangers: list[tuple[str, int]] = []
    for card in cards:
        if card.processes is None or not card.uuid:
            continue
        by_container: dict[_Container, int] = {}
        percents, busy, active = dict(card.busy or ()), dict[_Container, int](), _active(card, owner_of)
        unknown = 0
        for pid, used in card.processes:
            key = owner_of(pid)
            if key is None:
                unknown += used
            else:
                by_container[key] = by_container.get(key, 0) + used
                busy[key] = busy.get(key, 0) + percents.get(pid, 0)
        for resident in here:
            for container, share in _shares(resident, card.uuid):
                key = (resident.uid, container)
                used = by_container.pop(key, 0)
                percent = None if card.busy is None else busy.get(key, 0)
                known = None if active is None else key in active
                figures = share.memory, share.cores, used, percent, known, share.burst
                uses.append(Use(resident, container, card.uuid, *figures))
        strangers.append((card.uuid, unknown + sum(by_container.values())))
    return NodeUsage(tuple(uses), tuple(strangers))


def _active(card: Card, owner_of: Callable[[int], _Container | None]) -> frozenset[_Container] | None:
    """
    The containers that used the card recently. None if that is not known for each: the driver does not report it, or
    a process computes there that belongs to none of them, such as a server that computes for others.
    """
    if card.active is None:
        return None
    owners = {owner_of(pid) for pid in card.active}
    found = frozenset(each for each in owners if each is not None)
    return found if len(found) == len(owners) and (found or not card.utilisation) else None


def _shares(resident: Resident, uuid: str) -> Iterable[tuple[str, GpuShare]]:
    for container in resident.allocation.containers if resident.allocation else ():
        for share in container.shares:
            if share.uuid == uuid:
                yield container.container, share
