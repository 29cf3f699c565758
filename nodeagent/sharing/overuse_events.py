"""
The thread that carries out what `nodeagent.sharing.overuse` finds: Events and evictions.

While the API server is away warnings are lost, and an eviction is tried again after the next look.

Must not: decide, or call the driver.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nodeagent.conditions import timestamp
from nodeagent.gpus.observation import Observation
from nodeagent.sharing.overuse import OveruseMonitor, OveruseStep
from nodeagent.sharing.residents import Residents
from nodeagent.sharing.usage import NodeUsage, measure
from runtime.kubernetes import events
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound
from runtime.kubernetes.evictions import evict

log = logging.getLogger(__name__)


class OveruseReporter:
    """
    Judges each observation once. `show` is called with the usage and the warnings so far, for metrics; `more` returns
    further steps. `cgroup_of` reads a process's control groups; `clock` is wall time in seconds.
    """

    def __init__(
        self,
        kube: Kube,
        residents: Residents,
        watch: OveruseMonitor,
        *,
        node: str,
        show: Callable[[NodeUsage, OveruseMonitor], None] = lambda usage, watch: None,
        more: Callable[[], tuple[OveruseStep, ...]] = tuple,
        cgroup_of: Callable[[int], str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._kube, self._residents, self._watch, self._node = kube, residents, watch, node
        self._show, self._more, self._clock = show, more, clock
        self._cgroup_of = cgroup_of or read_cgroup
        self._observations: list[Observation] = []
        self._leaving: set[str] = set()
        """Uids of pods whose eviction was accepted, which is not repeated while they end."""
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
        """Judge one look and carry out the steps."""
        here = self._residents.all()
        usage = measure(observation.cards, here, self._cgroup_of)
        self._leaving &= {resident.uid for resident in here}
        now = self._clock()
        steps = (*self._watch.judge(usage, observation.cards, now), *self._more())
        self._show(usage, self._watch)
        for step in steps:
            try:
                self._do(step, now)
            except KubeError as error:
                log.warning(
                    "pod not warned or not evicted",
                    extra={"what": step.reason, "pod": _key(step), "reason": str(error)},
                )

    def _do(self, step: OveruseStep, now: float) -> None:
        pod = step.resident
        if step.evict:
            if pod.uid in self._leaving:
                return
            # The Event follows the eviction, which a PodDisruptionBudget may delay; it is tried after every look.
            with contextlib.suppress(KubeNotFound):
                evict(self._kube, pod.namespace, pod.name, uid=pod.uid)
            self._leaving.add(pod.uid)
        log.warning(step.reason, extra={"pod": _key(step), "reason": step.message})
        events.record(
            self._kube,
            events.about("Pod", pod.namespace, pod.name, pod.uid),
            reason=step.reason,
            message=step.message,
            at=timestamp(now),
            component="gpufraction-nodeagent",
            host=self._node,
        )


def read_cgroup(pid: int) -> str:
    """The text of a process's `/proc` file; empty if the process has ended or is hidden."""
    try:
        return Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _key(step: OveruseStep) -> str:
    return f"{step.resident.namespace}/{step.resident.name}"
