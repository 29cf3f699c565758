"""
The writes by which a new leader learns that its watch is up to date, fences the bindings of the previous leader, and
fails the pods that came too late.

The controller knows which pods, and when all are done. A pod that cannot be written is tried again in the next pass,
and nothing is decided until then: a replica that cannot write to pods could not place any either. A pod whose fencing
is permanently refused, such as by a policy, is skipped, because the same policy would refuse its binding too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.queue.parking import ParkedPod
from allocator.queue.queue import QueuedPodInfo
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    BarrierWritten,
    FencePods,
    FenceRefused,
    LatePod,
    LatePodFailed,
    PodFenced,
    WriteBarrier,
)
from contract import names, pods
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeError, KubeForbidden, KubeInvalid, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_MOST_AT_ONCE, _WRITERS = 64, 4
"""Pods whose fencing is begun before the answers are looked at, and how many of them are written side by side."""


class Fencer:
    """
    Carries out `FencePods` and `LatePod`. `word` gives a fencing token that no pod carries yet, `timeout` is in seconds
    for one write, and `failed` is called for every pod that was failed.
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
        self._kube = kube
        self._controller = controller
        self._word = word
        self._timeout = timeout
        self._writers = writers
        self._failed = failed
        self._at_once = _MOST_AT_ONCE
        """
        Pods that are begun together. An API server that does not answer in time gets less: it goes on with what
        nobody waits for any more, and would never catch up with as much again.
        """

    def fence(self, order: FencePods) -> None:
        """Give each of these pods a later version, once. Raises the first error of ours, after all were tried."""
        started, word = time.perf_counter(), self._word()
        answers = list[bool | Exception]()
        while len(answers) < len(order.pods):
            some = order.pods[len(answers) : len(answers) + self._at_once]
            came = tuple(self._writers.map(lambda entry: self._try_to_touch(entry, word, order.term), some))
            answers += came
            if all(answer is True for answer in came):
                self._at_once = min(2 * self._at_once, _MOST_AT_ONCE)
            else:
                self._at_once = max(min(self._at_once, _WRITERS) // 2, 1)
        failed = [answer for answer in answers if isinstance(answer, Exception)]
        took = {"left": sum(answer is not True for answer in answers), "seconds": _since(started)}
        log.info("pending pods fenced", extra={"term": order.term, "pods": len(order.pods), **took})
        if failed:
            raise failed[0]  # nothing is decided until all are fenced, and somebody must learn why that is not so

    def _try_to_touch(self, entry: QueuedPodInfo | ParkedPod, word: str, term: int | None) -> bool | Exception:
        """True if that pod is done. An error of ours that came of it is returned, so that others are fenced too."""
        try:
            return self._touch(entry, word, term)
        except Exception as error:
            return error

    def _touch(self, entry: QueuedPodInfo | ParkedPod, word: str, term: int | None) -> bool:
        if not self._controller.may_write_in(term):
            return False
        fields = {"pod": entry.key}
        try:
            pod = self._give(entry.key, entry.uid, word)
        except (KubeNotFound, KubeConflict):
            self._controller.handle(PodFenced(entry.uid, None))
        except (KubeForbidden, KubeInvalid) as error:
            log.warning("pod not fenced, and skipped", extra={**fields, "reason": str(error)})
            self._controller.handle(FenceRefused(entry, str(error)))
        except KubeError as error:
            log.info("pod not fenced yet", extra={**fields, "reason": str(error)})
            return False
        else:
            self._controller.handle(PodFenced(entry.uid, pod_event(pod, pods.trim)))
        return True

    def _give(self, key: str, uid: str, word: str) -> JSON:
        """Give the pod a token, and so a later version."""
        touch: JSON = {"metadata": {"uid": uid, "annotations": {str(names.FENCE): word}}}
        return self._kube.patch_merge(paths.pods(*key.split("/", 1)), touch, timeout=self._timeout)

    def write_barrier(self, order: WriteBarrier) -> None:
        """Write the pod that the watch must show. Every outcome is reported, or it would be waited for in vain."""
        word, written = self._word(), False
        try:
            if self._controller.may_write_in(order.term):
                self._give(order.key, order.uid, word)
                written = True
        except KubeError as error:
            log.info("pod not written", extra={"pod": order.key, "reason": str(error)})
        finally:
            self._controller.handle(BarrierWritten(order.term, order.uid, word if written else None))

    def fail(self, late: LatePod) -> None:
        """Fail a pod that came after its share was given to others. Without an answer the request is repeated later."""
        namespace, name = late.key.split("/", 1)
        try:
            self._kube.patch_merge(paths.pods(namespace, name), failing(late), timeout=self._timeout)
            log.warning("late pod marked as failed", extra={"pod": late.key, "reason": late.why})
            self._failed()
        except (KubeNotFound, KubeConflict):
            pass
        except KubeError as error:
            log.warning("late pod not marked as failed yet", extra={"pod": late.key, "reason": str(error)})
            return
        self._controller.handle(LatePodFailed(late))


def _since(started: float) -> float:
    return round(time.perf_counter() - started, 3)


def failing(late: LatePod) -> JSON:
    """
    A merge patch after which no container of the pod is given a GPU, and after which its kubelet ends it.

    A container's environment is read when it starts, so one that starts from now on sees no card. The deadline is the
    one field by which a kubelet learns that a pod has failed: the phase itself is the kubelet's, which takes back
    what others write there. It counts from when the kubelet took the pod in.
    """
    annotations = {key: None for key in late.annotations}
    return {"metadata": {"uid": late.uid, "annotations": annotations}, "spec": {"activeDeadlineSeconds": 1}}
