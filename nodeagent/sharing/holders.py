"""
`python -m nodeagent hold`: a pod that gets GPUs from the vendor's device plugin and reports which.

The plugin gives this container GPUs as it does any other, and inside it the driver shows only those. The holder writes
their UUIDs into an annotation of its own pod, where the node agent reads them.

Must not: use the GPUs, which the agent shares.
"""

from __future__ import annotations

import logging
import threading

from contract import names
from nodeagent.gpus.library import GpuLibrary
from nodeagent.gpus.observation import look
from runtime.kubernetes.client import Kube, KubeError
from runtime.kubernetes.paths import pods

log = logging.getLogger(__name__)


_INTERVAL = 60.0
"""Seconds between two rounds. A container keeps its GPUs, so only a report that failed is written after the start."""


class HolderReporter:
    """Reports at the start and when the GPUs change. `step` is one round. `pod`: the holder's own name."""

    def __init__(self, kube: Kube, library: GpuLibrary, pod: str) -> None:
        self._kube = kube
        self._library = library
        self._pod = pod
        self._reported: str | None = None
        self.trouble = "nothing has been reported yet"

    def step(self) -> bool:
        """Look, and report a change. False if either failed; then the last report stays."""
        seen = look(self._library)
        if seen.problem:
            self.trouble = f"no GPU is visible: {seen.problem}"
            return False
        text = ",".join(sorted(card.uuid for card in seen.cards if card.uuid and not card.parent))
        if text != self._reported:
            try:
                path = pods(names.NAMESPACE, self._pod)
                self._kube.patch_merge(path, {"metadata": {"annotations": {str(names.HELD_GPUS): text}}})
            except KubeError as error:
                self.trouble = f"the GPUs are not reported: {error}"
                return False
            log.info("held GPUs reported", extra={"gpus": text})
            self._reported = text
        self.trouble = ""
        return True

    def run(self, stopping: threading.Event) -> None:
        """Do rounds until stopped."""
        while not stopping.is_set():
            if not self.step():
                log.warning("held GPUs not reported", extra={"reason": self.trouble})
            stopping.wait(_INTERVAL)
