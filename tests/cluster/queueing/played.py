"""
A simulated Kueue: a small version of its webhook and its controller, for control planes without its own program.

It treats pods, Jobs and Deployments as Kueue was observed to do. The webhook adds gates, finalizer and label, and
suspends Jobs. The controller counts plain pods as they are stored and Jobs by their template. It admits by quota,
merges the flavor's selector and tolerations, removes its gates, and preempts by deleting pods and suspending Jobs. It
keeps no state: it reads from the API server what is admitted, like Kueue after a restart.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from contract import pods
from contract.encoding import quantity
from contract.options import DEFAULTS
from kubectl_gpufraction.commands import kueueconfig as transformations
from playground.programs.otherwebhook import patching
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.cluster.system import another

JSON = dict[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
GROUP = "kueue.x-k8s.io/pod-group-name"
TOTAL = "kueue.x-k8s.io/pod-group-total-count"
ROLE = "kueue.x-k8s.io/role-hash"
MANAGED = "kueue.x-k8s.io/managed"
"""The finalizer, and the label of the same name."""
ADMISSION_GATE = "kueue.x-k8s.io/admission"
GATES = (ADMISSION_GATE, "kueue.x-k8s.io/topology")
PACE = 0.05
"""Seconds between two rounds of the controller."""
_SHAPE = ("nodeSelector", "affinity", "tolerations", "runtimeClassName", "priority", "topologySpreadConstraints")
"""What Kueue compares in the specs of a group's members, in addition to their containers' resources."""


# -- the webhook --------------------------------------------------------------------------------------------------


def gating(request: JSON) -> JSON:
    """Adds the gates to a pod that lacks them, and does nothing else."""
    added = _missing_gates(request["object"])
    if not added:
        return {"allowed": True}
    return patching([{"op": "add", "path": "/spec/schedulingGates", "value": added}])


def _missing_gates(pod: JSON) -> list[JSON]:
    """All gates of the pod and Kueue's, if one of Kueue's is missing; otherwise none."""
    gates = pods.gates(pod)
    added = [gate for gate in GATES if gate not in gates]
    return [{"name": gate} for gate in (*gates, *added)] if added else []


def mutating(request: JSON) -> JSON:
    """What Kueue's webhooks do to a new pod, Job or Deployment that names a queue."""
    found = request["object"]
    match request["kind"]["kind"]:
        case "Pod":
            return patching(_for_pod(found))
        case "Job":
            return patching([{"op": "add", "path": "/spec/suspend", "value": True}])
        case "Deployment":
            template = found["spec"]["template"]["metadata"]
            labels = {**(template.get("labels") or {}), QUEUE: found["metadata"]["labels"][QUEUE]}
            return patching([{"op": "add", "path": "/spec/template/metadata/labels", "value": labels}])
    return {"allowed": True}


def _for_pod(pod: JSON) -> list[JSON]:
    metadata = pod["metadata"]
    finalizers = metadata.get("finalizers") or []
    changed: dict[str, Any] = {
        "/metadata/labels": {**(metadata.get("labels") or {}), MANAGED: "true"},
        "/metadata/annotations": {**(metadata.get("annotations") or {}), ROLE: _role(pod["spec"])},
        "/metadata/finalizers": [*finalizers, *([MANAGED] if MANAGED not in finalizers else [])],
    }
    if gates := _missing_gates(pod):
        changed["/spec/schedulingGates"] = gates
    return [{"op": "add", "path": path, "value": value} for path, value in changed.items()]


def _role(spec: JSON) -> str:
    """The hash of a pod's shape. Members of a group with the same hash have the same role."""
    shape = {key: spec[key] for key in _SHAPE if spec.get(key)}
    requested = [each["resources"] for kind in ("initContainers", "containers") for each in spec.get(kind) or ()]
    return hashlib.sha256(json.dumps([shape, requested], sort_keys=True).encode()).hexdigest()[:8]


# -- the controller -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue of one flavor. `preempts`: by priority among its own workloads."""

    quota: Mapping[str, str]
    cohort: str = ""
    preempts: bool = False
    selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[JSON, ...] = ()

    def nominal(self, resource: str) -> int:
        """The quota of a resource, in the units of `_amounts`; zero for a resource that the queue does not cover."""
        return _amounts(self.quota).get(resource, 0)


@dataclass(frozen=True, slots=True)
class Workload:
    """A pod, a group of pods, or a Job, as the API server shows it."""

    queue: str
    asks: Mapping[str, int]
    priority: int
    created: tuple[str, str]
    members: tuple[JSON, ...]
    job: bool = False
    holds: bool = False
    """Whether it is admitted, or was admitted and has not ended."""
    complete: bool = True
    """Whether all members of the group exist."""
    ending: bool = False

    def order(self) -> tuple[int, tuple[str, str]]:
        """The key by which workloads are ordered for admission."""
        return -self.priority, self.created


