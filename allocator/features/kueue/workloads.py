"""
Kueue's objects that the check `gpufraction.io/fits` reads: Workloads, AdmissionChecks and ResourceFlavors.

Of the fields read here, versions v1beta1 and v1beta2 of `kueue.x-k8s.io` differ in one only: the source of a Workload's
priority. Pure: documents in; frozen values and the JSON patches of answers out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allocator.features.kueue.domains import TopologyDomain, domains
from contract import names, pods
from contract.encoding.plain import plain
from contract.encoding.reading import shown
from contract.reasons.gpunodes import CheckReason

JSON = dict[str, Any]
GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""The supported versions, the preferred one first."""
WORKLOADS, CHECKS, FLAVORS = "workloads", "admissionchecks", "resourceflavors"
FIELD_MANAGER = "gpufraction-fits"
PENDING, READY, RETRY, REJECTED = "Pending", "Ready", "Retry", "Rejected"
ACTIVE = "Active"
_POD_PRIORITY = "scheduling.k8s.io"


class UnreadableObject(Exception):
    """An object of Kueue has another shape than its API promises."""


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Raise `UnreadableObject` for errors of the code inside on a document of another shape."""
    try:
        yield
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise UnreadableObject(f"{shown(what)}: {type(error).__name__}: {shown(str(error))}") from error


@dataclass(frozen=True, slots=True)
class PodSet:
    """Pods of one template."""

    name: str
    count: int
    template: JSON
    """The template as a trimmed pod."""
    flavors: tuple[str, ...] = ()
    """The flavors that Kueue assigned. Kueue adds their labels and tolerations to the pods."""
    updates: tuple[JSON, ...] = ()
    """The additions to the pods that the admission checks request from Kueue."""
    domains: tuple[TopologyDomain, ...] = ()
    """The domains chosen by topology-aware scheduling; none if Kueue has not chosen any."""


@dataclass(frozen=True, slots=True)
class CheckEntry:
    """The state of one check of a Workload, and its place in the list."""

    position: int
    name: str
    state: str
    since: str
    document: JSON


@dataclass(frozen=True, slots=True)
class Workload:
    """A Workload with quota."""

    namespace: str
    name: str
    uid: str
    version: str
    priority: int
    since: str
    """When its quota was reserved."""
    checks: tuple[CheckEntry, ...]
    pod_sets: tuple[PodSet, ...]
    pods: tuple[str, ...] = ()
    """The uids of its pods, if it was created for existing pods."""

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def of(self, ours: Iterable[str]) -> tuple[CheckEntry, ...]:
        """Its entries for these checks."""
        names_ = set(ours)
        return tuple(check for check in self.checks if check.name in names_)


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a ResourceFlavor adds to the pods that get it."""

    labels: tuple[tuple[str, str], ...] = ()
    tolerations: tuple[JSON, ...] = ()


def trim(document: Mapping[str, Any]) -> JSON:
    """
    A Workload with only the fields that `workload` reads; without pod templates if it has no quota.

    Raises `UnreadableObject`.
    """
    with reading(key_of(document)):
        return _trimmed(document)


def _trimmed(document: Mapping[str, Any]) -> JSON:
    metadata, spec, status = _part(document, "metadata"), _part(document, "spec"), _part(document, "status")
    slim: JSON = {
        "metadata": {key: metadata[key] for key in _IDENTITY if key in metadata},
        "spec": {key: spec[key] for key in _SPEC if key in spec},
        "status": {key: status[key] for key in _STATUS if key in status},
    }
    if _holds_quota(slim):
        slim["spec"]["podSets"] = [_slim_pod_set(each) for each in spec.get("podSets") or ()]
    return slim


_IDENTITY = ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp", "ownerReferences")
_SPEC = ("active", "priority", "priorityClassSource", "priorityClassRef")
_STATUS = ("conditions", "admission", "admissionChecks", "reclaimablePods")


