"""
Warnings to the pods on a GPU whose MPS server has a fault.

One client's fault ends the CUDA calls of every client of that server, and no new one is served until all of them have
ended. Their owners see errors in programs that did nothing wrong, so each pod gets an Event, one for each fault.

Pure but for what it remembers. Must not: end anybody.
"""

from __future__ import annotations

from collections.abc import Iterable

from nodeagent.mps.lifecycle import Phase
from nodeagent.mps.reports import Report
from nodeagent.sharing.overuse import OveruseStep
from nodeagent.sharing.residents import Resident

FAULT = "MpsFault"


class Faults:
    """One thread uses it."""

    def __init__(self) -> None:
        self._warned: set[tuple[str, str]] = set()

    def steps(self, report: Report, residents: Iterable[Resident]) -> tuple[OveruseStep, ...]:
        """The pods to warn now."""
        faulted = {uuid for uuid, gpu in report.gpus.items() if gpu.phase == Phase.FAULTED}
        affected = {
            (resident.uid, share.uuid): resident
            for resident in residents
            for container in (resident.allocation.containers if resident.allocation else ())
            for share in container.shares
            if share.uuid in faulted
        }
        warned, self._warned = self._warned, set(affected)
        return tuple(
            OveruseStep(
                resident,
                FAULT,
                f"a program on GPU {gpu} brought its MPS server to a fault: the CUDA calls of all programs there fail; "
                "new ones are served when all of them have ended. Restart this pod",
            )
            for (uid, gpu), resident in affected.items()
            if (uid, gpu) not in warned
        )
