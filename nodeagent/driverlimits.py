"""
Memory limits by the driver: one for each container on each of its GPUs, by the container's control group.

The driver of version 615 and later refuses an allocation that would take a control group's processes beyond their limit
(NVML, `nvmlDeviceSetMemoryLimits_v1`; cgroup v2, no MIG). The limit is set as soon as the container's group exists,
read back, and taken away when the container has ended. It outlives the agent, so a restart changes nothing.

Off unless switched on: neither the call nor the form of the path was tried on a card by us.

Pure but for what it applied; the driver and the groups are passed in. Must not: talk to the API server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from nodeagent.residents import Resident
from nodeagent.usage import container_of

LEAST_DRIVER = 615
_DEPTH = 6
"""Folders below the root of the hierarchy to a container's group, at most."""


class Limits(Protocol):
    """What is asked of the driver."""

    def limit_memory(self, uuid: str, group: str, limit: int | None) -> str:
        """Set a control group's bytes on one GPU, None for no limit, and read them back. What failed, or empty."""
        ...


class Limiter:
    """
    Keeps the driver's limits as the shares say. `groups` gives the path of every container's group by container id.

    `trouble`: why limits are not enforced, empty while they are. Used by the thread that looks at the GPUs.
    """

    def __init__(self, limits: Limits, groups: Callable[[], Mapping[str, str]]) -> None:
        self._limits, self._groups = limits, groups
        self._applied: dict[tuple[str, str], int] = {}
        self.trouble = ""

    def apply(self, residents: Iterable[Resident]) -> None:
        """Make the limits those of these pods."""
        here = tuple(residents)
        wanted = wanted_limits(here, self._groups()) if here or self._applied else {}
        failed = ""
        for key, limit in wanted.items():
            if self._applied.get(key) != limit:
                trouble = self._limits.limit_memory(*key, limit)
                failed = failed or trouble
                if trouble:
                    self._applied.pop(key, None)
                else:
                    self._applied[key] = limit
        for key in self._applied.keys() - wanted.keys():
            # The group may be gone with its limit; there is nothing to be done about a failure.
            self._limits.limit_memory(*key, None)
            del self._applied[key]
        self.trouble = failed


def wanted_limits(residents: Iterable[Resident], groups: Mapping[str, str]) -> dict[tuple[str, str], int]:
    """Bytes by GPU and group. A container that has no group yet is for the next time."""
    return {
        (share.uuid, groups[cid]): share.memory
        for resident in residents
        for cid, name in resident.containers
        if cid in groups
        for container in (resident.allocation.containers if resident.allocation else ())
        if container.container == name
        for share in container.shares
    }


def possible(driver: str, cgroup: str) -> str:
    """Why this machine's driver cannot limit memory, or empty."""
    major = driver.partition(".")[0]
    if not major.isdecimal() or int(major) < LEAST_DRIVER:
        return f"the driver is {driver or 'unknown'}; it takes {LEAST_DRIVER} or later"
    return "" if cgroup == "v2" else "the node has no cgroup v2"


def container_groups(root: Path, *, seen_as: str = "/sys/fs/cgroup") -> dict[str, str]:
    """
    The control group of every container below `root`, by container id, as a path below `seen_as` (the host's own name).

    Kubernetes' groups are below `kubepods` or `kubepods.slice`; of nested ones the outermost is the container's.
    """
    found: dict[str, str] = {}
    for top in sorted(root.glob("kubepods*")):
        for folder, inner, _ in os.walk(top):
            below = Path(folder).relative_to(root)
            cid = container_of(f"/{below}")
            if cid:
                found.setdefault(cid, f"{seen_as}/{below}")
            if cid or len(below.parts) >= _DEPTH:
                inner.clear()
    return found
