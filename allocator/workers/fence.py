"""
The writes by which a new leader bars what the one before has under way, and fails the pods that came too late.

What is to be written, and when all of it is, the controller knows. A pod that cannot be reached is tried again at the
next pass, and until then nothing is decided: whoever cannot write to pods could not place any either. A pod whose
touching is refused for good, such as by somebody's policy, is passed over, since it would refuse a placement as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler.core import Controller
from allocator.scheduler.succession import LatePod
from contract import names
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeForbidden, KubeInvalid, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)


class Fencer:
    """
    Call `fence` before deciding, `fail_late` now and then. `word` gives a word that no pod carries yet, `timeout` is in
    seconds for one write, and `failed` is told of every pod that was failed.
    """

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        *,
        word: Callable[[], str],
        timeout: float,
        writers: Executor,
        failed: Callable[[], None],
    ) -> None:
        self._kube, self._controller, self._word = kube, controller, word
        self._timeout, self._writers, self._failed = timeout, writers, failed

    def fence(self) -> None:
        """Touch every pod that is still to be touched, once."""
        term, waiting = self._controller.to_fence()
        if not waiting:
            return
        started, word = time.perf_counter(), self._word()
        failed = [
            error for error in self._writers.map(lambda entry: self._try_to_touch(entry, word, term), waiting) if error
        ]
        _, left = self._controller.to_fence()
        took = {"pods": len(waiting), "left": len(left), "seconds": round(time.perf_counter() - started, 3)}
        log.info("pending pods fenced", extra={"term": term, **took})
        if failed:
            raise failed[0]  # nothing is decided until all are touched, and somebody must learn why that is not so

    def _try_to_touch(self, entry: QueuedPodInfo, word: str, term: int | None) -> Exception | None:
        """The error of ours that came of this pod; others are touched all the same."""
        try:
            self._touch(entry, word, term)
        except Exception as error:
            return error
        return None

    def _touch(self, entry: QueuedPodInfo, word: str, term: int | None) -> None:
        if not self._controller.may_write_in(term):
            return
        touch: JSON = {"metadata": {"uid": entry.uid, "annotations": {str(names.FENCE): word}}}
        fields = {"pod": entry.key}
        try:
            pod = self._kube.patch_merge(paths.pods(*entry.key.split("/", 1)), touch, timeout=self._timeout)
        except (KubeNotFound, KubeConflict):
            self._controller.fenced(entry.uid, None)
        except (KubeForbidden, KubeInvalid) as error:
            log.warning("pod not fenced, and skipped", extra={**fields, "reason": str(error)})
            self._controller.fence_refused(entry, str(error))
        except KubeError as error:
            log.info("pod not fenced yet", extra={**fields, "reason": str(error)})
        else:
            self._controller.fenced(entry.uid, pod)

    def fail_late(self) -> None:
        """Fail every pod that came when its share had been given away; what was not answered is asked again."""
        for late in self._controller.late():
            namespace, name = late.key.split("/", 1)
            try:
                self._kube.patch_merge(paths.pods(namespace, name), failing(late), timeout=self._timeout)
                log.warning("late pod marked as failed", extra={"pod": late.key, "reason": late.why})
                self._failed()
            except (KubeNotFound, KubeConflict):
                pass
            except KubeError as error:
                log.warning("late pod not marked as failed yet", extra={"pod": late.key, "reason": str(error)})
                continue
            self._controller.failed(late)


def failing(late: LatePod) -> JSON:
    """
    A merge patch after which no container of the pod is given a GPU, and after which its kubelet ends it.

    A container's environment is read when it starts, so one that starts from now on sees no card. The deadline is the
    one field by which a kubelet can be told that a pod has failed: the phase itself is the kubelet's, which takes back
    what others write there. It counts from when the kubelet took the pod in.
    """
    annotations = {key: None for key in late.annotations}
    return {"metadata": {"uid": late.uid, "annotations": annotations}, "spec": {"activeDeadlineSeconds": 1}}
