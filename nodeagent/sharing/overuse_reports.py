"""
The thread that judges each look at the GPUs, and keeps the reports.

`Agent` publishes them in the status of the GPUNode, and tries again for as long as the API server is unavailable.

Must not: decide, or call the driver or the API server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from contract.nodes.reports import PodReport
from nodeagent.gpus.observation import Observation
from nodeagent.sharing.overuse import OveruseMonitor
from nodeagent.sharing.residents import Residents
from nodeagent.sharing.usage import NodeUsage, measure

log = logging.getLogger(__name__)


class OveruseReporter:
    """
    Judges each observation once. `show` is called with the usage and the warnings so far, for metrics; `more` gives
    further reports, and `changed` is called when the reports have changed. `cgroup_of` reads a process's control
    groups; `clock` is wall time in seconds.
    """

    def __init__(
        self,
        residents: Residents,
        watch: OveruseMonitor,
        *,
        show: Callable[[NodeUsage, OveruseMonitor], None] = lambda usage, watch: None,
        more: Callable[[float], frozenset[PodReport]] = lambda now: frozenset(),
        changed: Callable[[], None] = lambda: None,
        cgroup_of: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._residents = residents
        self._watch = watch
        self._show = show
        self._more = more
        self._changed = changed
        self._clock = clock
        self._cgroup_of = cgroup_of or read_cgroup
        self._observations: list[Observation] = []
        self.reports: frozenset[PodReport] = frozenset()
        """The reports of the last look."""
        self._woken = threading.Event()

    def seen(self, observation: Observation) -> None:
        """A new look. From any thread; never blocks."""
        self._observations = [observation]
        self._woken.set()

    def wake(self) -> None:
        """Have `run` notice `stopping`."""
        self._woken.set()

    def run(self, stopping: threading.Event) -> None:
        """Follow the looks until stopped."""
        while not stopping.is_set():
            self._woken.wait()
            self._woken.clear()
            if self._observations:
                self.step(self._observations.pop())

    def step(self, observation: Observation) -> None:
        """Judge one look."""
        here = self._residents.all()
        usage = measure(observation.cards, here, self._cgroup_of)
        now, before = self._clock(), self.reports
        self.reports = self._watch.judge(usage, observation.cards, now) | self._more(now)
        self._show(usage, self._watch)
        if self.reports == before:
            return
        named = {resident.uid: f"{resident.namespace}/{resident.name}" for resident in here}
        for report in sorted(self.reports - before):
            fields = {"pod": named.get(report.pod, ""), "gpu": report.gpu, "used": report.used, "evict": report.evict}
            log.warning(report.code, extra=fields)
        self._changed()


def read_cgroup(pid: int) -> str:
    """The text of a process's `/proc` file; empty if the process has ended or is hidden."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
