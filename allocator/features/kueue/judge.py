"""
Decides whether all pods of a Workload fit together on the cards in their current state.

Pods are placed one after another on a trial: a snapshot of the cluster with everything that placement depends on,
including the filters for other pods and volumes. A gang that does not fit as a whole is removed again, so that the next
Workload is judged by the free room. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from allocator.cache import arrangement
from allocator.cache.arrangement import Arranged, Member
from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import Requester
from allocator.cache.trial import Trial
from allocator.engine import reference
from allocator.engine.reference import DEFAULT_POLICY, Decision, Placement, Policy, Unschedulable
from allocator.features.kueue import workloads
from allocator.features.kueue.workloads import JSON, Flavor, PodSet, Workload
from contract import bounds
from contract.dialects import DIALECTS
from contract.dialects import resourceclaims as shares_by_claims
from contract.dialects.base import PodReader, Refusal
from contract.dialects.table import Dialects
from contract.encoding import resourceclaims
from contract.model import MOST_MEMBERS, NodeState, PodRequest
from contract.options import NO_OPTIONS, Options, PoolOptions
from contract.reasons.nodes import Reason
from contract.scheduling import needs
from contract.scheduling.clusterfilters.neighbourhood import as_new
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules, read_rules
from contract.scheduling.filters import Limits
from contract.scheduling.gates import Gate
from contract.scheduling.needs import SchedulingRequest

MOST_PODS = 4096
"""The most pods of one Workload that are placed in a trial; a larger Workload is judged by these."""


@dataclass(frozen=True, slots=True)
class TemplateReading:
    """How the webhook would read the pods of a template."""

    pools: PoolOptions = NO_OPTIONS
    runtime_class: str = ""
    """The default RuntimeClass of pods with a share; empty: none."""
    claims: bool = False
    """Whether pods with a share name a ResourceClaim, which some nodes use for delivery."""
    dialects: Dialects = DIALECTS
    """The dialects in which pods may request shares."""


@dataclass(frozen=True, slots=True)
class TemplateClaims:
    """The contents of the ResourceClaims of a template's pods."""

    readings: shares_by_claims.Readings = field(default_factory=dict)
    """Our claims, by the pod's own names for them."""
    standing: frozenset[str] = frozenset()
    """The names of our claims without a template."""
    most: int | None = None
    """The number of pods with their own share; None: all of them. The others use a claim without a template."""


NO_CLAIMS = TemplateClaims()
ClaimsOf = Mapping[str, TemplateClaims | Refusal]
"""The ResourceClaims of each pod set by its name, or why its pods cannot be served."""


