"""
MPS daemons and the preloaded library, as far as the node agent has to do with them: what the supervisor of the daemons
reports, which GPUs are to have one, the CDI description for containers, and what of it is enforced.

    report ──▶ look ──▶ judged: a GPU whose daemon is away takes no new pods
                   ├──▶ delivery: how containers get it, and the description for them
    inventory ─────┴──▶ which GPUs are to have a daemon, and levels: what holds

A level is told only where new containers really get it: by CDI, or by the volumes that the webhook adds. Where neither
is so, no daemon is asked for, since a GPU that only its clients may use would be of no use to anybody.

Must not: start a daemon (`nodeagent.mps.supervisor` does), or talk to the API server.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from contract.model import BY_CDI, BY_HOST_PATH, WITHHELD, Allocation, Delivery, Gpu, Inventory
from nodeagent.conditions import Condition
from nodeagent.files import read_text, write_atomically
from nodeagent.gpus.observation import Observation
from nodeagent.isolation import cdi
from nodeagent.isolation.cdi import Preloaded
from nodeagent.isolation.preload import Library
from nodeagent.isolation.settings import LimiterSettings
from nodeagent.mps.machine import Phase
from nodeagent.mps.places import MpsPaths
from nodeagent.mps.reports import NOTHING, Report, most_clients, report_from_text, wanted_from_text, wanted_to_text

log = logging.getLogger(__name__)

MOUNTS = "LimitsReachContainers"
"""The condition that says whether containers get what is to hold them."""
LIBRARY = "PreloadedLibrary"
"""The condition that says whether there is a library to be preloaded."""
DAEMONS = "MpsDaemons"
"""The condition that says what daemons that serve do not do; it is there only where there is such a thing."""
_EVER = float("inf")
_NOT_SHARED = WITHHELD[1]


@dataclass(frozen=True, slots=True)
class LimiterState:
    """
    One look. `stale`: the report is the last one of a supervisor that has said nothing for too long. `trouble`: why
    there is no library that could be preloaded.
    """

    report: Report = NOTHING
    stale: bool = False
    preloaded: Preloaded | None = None
    trouble: str = ""


class Limiters:
    """
    `look` is called after each look at the GPUs, by that thread; all else by the thread that publishes.

    `allocations`: those of the pods here. `patience`: seconds after which a report is too old. `wall`: seconds since
    the epoch, as the supervisor counts them. `label_of`: a file's SELinux label, empty where none is enforced.
    """

    def __init__(
        self,
        settings: LimiterSettings,
        allocations: Callable[[], Iterable[Allocation]],
        *,
        patience: float = 30.0,
        wall: Callable[[], float] = time.time,
        label_of: Callable[[Path], str] = lambda file: "",
    ) -> None:
        self._settings, self._allocations, self._patience, self._wall = settings, allocations, patience, wall
        self._places = MpsPaths(Path(settings.mps)) if settings.mps else None
        self._library = Library(Path(settings.preload), label_of=label_of) if settings.preload else None
        self._mounts = ""
        self._known = self._unwritten = False
        self._inventory: Inventory | None = None
        self._complaints: dict[Path, str] = {}
        self.found = LimiterState()

    def look(self) -> LimiterState:
        """See how daemons and library are."""
        text = read_text(self._places.report) if self._places else ""
        fresh = report_from_text(text, now=self._wall(), patience=self._patience)
        old = report_from_text(text, now=self._wall(), patience=_EVER)
        library = self._library.look() if self._library else None
        trouble = self._library.trouble if self._library else ""
        self.found = LimiterState(fresh or old or NOTHING, fresh is None and old is not None, library, trouble)
        return self.found

    def delivery(self, found: Delivery | None) -> Delivery | None:
        """The node's delivery, and how containers get what limits them."""
        self._mounts, self._known = self._way(found), found is not None
        self._unwritten = not self._describe() and self._mounts == BY_CDI
        if self._unwritten:
            self._mounts = ""
        self._want()
        if found is None:
            return None
        single = any(gpu.phase != Phase.OFF for gpu in self.found.report.gpus.values())
        return replace(found, mounts=self._mounts, single=single)

    def _way(self, found: Delivery | None) -> str:
        if not (self._settings.mps or self._settings.preload):
            return ""
        if self._settings.cdi and cdi.possible(found):
            return BY_CDI
        return BY_HOST_PATH if found is not None else ""

    @property
    def reaches(self) -> bool:
        """Whether new containers get it."""
        return self._mounts == BY_CDI or (self._mounts == BY_HOST_PATH and self._settings.host_paths)

    def conditions(self) -> tuple[Condition, ...]:
        """What is to be told about it on the GPUNode; nothing where nothing is set."""
        found = (self._way_told(), *self._daemons_told()) if self._settings.mps or self._settings.preload else ()
        if not self._settings.preload:
            return found
        trouble = self.found.trouble
        there = Condition(not trouble, "LibraryNotUsable" if trouble else "LibraryReady", trouble, LIBRARY)
        return (*found, there)

    def _daemons_told(self) -> tuple[Condition, ...]:
        """What daemons that serve do not do, though it was asked for. Of others the GPU itself tells."""
        gpus = {} if self.found.stale else self.found.report.gpus
        whys = sorted({gpu.why for gpu in gpus.values() if gpu.serving and gpu.why})
        return (Condition(False, "Limited", "; ".join(whys), DAEMONS),) if whys else ()

    def _way_told(self) -> Condition:
        if self._mounts == BY_CDI:
            return Condition(True, "ByCdi", "by a CDI description that the agent writes", MOUNTS)
        if self._unwritten:
            told = f"the CDI description {cdi.FILE} is not there; see the agent's log"
            return Condition(False, "NotWritten", told, MOUNTS)
        if not self._known:
            told = "how GPUs reach containers here is not known; see the agent's settings host_root and delivery"
            return Condition(False, "DeliveryUnknown", told, MOUNTS)
        need = "GPUs do not come by CDI here, so pods get what limits them by hostPath volumes only"
        if self.reaches:
            told = f"{need}; the namespace must allow those, which Pod Security does at the Privileged level only"
            return Condition(True, "ByHostPath", told, MOUNTS)
        told = f"{need}: set host_paths of the agent and of the webhook, for namespaces that may have such volumes"
        return Condition(False, "NeedsHostPath", told, MOUNTS)

    def told(self, inventory: Inventory) -> None:
        """What is about to be published: `delivery` goes by it."""
        self._inventory = inventory

    def levels(self) -> tuple[str, ...]:
        """What of MPS and the library holds the pods that this node's GPUs would take. From any thread."""
        taking = [gpu for gpu in self._inventory.gpus if gpu.healthy] if self._inventory else []
        if not self.reaches or not taking:
            return ()
        mps = not self.found.stale and all(_serving(self.found.report, gpu) for gpu in taking)
        # Of the two a container has one: MPS where a daemon serves its GPU.
        held = self.found.preloaded is not None and not any(gpu.parent for gpu in taking)
        return (("mps",) if mps else ()) + (("preload",) if held and not mps else ())

    def _want(self) -> None:
        """
        Tell the supervisor which GPUs are ours to have a daemon. Nothing can be told while nothing can be seen.

        Whoever is not named any more ends, and takes the programs on the GPU along. So a daemon is asked for only where
        new containers reach it, but one that is there stays whatever becomes of that (a toolkit that is upgraded takes
        its files away for a while), and on a GPU that is taken out of sharing until nobody has a share of it.
        """
        places, inventory = self._places, self._inventory
        if places is None or inventory is None or inventory.problem:
            return
        standing = wanted_from_text(read_text(places.wanted)) or frozenset()
        used = {s.uuid for a in self._allocations() for container in a.containers for s in container.shares}
        wanted = set()
        for gpu in inventory.gpus:
            ours = gpu.withheld != _NOT_SHARED
            stays = gpu.uuid in standing and (ours or gpu.uuid in used)
            if _can(gpu, inventory.driver) and (stays or (ours and self.reaches)):
                wanted.add(gpu.uuid)
        self._keep(places.wanted, wanted_to_text(wanted))

    def _describe(self) -> bool:
        """Write the description, or take it away when nobody needs it any more; whether it is as it should be."""
        if not self._settings.cdi:
            return True
        file, by_cdi = Path(self._settings.cdi) / cdi.FILE, self._mounts == BY_CDI
        needed = cdi.needed(self._allocations())
        if not by_cdi and not needed:
            with contextlib.suppress(OSError):
                file.unlink(missing_ok=True)
            return True
        gpus = self._inventory.gpus if self._inventory else ()
        if not gpus and file.exists():
            # Nothing can be seen: what stands there is better than nothing.
            return True
        report, library = self.found.report, self.found.preloaded
        mps = {uuid for uuid, gpu in report.gpus.items() if gpu.serving or not gpu.taking}
        uuids = {gpu.uuid for gpu in gpus} | needed
        places = self._places or MpsPaths(Path("/"))
        return bool(uuids) and self._keep(file, cdi.description(uuids, mps=mps, places=places, preloaded=library))

    def _keep(self, file: Path, text: str) -> bool:
        """Have the file say this; whether it does. What keeps it from that is logged once, not at every look."""
        said = ""
        if read_text(file) != text:
            try:
                write_atomically(file, text)
            except OSError as error:
                said = str(error)
        if said and self._complaints.get(file) != said:
            log.warning("not written", extra={"file": str(file), "said": said})
        self._complaints[file] = said
        return not said


