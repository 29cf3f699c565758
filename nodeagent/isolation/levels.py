"""
What is really enforced on this node, of the levels in `contract.model.ISOLATION`.

Must not: claim a level because it is switched on; what counts is that it was seen to work.
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
"""Every which time all limits are set again and read back: somebody else may have changed one."""


@dataclass(frozen=True, slots=True)
class Enforcement:
    """How GPUs reach containers (None: not known), what holds them to their shares, and the conditions that tell it."""

    delivery: Delivery | None = None
    levels: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Isolation:
    """
    Enforces what this node can, and tells what that is. `run` has a thread and a driver's library of its own, since a
    container's limit is to be there before its program allocates.

    `limiter`: None where the driver is not to limit memory. `watches`: whether processes can be laid to containers.
    `limiters`: MPS and the library. `prober`: how GPUs reach containers; None where nobody is to find out.
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
        """Keep the driver's limits until stopped; at once where there are none to be kept."""
        while self._limiter is not None and not stopping.is_set():
            self.limit()
            stopping.wait(pause)

    def limit(self) -> None:
        """Bring the driver's limits up to date once."""
        if self._limiter is None or not self._possible:
            self._driver = False
            return
        self._limiter.apply(self._residents.all(), again=self._rounds % _AGAIN == 0)
        self._rounds += 1
        self._driver = not self._limiter.trouble

    def enforce(self, inventory: Inventory, now: float) -> Enforcement:
        """Bring what containers get up to date with the inventory to be published, and tell what holds."""
        delivery = self._prober.delivery(now) if self._prober is not None else None
        completed = self._limiters.apply(inventory, delivery)
        return Enforcement(completed, self.levels(), self._limiters.conditions())

    def levels(self) -> tuple[str, ...]:
        """What works now, the strongest first. From any thread."""
        return (("driver",) if self._driver else ()) + self._limiters.levels() + (("watch",) if self._watches else ())


def sees_host_processes(name_of: Callable[[int], str] | None = None) -> bool:
    """
    Whether process ids here are the host's. Process 2 is the kernel's own thread daemon there, and in no container.
    """
    return (name_of or _name_of)(2) == "kthreadd"


def _name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
