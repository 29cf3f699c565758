"""
The time that a program gives a pod to start, read from the pod and its owners: what happens at its end, and what
lengthens it.

One table of owners and one of programs that create pods without an owner. Pure: objects in, values out. Objects are
those of users: what cannot be read has no limit.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.encoding import moments
from contract.encoding.plain import NAME, plain

JSON = dict[str, Any]
_FOR_EVER = 2**31 - 1
"""Kubernetes' value for no deadline of a Deployment."""
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(h|ms|m|s)")
_PARTS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}


@dataclass(frozen=True, slots=True)
class Owner:
    """A controller as its object's reference names it."""

    version: str
    kind: str
    name: str

    @property
    def plural(self) -> str:
        """Its kind in the API's paths; empty for a kind whose limits are not known."""
        row = _OWNERS.get((self.version.partition("/")[0], self.kind))
        return row.plural if row is not None else ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """Until when a pod may wait. `ends`: seconds since 1970."""

    who: str
    """The program that sets the time."""
    what: str
    """What follows, as the end of a sentence."""
    setting: str
    length: str
    ends: float

    def sentence(self, now: float) -> str:
        """The limit as text, with the moment as `moments.at` writes it."""
        over = self.ends <= now
        when = f"The time of {self.who} {'ended' if over else 'ends'} {moments.at(self.ends)}"
        return f"{when}: {'' if over else 'then '}{self.what}. {self.setting} ({self.length}) sets that time."


def moment(limit: TimeLimit) -> str:
    """When it ends, as Kubernetes writes times."""
    return moments.stamp(limit.ends)


@dataclass(frozen=True, slots=True)
class Creator:
    """The creator of a pod, if the pod names it. `program`: one that creates pods without an owner."""

    owner: Owner | None = None
    program: str = ""


NOBODY = Creator()


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the limits of one kind of owner are read. `follow`: whether its own owner may have one."""

    plural: str
    limits: Callable[[JSON], Iterator[TimeLimit]] = lambda owner: iter(())
    follow: bool = False


@dataclass(frozen=True, slots=True)
class _Program:
    """A program whose pods have these labels, and its default time for them."""

    name: str
    labels: Mapping[str, str]
    what: str
    setting: str
    seconds: int


_PROGRAMS = (
    _Program(
        "KubeSpawner",
        {"component": "singleuser-server"},
        "it deletes this pod",
        "c.KubeSpawner.start_timeout",
        300,
    ),
    _Program(
        "KubernetesPodOperator",
        {"kubernetes_pod_operator": "True"},
        "the task fails",
        "schedule_timeout_seconds of the operator",
        120,
    ),
    _Program(
        "KubernetesExecutor",
        {"kubernetes_executor": "True"},
        "it deletes this pod within 2 minutes; it creates another one twice, and then the task fails",
        "task_queued_timeout in [scheduler] of Airflow's configuration",
        600,
    ),
)


def creator_of(pod: JSON) -> Creator:
    """The creator of the pod."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    program = next((each.name for each in _PROGRAMS if each.labels.items() <= labels.items()), "")
    return Creator(owner_of(pod), program)


def owner_of(document: JSON) -> Owner | None:
    """The controller of a pod or of another object."""
    for each in (document.get("metadata") or {}).get("ownerReferences") or ():
        if each.get("controller"):
            return Owner(*(plain(str(each.get(key, "")), NAME) for key in ("apiVersion", "kind", "name")))
    return None


def next_owner(owner: Owner, document: JSON) -> Owner | None:
    """The owner of an owner, where that one may have a limit."""
    row = _OWNERS.get((owner.version.partition("/")[0], owner.kind))
    above = owner_of(document) if row is not None and row.follow else None
    return above if above is not None and above.plural else None


def of_program(creator: Creator, created: float, now: float) -> list[TimeLimit]:
    """
    The limit of a program that creates pods without an owner: its default, since what was set cannot be read. A pod
    that still exists after that time has a longer one.
    """
    found = (each for each in _PROGRAMS if each.name == creator.program)
    return [
        TimeLimit(each.name, each.what, each.setting, f"{each.seconds} s unless it was set", created + each.seconds)
        for each in found
        if created + each.seconds > now
    ]


def of_owners(owners: Sequence[tuple[Owner, JSON]]) -> list[TimeLimit]:
    """The limits of a chain of owners, the pod's own first."""
    found = list[TimeLimit]()
    for owner, document in owners:
        row = _OWNERS[(owner.version.partition("/")[0], owner.kind)]
        try:
            found += row.limits(document)
        except (AttributeError, KeyError, TypeError, ValueError):
            continue
    return found


# -- one function for each kind of owner ---------------------------------------------------------------------------


def _who(kind: str, document: JSON) -> str:
    return f"{kind} {plain(str(document['metadata']['name']), NAME)}"


