"""
What is really enforced on this node, of the levels in `contract.model.ISOLATION`.

Must not: claim a level because it is switched on; what counts is that it was seen to work.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from nodeagent.driverlimits import Limiter, possible
from nodeagent.residents import Residents
from nodeagent.status import Sight


class Isolation:
    """
    Enforces after each look what this node can, and tells what that is.

    `limiter`: None where the driver is not to limit memory. `watches`: whether processes can be laid to containers.
    `others`: what else holds them, the stronger first.
    """

    def __init__(
        self,
        residents: Residents,
        limiter: Limiter | None,
        *,
        cgroup: str,
        watches: bool,
        others: Callable[[], tuple[str, ...]] = tuple,
    ) -> None:
        self._residents, self._limiter, self._others = residents, limiter, others
        self._cgroup, self._watches = cgroup, watches
        self._driver = False

    def enforce(self, sight: Sight) -> None:
        """Bring the driver's limits up to date. On the thread that looks, since the library takes one at a time."""
        self._driver = False
        if self._limiter is not None and not sight.problem and not possible(sight.driver, self._cgroup):
            self._limiter.apply(self._residents.all())
            self._driver = not self._limiter.trouble

    def levels(self) -> tuple[str, ...]:
        """What works now, the strongest first. From any thread."""
        return (("driver",) if self._driver else ()) + self._others() + (("watch",) if self._watches else ())


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
