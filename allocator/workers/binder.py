"""
The only place that writes for the allocator: the commit of a placement, conditions and Events.

A commit is one JSON patch: annotations, the node's pin, the gate removed, all under the resourceVersion that the
decision saw. Its outcome is one of three values; if it is unknown, the pod is read back before anything else is done
with its share. Conditions and Events are written at most once for each change, and nothing waits for them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

import jsonpointer

from allocator.cache.capacities import HeldBeyond
from allocator.cache.podinfo import pod_event
from allocator.cache.repeated import RepeatedNote
from allocator.faults import Faulted, surfaced
from allocator.queue.records import Binding, EventRecord, Eviction, Report, StatusUpdate
from allocator.scheduler.events import BindFailed, BindSucceeded, BindUnknown, EvictionOutcome, TakeShare
from allocator.workers import owners, resource_claims, share_claims
from contract import names, pods
from contract.backoff import backoff
from contract.dialects import DIALECTS
from contract.dialects.table import Dialects
from contract.encoding import codec, moments
from contract.encoding.plain import plain
from contract.reasons.pods import PodEventReason
from contract.scheduling import node_pin, protection
from runtime.kubernetes import events, evictions, paths
from runtime.kubernetes.client import (
    Kube,
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeNotFound,
    KubeTimeout,
    KubeTooManyRequests,
    KubeUnavailable,
)

JSON = dict[str, Any]
Tellable = Report | HeldBeyond | RepeatedNote
log = logging.getLogger(__name__)
_LONGEST_WHY = 300
"""Characters of the reason in the request for an eviction."""
_VERSIONS = {"ElasticGPUClaim": "elasticgpu.io/v1alpha1"}
"""API versions of the kinds that Events are about, where they are not `v1`."""
_COMPONENT = "gpufraction-allocator"
_TRIES = 8
_PAUSE, _PAUSE_CAP = 0.5, 30.0
"""Seconds before a condition that the API server did not accept is written again: the first pause, and the longest."""


REFUSALS = (KubeForbidden, KubeInvalid)
"""A write that is always refused, unless the pod or the cluster's rules change."""


class Unwritable(Exception):
    """A commit could not be rendered, so nothing was sent."""


def operations(binding: Binding, now_ns: int, *, protects: bool = False, dialects: Dialects = DIALECTS) -> list[JSON]:
    """
    The commit as JSON patch operations (RFC 6902) on the pod that the decision saw.

    `protects`: whether autoscalers are asked to leave the node alone while the pod is there.
    """
    pod, allocation = binding.pod.pod, binding.allocation
    request = binding.pod.ask.request
    metadata = pod.get("metadata") or {}
    rendering = dialects.render(pod, request, allocation, now_ns)
    annotations = {
        names.ALLOCATION: codec.allocation_to_text(allocation),
        **codec.container_annotations(allocation),
        **rendering.annotations,
        **({str(names.GANG_PLAN): binding.plan} if binding.plan else {}),
        **(protection.added(metadata.get("annotations") or {}) if protects else {}),
    }
    position = pods.gates(pod).index(names.GATE)
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion", "")},
        {"op": "test", "path": f"/spec/schedulingGates/{position}/name", "value": str(names.GATE)},
        *(_set("annotations", key, value) for key, value in annotations.items()),
        *_labels(metadata, rendering.labels),
        *node_pin.pin_operations(pod.get("spec") or {}, allocation.node),
        {"op": "remove", "path": f"/spec/schedulingGates/{position}"},
    ]


def _labels(metadata: JSON, labels: Any) -> list[JSON]:
    if not labels:
        return []
    if not metadata.get("labels"):
        return [{"op": "add", "path": "/metadata/labels", "value": dict(labels)}]
    return [_set("labels", key, value) for key, value in labels.items()]


def _set(field: str, key: str, value: str) -> JSON:
    return {"op": "add", "path": f"/metadata/{field}/{jsonpointer.escape(key)}", "value": value}


