"""
The form of a mechanism, which keeps containers within their shares of a GPU, and of a way in which GPUs reach them.

    `nodeagent.isolation.levels.MECHANISMS`   Handle ──build──▶ Mechanism
    `nodeagent.delivering.DELIVERY`           Site   ──build──▶ DeliveryWay

Both are values whose functions have defaults: a mechanism states what it does and nothing else. `Isolation` calls
them and knows none by name.

Must not: know one mechanism.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contract.model import BY_CDI, Allocation, Delivery, Gpu, Inventory
from nodeagent.conditions import Condition
from nodeagent.gpus.library import DriverLimits
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.cdi import Edits
from nodeagent.isolation.effects import NO_EFFECTS, Effects
from nodeagent.sharing.residents import Resident, Residents
from runtime.settings import setting

Run = Callable[[threading.Event], None]
"""The work of a thread, until the event is set."""


@dataclass(frozen=True)
class LimiterSettings:
    """All empty: containers get variables, which no program enforces."""

    mps: str = setting(
        "",
        "Folder of the MPS daemons' files on the host, mounted here under the same path; manifests/components/mps sets "
        "it and runs the daemons. Empty: none.",
    )
    preload: str = setting(
        "",
        "Folder of HAMi-core's library on the host, mounted here under the same path; manifests/components/preload "
        "sets it and fills it. Empty: none.",
    )
    cdi: str = setting(
        "",
        "Folder of CDI descriptions on the host, mounted here. If containers get GPUs by CDI, they get the sockets of "
        "MPS and the library by our description there. Empty: they do not.",
    )
    host_paths: bool = setting(
        False,
        "Whether pods with a share get them by hostPath volumes if GPUs do not come by CDI: the webhook's host_paths "
        "adds those volumes. Namespaces must allow them, which Pod Security's Baseline level does not.",
    )

    partitions: bool = setting(
        False,
        "Whether cores are reserved by static partitions of MPS, where the daemon and the card have them and "
        "containers get GPUs by CDI: a pod's cores are then whole chunks of multiprocessors of its own. Elsewhere, and "
        "if this is off, cores are capped by a percentage.",
    )


class NodePods(Protocol):
    """The pods of this node; `nodeagent.sharing.residents.Residents`. `known`: whether all of them are known."""

    known: bool

    def all(self) -> Sequence[Resident]: ...
    def allocations(self) -> Iterable[Allocation]: ...


@dataclass(frozen=True, slots=True)
class Handle:
    """
    What a mechanism is built from.

    `root`: where the host's root is mounted. `driver`: opens the driver, to have it limit memory; None: it shall not.
    `cgroup`: as in `HostSystem`. `sees_processes`: whether process ids here are the host's. `machine`: the kernel's
    name of the architecture, empty for this one's. `wall`: seconds since the epoch.
    """

    settings: LimiterSettings = LimiterSettings()
    pods: NodePods = field(default_factory=lambda: Residents(known=True))
    root: Path = Path("/")
    driver: Callable[[], DriverLimits] | None = None
    cgroup: str = ""
    sees_processes: bool = False
    machine: str = ""
    wall: Callable[[], float] = time.time


@dataclass(frozen=True, slots=True)
class Reached:
    """How new containers get edits: `mounts` as in `Delivery`, and whether they do."""

    mounts: str = ""
    really: bool = False

    @property
    def by_cdi(self) -> bool:
        return self.mounts == BY_CDI


@dataclass(frozen=True, slots=True)
class Demands:
    """What a mechanism makes of the node's delivery; fields as in `Delivery`."""

    single: bool = False
    partitions: bool = False


@dataclass(frozen=True, slots=True)
class Mechanism:
    """
    One way to keep containers within their shares.

    `limits`: whether it limits new containers on all of these GPUs now; they are those that take pods. From any thread.
    `look`: called with each look at the GPUs, on the observer's thread.
    `edits`: what a container gets of it, by GPU and by the key of its partition, which is None for the device that all
    pods share; None: nothing there. A container gets the edits of one mechanism, the first in the table that has some,
    and its level counts only if they reach containers. Without `edits` a mechanism limits from outside.
    `apply`: called with each inventory that is about to be published, and then `conditions`, on the publishing thread.
    `workers`: its threads, by name.
    """

    limits: Callable[[Sequence[Gpu]], bool]
    look: Callable[[Observation], Effects] = lambda observation: NO_EFFECTS
    edits: Callable[[str, str | None], Edits | None] | None = None
    apply: Callable[[Inventory, Reached], Demands] = lambda inventory, reached: Demands()
    conditions: Callable[[], tuple[Condition, ...]] = tuple
    workers: Mapping[str, Run] = field(default_factory=dict)


Build = Callable[[Handle], Mechanism | None]
"""A mechanism as it is set here; None where it is off."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """
    How GPUs reach containers, None if that is unknown, and the conditions about it. `unreachable`: GPUs that no new
    container can get, by UUID, each with the reason. `kind`: the CDI kind of the cards that any runtime can use, None
    where there is none.
    """

    delivery: Delivery | None = None
    conditions: tuple[Condition, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    kind: str | None = None


@dataclass(frozen=True, slots=True)
class DeliveryWay:
    """
    One way in which GPUs reach containers.

    `conclude`: from what the ways before it concluded, the inventory that is about to be published, the time (seconds
    of any clock) and the Node's labels; a way that does not apply returns what it was given. On the publishing thread.
    `looked`: called after each look at the GPUs. `workers`: its threads, by name.
    """

    conclude: Callable[[Delivered, Inventory, float, Mapping[str, str]], Delivered]
    looked: Callable[[], None] = lambda: None
    workers: Mapping[str, Run] = field(default_factory=dict)
