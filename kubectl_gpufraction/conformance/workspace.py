"""
The namespaces and pods of a run: made, awaited, and removed in every case.

    leftovers removed ──▶ namespaces there ──▶ pods, one check after another ──▶ pods gone ──▶ namespaces deleted

One run uses a cluster at a time: a second one puts its id on the namespaces and removes the first one's pods, and the
first then ends. It removes nothing more, since the namespaces have another id. A namespace with the kit's name but
without its label belongs to others, and is left alone.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from contract import kinds, names, pods
from kubectl_gpufraction.conformance import checks
from kubectl_gpufraction.conformance.codes import ReportReason
from kubectl_gpufraction.conformance.pods import (
    CONTAINER,
    MOST_LOG,
    NAMESPACES,
    hopeless,
    late,
)
from kubectl_gpufraction.session import Failed
from runtime.kubernetes import paths
from runtime.kubernetes.client import (
    Kube,
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeNotFound,
    KubeUnavailable,
)

JSON = dict[str, Any]
T = TypeVar("T")
_POLL = 0.5
"""Seconds between two looks at a pod."""
_GONE_WITHIN = 15.0
"""Seconds that a check waits for its pod to end. If a kubelet is away, the next one has room alongside it."""
_FORCED_AFTER, _REMOVED_WITHIN = 20.0, 60.0
"""Seconds after which pods that their kubelet does not end are removed by force, and that all of it may take."""
_TRIES = 5
"""How often the deletion of a namespace that others change is tried."""
_READY_WITHIN = 30.0
"""Seconds until a new namespace has its service account, and an ending one is gone."""


class Stopped(Exception):
    """The run ends before its checks are done: Ctrl-C (`INTERRUPTED`), or its time is over (`OUT_OF_TIME`)."""

    def __init__(self, reason: ReportReason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class NotThere(Exception):
    """A pod did not come to where a check needs it."""

    def __init__(self, reason: ReportReason) -> None:
        super().__init__(reason.text)
        self.reason = reason


class RunPause:
    """Waits, until it is stopped or the run's time is over. `wait(seconds)`: whether it was stopped."""

    def __init__(
        self, seconds: float, wait: Callable[[float], bool], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._end = monotonic() + seconds
        self._wait = wait
        self.monotonic = monotonic

    def __call__(self, seconds: float = _POLL) -> None:
        """Wait. Raises `Stopped`."""
        if self._wait(seconds):
            raise Stopped(ReportReason.INTERRUPTED)
        if self.monotonic() > self._end:
            raise Stopped(ReportReason.OUT_OF_TIME)

    def until(self, seconds: float, look: Callable[[], T | None]) -> T | None:
        """The first result of `look`, repeated for this long; None if it returned none. Raises `Stopped`."""
        end = self.monotonic() + seconds
        while True:
            try:
                found = look()
            except KubeUnavailable:  # such as an API server that restarts; a write may have taken effect
                if self.monotonic() > end:
                    raise
                found = None
            if found is not None or self.monotonic() > end:
                return found
            self()


class Workspace:
    """The namespaces of a run, and the pods in them. Use it as a context."""

    def __init__(
        self, kube: Kube, pause: RunPause, *, volumes: bool, say: Callable[[str], None] = lambda text: None
    ) -> None:
        """
        `volumes`: whether pods with a share get volumes of the host, which Pod Security must allow. `say`: is told what
        could not be removed.
        """
        self._say = say
        self._kube = kube
        self._pause = pause
        self._level = "privileged" if volumes else "restricted"
        self._id = secrets.token_hex(8)
        self._made: list[str] = []
        self._count = 0

    def __enter__(self) -> Workspace:
        """Raises `Failed` and `KubeError`."""
        try:
            for kind, name in NAMESPACES.items():
                self._take(kind, name)
                self._made.append(name)
            for name in NAMESPACES.values():
                remove_pods(self._kube, name)
                self._pause.until(_READY_WITHIN, lambda name=name: self._takes_pods(name))  # type: ignore[misc]
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for each in remove(self._kube, dict.fromkeys(self._made, self._id)):
            self._say(f"not removed: {each}; run kubectl gpufraction conformance --clean")

    def _take(self, kind: str, name: str) -> None:
        """Make the namespace, or take over one of ours. Raises `Failed`."""
        served = {str(names.INJECT_LABEL): names.INJECT_ENABLED if kind == checks.SERVED else None}
        labels = {**_label(self._id), **served, "pod-security.kubernetes.io/enforce": self._level}
        present = {key: value for key, value in labels.items() if value is not None}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": present}}

        def there() -> bool | None:
            try:
                self._kube.create(paths.namespaces(), body)
                return True
            except KubeConflict:
                found = self._get(paths.namespaces(name))
            if found is None or found["metadata"].get("deletionTimestamp"):
                return None  # one that is ending
            if not _run_of(found):
                raise Failed(
                    f"the namespace {name} was not created by this command, so it is not used; remove it, or its pods"
                )
            self._kube.patch_merge(paths.namespaces(name), {"metadata": {"labels": labels}})
            return True

        if not self._pause.until(_READY_WITHIN + _REMOVED_WITHIN, there):
            raise Failed(f"the namespace {name} of an earlier run is still terminating; check what is left in it")

    def _get(self, path: str) -> JSON | None:
        try:
            return self._kube.get(path)
        except KubeNotFound:
            return None

    def _takes_pods(self, name: str) -> bool | None:
        """Whether the namespace has its service account, without which the API server takes no pod."""
        found = self._get(paths.path("v1", "serviceaccounts", name, "default"))
        return True if found is not None else None

    def create(self, kind: str, pod: JSON) -> JSON:
        """Create a pod. Raises `NotThere` where the API server refuses it."""
        self._count += 1
        name, namespace = f"{pod['metadata']['name']}-{self._count}", NAMESPACES[kind]
        metadata = {**pod["metadata"], "name": name, "namespace": namespace, "labels": _label(self._id)}
        try:
            return self._kube.create(paths.pods(namespace), {**pod, "metadata": metadata})
        except (KubeForbidden, KubeInvalid) as error:
            raise NotThere(ReportReason.REJECTED) from error

    def awaited(self, pod: JSON, seconds: float, there: Callable[[JSON], bool]) -> JSON:
        """The pod once `there` accepts it. Raises `NotThere` and `Stopped`."""
        path, uid = paths.pods(*_place(pod)), pods.uid(pod)
        latest = [pod]

        def look() -> JSON | None:
            found = self._get(path)
            if found is None or pods.uid(found) != uid:
                raise Stopped(ReportReason.INTERRUPTED)  # another run, or a person, has removed it
            latest[0] = found
            if there(found):
                return found
            reason = hopeless(found)
            if reason is not None:
                raise NotThere(reason)
            return None

        found = self._pause.until(seconds, look)
        if found is None:
            raise NotThere(late(latest[0]))
        return found

    def log(self, pod: JSON) -> str:
        """The end of the container's log; empty while there is none."""
        query: dict[str, str | int | bool] = {"container": CONTAINER, "tailLines": 400, "limitBytes": MOST_LOG}
        try:
            return self._kube.text(paths.pods(*_place(pod), "log"), query)
        except KubeError:  # the kubelet is away, or the container has not started
            return ""

    def now(self, pod: JSON) -> JSON | None:
        """The pod as it is; None where it is gone."""
        found = self._get(paths.pods(*_place(pod)))
        return found if found is not None and pods.uid(found) == pods.uid(pod) else None

    def delete(self, pod: JSON) -> None:
        """Delete a pod, and wait until it is gone, so that the next one has its room. Raises `Stopped`."""
        path = paths.pods(*_place(pod))
        with suppress(KubeNotFound):
            self._kube.delete(path, {"gracePeriodSeconds": 1})
        self._pause.until(_GONE_WITHIN, lambda: True if self.now(pod) is None else None)


def _place(pod: JSON) -> tuple[str, str]:
    return str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"])


def _label(run: str) -> dict[str, str]:
    return {str(names.CONFORMANCE): run}


def _run_of(namespace: JSON) -> str:
    """The id of the run that has the namespace; empty where it is none of ours."""
    return str((namespace["metadata"].get("labels") or {}).get(str(names.CONFORMANCE)) or "")


def remove_pods(kube: Kube, namespace: str, run: str = "", sleep: Callable[[float], None] = time.sleep) -> None:
    """
    Delete the pods of a run there, or of every run, and wait until they are gone, for a bounded time.

    A pod whose kubelet does not end it is finally removed by force: it ends by its own deadline.
    """
    selector = f"{names.CONFORMANCE}={run}" if run else str(names.CONFORMANCE)
    began = time.monotonic()
    while (took := time.monotonic() - began) < _REMOVED_WITHIN:
        found = kube.list(paths.pods(namespace), {"labelSelector": selector}, of=kinds.SHOWN).items
        for pod in found:
            forced = took > _FORCED_AFTER
            if forced or not pod["metadata"].get("deletionTimestamp"):
                with suppress(KubeNotFound):
                    seconds = {"gracePeriodSeconds": 0 if forced else 1}
                    kube.delete(paths.pods(namespace, pod["metadata"]["name"]), seconds)
        if not found:
            return
        sleep(_POLL)


def remove(kube: Kube, runs: dict[str, str]) -> list[str]:
    """
    Remove the pods and the namespaces of a run, by the namespaces' names with its id; what could not be removed.

    A namespace that has another id is another run's.
    """
    failed = []
    for name, run in runs.items():
        try:
            if not any(_removed(kube, name, run) for _ in range(_TRIES)):
                failed.append(f"{name}: it changes all the time")
        except KubeError as error:
            failed.append(f"{name}: {error}")
    return failed


def _removed(kube: Kube, name: str, run: str) -> bool:
    """Whether the namespace and the pods of this run there are gone; False where it has changed meanwhile."""
    try:
        found = kube.get(paths.namespaces(name))
        if _run_of(found) != run:
            remove_pods(kube, name, run)
            return True
        remove_pods(kube, name)
        found = kube.get(paths.namespaces(name))
        if _run_of(found) != run:
            return False
        same = {key: found["metadata"][key] for key in ("uid", "resourceVersion")}
        kube.delete(paths.namespaces(name), {"preconditions": same})
    except KubeConflict:
        return False
    except KubeNotFound:
        return True
    return True


def leftovers(kube: Kube) -> dict[str, str]:
    """The namespaces of earlier runs, by name, with the runs' ids."""
    found = {}
    for name in NAMESPACES.values():
        with suppress(KubeNotFound):
            run = _run_of(kube.get(paths.namespaces(name)))
            if run:
                found[name] = run
    return found
