"""
The levels of `contract.isolation` that this node enforces.

Must not: report a level because it is switched on; the agent must have seen it work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from contract import names
from contract.isolation import DRIVER, WATCH
from contract.model import Delivery, Inventory
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import delivery
from nodeagent.isolation.cards import Cards
from nodeagent.isolation.driver import Limiter, possible
from nodeagent.isolation.limiters import Limiters, LimiterSettings
from nodeagent.isolation.probing import Prober
from nodeagent.sharing.residents import Residents

PAUSE = 0.5
"""Seconds between two looks for containers whose group is new."""
_AGAIN = 120
"""Every 120th round sets all limits again and reads them back: another program may have changed one."""


NO_LABELS: Mapping[str, str] = {}


class Registration(Protocol):
    """Whether kubelet registered the agent as its plugin; None before it answered. `why` it refused."""

    @property
    def registered(self) -> bool | None: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ClaimDelivery:
    """`plugin`: the agent as a kubelet plugin; None where it is none. `cards`: describes them; None: others do."""

    plugin: Registration | None = None
    cards: Cards | None = None


NO_CLAIMS = ClaimDelivery()


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How GPUs reach containers (None: unknown), which levels are enforced, and the conditions that report it."""

    delivery: Delivery | None = None
    levels: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """GPUs that no new container can get, by UUID, each with the reason."""


class Isolation:
    """
    Enforces what this node can, and reports it. `run` has its own thread and driver library, since a container's limit
    must exist before its program allocates.

    `limiter`: None if the driver does not limit memory. `watches`: whether the agent can tell the container of a
    process. `limiters`: MPS and the library. `prober`: how GPUs reach containers; None for unknown.
    `claims`: how cards come by ResourceClaims.
    """

    def __init__(
        self,
        residents: Residents,
        limiter: Limiter | None,
        *,
        cgroup: str,
        watches: bool,
        limiters: Limiters | None = None,
        prober: Prober | None = None,
        claims: ClaimDelivery = NO_CLAIMS,
    ) -> None:
        self._plugin, self._cards = claims.plugin, claims.cards
        self._residents, self._limiter, self._prober = residents, limiter, prober
        self._limiters = limiters or Limiters(LimiterSettings(), residents.allocations)
        self._cgroup, self._watches = cgroup, watches
        self._driver = self._possible = False
        self._rounds = 0

    def seen(self, observation: Observation) -> None:
        """A new look: whether the driver can limit at all. From any thread."""
        self._possible = not observation.problem and not possible(observation.driver, self._cgroup)

    def run(self, stopping: threading.Event, *, pause: float = PAUSE) -> None:
        """Bring the driver's limits up to date again and again until stopped."""
        while not stopping.is_set():
            self.limit()
            stopping.wait(pause if self._limiter is not None else None)

    def limit(self) -> None:
        """Bring the driver's limits up to date once."""
        if self._limiter is None or not self._possible:
            self._driver = False
            return
        self._limiter.apply(self._residents.all(), again=self._rounds % _AGAIN == 0)
        self._rounds += 1
        self._driver = not self._limiter.trouble

    def enforce(self, inventory: Inventory, now: float, labels: Mapping[str, str] = NO_LABELS) -> Enforcement:
        """
        Write what containers get with the inventory that is about to be published, and report what is enforced.

        `labels`: the Node's.
        """
        found = self._prober.delivery(now) if self._prober is not None else None
        conditions: tuple[Condition, ...] = ()
        unreachable: Mapping[str, str] = {}
        if labels.get(names.DELIVERY) == names.BY_DRA or (found is not None and found.dra):
            found, condition = self._by_claim(found, inventory)
            conditions = (condition,)
            unreachable = self._cards.undescribed if self._cards is not None else {}
        applied = self._limiters.apply(inventory, found)
        return Enforcement(applied, self.levels(), (*conditions, *self._limiters.conditions()), unreachable)

    def _by_claim(self, found: Delivery | None, inventory: Inventory) -> tuple[Delivery, Condition]:
        if self._cards is not None:
            kind = self._cards.describe(inventory)
        else:
            kind = self._prober.kind if self._prober is not None else None
        if self._plugin is None:
            return delivery.by_claim(found, kind, False, "the agent's setting kubelet is empty")
        cards = self._cards
        missing, without = (cards.trouble, cards.undescribed) if cards is not None else ("", {})
        return delivery.by_claim(found, kind, self._plugin.registered, self._plugin.why, missing, without)

    def levels(self) -> tuple[str, ...]:
        """What works now, the strongest first. From any thread."""
        return (
            ((DRIVER.name,) if self._driver else ())
            + self._limiters.levels()
            + ((WATCH.name,) if self._watches else ())
        )


def sees_host_processes(name_of: Callable[[int], str] | None = None) -> bool:
    """Whether process ids here are the host's, where process 2 is the kernel's thread daemon."""
    return (name_of or _name_of)(2) == "kthreadd"


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