def _slim_pod_set(pod_set: JSON) -> JSON:
    template = pod_set.get("template") or {}
    spec = {key: value for key, value in (template.get("spec") or {}).items() if key != "schedulingGates"}
    slim = pods.trim({"metadata": template.get("metadata") or {}, "spec": spec})
    return {"name": pod_set.get("name", ""), "count": pod_set.get("count", 1), "template": slim}


def _part(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    return document.get(name) or {}


def key_of(document: Mapping[str, Any]) -> str:
    """`namespace/name`, or the name of an object without a namespace."""
    metadata = _part(document, "metadata")
    namespace = metadata.get("namespace")
    return f"{namespace}/{metadata.get('name', '')}" if namespace else str(metadata.get("name", ""))


def _conditions(document: Mapping[str, Any]) -> dict[str, JSON]:
    return {str(each.get("type")): each for each in _part(document, "status").get("conditions") or ()}


def _is_true(conditions: Mapping[str, JSON], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _holds_quota(document: Mapping[str, Any]) -> bool:
    """Whether quota is reserved for it, and it is neither being evicted nor finished."""
    found = _conditions(document)
    if not _is_true(found, "QuotaReserved") or _is_true(found, "Evicted") or _is_true(found, "Finished"):
        return False
    over = _part(document, "metadata").get("deletionTimestamp") or _part(document, "spec").get("active") is False
    return not over and bool(_part(document, "status").get("admission"))


def workload(document: Mapping[str, Any]) -> Workload | None:
    """A trimmed Workload; None if it has no quota, is being evicted, or is finished. Raises `UnreadableObject`."""
    with reading(key_of(document)):
        return _read(document) if _holds_quota(document) else None


def _read(document: Mapping[str, Any]) -> Workload:
    metadata, status = _part(document, "metadata"), _part(document, "status")
    checks = tuple(
        CheckEntry(position, str(each["name"]), str(each["state"]), str(each.get("lastTransitionTime", "")), dict(each))
        for position, each in enumerate(status.get("admissionChecks") or ())
    )
    return Workload(
        namespace=str(metadata["namespace"]),
        name=str(metadata["name"]),
        uid=str(metadata["uid"]),
        version=str(metadata["resourceVersion"]),
        priority=_priority(_part(document, "spec")),
        since=str(_conditions(document)["QuotaReserved"].get("lastTransitionTime", "")),
        checks=checks,
        pod_sets=_pod_sets(document, checks),
        pods=tuple(str(o["uid"]) for o in metadata.get("ownerReferences") or () if o.get("kind") == "Pod"),
    )


def _priority(spec: Mapping[str, Any]) -> int:
    """The priority, if it is that of its pods. A WorkloadPriorityClass does not apply to pods."""
    ref = spec.get("priorityClassRef") or {}
    of_pods = ref.get("group") == _POD_PRIORITY or str(spec.get("priorityClassSource", "")).startswith(_POD_PRIORITY)
    return int(spec.get("priority") or 0) if of_pods else 0


def _pod_sets(document: Mapping[str, Any], checks: Iterable[CheckEntry]) -> tuple[PodSet, ...]:
    """The number of pods to run: fewer than in the template if Kueue admits a part, or some have succeeded."""
    status = _part(document, "status")
    assigned = {str(each.get("name", "")): each for each in status["admission"].get("podSetAssignments") or ()}
    done = {str(each["name"]): int(each["count"]) for each in status.get("reclaimablePods") or ()}
    updates = [update for check in checks for update in check.document.get("podSetUpdates") or ()]
    found = []
    for each in _part(document, "spec").get("podSets") or ():
        name, assignment = str(each["name"]), assigned.get(str(each["name"]), {})
        whole = int(each["count"])
        count = min(int(assignment.get("count", whole)), whole - done.get(name, 0))
        ours = tuple(update for update in updates if update.get("name") == name)
        chosen = domains(assignment.get("topologyAssignment"))
        flavors = tuple(sorted(set((assignment.get("flavors") or {}).values())))
        found.append(PodSet(name, max(count, 0), each["template"], flavors, ours, chosen))
    return tuple(found)


def placed(pod_set: PodSet, flavors: Sequence[Flavor]) -> JSON:
    """The pod with Kueue's additions. Keys of the template keep their values: Kueue rejects conflicting values."""
    pod = pod_set.template
    metadata, spec = dict(pod.get("metadata") or {}), dict(pod.get("spec") or {})
    for update in pod_set.updates:
        for part in ("labels", "annotations"):
            metadata[part] = {**(update.get(part) or {}), **(metadata.get(part) or {})}
    selectors = [*(dict(each.labels) for each in flavors), *(u.get("nodeSelector") or {} for u in pod_set.updates)]
    for selector in selectors:
        spec["nodeSelector"] = {**selector, **(spec.get("nodeSelector") or {})}
    added = [
        *(t for each in flavors for t in each.tolerations),
        *(t for u in pod_set.updates for t in u.get("tolerations") or ()),
    ]
    spec["tolerations"] = [*(spec.get("tolerations") or ()), *added]
    return {**pod, "metadata": metadata, "spec": spec}


def flavor(document: Mapping[str, Any]) -> Flavor:
    """A ResourceFlavor. Raises `UnreadableObject`."""
    with reading(key_of(document)):
        spec = _part(document, "spec")
        labels = {str(key): str(value) for key, value in (spec.get("nodeLabels") or {}).items()}
        return Flavor(tuple(sorted(labels.items())), tuple(spec.get("tolerations") or ()))


def is_ours(check: Mapping[str, Any]) -> bool:
    """Whether this AdmissionCheck is one that we answer."""
    return bool(_part(check, "spec").get("controllerName") == names.FITS)


def is_active(check: Mapping[str, Any]) -> bool:
    """Whether the AdmissionCheck has our condition."""
    return _is_true(_conditions(check), ACTIVE)


def answering(
    workload: Workload, ours: Iterable[str], state: str, message: str, *, now: str, again_after: int | None = None
) -> list[JSON]:
    """
    The JSON patch of a Workload's status that answers our pending checks, at exactly the judged version.

    `now`: RFC 3339. `again_after`: seconds after which Kueue tries again.
    """
    operations: list[JSON] = [{"op": "test", "path": "/metadata/resourceVersion", "value": workload.version}]
    for check in workload.of(ours):
        if check.state != PENDING:
            continue
        after = {key: value for key, value in check.document.items() if key != "requeueAfterSeconds"}
        after |= {"state": state, "message": shortened(message), "lastTransitionTime": now}
        if again_after is not None:
            after["requeueAfterSeconds"] = again_after
        operations.append({"op": "replace", "path": f"/status/admissionChecks/{check.position}", "value": after})
    return operations


def activating(check: Mapping[str, Any], *, now: str) -> list[JSON]:
    """The JSON patch that sets our condition in an AdmissionCheck's status. `now`: RFC 3339."""
    metadata, status = _part(check, "metadata"), check.get("status")
    condition = {
        "type": ACTIVE,
        "status": "True",
        "reason": CheckReason.ACTIVE,
        "message": "gpufraction judges whether the pods of a Workload fit on the GPUs",
        "lastTransitionTime": now,
        "observedGeneration": metadata.get("generation", 0),
    }
    others = [each for each in (status or {}).get("conditions") or () if each.get("type") != ACTIVE]
    value: Any = [*others, condition]
    path = "/status/conditions"
    if not status:
        path, value = "/status", {"conditions": value}
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata.get("resourceVersion", "")}
    return [version, {"op": "add", "path": path, "value": value}]


def shortened(words: str) -> str:
    """The text on one line, and shortened."""
    return plain(" ".join(words.split()))
