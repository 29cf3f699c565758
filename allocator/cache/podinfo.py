"""
A pod, read once, and what the cache holds of it: what it takes of its node, what evictions depend on, and since when
kube-scheduler has not bound it.

`read_pod` runs before the lock is taken; everything behind the lock works on the `PodInfo`. The ledger knows what is
reserved. Time is passed in: how long a pod has been ending, or unbound, is counted from when this process first saw it
so, so other machines' clocks do not matter. Pure.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from allocator.cache import footprint
from allocator.cache.ledger import Reservation
from allocator.engine import pinning
from contract import gangs, names, pods, starts
from contract.encoding import codec, moments, quantity
from contract.encoding.plain import MESSAGE, NAME, is_plain, plain
from contract.encoding.reading import is_subdomain
from contract.gangs import Membership
from contract.model import Allocation, Compute, PodRequest
from contract.nodes.capacity import NOTHING as NO_AMOUNTS
from contract.nodes.capacity import Amounts
from contract.pods import UnreadShare
from contract.scheduling import consent, protection
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules, read_rules
from contract.scheduling.demand import Demand, demands, overcount
from contract.scheduling.needs import ONE_POD, PodNeeds, SchedulingRequest
from contract.scheduling.nodefilters import resources
from contract.scheduling.nodeinfo import AllocatedPod

JSON = dict[str, Any]
T = TypeVar("T")
_NO_PORTS: frozenset[tuple[str, str, int]] = frozenset()
_NOTHING = Compute()
_WHOLE_NODE = Compute(cpu=10**9, pods=1)
"""More CPU than any node has."""
_STAYING = ("DaemonSet", "Node")
"""Owners whose pods every node of a kind has; a Node owns the mirrors of its static pods."""
_FAILS_THERE = "running PreBind plugin"
"""
How kube-scheduler's message begins when it has accepted the node, but something that must be done there before the
binding fails, such as the provisioner's volume. Without our pin it would try another node. Other errors pass once the
API server recovers.
"""
MOST_WAITING = 2 << 20
"""Bytes that are kept of one waiting pod at most; one at all other bounds takes less than half of that."""
_DISAGREES = (
    f"metadata.annotations[{names.REQUEST}]: found no value that agrees with the containers' resources; create the "
    f"pod again, so that admission writes it"
)


@dataclass(frozen=True, slots=True)
class LastReported:
    """The last report to a pod about its share, and when, by the clock; `-inf` if another leader reported it."""

    allocated: bool
    code: str
    reason: str
    at: float = float("-inf")

    def says_the_same(self, other: LastReported) -> bool:
        """Whether both have the same content, regardless of the time."""
        return self.reason == other.reason and self.code == other.code and self.allocated == other.allocated


class WaitingPod(NamedTuple):
    """The fields that are read of a pod behind our gate."""

    request: PodRequest | None
    """None if the pod cannot be placed as it is; `unreadable` says why."""
    needs: PodNeeds
    outline: JSON
    foreign: tuple[str, ...] = ()
    """Other systems' gates."""
    unreadable: str = ""
    size: int = 0
    """Bytes that are kept of it, without what it requests; and the bytes of what it requests."""
    request_size: int = 0


class EndedShare(NamedTuple):
    """The share that a finished pod had: what it requested, what it got, and until when by its own condition."""

    request: PodRequest
    allocation: Allocation
    until: float