def write(
    kube: Kube,
    binding: Binding,
    now_ns: int,
    *,
    protects: bool = False,
    timeout: float | None = None,
    dialects: Dialects = DIALECTS,
) -> BindSucceeded | BindFailed | BindUnknown:
    """
    Write a commit and find out its result. `protects`: as in `operations`.

    A write without an answer or a visible effect is unknown, not undone: the API server may still be carrying it out.
    Writing the same commit again resolves this, because only one of the two can find the version that both name. Raises
    `Unwritable` if an internal error leaves nothing to write.
    """
    try:
        path = paths.pods(*binding.pod.key.split("/", 1))
        patch = operations(binding, now_ns, protects=protects, dialects=dialects)
    except Exception as error:
        raise Unwritable(f"{type(error).__name__}: {error}") from error
    try:
        # Before the gate goes, so that a pod without a gate has its claim, whatever ends in between.
        left = _write_claims(kube, binding, now_ns, timeout)
        return BindSucceeded(binding, pod_event(pods.trim(kube.patch_json(path, patch, timeout=left))))
    except resource_claims.NotWritten as error:
        # The pod itself was not written to now.
        why: KubeError = KubeInvalid(str(error)) if error.refused else KubeConflict(str(error))
    except KubeError as error:
        why = error
    if binding.again and not why.outcome_unknown:
        why = _overtake(kube, binding, timeout) or why
    return read_back(kube, binding, why, timeout=timeout)


def _overtake(kube: Kube, binding: Binding, timeout: float | None) -> KubeTimeout | None:
    """
    Give the pod a later version, so that no earlier write of a commit that cannot be repeated finds the one it names.
    Why that is not certain; None where it is.
    """
    version = (binding.pod.pod.get("metadata") or {}).get("resourceVersion", "")
    patch = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        _set("annotations", names.FENCE, binding.allocation.id),
    ]
    try:
        kube.patch_json(paths.pods(*binding.pod.key.split("/", 1)), patch, timeout=timeout)
    except KubeError as error:
        return KubeTimeout(str(error))
    return None


def _write_claims(kube: Kube, binding: Binding, now_ns: int, timeout: float | None) -> float | None:
    """Write the claims by which the pod gets its devices; what is left of the time. Raises `NotWritten`."""
    pod, request, allocation = binding.pod.pod, binding.pod.ask.request, binding.allocation
    if request.own_claims:
        at = moments.stamp(now_ns / 1e9)
        return share_claims.write(kube, pod, request, allocation, at=at, timeout=timeout)
    return resource_claims.write(kube, pod, request, allocation, timeout=timeout)


_STILL = KubeTimeout("the write may still be carried out")


def read_back(
    kube: Kube, binding: Binding, after: KubeError = _STILL, *, timeout: float | None = None
) -> BindSucceeded | BindFailed | BindUnknown:
    """
    The result of a commit, from the pod. `after`: how the write ended, if this replica just made it.

    It is unknown as long as the pod is at the version that the commit names and the write may be in transit; with any
    other version the commit took effect or never will.
    """
    why = str(after)
    try:
        pod = pods.trim(kube.get(paths.pods(*binding.pod.key.split("/", 1)), timeout=timeout))
    except KubeNotFound:
        return BindFailed(binding, None, why)
    except KubeError as error:
        return BindUnknown(binding, f"{why}; reading it back: {error}")
    if pods.uid(pod) != binding.pod.uid:
        return BindFailed(binding, None, why)
    found = pods.allocation_of(pod, binding.pod.ask.request)
    if found is not None and found.id == binding.allocation.id and names.GATE not in pods.gates(pod):
        return BindSucceeded(binding, pod_event(pod))
    unchanged = pods.version(pod) == pods.version(binding.pod.pod)
    if unchanged and after.outcome_unknown:
        return BindUnknown(binding, why)
    return BindFailed(binding, pod_event(pod), why, refused=unchanged and isinstance(after, REFUSALS))


def take_share(kube: Kube, take: TakeShare, *, timeout: float | None = None) -> None:
    """
    Remove a pod's allocation and what its containers' environment reads, so that they see no GPU from now on.

    The write names the version of the pod that was judged, so it changes nothing once the pod was bound, even if it
    arrives late. Raises `KubeError`.
    """
    changes: dict[str, str | None] = dict.fromkeys(take.annotations)
    if take.withdrawn_from:
        changes[str(names.WITHDRAWN)] = take.withdrawn_from
    metadata = {"uid": take.uid, "resourceVersion": str(take.version), "annotations": changes}
    kube.patch_merge(paths.pods(*take.key.split("/", 1)), {"metadata": metadata}, timeout=timeout)


