"""
MPS daemons and the preloaded library: how containers of this node get them, and which of the two limits them.

    look ──▶ LimiterState ──┐
    inventory, delivery ────┴──▶ apply: writes the CDI description and the GPUs that need a daemon
                                   └──▶ levels, conditions: what is enforced, and why the rest is not

A level counts only if new containers really get it: by CDI, or by the volumes that the webhook adds. Otherwise the
agent requests no daemon, since no container could use the GPU of a daemon that it cannot reach.

Must not: talk to the API server. Only `apply` changes anything.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from contract.isolation import MPS, PRELOAD
from contract.model import BY_CDI, BY_HOST_PATH, Allocation, Delivery, Inventory
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.conditions import Condition
from nodeagent.files import read_text, write_atomically
from nodeagent.isolation import cdi, mps
from nodeagent.isolation.cdi import Preloaded, Way
from nodeagent.isolation.mps import NO_DAEMONS, MpsState
from nodeagent.isolation.preload import Library
from nodeagent.mps.exchange import MpsPaths, shares_from_text, wanted_from_text, wanted_to_text
from runtime.settings import setting

log = logging.getLogger(__name__)

MOUNTS = "LimitsReachContainers"
"""The condition for whether containers get what limits them."""
LIBRARY = "PreloadedLibrary"
"""The condition for whether there is a library to preload."""


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

    @property
    def any(self) -> bool:
        """Whether any limiter is set."""
        return bool(self.mps or self.preload or self.cdi)


@dataclass(frozen=True, slots=True)
class LimiterState:
    """One look at daemons and library. `trouble`: why there is no library to preload."""

    mps: MpsState = NO_DAEMONS
    preloaded: Preloaded | None = None
    trouble: str = ""


class Limiters:
    """
    The observer's thread calls `look`; the publishing thread calls `apply` and then the other methods.

    `allocations`: those of the pods here. `patience`: seconds after which a report is too old. `wall`: seconds since
    the epoch, as the supervisor counts them. `known`: whether all pods here are known. `label_of`: a file's SELinux
    label, empty if none is enforced.
    """

    def __init__(
        self,
        settings: LimiterSettings,
        allocations: Callable[[], Iterable[Allocation]],
        *,
        patience: float = 30.0,
        wall: Callable[[], float] = time.time,
        known: Callable[[], bool] = lambda: True,
        label_of: Callable[[Path], str] = lambda file: "",
    ) -> None:
        self._settings, self._allocations, self._patience, self._wall = settings, allocations, patience, wall
        self._places = MpsPaths(Path(settings.mps)) if settings.mps else None
        self._library = Library(Path(settings.preload), label_of=label_of) if settings.preload else None
        self._mounts, self._all_pods = "", known
        self._known = self._unwritten = False
        self._wanted: frozenset[str] = frozenset()
        self._inventory: Inventory | None = None
        self._complaints: dict[Path, str] = {}
        self.found = LimiterState()

    def look(self) -> LimiterState:
        """Read the state of daemons and library; `found` has it until the next look."""
        report = self._places.report if self._places else None
        library = self._library.look() if self._library else None
        trouble = self._library.trouble if self._library else ""
        self.found = LimiterState(mps.look(report, now=self._wall(), patience=self._patience), library, trouble)
        return self.found

    def apply(self, inventory: Inventory, delivery: Delivery | None) -> Delivery | None:
        """
        Write the files for containers and supervisor that follow from the inventory that is about to be published.

        Returns the node's delivery with how containers get what limits them; None if the delivery is unknown.
        """
        self._inventory = inventory
        self._mounts, self._known = self._way(delivery), delivery is not None
        self._unwritten = not self._describe(inventory) and self._mounts == BY_CDI
        if self._unwritten:
            self._mounts = ""
        self._want(inventory)
        if delivery is None:
            return None
        # Also when only some are: a pod's own device serves on every GPU, all pods' device gives one chunk to all.
        partitions = self._mounts == BY_CDI and bool(self._wanted & self.found.mps.partitioned)
        return replace(delivery, mounts=self._mounts, single=self.found.mps.in_use, partitions=partitions)

    @property
    def reaches(self) -> bool:
        """Whether new containers get what limits them."""
        return self._mounts == BY_CDI or (self._mounts == BY_HOST_PATH and self._settings.host_paths)

    def levels(self) -> tuple[str, ...]:
        """Whether MPS or the library limits new pods on this node's GPUs. From any thread."""
        taking = [gpu for gpu in self._inventory.gpus if gpu.healthy] if self._inventory else []
        if not self.reaches or not taking:
            return ()
        if self.found.mps.serves(taking):
            # A container has one of the two: MPS if a daemon serves its GPU.
            return (MPS.name,)
        return (PRELOAD.name,) if self.found.preloaded is not None and not any(gpu.parent for gpu in taking) else ()

    def conditions(self) -> tuple[Condition, ...]:
        """The GPUNode's conditions about it; none if no limiter is set."""
        found: tuple[Condition, ...] = ()
        if self._settings.mps or self._settings.preload:
            found = (self._reach_condition(), *self.found.mps.conditions(), *self._reserved_condition())
        if not self._settings.preload:
            return found
        trouble = self.found.trouble
        reason = GPUNodeReason.LIBRARY_NOT_USABLE if trouble else GPUNodeReason.LIBRARY_READY
        return (*found, Condition(not trouble, reason, trouble, LIBRARY))

    def _way(self, delivery: Delivery | None) -> str:
        if not (self._settings.mps or self._settings.preload):
            return ""
        if self._settings.cdi and cdi.possible(delivery):
            return BY_CDI
        return BY_HOST_PATH if delivery is not None else ""

    def _reach_condition(self) -> Condition:
        if self._mounts == BY_CDI:
            return Condition(True, GPUNodeReason.BY_CDI, "by a CDI description that the agent writes", MOUNTS)
        if self._unwritten:
            message = f"the CDI description {cdi.FILE} is not there; see the agent's log"
            return Condition(False, GPUNodeReason.NOT_WRITTEN, message, MOUNTS)
        if not self._known:
            message = "how GPUs reach containers here is not known; see the agent's settings host_root and delivery"
            return Condition(False, GPUNodeReason.DELIVERY_UNKNOWN, message, MOUNTS)
        need = "GPUs do not come by CDI here, so pods get what limits them by hostPath volumes only"
        if self.reaches:
            message = f"{need}; the namespace must allow those, which Pod Security does at the Privileged level only"
            return Condition(True, GPUNodeReason.BY_HOST_PATH, message, MOUNTS)
        message = f"{need}: set host_paths of the agent and of the webhook, for namespaces that may have such volumes"
        return Condition(False, GPUNodeReason.NEEDS_HOST_PATH, message, MOUNTS)

    def _reserved_condition(self) -> tuple[Condition, ...]:
        if not self._settings.partitions or self._places is None:
            return ()
        if self._mounts != BY_CDI:
            message = "cores are capped by percentages and not reserved: containers do not get GPUs by CDI here"
            return (Condition(False, GPUNodeReason.NEEDS_CDI, message, mps.PARTITIONS),)
        return (self.found.mps.reserved(self._wanted),) if self._wanted else ()

    def _want(self, inventory: Inventory) -> None:
        """Write for the supervisor which GPUs need a daemon; nothing while no GPU can be seen."""
        if self._places is None or inventory.problem:
            return
        text, allocations = read_text(self._places.wanted), tuple(self._allocations())
        before = wanted_from_text(text) or frozenset()
        used = {s.uuid for a in allocations for container in a.containers for s in container.shares}
        wanted = mps.wanted_gpus(inventory, before, used, reaches=self.reaches)
        shares = mps.wanted_shares(
            wanted,
            allocations,
            shares_from_text(text),
            wanted=self._settings.partitions and self._mounts == BY_CDI,
            known=self._all_pods(),
        )
        self._wanted = wanted
        self._keep(self._places.wanted, wanted_to_text(wanted, shares))

    def _describe(self, inventory: Inventory) -> bool:
        """Write the description, or remove it when no pod needs it. True if it is as it should be."""
        if not self._settings.cdi:
            return True
        file, by_cdi = Path(self._settings.cdi) / cdi.FILE, self._mounts == BY_CDI
        needed = cdi.needed(self._allocations())
        if not by_cdi and not needed:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
            return True
        if not inventory.gpus and file.exists():
            # No GPU can be seen: keep the last description.
            return True
        uuids = {gpu.uuid for gpu in inventory.gpus} | needed
        places, found = self._places or MpsPaths(Path("/")), self.found
        way = Way(found.mps.for_new_containers, places, found.preloaded, found.mps.partitions)
        return bool(uuids) and self._keep(file, cdi.description(uuids, way)) and self._describe_partitions(way)

    def _describe_partitions(self, way: Way) -> bool:
        file = Path(self._settings.cdi) / cdi.PARTITION_FILE
        text = cdi.partition_description(self._allocations(), way)
        if text:
            return self._keep(file, text)
        if self._all_pods():
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
        return True

    def _keep(self, file: Path, text: str) -> bool:
        """Make the text the file's content; True if it succeeded. An error is logged once, not at every look."""
        error_text = ""
        if read_text(file) != text:
            try:
                write_atomically(file, text)
            except OSError as error:
                error_text = str(error)
        if error_text and self._complaints.get(file) != error_text:
            log.warning("file not written", extra={"file": str(file), "reason": error_text})
        self._complaints[file] = error_text
        return not error_text
