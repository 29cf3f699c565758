"""
Why a pod waits, written where the program that created the pod looks for it.

Most programs show nothing of our own condition. Each row of the table is one program and what it shows instead: another
condition of its pods, or the Events of its own object. The pod comes from the API server, and a tenant wrote what it
says about its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocator.queue.records import StatusUpdate
from contract import names
from contract.encoding import moments
from contract.encoding.plain import NAME, is_plain
from contract.encoding.reading import is_subdomain
from contract.reasons.pods import PodEventReason
from runtime.kubernetes import events, paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeNotFound

JSON = dict[str, Any]
UNSCHEDULABLE = "Unschedulable"
"""The reason that Kubernetes has for a pod without a place. Programs look for it in any condition."""
_JOBSET_VERSION = "jobset.x-k8s.io/v1alpha2"
_JOBSET_LABELS = ("jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid")
"""The label by which JobSet marks each of its pods."""
_KSERVE_VERSION = "serving.kserve.io/v1beta1"
_KSERVE_LABEL = "serving.kserve.io/inferenceservice"
"""By which KServe names an InferenceService on each of its pods, without its uid."""
_MINUTE = len("2030-01-01T00:00")


@dataclass(frozen=True, slots=True)
class ControllingOwner:
    """
    The object that controls a pod. `version`: of its API, with the group. `uid`: empty if the pod does not say it.
    """

    version: str
    kind: str
    name: str
    uid: str


Show = Callable[[Kube, StatusUpdate, ControllingOwner, float, str], None]
"""
Shows the news at the owner of its pod, at a time in seconds, as a component. Raises `KubeError`.
"""


def show(kube: Kube, news: StatusUpdate, pod: Mapping[str, Any], now: float, component: str) -> None:
    """Write the news where the program that created the pod looks for it; nothing for most. Raises `KubeError`."""
    owner = creator_of(pod)
    if owner is not None and (shows := PROGRAMS.get((owner.version.partition("/")[0], owner.kind))):
        shows(kube, news, owner, now, component)


def creator_of(pod: Mapping[str, Any]) -> ControllingOwner | None:
    """
    The object that people look at for the pod: its controller, the JobSet that its Job is part of, or the
    InferenceService for which its ReplicaSet is.
    """
    owner = owner_of(pod)
    labels = (pod.get("metadata") or {}).get("labels") or {}
    match owner:
        case ControllingOwner("batch/v1", "Job"):
            return _checked(_JOBSET_VERSION, "JobSet", *(str(labels.get(each, "")) for each in _JOBSET_LABELS)) or owner
        case ControllingOwner("apps/v1", "ReplicaSet") if is_subdomain(name := str(labels.get(_KSERVE_LABEL, ""))):
            return ControllingOwner(_KSERVE_VERSION, "InferenceService", name, "")
    return owner


def owner_of(pod: Mapping[str, Any]) -> ControllingOwner | None:
    """The pod's controller; None without one, or if its name or uid is invalid."""
    for each in (pod.get("metadata") or {}).get("ownerReferences") or ():
        if each.get("controller"):
            return _checked(*(str(each.get(field, "")) for field in ("apiVersion", "kind", "name", "uid")))
    return None


def _checked(version: str, kind: str, name: str, uid: str) -> ControllingOwner | None:
    """The object, where its name and uid can be some; a tenant may have written any of them."""
    return ControllingOwner(version, kind, name, uid) if is_subdomain(name) and uid and is_plain(uid, NAME) else None


def _by_condition(kube: Kube, news: StatusUpdate, owner: ControllingOwner, now: float, component: str) -> None:
    condition = {
        "type": str(names.SCHEDULABLE_CONDITION),
        "status": "True" if news.allocated else "False",
        "reason": news.code if news.allocated else UNSCHEDULABLE,
        "message": news.reason,
        **({"lastTransitionTime": moments.stamp(now)} if news.turned else {}),
    }
    namespace, name = news.key.split("/", 1)
    body: JSON = {"metadata": {"uid": news.uid}, "status": {"conditions": [condition]}}
    kube.patch_strategic(paths.pods(namespace, name, "status"), body)


def _by_event(kube: Kube, news: StatusUpdate, owner: ControllingOwner, now: float, component: str) -> None:
    """One Event a minute for all of its pods that wait for the same."""
    if news.allocated or not news.event:
        return
    at = moments.stamp(now)
    reason = news.warning or PodEventReason.WAITING
    involved = events.about(owner.kind, news.key.split("/", 1)[0], owner.name, owner.uid, version=owner.version)
    once = f"{owner.uid} {reason} {news.reason} {at[:_MINUTE]}"
    written = {"reason": reason, "message": news.reason, "at": at, "once": once}
    events.record(kube, involved, **written, component=component, warns=bool(news.warning))


def _by_event_of_service(kube: Kube, news: StatusUpdate, owner: ControllingOwner, now: float, component: str) -> None:
    """An Event of an InferenceService, whose uid is read first; none if that may not be read or there is none."""
    if news.allocated or not news.event:
        return
    namespace = news.key.split("/", 1)[0]
    try:
        found = kube.get(paths.path(owner.version, "inferenceservices", namespace, owner.name))
    except (KubeForbidden, KubeNotFound):
        return
    _by_event(kube, news, replace(owner, uid=str(found["metadata"]["uid"])), now, component)


PROGRAMS: Mapping[tuple[str, str], Show] = {
    # The message of a step is that of the first condition with this reason, whatever its type.
    ("argoproj.io", "Workflow"): _by_condition,
    # Its conditions do not cover workers, and for the head they contain only the kubelet's information.
    ("ray.io", "RayCluster"): _by_event,
    # It counts the pods that are ready.
    ("jobset.x-k8s.io", "JobSet"): _by_event,
    # It repeats what its Deployment says: the replicas that are available.
    ("serving.kserve.io", "InferenceService"): _by_event_of_service,
}
"""By API group and kind of what `creator_of` finds."""