def evict(kube: Kube, order: Eviction, *, dry_run: bool = False) -> EvictionOutcome:
    """
    Ask for a pod's eviction (policy/v1), which honours PodDisruptionBudgets; a dry run asks if it would be granted.

    The pod must be exactly the judged one, and at that version if one is named: a pod that was bound or changed in
    between is left alone.
    """
    namespace, name = order.key.split("/", 1)
    fields = {"pod": order.key, "cause": order.cause}
    try:
        why = {str(names.EVICTION_REASON): plain(f"{order.cause}: {order.why}", _LONGEST_WHY)}
        evictions.evict(kube, namespace, name, uid=order.uid, version=order.version, dry_run=dry_run, annotations=why)
    except (KubeNotFound, KubeConflict):
        return "gone"
    except KubeTooManyRequests:
        log.info("eviction not allowed by a disruption budget", extra=fields)
        return "budget"
    except KubeError as error:
        log.warning("not evicted", extra={**fields, "reason": str(error)})
        return "failed"
    if not dry_run:
        log.warning("evicted", extra={**fields, "reason": order.why})
    return "evicted"


def record(kube: Kube, news: Report, now: datetime) -> None:
    """Write an Event. Raises `KubeError` if it is not accepted."""
    once = ""
    match news:
        case StatusUpdate():
            kind, reason = (
                "Pod",
                news.warning or (PodEventReason.ALLOCATED if news.allocated else PodEventReason.WAITING),
            )
            warns = bool(news.warning)
        case EventRecord():
            kind, reason, warns, once = news.kind, news.code, news.warns, news.once
    namespace, _, name = news.key.rpartition("/")
    involved = events.about(kind, namespace, name, news.uid, version=_VERSIONS.get(kind, "v1"))
    at = moments.stamp(now.timestamp())
    written = {"reason": reason, "message": news.reason, "at": at}
    events.record(kube, involved, **written, component=_COMPONENT, warns=warns, once=once)


