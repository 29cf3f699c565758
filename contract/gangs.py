"""
Pods that start together: reads a pod's gang, in the formats of the programs that create such pods.

One table of readers. Each reads how one program names a group of pods, and the required number of pods. A pod belongs
to the first group that it names, in the order of the table. Our annotation says how many start together; without it,
the group's own number counts. A group without a number is not a gang: its pods are placed one by one, with the reason
`NoGang`.

The author of a pod writes all of this. Therefore names must be valid in Kubernetes, numbers are small, and pods of two
namespaces never share a gang. What is wrong in our own annotations is refused at admission (`refused`); what is wrong
in another program's is reported, since that program may use it for something else.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from contract import names
from contract.dialects.base import Refusal
from contract.encoding.reading import is_subdomain, is_uid, shown
from contract.model import MOST_MEMBERS

JSON = Mapping[str, Any]
ALONE = "none"
"""The name for a pod in no gang, regardless of its other fields."""
_LONGEST_LABEL = 63
_MINIMUM = f"metadata.annotations[{names.GANG_MINIMUM}]"
_NAMELESS = f"nothing names the gang; add the annotation {names.GANG}, or have a controller create the pods"
_WANTED = f"a whole number from 1 to {MOST_MEMBERS}: how many pods of the gang start together"


class GangKey(NamedTuple):
    """The common properties of the pods of one gang."""

    namespace: str
    source: str
    name: str

    @property
    def text(self) -> str:
        """It as one text; no part of it has a slash."""
        return "/".join(self)


@dataclass(frozen=True, slots=True)
class Membership:
    """A pod's membership in its gang."""

    key: GangKey
    minimum: int
    """The number of its pods that start together."""
    leads: bool = False
    """Whether the others may be created only after this pod runs, which the pods do not say."""

    @property
    def shown(self) -> str:
        """The gang in a message, with what it was read from."""
        return f"gang {self.key.name} ({self.key.source})"


@dataclass(frozen=True, slots=True)
class NoGang:
    """The pod names a group that is not a gang for us: which one, why, and what would make it one."""

    why: str


@dataclass(frozen=True, slots=True)
class _Group:
    """A group as one program names it. `number`: how many pods start together, as that program writes it."""

    source: str
    name: str
    number: object = None
    field: str = ""
    """Where the number is written."""
    leads: bool = False
    """As in `Membership`."""


def _ours(pod: JSON) -> _Group | None:
    name = _annotations(pod).get(names.GANG)
    return None if name is None else _Group("annotation", str(name))


def _scheduling_group(pod: JSON) -> _Group | None:
    """Kubernetes' own pod group (alpha, off by default in 1.36); its PodGroup has the number."""
    group = (pod.get("spec") or {}).get("schedulingGroup")
    name = group.get("podGroupName") if isinstance(group, Mapping) else None
    return _Group("schedulingGroup", name) if isinstance(name, str) and name else None


def _coscheduling(pod: JSON) -> _Group | None:
    """The coscheduling plugin's label; in its first form the pods also have the number."""
    labels = _labels(pod)
    name = labels.get("scheduling.x-k8s.io/pod-group")
    if name:
        return _Group("pod-group", name)
    former, field = (
        labels.get("pod-group.scheduling.sigs.k8s.io/name"),
        "pod-group.scheduling.sigs.k8s.io/min-available",
    )
    return _Group("pod-group", former, labels.get(field), f"metadata.labels[{field}]") if former else None


def _leader_worker_set(pod: JSON) -> _Group | None:
    """
    One group of a LeaderWorkerSet: its leader and its workers. The set writes their number on each pod, and does not
    write its `startupPolicy` there: with `LeaderReady` it creates the workers once the leader is ready.
    """
    labels, field = _labels(pod), "leaderworkerset.sigs.k8s.io/size"
    name = labels.get("leaderworkerset.sigs.k8s.io/name")
    index = labels.get("leaderworkerset.sigs.k8s.io/group-index")
    if not name or not index:
        return None
    leads = labels.get("leaderworkerset.sigs.k8s.io/worker-index") == "0"
    size = _annotations(pod).get(field)
    return _Group("LeaderWorkerSet", f"{name}-{index}", size, f"metadata.annotations[{field}]", leads)


