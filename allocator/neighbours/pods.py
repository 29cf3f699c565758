"""
The cluster as filters see it that look beyond one node: pods, namespaces and volumes.

All pods on nodes count, those that request no GPU too. Pods that are alike are kept once and counted by node, so a
Deployment costs one entry however many replicas it has. A share that was decided a moment ago counts at its node before
its pod is seen there, as kube-scheduler counts what it has assumed. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from allocator.engine.reference import Prefer
from allocator.neighbours.followed import Followed
from allocator.neighbours.spreading import Spreading
from allocator.neighbours.storage import DEVICE_KINDS, KINDS, AssumedVolumes, Devices, Storage
from contract import names
from contract.model import NodeState
from contract.nodes.attributes import NodeFacts
from contract.reasons.base import Cure
from contract.reasons.nodes import Code, Reason
from contract.scheduling import default_spread
from contract.scheduling.clusterfilters import FILTERS, Filter, left_open, neighbourhood
from contract.scheduling.clusterfilters.left_open import NOTHING, LeftOpen
from contract.scheduling.clusterfilters.neighbourhood import (
    NOWHERE_REFUSED,
    UNREAD_DEVICES,
    Neighbourhood,
    NeighbourSnapshot,
)
from contract.scheduling.clusterfilters.objects import (
    NO_PROFILE,
    NO_RULES,
    NO_STORAGE,
    Cluster,
    DeviceObjects,
    PodKind,
    PodRules,
    Profile,
    StorageObjects,
    extended_resources,
)
from contract.scheduling.clusterfilters.selectors import Labels
from contract.scheduling.gates import NEWEST, Gate, Gates
from contract.scheduling.needs import PodNeeds

_SPREAD_UNKNOWN = Reason(Code.SPREAD_UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Place:
    kind: PodKind
    node: str


class Neighbours:
    """The pods on nodes by kind, all nodes, and the labels of namespaces."""

    def __init__(self, gates: Gates = NEWEST, filters: tuple[Filter, ...] = FILTERS) -> None:
        """`gates`: kube-scheduler's feature gates that are on. `filters`: those that look beyond one node."""
        self._gates = gates
        self._places: dict[str, _Place] = {}
        """By the pod's uid, or by the id of an allocation whose pod was not seen yet."""
        self._there = Neighbourhood(NeighbourSnapshot(gates=gates, filters=filters))
        self.unserved = frozenset[str]()
        """Namespaces without our label."""
        self._cures: set[Cure] = set()
        self.storage = Storage(self._cures)
        self.devices = Devices(self._cures)
        """Claims and volumes; ResourceClaims and DeviceClasses. To others they are for reading."""
        self._assumed = AssumedVolumes(self._cures)
        self._awaiting: set[str] = set()
        """Allocations of pods that are about to get volumes."""
        self._storage: tuple[tuple[int, int, int], StorageObjects] = ((-1, 0, 0), NO_STORAGE)
        """Claims and volumes with what is assumed, and what they were made from."""
        self.spreading = Spreading(self._cures)
        """The objects whose selectors default constraints use; other parts only read it."""
        self.changes = self._node_changes = 0
        """The number of changes that affect constrained pods, and of changes of nodes."""
        self._frozen = NeighbourSnapshot()
        self._frozen_at = -1
        self.readmissions = 0
        """The number of changes by which other pods' anti-affinity may exclude less than before."""

    # -- what changed ---------------------------------------------------------------------------------------------

    def put(self, key: str, kind: PodKind, node: str) -> None:
        """A pod is on a node, or was given one."""
        known = self._places.get(key)
        if known is not None and known.node == node and known.kind == kind:
            return
        self.drop(key)
        self._places[key] = _Place(self._there.add(kind, node), node)
        self._note(Cure.POD)

    def drop(self, key: str) -> None:
        """The pod is no longer on any node."""
        place = self._places.pop(key, None)
        if place is not None:
            self._note(Cure.POD)
            self.readmissions += bool(place.kind.anti_affinity)
            self._there.remove(place.kind, place.node)

    def assume_volumes(self, allocation: str, rules: PodRules, node: str) -> None:
        """A pod was given a node and is not bound yet: what its claims get there is reserved for them."""
        if rules.volumes:
            self._awaiting.add(allocation)
            self._assumed.put(allocation, rules, node)

    def settle_volumes(self, allocation: str) -> None:
        """The pod is bound, or will not be."""
        if allocation in self._awaiting:
            self._awaiting.discard(allocation)
            self._assumed.drop(allocation)

    def put_node(self, facts: NodeFacts) -> None:
        """A Node is new or changed."""
        known = self._there.nodes.get(facts.name)
        if known is not None and (known.labels, known.taints) == (facts.labels, facts.taints):
            return
        self._there.put_node(NodeState(facts.name, labels=facts.labels, taints=facts.taints))
        if known is None:
            self._changed(Cure.NODE)
            return
        if known.labels != facts.labels:
            self._changed(Cure.LABELS)
        if known.taints != facts.taints:
            self._changed(Cure.TAINTS)

    def drop_node(self, name: str) -> None:
        """A Node was deleted."""
        if name in self._there.nodes:
            self._changed(Cure.NODE_GONE)
        self._there.drop_node(name)

    def label_namespaces(self, labels: Mapping[str, Labels]) -> None:
        """The labels of all namespaces."""
        if self._there.namespaces != labels:
            self._changed(Cure.NAMESPACE)
        self._there.namespaces = labels
        self.unserved = frozenset(
            name for name, each in labels.items() if each.get(names.INJECT_LABEL) != names.INJECT_ENABLED
        )

    def declare(self, profiles: Mapping[str, Profile]) -> None:
        """The profiles of kube-scheduler, by `schedulerName`."""
        if self._there.profiles != profiles:
            self._note(Cure.PROFILE)
        self._there.profiles = profiles
        self.spreading.wanted |= any(profile.spreads for profile in profiles.values())

    def followed(self, plural: str) -> Followed:
        """The store of objects of this kind."""
        if plural in DEVICE_KINDS:
            return self.devices.of_kind(plural)
        return self.storage if plural in KINDS else self.spreading

    def _changed(self, cure: Cure) -> None:
        """Domains or namespaces have changed."""
        self._note(cure)
        self._node_changes += 1
        self.readmissions += self._there.excludes

    def _note(self, cure: Cure) -> None:
        self.changes += 1
        self._cures.add(cure)

    def take_cures(self) -> frozenset[Cure]:
        """The changes since the last call that may cure a pod."""
        found = frozenset(self._cures)
        self._cures.clear()
        return found

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Increases when anything changes that a constrained pod is evaluated by."""
        followed = self.storage.changes + self.devices.changes + self.spreading.changes
        return self.changes + followed + self._assumed.changes

    @property
    def constrains_all(self) -> bool:
        """Whether pods without constraints of their own are evaluated by other pods, because of a profile."""
        return any(profile.spread for profile in self._there.profiles.values())

    def concerns(self, rules: PodRules) -> bool:
        """
        Whether other pods, volumes or a profile may matter for where this one goes. The answer False is cheap.
        """
        return self._there.concerns(rules)

    def refused(self, rules: PodRules, needs: PodNeeds, nodes: Iterable[NodeState]) -> Mapping[str, Reason]:
        """The nodes that other pods refuse for the pod, with the reason."""
        scalars = bool(needs.compute.scalars)
        if not scalars and not self.concerns(rules):
            return NOWHERE_REFUSED
        self._read(rules)
        if scalars and not self._knows_classes(rules):
            return {node.name: UNREAD_DEVICES for node in nodes}
        if default_spread.profile_for(rules, self._there.profiles).spread and not self.spreading.known:
            return {node.name: _SPREAD_UNKNOWN for node in nodes}
        return self._there.refused(self.with_defaults(rules), needs, nodes)

    def left_open(self, rules: PodRules, needs: PodNeeds, node: NodeState) -> LeftOpen:
        """The checks that remain for kube-scheduler about a pod on a node that is not refused."""
        if not needs.compute.scalars and not self.concerns(rules):
            return NOTHING
        judged = self.with_defaults(rules)
        self._read(judged)
        return left_open.left_open(judged, needs, self._there.narrowed(judged), node)

    def extended_resources(self) -> frozenset[str]:
        """Extended resources for which DeviceClasses stand, if these are followed and kube-scheduler considers them."""
        on = Gate.EXTENDED_RESOURCES_BY_CLAIM in self._gates
        return extended_resources(self.devices.objects()) if on else frozenset()

    def preference(self, rules: PodRules, needs: PodNeeds) -> Prefer | None:
        """How much the pod prefers nodes; None if neither it nor any other pod or node makes a difference."""
        return self._there.preference(self.with_defaults(rules), needs)

    def with_defaults(self, rules: PodRules) -> PodRules:
        """The rules with the default constraints of the pod's profile, if it has none of its own."""
        profile = default_spread.profile_for(rules, self._there.profiles)
        if profile is NO_PROFILE or not self.spreading.known:
            return rules
        selector = self.spreading.selector(rules.namespace, rules.labels, rules.controller)
        return default_spread.with_defaults(rules, profile, selector)

    def cluster(self, rules: PodRules) -> Cluster:
        """All current data by which such a pod is evaluated."""
        self._read(rules)
        return self._there.cluster(rules)

    def refused_if_new(self, rules: PodRules, needs: PodNeeds, empty: NodeState) -> Reason | None:
        """Why the pod could not use a new node like `empty`; None if it could."""
        self._read(rules)
        return self._there.refused_if_new(self.with_defaults(rules), needs, empty)

    def refused_without(
        self, removed: Iterable[str], rules: PodRules, needs: PodNeeds, nodes: Iterable[NodeState]
    ) -> Mapping[str, Reason]:
        """`refused` once the pods with these uids have ended."""
        places = [place for uid in removed if (place := self._places.get(uid)) is not None]
        with self._there.without((place.kind, place.node) for place in places):
            return self.refused(rules, needs, nodes)

    def hindering(self, rules: PodRules, uids: Iterable[str]) -> list[str]:
        """The pods that may be why a pod with these rules is refused on their nodes, in the given order."""
        places = ((uid, place) for uid in uids if (place := self._places.get(uid)) is not None)
        return [uid for uid, place in places if neighbourhood.hinders(place.kind, rules, self._there.namespaces)]

    def in_the_way(
        self, rules: PodRules, needs: PodNeeds, node: NodeState, hindering: Sequence[str]
    ) -> frozenset[str] | None:
        """
        Those of the pods `hindering` that must end before a node that is refused no longer is; None if it is refused
        anyway. Those that should go first are first.

        As kube-scheduler does, all of them are taken off, and each of those that are most worth keeping is put back
        where the pod can be there in spite of it.
        """
        going = list(hindering)
        if self.refused_without(going, rules, needs, (node,)):
            return None
        for uid in reversed(hindering):
            fewer = [each for each in going if each != uid]
            if not self.refused_without(fewer, rules, needs, (node,)):
                going = fewer
        return frozenset(going)

    def attracted_by(self, rules: PodRules, uids: Iterable[str]) -> frozenset[str]:
        """The pods to which the required affinity of a pod with these rules applies: without them it may be refused."""
        if not rules.affinity:
            return frozenset()
        places = ((uid, place) for uid in uids if (place := self._places.get(uid)) is not None)
        return frozenset(
            uid for uid, place in places if neighbourhood.attracts(place.kind, rules, self._there.namespaces)
        )

    def rules_of(self, uid: str) -> PodRules:
        """The fields that others read of a pod on a node, without its own rules; `NO_RULES` for a pod on no node."""
        place = self._places.get(uid)
        return NO_RULES if place is None else PodRules(place.kind.namespace, place.kind.labels)

    def repels_itself(self, rules: PodRules) -> bool:
        """Whether no two pods with these rules may be on one node."""
        return neighbourhood.repels_itself(rules, self._there.namespaces)

    def snapshot(self) -> NeighbourSnapshot:
        """All of it at this moment; made again once something has changed."""
        if self._frozen_at != self.version:
            self._there.storage = self._volumes() if self.storage.known else None
            self._there.devices = self._known_devices()
            self._frozen = self._there.snapshot()
            self._frozen_at = self.version
        return self._frozen

    def _read(self, rules: PodRules) -> None:
        """Load the objects by which such a pod is evaluated, and follow them."""
        if rules.volumes or rules.inline:
            self.storage.wanted |= not self.storage.known
            self._there.storage = self._volumes() if self.storage.known else None
        if rules.claims and Gate.CLAIMS in self._gates:
            self.devices.claims.wanted |= not self.devices.claims.known
            self.devices.classes.wanted |= not self.devices.classes.known
            self._there.devices = self._known_devices()

    def _knows_classes(self, rules: PodRules) -> bool:
        """Whether it is known which extended resources are devices; DeviceClasses are followed from now on."""
        if Gate.EXTENDED_RESOURCES_BY_CLAIM not in self._gates:
            return True
        self.devices.classes.wanted = True
        if not rules.claims:
            self._there.devices = self.devices.objects()
        return self.devices.classes.known

    def _known_devices(self) -> DeviceObjects | None:
        known = self.devices.claims.known and self.devices.classes.known
        return self.devices.objects() if known else None

    def _volumes(self) -> StorageObjects:
        made_from = self.storage.changes, self._assumed.changes, self._node_changes
        if self._storage[0] != made_from:
            self._storage = made_from, self._assumed.over(self.storage.objects(), self._there.nodes)
        return self._storage[1]

    def check_invariants(self) -> None:
        """Raise unless the counts are those of the pods."""
        self._there.check_invariants((place.kind, place.node) for place in self._places.values())