class PodInfo(NamedTuple):
    """The parts of a pod that are read. A tuple, because it is created for every pod of a list."""

    uid: str
    key: str
    """`namespace/name`."""
    version: int | None
    finished: bool
    """Its containers have ended for good."""
    gated: bool
    """Some scheduling gate holds it, ours or another."""
    deleting: bool
    allocation_id: str
    """The id of the allocation that it carries, even an invalid one; empty without."""
    returned: str
    """The id of an allocation that was replaced before the pod was stored."""
    condition: LastReported | None
    """The content of its own condition."""
    priority: int
    created: float
    """Seconds since 1970; 0 if missing."""
    owner: str = ""
    """uid of the controller that will create a replacement; empty without one."""
    daemon: bool = False
    """By its own data it stays as long as its node exists: a DaemonSet's pod, or a static one."""
    node: str = ""
    """The node that it is bound to, or has a share on."""
    bound: bool = False
    """It has its node in its spec: from kube-scheduler, or from its creation."""
    nominated: str = ""
    """The node to which kube-scheduler will bind it once others have ended there; empty if it has a node."""
    request: PodRequest | None = None
    allocation: Allocation | None = None
    """The share that it holds."""
    compute: Compute = _NOTHING
    """The node's resources that it takes besides GPUs."""
    resized: Compute | None = None
    """The same while it is resized in place, if that differs."""
    successor: SchedulingRequest | None = None
    """As in `AllocatedPod`."""
    host_ports: frozenset[tuple[str, str, int]] = _NO_PORTS
    unschedulable: str | None = None
    """kube-scheduler's message about a pod that it cannot bind; None for a pod that is bound, ending, or not tried yet.
    """
    scheduler: str = ""
    """The pod's scheduler, if it is not the default one."""
    not_evaluated: tuple[str, ...] = ()
    """The rules beyond the allocator's filters that restrict its nodes, for a pod that holds a share."""
    withdrawn: str = ""
    """The node of a share that was taken back; empty if none was, or if the pod has one again."""
    unserved: Amounts = NO_AMOUNTS
    """The amounts that Kubernetes counts for such a pod once it is bound, although it has no share."""
    waiting: WaitingPod | None = None
    """Set while our gate holds it and it is not deleted."""
    behind: str = ""
    """Another system's gate that holds it although it has a share: the gate came after our last pass at admission."""
    held_since: float = 0.0
    """Since when it has its share, in seconds since 1970; 0 if missing."""
    ended: EndedShare | None = None
    """Set if it is finished and contains the time of that."""
    idle_after: int | None = None
    """As in `AllocatedPod`."""
    protected: tuple[str, ...] = ()
    """Annotations against scale-down that we wrote alongside the share of a pod that is gated or not bound."""
    rules: PodRules = NO_RULES
    """Rules between pods: those of other pods for it, and its own for others."""
    unread: UnreadShare | None = None
    """The share that cannot be counted, because this version cannot read it."""
    gang: Membership | None = None
    """The gang of a pod that waits, holds a share, or has the plan of its gang."""
    plan: str = ""
    """The shares of all members of its gang, as text, if it was placed first; also once it is finished."""
    starting: float | None = None
    """
    For a pod with a share that starts alone and is starting: since when, in seconds since 1970; 0 if missing.
    """


class PodEvent(NamedTuple):
    """A pod in its original form, with the result of reading it or our internal error."""

    uid: str
    key: str
    version: int | None
    pod: Mapping[str, Any]
    """The original form; used only if reading it failed."""
    info: PodInfo | None
    error: Exception | None = None

    def read(self) -> PodInfo:
        """The result of reading. Raises the error of the reading."""
        if self.info is None:
            raise self.error or AssertionError("a pod was not read")
        return self.info


def pod_event(pod: Mapping[str, Any], trim: Callable[[JSON], JSON] | None = None) -> PodEvent:
    """Read a pod of any shape. `trim` makes a complete pod small."""
    try:
        small = trim(dict(pod)) if trim is not None else pod
        info = read_pod(small)
        return PodEvent(info.uid, info.key, info.version, small, info)
    except Exception as error:
        return PodEvent(*named(pod), _version(pod), pod, None, error)


def named(pod: Mapping[str, Any]) -> tuple[str, str]:
    """uid and `namespace/name` of a pod that may be damaged in any way; empty if missing."""
    try:
        return pods.uid(pod), pods.key(pod)
    except Exception:
        return "", ""


def _version(pod: Mapping[str, Any]) -> int | None:
    try:
        return pods.version(pod)
    except Exception:
        return None


