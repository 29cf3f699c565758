"""
The levels of `contract.model.ISOLATION` that this node enforces.

Must not: report a level because it is switched on; the agent must have seen it work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from contract.model import Delivery, Inventory
from nodeagent.conditions import Condition
from nodeagent.gpus.observation import Observation
from nodeagent.isolation.driver import Limiter, possible
from nodeagent.isolation.limiters import Limiters, LimiterSettings
from nodeagent.isolation.probing import Prober
from nodeagent.sharing.residents import Residents

PAUSE = 0.5
"""Seconds between two looks for containers whose group is new."""
_AGAIN = 120
"""Every 120th round sets all limits again and reads them back: another program may have changed one."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How GPUs reach containers (None: unknown), which levels are enforced, and the conditions that report it."""

    delivery: Delivery | None = None
    levels: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Isolation:
    """
    Enforces what this node can, and reports it. `run` has its own thread and driver library, since a container's limit
    must exist before its program allocates.

    `limiter`: None if the driver does not limit memory. `watches`: whether the agent can tell the container of a
    process. `limiters`: MPS and the library. `prober`: how GPUs reach containers; None for unknown.
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
    ) -> None:
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

    def enforce(self, inventory: Inventory, now: float) -> Enforcement:
        """Write what containers get with the inventory that is about to be published, and report what is enforced."""
        delivery = self._prober.delivery(now) if self._prober is not None else None
        return Enforcement(self._limiters.apply(inventory, delivery), self.levels(), self._limiters.conditions())

    def levels(self) -> tuple[str, ...]:
        """What works now, the strongest first. From any thread."""
        return (("driver",) if self._driver else ()) + self._limiters.levels() + (("watch",) if self._watches else ())


def sees_host_processes(name_of: Callable[[int], str] | None = None) -> bool:
    """Whether process ids here are the host's, where process 2 is the kernel's thread daemon."""
    return (name_of or _name_of)(2) == "kthreadd"


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