class EventRecorder:
    """
    Writes conditions and Events from a bounded queue on a thread of its own.

    Writes to a busy or unavailable API server are tried again for some time, because otherwise a pod for which nothing
    changes would never be told. If it is slower than the news, each pod gets only the latest, and namespaces take
    turns, so that none waits for the conditions of another's thousands of pods. `size`: how many may wait to be
    written; beyond this, the oldest of the namespace with the most is dropped. `leading`: a replica that no longer
    leads writes nothing, because its news is old; each leader writes all conditions again.
    """

    def __init__(
        self,
        kube: Kube,
        *,
        clock: Callable[[], datetime],
        size: int = 20_000,
        leading: Callable[[], bool] = lambda: True,
        faulted: Faulted = surfaced,
    ) -> None:
        self._kube = kube
        self._clock = clock
        self._leading = leading
        self._size = size
        self._faulted = faulted
        self._changed = threading.Condition()  # guards the news
        self._news: dict[str, dict[tuple[str, ...], Tellable]] = {}
        """The queues by namespace, the one with the next turn first."""
        self._count = 0

    def put(self, news: Tellable) -> None:
        """Write it soon, in place of pending news about the same pod."""
        about, namespace = _about(news), news.key.rpartition("/")[0]
        with self._changed:
            theirs = self._news.setdefault(namespace, {})
            before = theirs.get(about)
            if isinstance(news, StatusUpdate) and isinstance(before, StatusUpdate):
                news = replace(news, turned=news.turned or before.turned, event=news.event or before.event)
            theirs[about] = news
            self._count += before is None
            if self._count > self._size:
                self._pop(max(self._news, key=lambda each: len(self._news[each])))
            self._changed.notify()

    def _pop(self, namespace: str) -> Tellable:
        """The oldest of a namespace, whose turn is then over."""
        theirs = self._news.pop(namespace)
        news = theirs.pop(next(iter(theirs)))
        if theirs:
            self._news[namespace] = theirs
        self._count -= 1
        return news

    def take(self, within: float) -> Tellable | None:
        """The next write; waits for it at most this many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._news, within)
            return self._pop(next(iter(self._news))) if self._news else None

    def run(self, stop: threading.Event) -> None:
        """Tell until stopped."""
        while not stop.is_set():
            news = self.take(0.2)
            if news is not None:
                try:
                    self.tell(news, stop.wait)
                except Exception:
                    self._faulted("tell", news.key)

    def tell(self, news: Tellable, wait: Callable[[float], bool]) -> bool:
        """Write it, and try again while that may help. `wait`: waits this many seconds; true when there is no time
        left."""
        about = {"kind": news.kind if isinstance(news, EventRecord) else "Pod", "object": news.key}
        for attempt in range(_TRIES):
            if not self._leading():
                return False
            try:
                self._tell(news)
                return True
            except (KubeTooManyRequests, KubeUnavailable) as error:
                pause = min(max(backoff(attempt + 1, _PAUSE, _PAUSE_CAP), error.retry_after or 0.0), _PAUSE_CAP)
                log.info("condition or Event not written yet", extra={**about, "reason": str(error)})
                if wait(pause):
                    return False
            except KubeError as error:
                log.info("condition or Event not written", extra={**about, "reason": str(error)})
                return False
        log.warning("condition or Event not written", extra={**about, "tries": _TRIES})
        return False

    def _tell(self, news: Tellable) -> None:
        if isinstance(news, HeldBeyond):
            self._annotate(news.key, names.BEYOND, news.text)
            return
        if isinstance(news, RepeatedNote):
            self._annotate(news.key, names.REPEATED, news.text or None)
            return
        now = self._clock()
        if isinstance(news, StatusUpdate):
            try:
                pod = self._set_condition(news, moments.stamp(now.timestamp()))
                owners.show(self._kube, news, pod, now.timestamp(), _COMPONENT)
            except REFUSALS as error:  # the Event may still be accepted, and then users can see it
                log.info("condition refused", extra={"pod": news.key, "reason": str(error)})
            if not news.event:
                return
        record(self._kube, news, now)

    def _annotate(self, gpunode: str, name: str, text: str | None) -> None:
        """Write an annotation of a GPUNode; None removes it."""
        self._kube.patch_merge(paths.gpunodes(gpunode), {"metadata": {"annotations": {str(name): text}}})

    def _set_condition(self, news: StatusUpdate, now: str) -> JSON:
        """
        Write our condition, and for a pod behind our gate the message of the API server's own as well. Returns the pod
        as it is then.

        Raises the API server's refusal. A policy of an older release refuses the second condition; ours is then written
        alone.
        """
        ours = {
            "type": str(names.ALLOCATED_CONDITION),
            "status": "True" if news.allocated else "False",
            "reason": news.code,
            "message": news.reason,
            **({"lastTransitionTime": now} if news.turned else {}),
        }
        if news.allocated or not news.gated:
            return self._patch_conditions(news, [ours])
        try:
            return self._patch_conditions(news, [ours, {"type": "PodScheduled", "message": _unformatted(news.reason)}])
        except REFUSALS:
            return self._patch_conditions(news, [ours])

    def _patch_conditions(self, news: StatusUpdate, conditions: list[JSON]) -> JSON:
        namespace, name = news.key.split("/", 1)
        body: JSON = {"metadata": {"uid": news.uid}, "status": {"conditions": conditions}}
        return self._kube.patch_strategic(paths.pods(namespace, name, "status"), body)


def _unformatted(reason: str) -> str:
    """The reason without percent signs: Knative takes the message of `PodScheduled` for a format."""
    return reason.replace("%", "percent")


def _about(news: Tellable) -> tuple[str, ...]:
    """The subject of the news: of two with the same subject only the later one is written."""
    match news:
        case StatusUpdate():
            return (news.uid,)
        case HeldBeyond():
            return ("gpunode", news.key)
        case RepeatedNote():
            return ("repeated", news.key)
        case EventRecord():
            return (news.uid, news.kind, news.key, news.code, news.once)