@dataclass(frozen=True, slots=True)
class GangPart:
    """Pods of one pod set that request shares."""

    name: str
    count: int
    ask: SchedulingRequest
    rules: PodRules = NO_RULES
    """The rules about other pods and volumes."""


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of a Workload that request shares. They start together or not at all."""

    parts: tuple[GangPart, ...]
    who: Requester

    @property
    def pods(self) -> int:
        """The number of pods."""
        return sum(part.count for part in self.parts)

    @property
    def has_volumes(self) -> bool:
        """Whether their placement depends on volumes."""
        return any(part.rules.volumes for part in self.parts)

    @property
    def has_devices(self) -> bool:
        """Whether their placement depends on ResourceClaims of other drivers."""
        return any(part.rules.claims for part in self.parts)


@dataclass(frozen=True, slots=True)
class Fits:
    """All of them fit; `pods` is their number."""

    pods: int
    opened: tuple[tuple[str, int], ...] = ()
    """(pool, number of its nodes that they need); empty if all fit on the existing nodes."""


@dataclass(frozen=True, slots=True)
class FallsShort:
    """The number of pods that fit, and why the next one, of `part`, does not."""

    part: GangPart
    placed: int
    pods: int
    decision: Unschedulable


@dataclass(frozen=True, slots=True)
class NeverFits:
    """No GPU of the cluster, or of a declared pool, could ever serve the pods of `part`."""

    part: GangPart
    decision: Unschedulable


@dataclass(frozen=True, slots=True)
class NotAdmitted:
    """The webhook would refuse the pods of this pod set."""

    pod_set: str
    message: str
    curable: bool = False
    """Whether another object is the cause, such as a ResourceClaimTemplate, so that the Workload may fit later."""


Verdict = Fits | FallsShort | NeverFits | NotAdmitted


class NotSeen(Exception):
    """Something that the Workload depends on has not been seen yet: a flavor, or an existing pod."""


def may_open(pools: PoolOptions, nodes: Iterable[NodeState]) -> dict[str, int]:
    """The number of nodes that may still be added to each declared pool, by its `max` and its existing nodes."""
    there = Counter(pools.of_node(node.labels)[0] for node in nodes)
    return {pool.name: max(pool.node.most - there[pool.name], 0) for pool in pools.pools if pool.node is not None}


def gang_of(
    workload: Workload,
    flavors: Mapping[str, Flavor],
    waiting: Mapping[str, SchedulingRequest],
    reading: TemplateReading,
    claims: ClaimsOf = MappingProxyType({}),
    *,
    by_copy: bool = False,
) -> Gang | NotAdmitted:
    """
    The requests of a Workload's pods when they run. Raises `NotSeen`, or `Unreadable` for a template that no API server
    stores.

    `waiting`: the requests of existing pods that wait, by uid. Kueue's copy of such a pod has no annotations, and our
    webhook has written its totals, so the copy contains the amounts but not the number of GPUs. `by_copy`: read the
    copy anyway if no pod of the set is seen waiting. `claims`: those of the pod sets that name some.
    """
    parts: list[GangPart] = []
    existing = [waiting[uid] for uid in workload.pods if uid in waiting]
    for pod_set in workload.pod_sets:
        unknown = [name for name in pod_set.flavors if name not in flavors]
        if unknown:
            raise NotSeen(f"resource flavor {unknown[0]}")
        named = claims.get(pod_set.name, NO_CLAIMS)
        if isinstance(named, Refusal):
            return NotAdmitted(pod_set.name, str(named), curable=True)
        with workloads.reading(f"{workload.key}, pod set {pod_set.name}"):
            pod = workloads.placed(pod_set, [flavors[name] for name in pod_set.flavors])
            seen = _existing(pod_set, pod, existing, reading.dialects, alone=len(workload.pod_sets) == 1)
            ask = seen or _read(pod, reading, named.readings, is_copy=bool(workload.pods))
        if workload.pods and not by_copy and seen is None and isinstance(ask, SchedulingRequest):
            raise NotSeen(f"a pod of pod set {pod_set.name}")
        if isinstance(ask, Refusal):
            return NotAdmitted(pod_set.name, str(ask), curable=bool(named.readings))
        if ask is not None and not ask.request.claim:
            with workloads.reading(f"{workload.key}, pod set {pod_set.name}"):
                rules = rules_of(pod, workload.namespace, named.standing)
            count = pod_set.count if named.most is None else min(named.most, pod_set.count)
            parts += (replace(part, rules=rules) for part in _in_domains(replace(pod_set, count=count), pod, ask))
    return Gang(tuple(parts), Requester("", workload.priority, workload.namespace))


def rules_of(pod: JSON, namespace: str, ours: Collection[str] = ()) -> PodRules:
    """
    The rules about other pods, volumes and devices for the pods of a template. They leave out claims that are created
    with a pod, because those do not exist yet, and `ours`, the ResourceClaims that were read.
    """
    metadata = {**(pod.get("metadata") or {}), "namespace": namespace}
    found = read_rules({**pod, "metadata": metadata})
    volumes = tuple(each for each in found.volumes if not each.ephemeral)
    claims = tuple(each for each in found.claims if not each.template and each.name not in ours)
    return replace(found, volumes=volumes, claims=claims, uid="")


def _in_domains(pod_set: PodSet, pod: JSON, ask: SchedulingRequest) -> Iterator[GangPart]:
    """The pods of a set, in the domains that Kueue has chosen for them."""
    if not pod_set.domains and pod_set.count:
        yield GangPart(pod_set.name, pod_set.count, ask)
    left = pod_set.count
    for domain in pod_set.domains:
        count = min(domain.count, left)
        left -= count
        if count > 0:
            selector = {**((pod.get("spec") or {}).get("nodeSelector") or {}), **dict(domain.selector)}
            inside = needs.needs_of({"spec": {"nodeSelector": selector}}).node_selector
            yield GangPart(pod_set.name, count, replace(ask, needs=replace(ask.needs, node_selector=inside)))


def _existing(
    pod_set: PodSet, pod: JSON, waiting: Iterable[SchedulingRequest], dialects: Dialects, *, alone: bool
) -> SchedulingRequest | None:
    """
    The request of the set's pods, taken from a pod of the set that waits; None if none waits. `alone`: all waiting pods
    belong to this set.
    """
    before = dialects.others_only(needs.needs_of(pod_set.template))
    for ask in waiting:
        as_before = replace(
            ask.needs, several=before.several, bursts=before.bursts, isolation=before.isolation, claim=before.claim
        )
        if alone or as_before == before:
            after = dialects.others_only(needs.needs_of(pod, several=ask.needs.several, bursts=ask.needs.bursts))
            return replace(ask, needs=replace(after, isolation=ask.needs.isolation, claim=ask.needs.claim))
    return None


def _read(
    pod: JSON, reading: TemplateReading, ours: shares_by_claims.Readings, *, is_copy: bool
) -> SchedulingRequest | Refusal | None:
    """
    The request as the webhook would read it; None if the pod requests no share. `ours`: its ResourceClaims. `is_copy`:
    the pod is a copy of one into which the webhook has written totals.
    """
    options, dialects = reading.pools.reading(pod), reading.dialects
    if ours:
        isolation = shares_by_claims.isolation_of(ours)
        if isinstance(isolation, Refusal):
            return isolation
        standard = shares_by_claims.isolated(pod, isolation)
        request = _by_claims(standard, options, dialects, ours, is_copy=is_copy)
    else:
        normal = dialects.normalise(pod, options)
        if normal is None:
            return None
        standard, request = normal, dialects.read(normal, options)
    if request is None or isinstance(request, Refusal):
        return request
    refusal = bounds.refused(standard, request, options, dialects)
    if refusal is not None:
        return refusal
    found = dialects.others_only(needs.needs_for(standard, request))
    if reading.runtime_class and not found.runtime_class:
        found = replace(found, runtime_class=reading.runtime_class)
    if not request.own_claims:
        found = replace(found, claim=reading.claims and resourceclaims.fits_claim(request))
    return SchedulingRequest(replace(request, warnings=()), found)


def _by_claims(
    pod: JSON, options: Options, dialects: Dialects, ours: shares_by_claims.Readings, *, is_copy: bool
) -> PodRequest | Refusal | None:
    others = () if is_copy else dialects.detect(pod)
    return (
        shares_by_claims.in_two_ways(others[0].title)
        if others
        else shares_by_claims.read_pod(PodReader(pod, options), ours)
    )


def _is_new(name: str) -> bool:
    """Whether the name is that of a node to be added: no existing node's name has a slash."""
    return "/" in name