def read_pod(pod: Mapping[str, Any]) -> PodInfo:
    """Read a trimmed pod. May raise any exception for a damaged one."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    annotations, gates, finished = metadata.get("annotations") or {}, pods.gates(pod), pods.finished(pod)
    carried = pods.carried_allocation(pod) if names.ALLOCATION in annotations else None
    deleting = bool(metadata.get("deletionTimestamp"))
    held_back = names.GATE in gates and not finished
    # A finalizer keeps a deleted pod, as every pod of a Job: it would take a share and never run.
    rules = read_rules(pod) if not finished else NO_RULES
    waiting = _waiting(pod, gates, rules) if held_back and not deleting else None
    takes = not held_back and not finished
    request = pods.holding(pod) if takes and names.REQUEST in annotations else None
    given = request is not None and carried is not None and pods.is_granted(request, carried)
    allocation = carried if given else None
    owner = controller_of(metadata)
    successor = _successor(pod, request) if request is not None and allocation is not None and owner else None
    bound = str(spec.get("nodeName") or "")
    withdrawn = _withdrawn(annotations) if takes and names.ALLOCATION not in annotations else ""
    plan = annotations.get(names.GANG_PLAN, "") if carried is not None and not held_back else ""
    held_since = _held_since(pod) if allocation is not None or finished else 0.0
    unbound = not bound and not deleting and (allocation is not None or bool(withdrawn))
    return PodInfo(
        uid=pods.uid(pod),
        key=pods.key(pod),
        version=pods.version(pod),
        finished=finished,
        gated=bool(gates),
        deleting=deleting,
        allocation_id=carried.id if carried is not None else "",
        returned=annotations.get(names.RETURNED, ""),
        condition=stands(pod),
        priority=pods.priority(pod),
        created=moments.created(pod),
        owner=owner,
        daemon=_daemon(metadata),
        node=(bound or (allocation.node if allocation else "")) if takes else "",
        bound=bool(bound),
        nominated=pods.nominated(pod) if takes and not (bound or allocation) else "",
        request=request,
        allocation=allocation,
        compute=_taken(metadata, spec, successor) if takes else _NOTHING,
        resized=resources.resized(pod) if takes and bound else None,
        successor=successor,
        host_ports=(scheduling.host_ports(spec) or _NO_PORTS) if takes else _NO_PORTS,
        unschedulable=_unschedulable(pod) if unbound else None,
        scheduler=pinning.other_scheduler(spec) if unbound else "",
        not_evaluated=pinning.not_evaluated(pod) if allocation is not None else (),
        withdrawn=withdrawn,
        unserved=_accounted(spec) if withdrawn and bound else NO_AMOUNTS,
        waiting=waiting,
        behind=gates[0] if gates and allocation is not None else "",
        held_since=held_since,
        ended=_ended(pod, carried) if finished and carried is not None else None,
        idle_after=consent.idle_after(annotations.get(names.IDLE_AFTER)),
        protected=protection.written(annotations) if (gates or not bound) and allocation is not None else (),
        rules=rules,
        unread=pods.unread_share(pod) if takes and not given and names.ALLOCATION in annotations else None,
        gang=gangs.gang_of(pod) if waiting is not None or allocation is not None or plan else None,
        plan=plan,
        starting=starts.starting_since(pod, request, held_since) if request is not None and allocation else None,
    )


def _waiting(pod: Mapping[str, Any], gates: tuple[str, ...], rules: PodRules) -> WaitingPod:
    too_much = pods.beyond(pod)
    request = None if too_much else pods.admitted(pod)
    if request is None:
        return WaitingPod(None, PodNeeds(compute=_NOTHING), {}, unreadable=too_much or _DISAGREES)
    foreign = tuple(gate for gate in gates if gate != names.GATE)
    needs = scheduling.needs_for(pod, request)
    outline = pods.outline(pod)
    size = footprint.POD + footprint.size_of((pods.uid(pod), pods.key(pod), outline, foreign, rules))
    request_size = footprint.size_of((request, needs))
    if size + request_size > MOST_WAITING:
        return WaitingPod(None, PodNeeds(compute=_NOTHING), {}, unreadable=_too_large(size + request_size))
    return WaitingPod(request, needs, outline, foreign, size=size, request_size=request_size)


def _too_large(size: int) -> str:
    return (
        f"spec: found constraints, claims and gates of {size >> 10} KiB as gpufraction keeps them; a waiting pod has "
        f"at most {MOST_WAITING >> 10} KiB: select nodes by a label instead of by many expressions, and create the pod "
        "again"
    )


def _taken(metadata: Mapping[str, Any], spec: Mapping[str, Any], successor: SchedulingRequest | None) -> Compute:
    """
    The pod's usage of its node. A placeholder pod uses all of it: it ends in a moment, and the pods for which the node
    came are then placed in the order of the queue, instead of the smallest ones alongside it.
    """
    ours = metadata.get("namespace") == names.NAMESPACE and names.POOL in (metadata.get("labels") or {})
    if ours and spec.get("nodeName"):
        return _WHOLE_NODE
    return successor.needs.compute if successor is not None else _compute(spec)


def _compute(spec: Mapping[str, Any]) -> Compute:
    try:
        return scheduling.effective_compute(spec)
    except quantity.BadQuantity:
        return ONE_POD


def controller_of(metadata: Mapping[str, Any]) -> str:
    """uid of the controller that will create a replacement for this pod; empty without one."""
    owners = metadata.get("ownerReferences") or ()
    return next((str(owner.get("uid") or "?") for owner in owners if owner.get("controller")), "")


def _successor(pod: Mapping[str, Any], request: PodRequest) -> SchedulingRequest | None:
    metadata = pod.get("metadata") or {}
    if request.claim or _daemon(metadata) or protection.stays(metadata.get("annotations") or {}):
        return None
    if read_rules(pod).constrained:
        return None  # its successor's place depends on pods that come and go meanwhile
    try:
        needs = scheduling.needs_for(pod, request)
        # The amounts counted for another pod are known when it is stored.
        return SchedulingRequest(replace(request, counted=0), scheduling.unpinned(needs))
    except quantity.BadQuantity:
        return None


def _daemon(metadata: Mapping[str, Any]) -> bool:
    owners = metadata.get("ownerReferences") or ()
    return any(owner.get("controller") and owner.get("kind") in _STAYING for owner in owners)


def stands(pod: Mapping[str, Any]) -> LastReported | None:
    """The content of the pod's own condition; None if it has none."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == names.ALLOCATED_CONDITION:
            message = str(each.get("message", ""))
            # One that we would not write is not kept; it only counts as different.
            kept = message if is_plain(message, MESSAGE) else ""
            return LastReported(each.get("status") == "True", plain(str(each.get("reason", "")), NAME), kept)
    return None