def judged(observation: Observation, found: LimiterState) -> Observation:
    """The observation, with a GPU unhealthy where its MPS daemon is away and so would give a new container nothing."""
    return replace(
        observation,
        cards=tuple(
            replace(card, healthy=False, reason=why) if card.healthy and (why := _away(card.uuid, found)) else card
            for card in observation.cards
        ),
    )


def without_servers(observation: Observation, found: LimiterState) -> Observation:
    """The observation without the MPS servers' own processes: what they hold is their clients' memory."""
    servers = found.report.servers
    if not servers:
        return observation
    return replace(
        observation,
        cards=tuple(
            card
            if card.processes is None
            else replace(card, processes=tuple((pid, used) for pid, used in card.processes if pid not in servers))
            for card in observation.cards
        ),
    )


def _away(uuid: str, found: LimiterState) -> str:
    gpu = found.report.gpus.get(uuid)
    if gpu is None:
        return ""
    if found.stale and (gpu.serving or not gpu.taking):
        return "the supervisor of the MPS daemons does not report"
    return "" if gpu.taking else f"MPS is {gpu.phase}" + (f": {gpu.why}" if gpu.why else "")


def _serving(report: Report, gpu: Gpu) -> bool:
    found = report.gpus.get(gpu.uuid)
    return found is not None and found.serving


def _can(gpu: Gpu, driver: str) -> bool:
    """Whether a daemon may be there: a whole card, of an architecture that MPS limits."""
    return not gpu.parent and gpu.usable > 0 and most_clients(gpu.capability, driver) > 0
