"""
Annotations of the older systems that change while a pod lives, such as Aliyun's `ALIYUN_COM_GPU_MEM_ASSIGNED`.

The dialects say what changes and when; here it is written, by the leader alone, from a bounded queue on a thread of its
own, so that the watch never waits for a write. Only other tools depend on these annotations: what is lost here (a full
queue, a failed write) is written when the pod changes next, or at the latest when the watch is read again.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from allocator.faults import Faulted, surfaced
from contract import pods
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError, KubeNotFound

JSON = dict[str, Any]
log = logging.getLogger(__name__)


class Upkeep:
    """Give it every pod that the watch brings; `run` writes."""

    def __init__(
        self,
        kube: Kube,
        *,
        leading: Callable[[], bool],
        dialects: Dialects = DIALECTS,
        size: int = 2_000,
        faulted: Faulted = surfaced,
    ) -> None:
        self._dialects = dialects
        self._kube = kube
        self._leading = leading
        self._faulted = faulted
        self._changes: queue.Queue[tuple[str, str, dict[str, str]]] = queue.Queue(maxsize=size)

    def seen(self, pod: Mapping[str, Any]) -> None:
        """The pod is new or changed."""
        changes = self._dialects.started(pod)
        if not changes or not self._leading():
            return
        try:
            self._changes.put_nowait((pods.key(pod), pods.uid(pod), changes))
        except queue.Full:
            return

    def run(self, stop: threading.Event) -> None:
        """Write until stopped."""
        while not stop.is_set():
            try:
                key, uid, changes = self._changes.get(timeout=0.2)
            except queue.Empty:
                continue
            try:
                self._write(key, uid, changes)
            except KubeNotFound:
                continue
            except KubeError as error:
                log.info("annotations not updated", extra={"pod": key, "reason": str(error)})
            except Exception:
                self._faulted("upkeep", key)

    def _write(self, key: str, uid: str, changes: Mapping[str, str]) -> None:
        """The uid in the patch is a precondition: another pod of the same name is refused with a conflict."""
        namespace, name = key.split("/", 1)
        self._kube.patch_merge(paths.pods(namespace, name), {"metadata": {"uid": uid, "annotations": dict(changes)}})