def _held_since(pod: Mapping[str, Any]) -> float:
    """
    The first moment at which a condition shows the pod as placed; its creation if no condition ever shows it as
    waiting.

    Both conditions come after the placement, our own by a moment or by a change of the leader.
    """
    conditions = (pod.get("status") or {}).get("conditions") or ()
    ours = [each for each in conditions if each.get("type") in (names.ALLOCATED_CONDITION, "PodScheduled")]
    if not ours:
        return moments.created(pod)
    placed = (each.get("lastTransitionTime") for each in ours if each.get("status") == "True")
    return min((found for found in map(moments.seconds, placed) if found is not None), default=0.0)


def _ended(pod: Mapping[str, Any], carried: Allocation) -> EndedShare | None:
    request, conditions = pods.holding(pod), (pod.get("status") or {}).get("conditions") or ()
    ends = (each.get("lastTransitionTime") for each in conditions if _is_unready(each))
    until = max((found for found in map(moments.seconds, ends) if found is not None), default=None)
    if until is None or request is None or not pods.is_granted(request, carried):
        return None
    return EndedShare(request, carried, until)


def _is_unready(condition: Mapping[str, Any]) -> bool:
    return condition.get("type") == "Ready" and condition.get("status") == "False"


def _accounted(spec: Mapping[str, Any]) -> Amounts:
    """What all containers request of the accounting resources: at least what a kubelet counts."""
    found = [container for container, _ in scheduling.containers(spec)]
    memory, cores = (
        sum(quantity.integer_or(scheduling.request_of(container, name), 0) for container in found)
        for name in (names.GPU_MEMORY, names.GPU_CORES)
    )
    return Amounts(memory, cores)


def _withdrawn(annotations: Mapping[str, str]) -> str:
    node = annotations.get(names.WITHDRAWN, "")
    return node if is_subdomain(node) else ""


def _unschedulable(pod: Mapping[str, Any]) -> str | None:
    for condition in (pod.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            message = str(condition.get("message", ""))
            fails = condition.get("reason") == "SchedulerError" and message.startswith(_FAILS_THERE)
            return plain(message) if fails or condition.get("reason") == "Unschedulable" else None
    return None


def made_of(pod: Mapping[str, Any]) -> str:
    """A digest of the parts on which a pod's handling depends, without its status and what we write to touch it."""
    try:
        metadata = pod.get("metadata") or {}
        annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k != names.FENCE}
        parts = [metadata.get("labels"), annotations, pod.get("spec")]
        text = json.dumps(parts, sort_keys=True, default=repr)
    except Exception:
        return ""  # on any error: a pod that cannot be read counts as unchanged
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


