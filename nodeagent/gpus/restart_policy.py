"""
Whether the agent must restart, because only a new container can reach the driver again.

    the driver was replaced    a process has the library that it loaded, and a container the one that it got at its
                               start: both are the old ones
    the right to it was lost   if a container got its devices without systemd's knowledge, a `systemctl daemon-reload`
                               on the node takes them away. NVML then fails with its unknown error for the life of the
                               container. NVIDIA's container toolkit documents it

Kubelet restarts the container when the process ends, and the container runtime gives it library and devices again. An
agent that read no GPU since its start would gain nothing: it stays and reports the problem. So it never ends twice
without having read GPUs in between.

Pure except for what it remembers. Must not: end anything.
"""

from __future__ import annotations

from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.gpus.library import LibraryBroken, LibraryOutdated, NoPermission
from nodeagent.gpus.observation import Observation

_LOST = (6, "the GPUs are out of reach; the agent restarts to reach them again")
REASONS: dict[GPUNodeReason | None, tuple[int, str]] = {
    LibraryOutdated.reason: (
        2,
        "the driver was replaced; the agent restarts to load the new driver's library",
    ),
    NoPermission.reason: _LOST,
    LibraryBroken.reason: _LOST,
}
"""After how many looks in a row to restart, the first of which was published, and why."""


class RestartPolicy:
    """One thread uses it."""

    def __init__(self) -> None:
        self._read = False
        self._looks = 0
        self._reason: GPUNodeReason | None = None

    def seen(self, observation: Observation) -> str:
        """Why to restart after this look; empty if there is no need or no use."""
        self._looks = self._looks + 1 if observation.reason == self._reason else 1
        self._reason = observation.reason
        self._read = self._read or not observation.problem
        looks, why = REASONS.get(observation.reason, (0, ""))
        return why if self._read and self._looks >= looks else ""