def _pool_of(name: str) -> str:
    return name.rsplit("/", 2)[0]


class GangTrial:
    """
    A trial on which gangs are placed, each as a whole or not at all. Not thread-safe: one owner calls it.

    Pods of a gang count for each other: anti-affinity and spread constraints of a pod consider the pods placed before
    it.
    """

    def __init__(self, limits: Limits, policy: Policy, *, give_way: Callable[[], None] = lambda: None) -> None:
        """`give_way` is called between two pods, so that other threads run."""
        self._trial = Trial(limits, policy)
        self._give_way = give_way
        self._to_come: dict[str, NodeState] = {}
        self._may_open: dict[str, int] = {}
        self._knows_volumes = self._knows_devices = True

    def begin(self, cluster: FrozenCluster, may_open: Mapping[str, int] = MappingProxyType({})) -> None:
        """
        Forget all placed pods, and start from the current cluster. `may_open`: the number of nodes that may still be
        added to each declared pool, by its name, if an autoscaler adds them.
        """
        self._may_open = dict(may_open)
        self._to_come = {node.name: node for node in cluster.to_come}
        self._knows_volumes = cluster.neighbours.storage is not None
        self._knows_devices = cluster.neighbours.devices is not None or Gate.CLAIMS not in cluster.neighbours.gates
        self._trial.begin(cluster)

    def rest(self) -> None:
        """Drop pods, volumes and reservations until the trial begins again."""
        self._trial.rest()

    def judge(self, gang: Gang) -> Verdict:
        """
        Whether all of them fit; the pods of a gang that fits stay placed until the trial begins again. Raises `NotSeen`
        for claims that were not read: those of volumes, or of other drivers' devices.
        """
        if gang.has_volumes and not self._knows_volumes:
            raise NotSeen("the list of claims and volumes")
        if gang.has_devices and not self._knows_devices:
            raise NotSeen("the list of ResourceClaims")
        for part in gang.parts:
            never = self._trial.engine.could_ever(part.ask)
            if never is not None and not self._may_come(part.ask):
                return NeverFits(part, never)
        mark = self._trial.mark()
        opened: list[str] = []
        coming: set[str] = set()
        placed = 0
        for part in gang.parts:
            for _ in range(min(part.count, MOST_PODS - placed)):
                decision = self._place(part, gang.who, opened)
                if not isinstance(decision, Placement):
                    self._trial.undo(mark)
                    self._close(opened)
                    if self._fits_another_way(gang):
                        return Fits(gang.pods)
                    return FallsShort(part, placed, gang.pods, decision)
                placed += 1
                if _is_new(decision.node):
                    coming.add(decision.node)  # another gang may have opened it
        return Fits(gang.pods, tuple(sorted(Counter(map(_pool_of, coming)).items())))

    def _fits_another_way(self, gang: Gang) -> bool:
        """Whether they fit on the existing nodes as `arrangement` places gangs; if so, they stay placed."""
        if gang.pods > MOST_MEMBERS:
            return False
        members = [
            Member(part.ask, replace(gang.who, rules=part.rules)) for part in gang.parts for _ in range(part.count)
        ]
        found = arrangement.arrange(self._trial, members, give_way=self._give_way)
        return isinstance(found, Arranged)

    def _close(self, opened: Iterable[str]) -> None:
        for name in opened:
            self._may_open[_pool_of(name)] += 1

    def _open(self, part: GangPart, opened: list[str]) -> bool:
        """Add an empty node of the first pool on which the pod would fit. False if there is none."""
        for pool, empty in self._to_come.items():
            left = self._may_open.get(pool, 0)
            refused = self._trial.refused_if_new(part.rules, part.ask.needs, empty)
            verdict = reference.evaluate(empty, part.ask, self._trial.engine.limits, DEFAULT_POLICY, refused=refused)
            if left > 0 and not isinstance(verdict, Reason):
                new = as_new(replace(empty, name=f"{pool}/{left}"))
                opened.append(new.name)
                self._may_open[pool] = left - 1
                self._trial.open(new)
                return True
        return False

    def _may_come(self, ask: SchedulingRequest) -> bool:
        """Whether a node of a declared pool would have GPUs for the pod."""
        limits = self._trial.engine.limits
        return bool(self._to_come) and reference.could_ever(self._to_come, ask, limits=limits) is None

    def assume(self, gang: Gang) -> None:
        """Place the pods of a gang that was judged before; pods that no longer fit are left out."""
        number = 0
        for part in gang.parts:
            for _ in range(min(part.count, MOST_PODS - number)):
                number += 1
                if not isinstance(self._place(part, gang.who, []), Placement):
                    break

    def _place(self, part: GangPart, who: Requester, opened: list[str]) -> Decision:
        """Place one pod, on a new node if it fits on no other. `opened`: the new nodes; this call may add one."""
        self._give_way()
        requester = replace(who, rules=part.rules)
        decision = self._trial.place(part.ask, requester)
        while not isinstance(decision, Placement) and self._open(part, opened):
            decision = self._trial.place(part.ask, requester)
        return decision
