"""
Canaries on the API server: the leader creates them, writes their results, and removes them, as the machine decides.

Every pass reads the existing canaries, so a lost response or another leader makes no difference. The next pass retries
after a failure. A canary that is not removed ends by its own deadline.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from allocator.features.canary import pods
from allocator.features.canary.machine import Canaries, CanaryAction, ConcludeCanary, RemoveCanary, StartCanary
from allocator.features.canary.part import CanaryPart
from allocator.scheduler.core import Controller
from allocator.workers.replicas import REPLICAS, image_of
from contract import kinds, names
from contract.nodes import proofs
from contract.scheduling.filters import Limits
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeNotFound

log = logging.getLogger(__name__)
_EVERY = 2.0
"""Seconds from one pass to the next. A canary is removed for other pods within this time."""
_OURS = {"labelSelector": f"{names.CANARY}=true"}


class CanaryWorker:
    """`counted`: called with the outcome of each canary."""

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        part: CanaryPart,
        limits: Limits,
        *,
        counted: Callable[[str], None],
        now: Callable[[], float] = time.time,
        word: Callable[[], str] = lambda: secrets.token_hex(4),
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._part = part
        self._limits = limits
        self._counted = counted
        self._now = now
        self._word = word
        self._machine = Canaries()
        self._said = ""

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_EVERY):
            if self._controller.decides():
                try:
                    self.once()
                except KubeError as error:
                    self._say(str(error))

    def once(self) -> None:
        """One pass. Raises `KubeError`."""
        term = self._controller.term()
        listed = self._kube.list(paths.pods(names.CANARY_NAMESPACE), _OURS, of=kinds.PLACEHOLDERS).items
        found = [each for each in map(pods.read, listed) if each is not None]
        view = self._controller.locked(lambda: self._part.view(found, self._limits))
        if view is None:
            return
        for action in self._machine.step(self._now(), view, found):
            if self._controller.may_write_in(term):
                self._carry_out(action)

    def _carry_out(self, action: CanaryAction) -> None:
        match action:
            case StartCanary(node, uuid):
                self._start(node, uuid)
            case RemoveCanary(pod, why):
                log.info("canary removed", extra={"node": pod.node, "reason": why})
                self._delete(pod.name, pod.uid)
                self._counted(why)
            case ConcludeCanary(pod, proof):
                note = {"metadata": {"annotations": {str(names.PROOF): proofs.to_text(proof)}}}
                with suppress(KubeNotFound):  # the node was removed meanwhile
                    self._kube.patch_merge(paths.gpunodes(pod.node), note)
                level = logging.INFO if proof.held else logging.ERROR
                log.log(level, "isolation tried", extra={"node": pod.node, "held": proof.held})
                self._delete(pod.name, pod.uid)
                self._counted("held" if proof.held else "exceeded")

    def _start(self, node: str, uuid: str) -> None:
        replicas = self._kube.list(paths.pods(names.NAMESPACE), REPLICAS, of=kinds.PLACEHOLDERS).items
        body = pods.canary(f"canary-{self._word()}", node, uuid, image_of(replicas))
        self._kube.create(paths.pods(names.CANARY_NAMESPACE), body)
        log.info("canary created", extra={"node": node, "gpu": uuid})
        self._said = ""

    def _delete(self, name: str, uid: str) -> None:
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        with suppress(KubeNotFound, KubeConflict):
            self._kube.delete(paths.pods(names.CANARY_NAMESPACE, name), options)

    def _say(self, why: str) -> None:
        """Log it, once for each reason in a row."""
        if why != self._said:
            log.warning("isolation not tried", extra={"reason": why})
            self._said = why
