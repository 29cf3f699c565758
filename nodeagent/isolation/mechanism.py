"""
The form of a mechanism, which keeps containers within their shares of a GPU, and of a way in which GPUs reach them.

    `nodeagent.isolation.levels.MECHANISMS`   Handle, its settings ──build──▶ Mechanism
    `nodeagent.delivering.DELIVERY`           Site                 ──build──▶ DeliveryWay

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
from typing import Any, Generic, Protocol, TypeVar

from contract.isolation import Level
from contract.model import BY_CDI, Allocation, Delivery, Gpu, Inventory
from nodeagent.conditions import Condition
from nodeagent.gpus.library import DriverLimits
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.cdi import Edits
from nodeagent.isolation.effects import NO_EFFECTS, Effects
from nodeagent.sharing.residents import Resident, Residents
from runtime.settings import setting

S = TypeVar("S")
Run = Callable[[threading.Event], None]
"""The work of a thread, until the event is set."""


@dataclass(frozen=True)
class LimiterSettings:
    """How what limits containers reaches them, for all mechanisms. Both empty: it does not."""

    cdi: str = setting(
        "",
        "Folder of CDI descriptions on the host, mounted here. If containers get GPUs by CDI, they get the sockets of "
        "MPS and the library by the agent's description there. Empty: they do not.",
    )
    host_paths: bool = setting(
        False,
        "Whether pods with a share get them by hostPath volumes if GPUs are not delivered by CDI: the webhook's "
        "host_paths adds those volumes. Namespaces must allow them, which Pod Security's Baseline level does not.",
    )


class NodePods(Protocol):
    """The pods of this node; `nodeagent.sharing.residents.Residents`. `known`: whether all of them are known."""

    known: bool

    def all(self) -> Sequence[Resident]: ...
    def allocations(self) -> Iterable[Allocation]: ...


@dataclass(frozen=True, slots=True)
class Handle:
    """
    The inputs for building a mechanism.

    `root`: where the host's root is mounted. `driver`: opens the driver, to have it limit memory; None: it cannot.
    `cgroup`: as in `HostSystem`. `sees_processes`: whether process ids here are the host's. `machine`: the kernel's
    name of the architecture, empty for this one's. `wall`: seconds since the epoch. `chosen`: the settings of each
    mechanism by its level; the defaults apply to one that is not there.
    """

    settings: LimiterSettings = LimiterSettings()
    pods: NodePods = field(default_factory=lambda: Residents(known=True))
    root: Path = Path("/")
    driver: Callable[[], DriverLimits] | None = None
    cgroup: str = ""
    sees_processes: bool = False
    machine: str = ""
    wall: Callable[[], float] = time.time
    chosen: Mapping[str, object] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class MechanismEntry(Generic[S]):
    """
    An entry of the table. `build`: makes the mechanism as it is set here; None where it is off. `settings`: its group,
    a dataclass that `setting` fills, whose settings are named below `group`, or at the top where that is empty.
    """

    build: Callable[[Handle, S], Mechanism | None]
    settings: type[S]
    group: str = "limiters"

    def built(self, handle: Handle, level: str) -> Mechanism | None:
        """The mechanism that enforces the level, or None."""
        chosen = handle.chosen.get(level) or self.settings()
        assert isinstance(chosen, self.settings)
        return self.build(handle, chosen)


MechanismTable = Mapping[Level, MechanismEntry[Any]]


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
