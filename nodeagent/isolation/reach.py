"""
How what limits containers reaches new ones: by CDI descriptions that are written here, or by the webhook's volumes.

Must not: know one mechanism, or talk to the API server. Only `apply` changes anything.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from contract.model import BY_CDI, BY_HOST_PATH, Delivery, Inventory
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.files import KeptFiles
from nodeagent.isolation import cdi
from nodeagent.isolation.cdi import Choose
from nodeagent.isolation.mechanism import Handle, Reached

MOUNTS = "LimitsReachContainers"
"""The condition for whether containers get what limits them."""


class Reach:
    """`choose`: what limits a container. `needed`: whether any mechanism has edits. The publishing thread uses it."""

    def __init__(self, handle: Handle, choose: Choose, *, needed: bool) -> None:
        self._settings = handle.settings
        self._pods = handle.pods
        self._choose = choose
        self._needed = needed
        self._files = KeptFiles()
        self._known = self._unwritten = False
        self.reached = Reached()

    def apply(self, inventory: Inventory, delivery: Delivery | None) -> Reached:
        """Write the descriptions for the inventory that is about to be published; `reached` keeps the result."""
        mounts, self._known = self._way(delivery), delivery is not None
        self._unwritten = not self._describe(inventory, by_cdi=mounts == BY_CDI) and mounts == BY_CDI
        if self._unwritten:
            mounts = ""
        really = mounts == BY_CDI or (mounts == BY_HOST_PATH and self._settings.host_paths)
        self.reached = Reached(mounts, really)
        return self.reached

    def conditions(self) -> tuple[Condition, ...]:
        """The condition about it; none if no mechanism has edits."""
        if not self._needed:
            return ()
        if self.reached.by_cdi:
            return (Condition(True, GPUNodeReason.BY_CDI, "by a CDI description that the agent writes", MOUNTS),)
        if self._unwritten:
            message = f"the CDI description {cdi.FILE} is missing; see the agent's log"
            return (Condition(False, GPUNodeReason.NOT_WRITTEN, message, MOUNTS),)
        if not self._known:
            message = "how GPUs reach containers here is unknown; see the agent's settings host_root and delivery"
            return (Condition(False, GPUNodeReason.DELIVERY_UNKNOWN, message, MOUNTS),)
        need = "GPUs are not delivered by CDI here, so pods can get the limiters only by hostPath volumes"
        if self.reached.really:
            message = f"{need}; the namespace must allow those, which Pod Security does only at the Privileged level"
            return (Condition(True, GPUNodeReason.BY_HOST_PATH, message, MOUNTS),)
        message = f"{need}: set host_paths of the agent and of the webhook, for namespaces that may have such volumes"
        return (Condition(False, GPUNodeReason.NEEDS_HOST_PATH, message, MOUNTS),)

    def _way(self, delivery: Delivery | None) -> str:
        if not self._needed or delivery is None:
            return ""
        return BY_CDI if self._settings.cdi and cdi.possible(delivery) else BY_HOST_PATH

    def _describe(self, inventory: Inventory, *, by_cdi: bool) -> bool:
        """Write the description, or remove it when no pod needs it. True if it is as it should be."""
        if not self._settings.cdi:
            return True
        file = Path(self._settings.cdi) / cdi.FILE
        needed = cdi.needed(self._pods.allocations())
        if not by_cdi and not needed:
            return _removed(file)
        if not inventory.gpus and file.exists():
            # No GPU can be seen: keep the last description.
            return True
        uuids = {gpu.uuid for gpu in inventory.gpus} | needed
        return bool(uuids) and self._files.keep(file, cdi.description(uuids, self._choose)) and self._describe_own()

    def _describe_own(self) -> bool:
        """The same for the pods' own devices."""
        file = Path(self._settings.cdi) / cdi.PARTITION_FILE
        text = cdi.partition_description(self._pods.allocations(), self._choose)
        if text:
            return self._files.keep(file, text)
        return _removed(file) if self._pods.known else True


def _removed(file: Path) -> bool:
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)
    return True