def may_hold(pod: Mapping[str, Any]) -> frozenset[str]:
    """
    The nodes on which a pod that could not be taken in may hold a share, by what it carries; usually none.

    Unreadable parts count as if they held one.
    """
    text = _read(lambda: pods.annotations_of(pod).get(names.ALLOCATION), None)
    if text is None or _read(lambda: names.GATE in pods.gates(pod) or pods.finished(pod), False):
        return frozenset()
    bound = _read(lambda: str((pod.get("spec") or {}).get("nodeName") or ""), "")
    meant = _read(lambda: codec.texts_of(text)[0], "")
    return frozenset((bound, meant)) - {""}


def _read(part: Callable[[], T], otherwise: T) -> T:
    try:
        return part()
    except Exception:
        return otherwise


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The node's resources that a pod takes besides GPUs."""

    node: str
    compute: Compute
    host_ports: frozenset[tuple[str, str, int]] = _NO_PORTS
    unserved: Amounts = NO_AMOUNTS
    """As in `PodInfo`."""
    staying: str = ""
    """The namespace of a pod that stays with its node by its own data; else empty."""
    nominated: bool = False
    """It is not there yet: kube-scheduler gives that room only to pods of higher priority."""


@dataclass(frozen=True, slots=True)
class TrackedPod:
    """The state of a pod from the watches. `waits`: behind our gate."""

    node: str = ""
    waits: bool = False
    allocation: Allocation | None = None


UNTRACKED = TrackedPod()
"""The record of a pod that is not tracked."""


@dataclass(frozen=True, slots=True)
class UnboundPod:
    """A pod whose share is not used. `version`: the one it was last seen at."""

    uid: str
    key: str
    node: str
    since: float
    message: str
    """The actual or expected message of kube-scheduler."""
    owned: bool
    """A controller will create a replacement."""
    version: int | None
    scheduler: str = ""
    """As in `PodInfo`."""
    protected: tuple[str, ...] = ()
    """As in `PodInfo`."""
    reported: bool = False
    """Whether that was reported."""


def unbound_pod(pod: PodInfo, node: str, message: str) -> UnboundPod:
    """A pod whose share on the node is not used, seen for the first time."""
    return UnboundPod(pod.uid, pod.key, node, 0.0, message, bool(pod.owner), pod.version, pod.scheduler, pod.protected)