def _deployment(document: JSON) -> Iterator[TimeLimit]:
    """A Deployment that makes no progress is marked as failed, once; one that has finished its roll-out is not."""
    length = document["spec"].get("progressDeadlineSeconds", 600)
    conditions = {each.get("type"): each for each in (document.get("status") or {}).get("conditions") or []}
    progress = conditions.get("Progressing") or {}
    begun = moments.seconds(progress.get("lastUpdateTime"))
    if begun is None or progress.get("reason") == "NewReplicaSetAvailable" or not _is_length(length):
        return
    owner = owner_of(document)
    setting, then = _DEADLINES.get(owner.kind if owner is not None else "", ("spec.progressDeadlineSeconds", _KEPT))
    ends = begun if progress.get("status") == "False" else begun + length
    yield TimeLimit(_who("Deployment", document), f"it is marked as failed, and {then}", setting, f"{length} s", ends)


_KEPT = "its pods keep their places in the queue"
_TO_ZERO = "scaled to zero 30 s later, unless autoscaling.knative.dev/min-scale keeps its pods"
_DEADLINES = {
    "Revision": ("the annotation serving.knative.dev/progress-deadline in the Service's template", _TO_ZERO),
    "InferenceService": ("KServe", _KEPT),
}
"""The setting of the deadline of a Deployment that another program makes, and the effect, by its owner's kind."""


def _job(document: JSON) -> Iterator[TimeLimit]:
    owner = owner_of(document)
    where = _JOBS.get(owner.kind if owner is not None else "", "spec")
    what = "it fails, and its pods are deleted"
    yield from _active(document, _who("Job", document), what, f"{where}.activeDeadlineSeconds")


_JOBS = {"JobSet": "spec.replicatedJobs[].template.spec", "CronJob": "spec.jobTemplate.spec"}


def _ray_job(document: JSON) -> Iterator[TimeLimit]:
    for field in ("preRunningDeadlineSeconds", "activeDeadlineSeconds"):
        yield from _active(document, _who("RayJob", document), "it fails", f"spec.{field}", field=field)


def _train_job(document: JSON) -> Iterator[TimeLimit]:
    """Of Kubeflow Trainer; its time begins when it is created, and again each time that it is resumed."""
    conditions = {each.get("type"): each for each in (document.get("status") or {}).get("conditions") or []}
    suspended = conditions.get("Suspended") or {}
    resumed = suspended.get("lastTransitionTime") if suspended.get("status") == "False" else None
    begun = {"status": {"startTime": resumed or document["metadata"].get("creationTimestamp")}}
    what = "it fails, and its pods are deleted"
    yield from _active({**document, **begun}, _who("TrainJob", document), what, "spec.activeDeadlineSeconds")


def _workflow(document: JSON) -> Iterator[TimeLimit]:
    stored = (document.get("status") or {}).get("storedWorkflowTemplateSpec") or {}
    spec = {**stored, **document["spec"]}
    what, setting = "it fails, and its pods are stopped", "spec.activeDeadlineSeconds"
    yield from _active({**document, "spec": spec}, _who("Workflow", document), what, setting, began="startedAt")


def _task_run(document: JSON) -> Iterator[TimeLimit]:
    text = str(document["spec"].get("timeout") or "")
    begun = moments.seconds((document.get("status") or {}).get("startTime"))
    length = sum(float(number) * _PARTS[unit] for number, unit in _PART.findall(text))
    if begun is not None and length and "".join(map("".join, _PART.findall(text))) == text:
        yield TimeLimit(_who("TaskRun", document), "it fails, and its pod is deleted", "timeout", text, begun + length)


def _active(
    document: JSON,
    who: str,
    what: str,
    setting: str,
    *,
    field: str = "activeDeadlineSeconds",
    began: str = "startTime",
) -> Iterator[TimeLimit]:
    """A limit of this many seconds from the start of the object."""
    length, begun = document["spec"].get(field), moments.seconds((document.get("status") or {}).get(began))
    if begun is not None and _is_length(length):
        yield TimeLimit(who, what, setting, f"{length} s", begun + length)


def _is_length(value: object) -> bool:
    return isinstance(value, int) and 0 < value < _FOR_EVER


_OWNERS: Mapping[tuple[str, str], _Kind] = {
    ("apps", "ReplicaSet"): _Kind("replicasets", follow=True),
    ("apps", "Deployment"): _Kind("deployments", _deployment),
    ("batch", "Job"): _Kind("jobs", _job, follow=True),
    ("jobset.x-k8s.io", "JobSet"): _Kind("jobsets", follow=True),
    ("trainer.kubeflow.org", "TrainJob"): _Kind("trainjobs", _train_job),
    ("ray.io", "RayCluster"): _Kind("rayclusters", follow=True),
    ("ray.io", "RayJob"): _Kind("rayjobs", _ray_job),
    ("argoproj.io", "Workflow"): _Kind("workflows", _workflow),
    ("tekton.dev", "TaskRun"): _Kind("taskruns", _task_run),
}
"""By group and kind."""