def _job_set(pod: JSON) -> _Group | None:
    """All pods of a JobSet. They do not contain their number."""
    name = _labels(pod).get("jobset.sigs.k8s.io/jobset-name")
    return _Group("JobSet", name) if name else None


def _controller(pod: JSON) -> _Group | None:
    """The pods of one controller, such as an Indexed Job, if they contain only the number that starts together."""
    if names.GANG_MINIMUM not in _annotations(pod):
        return None
    for owner in (pod.get("metadata") or {}).get("ownerReferences") or ():
        uid = str(owner.get("uid") or "")
        if owner.get("controller") and is_uid(uid):
            return _Group(str(owner.get("kind") or "controller")[:_LONGEST_LABEL], uid)
    return None


READERS: tuple[Callable[[JSON], _Group | None], ...] = (
    _ours,
    _scheduling_group,
    _coscheduling,
    _leader_worker_set,
    _job_set,
    _controller,
)
"""In the order in which they count: our own annotation first, and a pod's controller only where nothing names it."""


def read(pod: JSON) -> Membership | NoGang | None:
    """The gang of a pod; None if it names none, or starts alone. The pod may be any JSON."""
    group = next(filter(None, (reader(pod) for reader in READERS)), None)
    said = _annotations(pod).get(names.GANG_MINIMUM)
    if group is None:
        return NoGang(f"{_MINIMUM}: {_NAMELESS}") if said is not None else None
    if group.name == ALONE and group.source == "annotation":
        return None
    if said is not None:
        group = replace(group, number=said, field=_MINIMUM, leads=False)
    shown_name = f"{group.source} {shown(group.name)}"
    if not is_name(group.name):
        return NoGang(f"{shown_name} is not the name of a group of pods")
    if group.number is None:
        return NoGang(f"{shown_name} does not say how many pods start together; set {names.GANG_MINIMUM}")
    minimum = number(group.number)
    if minimum is None:
        return NoGang(f"{group.field}: found {shown(group.number)}; {_WANTED}")
    if minimum == 1:
        return None
    namespace = str((pod.get("metadata") or {}).get("namespace") or "")
    return Membership(GangKey(namespace, group.source, group.name), minimum, group.leads)


def gang_of(pod: JSON) -> Membership | None:
    """The same, for callers that only need the gang."""
    found = read(pod)
    return found if isinstance(found, Membership) else None


def refused(pod: JSON) -> Refusal | None:
    """The errors in our own annotations of a new pod."""
    annotations = _annotations(pod)
    name, minimum = annotations.get(names.GANG), annotations.get(names.GANG_MINIMUM)
    if name is not None and not is_name(name):
        return Refusal(
            f"metadata.annotations[{names.GANG}]",
            shown(name),
            f"a name of at most {_LONGEST_LABEL} of a-z, 0-9, - and ., the same for all pods of the gang; or {ALONE}",
        )
    if minimum is not None and number(minimum) is None:
        return Refusal(_MINIMUM, shown(minimum), _WANTED)
    if minimum is not None and next(filter(None, (reader(pod) for reader in READERS)), None) is None:
        return Refusal(_MINIMUM, shown(minimum), _NAMELESS)
    if name is not None and name != ALONE and minimum is None:
        return Refusal(_MINIMUM, "nothing", _WANTED)
    return None


def is_name(text: object) -> bool:
    """Whether a group of pods can have this name: a label's value, or a controller's uid."""
    return isinstance(text, str) and len(text) <= _LONGEST_LABEL and is_subdomain(text.lower().replace("_", "-"))


def number(text: object) -> int | None:
    """The written number of pods that start together; None if it is invalid."""
    if isinstance(text, str) and text.isascii() and text.isdigit() and len(text) <= len(str(MOST_MEMBERS)):
        return int(text) if 1 <= int(text) <= MOST_MEMBERS else None
    return None


def _annotations(pod: JSON) -> Mapping[str, Any]:
    found = (pod.get("metadata") or {}).get("annotations")
    return found if isinstance(found, Mapping) else {}


def _labels(pod: JSON) -> Mapping[str, Any]:
    found = (pod.get("metadata") or {}).get("labels")
    return found if isinstance(found, Mapping) else {}