class AllocatedPods:
    """
    The pods that hold a share: what evictions depend on, and since when kube-scheduler has not bound them.

    A pod pinned by affinity has its share from the moment it is placed, but kube-scheduler still decides about the
    rest: volumes, spread, other pods. If it refuses for longer than a bound, a GPU lies idle, and this must be
    reported. Not thread-safe: one owner calls it.
    """

    def __init__(self) -> None:
        self._pods: dict[str, AllocatedPod] = {}
        self._by_node: dict[str, dict[str, AllocatedPod]] = {}
        self._priorities: dict[int, int] = {}
        self._unbound: dict[str, UnboundPod] = {}
        self._hindered: dict[str, str] = {}
        """Why kube-scheduler silently skips pods, by uid."""
        self._not_evaluated: dict[str, tuple[str, ...]] = {}
        self._together: dict[str, dict[str, Mapping[str, Demand]]] = {}
        """The amounts that each pod's end releases if it is the last one of its share, by `Allocation.group` and uid.
        """
        self._group_of: dict[str, str] = {}

    def see(self, pod: PodInfo, holding: Reservation, now: float) -> None:
        """A pod that holds a share is new or changed."""
        uid, node, known = pod.uid, holding.allocation.node, self._pods.get(pod.uid)
        held = {} if holding.allocation.claim else demands(holding.request, holding.allocation)
        since = known.ending if known is not None and known.ending is not None else now
        self._remove(uid)
        self._pods[uid] = self._by_node.setdefault(node, {})[uid] = AllocatedPod(
            uid=uid,
            key=holding.pod,
            node=node,
            priority=pod.priority,
            created=known.created if known is not None else pod.created,
            demands=held,
            compute=pod.compute,
            ending=since if pod.deleting else None,
            idle_after=pod.idle_after,
            successor=pod.successor,
            owner=pod.owner,
            overcount=overcount(holding.request, holding.allocation, held.values()),
        )
        self._priorities[pod.priority] = self._priorities.get(pod.priority, 0) + 1
        if holding.allocation.shared:
            self._group_of[uid] = holding.allocation.group
            self._together.setdefault(holding.allocation.group, {})[uid] = held
            self._regroup(holding.allocation.group)
        if pod.not_evaluated:
            self._not_evaluated[uid] = pod.not_evaluated
        self._see_unbound(pod, node, now)

    def _see_unbound(self, pod: PodInfo, node: str, now: float) -> None:
        uid, before = pod.uid, self._unbound.get(pod.uid)
        if pod.bound or pod.deleting:
            self._hindered.pop(uid, None)
        message = self._hindered.get(uid) if pod.unschedulable is None else pod.unschedulable
        if message is None:
            self._unbound.pop(uid, None)
            return
        since, reported = (before.since, before.reported) if before else (now, False)
        self._unbound[uid] = replace(unbound_pod(pod, node, message), since=since, reported=reported)

    def hinder(self, found: Iterable[UnboundPod], now: float) -> None:
        """
        Set all pods that kube-scheduler silently skips; new ones count from `now` on.
        """
        listed = {each.uid: each for each in found if each.uid in self._pods}
        for uid in self._hindered.keys() - listed.keys():
            message, unbound = self._hindered.pop(uid), self._unbound.get(uid)
            if unbound is not None and unbound.message == message:
                del self._unbound[uid]
        for uid, each in listed.items():
            self._hindered[uid] = each.message
            self._unbound.setdefault(uid, replace(each, since=now))

    def drop(self, uid: str) -> None:
        """The pod no longer holds anything."""
        self._remove(uid)
        self._unbound.pop(uid, None)
        self._hindered.pop(uid, None)

    def _remove(self, uid: str) -> None:
        removed = self._pods.pop(uid, None)
        self._not_evaluated.pop(uid, None)
        if removed is None:
            return
        del self._by_node[removed.node][uid]
        if not self._by_node[removed.node]:
            del self._by_node[removed.node]
        self._priorities[removed.priority] -= 1
        if not self._priorities[removed.priority]:
            del self._priorities[removed.priority]
        group = self._group_of.pop(uid, "")
        if group:
            del self._together[group][uid]
            self._regroup(group)

    def _regroup(self, group: str) -> None:
        """While several pods use one share, the end of one of them does not release it."""
        users = self._together[group]
        for uid, held in users.items():
            pod = self._pods[uid]
            demands = held if len(users) == 1 else {}
            if pod.demands != demands:
                self._pods[uid] = self._by_node[pod.node][uid] = replace(pod, demands=demands)
        if not users:
            del self._together[group]

    def uids(self) -> Collection[str]:
        """All of them; a live view."""
        return self._pods.keys()

    def get(self, uid: str) -> AllocatedPod | None:
        """A holder by its uid."""
        return self._pods.get(uid)

    def on(self, node: str) -> tuple[AllocatedPod, ...]:
        """The holders on a node, in the order in which they were seen."""
        return tuple(self._by_node.get(node, {}).values())

    def by_node(self) -> dict[str, tuple[AllocatedPod, ...]]:
        """All holders by node; a copy, whose values are frozen."""
        return {node: tuple(sharers.values()) for node, sharers in self._by_node.items()}

    def lowest(self) -> float:
        """The lowest priority of a pod that holds a share; infinite without any."""
        return min(self._priorities, default=float("inf"))

    def not_evaluated(self) -> Counter[str]:
        """The number of pods that are subject to rules that are not evaluated here, by kind."""
        return Counter(what for found in self._not_evaluated.values() for what in found)

    def says_by_what(self, uid: str) -> bool:
        """Whether the pod's data subject it to such a rule."""
        return uid in self._not_evaluated

    def unbound_for(self, now: float, after: float) -> list[UnboundPod]:
        """The pods that have been unbound for `after` seconds, the longest first."""
        return [pod for pod in self._unbound.values() if now - pod.since >= after]

    def take_unbound(self, now: float, after: float) -> list[UnboundPod]:
        """The pods that have been unbound for `after` seconds; each is returned once."""
        late = [pod for pod in self._unbound.values() if not pod.reported and now - pod.since >= after]
        for pod in late:
            self._unbound[pod.uid] = replace(pod, reported=True)
        return late

    def is_reported_unbound(self, uid: str) -> bool:
        """Whether `take_unbound` returned the pod and it is still unbound."""
        found = self._unbound.get(uid)
        return found is not None and found.reported

    def unbound(self, now: float, after: float) -> int:
        """The number of pods that have been unbound for `after` seconds."""
        return len(self.unbound_for(now, after))


def youngest_first(sharers: Iterable[AllocatedPod]) -> list[AllocatedPod]:
    """Sort by age alone; of two created in one second the one with the greater uid."""
    return sorted(sharers, key=lambda sharer: (sharer.created, sharer.uid), reverse=True)