class PlayedKueue:
    """The controller; `step` is one round."""

    def __init__(self, kube: Kube, queues: Mapping[str, Queue], namespace: str = "default") -> None:
        self._kube, self._queues, self._namespace = kube, dict(queues), namespace
        self._units = {each["input"]: each for each in transformations.transformations(DEFAULTS)}
        self.problems: list[str] = []
        """What the API server refused, except because an object has changed or was deleted."""

    def step(self) -> None:
        """Remove finalizers that are due, then admit what fits, or preempt for the first workload that does not fit."""
        found = self._kube.list(paths.pods(self._namespace)).items
        queued = [pod for pod in found if QUEUE in (pod["metadata"].get("labels") or {})]
        for pod in queued:
            self._finalize(pod)
        workloads = [*self._of_pods(queued), *self._of_jobs()]
        used = self._used(workloads)
        for each in workloads:
            if each.holds and not each.job and not each.ending:
                self._admit(each)  # members whose write came too late
        for each in sorted((w for w in workloads if not w.holds and w.complete and not w.ending), key=Workload.order):
            if self._fits(each, used):
                self._admit(each)
                used[each.queue].update(each.asks)
            else:
                self._preempt_for(each, workloads, used)

    def charged(self) -> list[dict[str, int]]:
        """What each admitted workload is charged: amounts by resource."""
        found = self._kube.list(paths.pods(self._namespace)).items
        queued = [pod for pod in found if QUEUE in (pod["metadata"].get("labels") or {})]
        return [dict(each.asks) for each in (*self._of_pods(queued), *self._of_jobs()) if each.holds]

    # -- reading

    def _of_pods(self, queued: Sequence[JSON]) -> list[Workload]:
        groups: dict[str, list[JSON]] = {}
        for pod in queued:
            if not pods.finished(pod):
                groups.setdefault(pod["metadata"]["labels"].get(GROUP) or pods.uid(pod), []).append(pod)
        return [self._of_group(members) for members in groups.values()]

    def _of_group(self, members: list[JSON]) -> Workload:
        first = members[0]
        asks: Counter[str] = Counter()
        for pod in members:
            for container in pod["spec"]["containers"]:
                asks.update(_amounts(container["resources"].get("requests") or {}))
        wanted = int(pods.annotations_of(first).get(TOTAL, "1"))
        return Workload(
            queue=first["metadata"]["labels"][QUEUE],
            asks=asks,
            priority=first["spec"].get("priority") or 0,
            created=min((pod["metadata"]["creationTimestamp"], pod["metadata"]["name"]) for pod in members),
            members=tuple(members),
            holds=any(ADMISSION_GATE not in pods.gates(pod) for pod in members),
            complete=len(members) >= wanted,
            ending=any("deletionTimestamp" in pod["metadata"] for pod in members),
        )

    def _of_jobs(self) -> list[Workload]:
        jobs = self._kube.list(paths.path("batch/v1", "jobs", self._namespace)).items
        return [self._of_job(job) for job in jobs if QUEUE in (job["metadata"].get("labels") or {}) and not _ended(job)]

    def _of_job(self, job: JSON) -> Workload:
        spec = job["spec"]
        asks: Counter[str] = Counter()
        for container in spec["template"]["spec"]["containers"]:
            resources = container["resources"]
            counted = self._transformed({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
            asks.update({name: amount * (spec.get("parallelism") or 1) for name, amount in counted.items()})
        metadata = job["metadata"]
        return Workload(
            queue=metadata["labels"][QUEUE],
            asks=asks,
            priority=0,
            created=(metadata["creationTimestamp"], metadata["name"]),
            members=(job,),
            job=True,
            holds=not spec.get("suspend") or bool((job.get("status") or {}).get("active")),
            ending="deletionTimestamp" in metadata,
        )

    def _transformed(self, requested: Mapping[str, str]) -> Counter[str]:
        """Amounts by resource after Kueue's transformations."""
        found: Counter[str] = Counter()
        for name, amount in _amounts(requested).items():
            rule = self._units.get(name)
            times = int(requested.get(rule["multiplyBy"], "1")) if rule and "multiplyBy" in rule else 1
            outputs = {name: "1"} if rule is None else rule["outputs"]
            found.update({output: int(amount * quantity.parse(unit)) * times for output, unit in outputs.items()})
        return found

    # -- deciding

    def _used(self, workloads: Sequence[Workload]) -> dict[str, Counter[str]]:
        used: dict[str, Counter[str]] = {name: Counter() for name in self._queues}
        for each in workloads:
            if each.holds:
                used[each.queue].update(each.asks)
        return used

    def _fits(self, workload: Workload, used: Mapping[str, Counter[str]]) -> bool:
        """Whether it fits the quota of its queue, or of its cohort if the queue is in one."""
        own = self._queues[workload.queue]
        sharing = [name for name, each in self._queues.items() if name == workload.queue or _together(each, own)]
        return all(
            sum(used[name][resource] for name in sharing) + amount
            <= sum(self._queues[name].nominal(resource) for name in sharing)
            for resource, amount in workload.asks.items()
            if amount
        )

    def _preempt_for(self, workload: Workload, workloads: Sequence[Workload], used: dict[str, Counter[str]]) -> None:
        """Preempt as few workloads as make room, the last of the lowest priority first; none if that is not enough."""
        left = {name: Counter(amounts) for name, amounts in used.items()}
        victims: list[Workload] = []
        for each in sorted(self._candidates(workload, workloads, used), key=Workload.order, reverse=True):
            if self._fits(workload, left):
                break
            victims.append(each)
            left[each.queue].subtract(each.asks)
        if self._fits(workload, left):
            for each in victims:
                self._stop(each)

    def _candidates(
        self, workload: Workload, workloads: Sequence[Workload], used: Mapping[str, Counter[str]]
    ) -> Iterator[Workload]:
        own = self._queues[workload.queue]
        within = all(used[workload.queue][name] + amount <= own.nominal(name) for name, amount in workload.asks.items())
        for each in (w for w in workloads if w.holds):
            theirs = self._queues[each.queue]
            lower = own.preempts and each.queue == workload.queue and each.priority < workload.priority
            borrowed = any(used[each.queue][name] > theirs.nominal(name) for name in each.asks)
            if lower or (within and borrowed and each.queue != workload.queue and _together(own, theirs)):
                yield each

    # -- writing

    def _admit(self, workload: Workload) -> None:
        for each in workload.members:
            if not workload.job and ADMISSION_GATE not in pods.gates(each):
                continue
            spec = each["spec"]["template"]["spec"] if workload.job else each["spec"]
            merged = self._merged(spec, self._queues[workload.queue])
            if workload.job:
                self._patch(each, {"spec": {"suspend": False, "template": {"spec": merged}}}, job=True)
            else:
                gates = [{"name": gate} for gate in pods.gates(each) if gate not in GATES]
                self._patch(each, {"spec": {**merged, "schedulingGates": gates or None}})

    def _merged(self, spec: JSON, queue: Queue) -> JSON:
        """The fields of a pod's spec that the flavor changes."""
        own = spec.get("tolerations") or []
        added = [each for each in queue.tolerations if each not in own]
        selector = {**(spec.get("nodeSelector") or {}), **queue.selector}
        return {
            **({"nodeSelector": selector} if selector else {}),
            **({"tolerations": [*own, *added]} if added else {}),
        }

    def _stop(self, workload: Workload) -> None:
        for each in workload.members:
            if workload.job:
                self._patch(each, {"spec": {"suspend": True}}, job=True)
            elif "deletionTimestamp" not in each["metadata"]:
                with self._tolerated():
                    self._kube.delete(paths.pods(self._namespace, each["metadata"]["name"]))

    def _finalize(self, pod: JSON) -> None:
        """Remove the finalizer of a pod that has ended or is being deleted."""
        metadata = pod["metadata"]
        due = pods.finished(pod) or "deletionTimestamp" in metadata
        if due and MANAGED in (metadata.get("finalizers") or ()):
            left = [each for each in metadata["finalizers"] if each != MANAGED]
            self._patch(pod, {"metadata": {"finalizers": left or None}})

    def _patch(self, found: JSON, change: JSON, *, job: bool = False) -> None:
        """Write at the version that was seen. If that is too late, another round tries again."""
        metadata = found["metadata"]
        name = metadata["name"]
        path = paths.path("batch/v1", "jobs", self._namespace, name) if job else paths.pods(self._namespace, name)
        version = {"resourceVersion": metadata["resourceVersion"]}
        with self._tolerated():
            self._kube.patch_merge(path, {**change, "metadata": {**(change.get("metadata") or {}), **version}})

    @contextlib.contextmanager
    def _tolerated(self) -> Iterator[None]:
        try:
            yield
        except KubeError as error:
            if error.status not in (404, 409):
                self.problems.append(str(error))


def _amounts(requested: Mapping[str, str]) -> dict[str, int]:
    """Amounts as Kueue counts them: CPU in thousandths, the rest in units or bytes."""
    return {name: int(quantity.parse(str(text)) * (1000 if name == "cpu" else 1)) for name, text in requested.items()}


def _together(one: Queue, other: Queue) -> bool:
    return bool(one.cohort) and one.cohort == other.cohort


def _ended(job: JSON) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or ()
    return any(each["type"] in ("Complete", "Failed") and each["status"] == "True" for each in conditions)


@contextlib.contextmanager
def playing(
    kube: Kube, queues: Mapping[str, Queue], *, order: str = another.AFTER, namespace: str = "default"
) -> Iterator[PlayedKueue]:
    """Run the controller, with the webhook registered under the name `order`."""
    played, stop = PlayedKueue(kube, queues, namespace), threading.Event()

    def run() -> None:
        while not stop.wait(PACE):
            try:
                played.step()
            except KubeError as error:
                played.problems.append(str(error))

    thread = threading.Thread(target=run, name="played-kueue", daemon=True)
    selector = {"matchExpressions": [{"key": QUEUE, "operator": "Exists"}]}
    kinds = (("", "pods"), ("batch", "jobs"), ("apps", "deployments"))
    with another.registered(kube, mutating, name=order, selector=selector, kinds=kinds):
        thread.start()
        try:
            yield played
        finally:
            stop.set()
            thread.join(30)
