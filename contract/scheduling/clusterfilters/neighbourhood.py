"""
All nodes, namespaces and pods on nodes for the filters that look beyond one node: live, frozen, and for a trial.

Equal pods are kept once and counted by node, so a Deployment costs one entry for any number of replicas. Pure; not
thread-safe: one owner calls a `Neighbourhood`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from contract.model import NodeState
from contract.reasons.nodes import Code, Reason
from contract.scheduling import clusterfilters, preferences
from contract.scheduling.clusterfilters import FILTERS, Filter
from contract.scheduling.clusterfilters.lookup import Lookup
from contract.scheduling.clusterfilters.objects import (
    EVERYWHERE,
    NO_DEVICES,
    NO_PREFERENCES,
    NO_STORAGE,
    Cluster,
    DeviceObjects,
    PodKind,
    PodRules,
    PodTerm,
    PodWishes,
    Profile,
    StorageObjects,
    namespaces_of,
)
from contract.scheduling.clusterfilters.selectors import Labels
from contract.scheduling.gates import NEWEST, Gate, Gates
from contract.scheduling.needs import PodNeeds
from contract.scheduling.preferences.taints import SOFT

UNREAD = Reason(Code.CLAIM, what="that is still being read")
UNREAD_DEVICES = Reason(Code.RESOURCE_CLAIM, what="that is still being read")
NOWHERE_REFUSED: Mapping[str, Reason] = {}
"""No node is refused for a reason beyond that node."""
_HOSTNAME = "kubernetes.io/hostname"
_Key = TypeVar("_Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class PodsOfKind:
    """Equal pods, and their number on each node."""

    kind: PodKind
    nodes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NeighbourSnapshot:
    """The state of the cluster that the filters read, at one moment."""

    nodes: tuple[NodeState, ...] = ()
    pods: tuple[PodsOfKind, ...] = ()
    namespaces: Mapping[str, Labels] = field(default_factory=dict)
    storage: StorageObjects | None = NO_STORAGE
    """None if claims and volumes were not read."""
    devices: DeviceObjects | None = NO_DEVICES
    """None if ResourceClaims and DeviceClasses were not read."""
    gates: Gates = NEWEST
    """kube-scheduler's feature gates that are on."""
    profiles: Mapping[str, Profile] = field(default_factory=dict)
    """Of kube-scheduler, by `schedulerName`."""
    filters: tuple[Filter, ...] = field(default=FILTERS, metadata={"stored": False})
    """Internal objects of the program, which are in no file."""


NO_NEIGHBOURS = NeighbourSnapshot()


def attracts(kind: PodKind, rules: PodRules, namespaces: Mapping[str, Labels]) -> bool:
    """Whether the required affinity of a pod with these rules applies to such pods."""
    return bool(rules.affinity) and all(_means(term, kind, namespaces) for term in rules.affinity)


def hinders(kind: PodKind, rules: PodRules, namespaces: Mapping[str, Labels]) -> bool:
    """Whether such a pod on a node can exclude a pod with these rules from that node."""
    if any(_means(term, kind, namespaces) for term in rules.anti_affinity):
        return True
    if any(_means(term, rules, namespaces) for term in kind.anti_affinity):
        return True
    if kind.namespace == rules.namespace and any(each.selector.matches(kind.labels) for each in rules.spread):
        return True
    if (rules.volumes or rules.inline) and (kind.volumes or kind.inline):
        return True
    return any(own.conflicts(disk) for own in rules.disks for disk in kind.disks)


def repels_itself(rules: PodRules, namespaces: Mapping[str, Labels]) -> bool:
    """Whether no two pods with these rules may be on one node."""
    return any(term.topology_key == _HOSTNAME and _means(term, rules, namespaces) for term in rules.anti_affinity)


def _means(term: PodTerm, pod: PodKind | PodRules, namespaces: Mapping[str, Labels]) -> bool:
    return term.matches(pod.namespace, namespaces.get(pod.namespace, {}), pod.labels)


class Neighbourhood:
    """Nodes, namespaces, and the pods on nodes by kind."""

    def __init__(self, start: NeighbourSnapshot = NO_NEIGHBOURS) -> None:
        """`start`: the initial contents."""
        self._pods: dict[str, dict[PodKind, dict[str, int]]] = {}
        self._repelling: dict[PodKind, dict[str, int]] = {}
        self._kinds: dict[PodKind, PodKind] = {}
        self._holding: dict[str, dict[PodKind, int]] = {}
        """The kinds with volumes on each node, with the number of pods of each."""
        self._wishes: dict[PodWishes, tuple[PodWishes, dict[str, int]]] = {}
        """Preferences, kept once for all pods that have them, with the number of such pods on each node."""
        self._wishing: dict[str, dict[PodWishes, dict[str, int]]] = {}
        """The same by the namespaces of the pods to which the preferences refer."""
        self._tainted: set[str] = set()
        """Nodes with taints of the effect PreferNoSchedule."""
        self.profiles = start.profiles
        """Of kube-scheduler, by `schedulerName`."""
        self._lookup = Lookup()
        self._frozen: dict[PodKind, PodsOfKind] | None = None
        """The last snapshot's value of each kind; None before the first. Most kinds are unchanged in the next one."""
        self._changed: dict[PodKind, None] = {}
        """The kinds whose pods were added or removed since the last snapshot."""
        self.nodes: dict[str, NodeState] = {}
        """All nodes, including those without GPUs; only their labels and taints are read."""
        self.namespaces: Mapping[str, Labels] = start.namespaces
        """The labels of each namespace."""
        self.storage = start.storage
        self.devices = start.devices
        """None if they were not read."""
        self.gates = start.gates
        self._filters = start.filters
        for state in start.nodes:
            self.put_node(state)
        for each in start.pods:
            for node, number in each.nodes:
                self.add(each.kind, node, number)

    def put_node(self, node: NodeState) -> None:
        """A node is new or changed."""
        self.nodes[node.name] = node
        self._tainted.discard(node.name)
        if any(taint.effect == SOFT for taint in node.taints):
            self._tainted.add(node.name)

    def drop_node(self, name: str) -> None:
        """A node was deleted."""
        self.nodes.pop(name, None)
        self._tainted.discard(name)

    def add(self, kind: PodKind, node: str, number: int = 1) -> PodKind:
        """Set the number of pods of a kind on a node. Returns the stored kind, one value for all equal kinds."""
        if kind.wishes:
            kind = replace(kind, wishes=self._wish(kind.wishes, node, number))
        on_nodes = self._pods.setdefault(kind.namespace, {}).get(kind)
        if on_nodes is None:
            on_nodes = self._pods[kind.namespace][kind] = {}
            self._kinds[kind] = kind
            self._lookup.put(kind, on_nodes)
            if kind.anti_affinity:
                self._repelling[kind] = on_nodes
        on_nodes[node] = on_nodes.get(node, 0) + number
        if kind.volumes or kind.inline:
            self._holding.setdefault(node, {})[self._kinds[kind]] = on_nodes[node]
        if self._frozen is not None:
            self._changed[kind] = None
        return self._kinds[kind]

    def _wish(self, wishes: PodWishes, node: str, number: int) -> PodWishes:
        """Count this many more pods with these preferences on the node. Returns the equal stored preferences."""
        if wishes not in self._wishes:
            self._wishes[wishes] = wishes, {}
            for namespace in namespaces_of(wishes):
                self._wishing.setdefault(namespace, {})[wishes] = self._wishes[wishes][1]
        kept, on_nodes = self._wishes[wishes]
        on_nodes[node] = on_nodes.get(node, 0) + number
        return kept

    def _unwish(self, wishes: PodWishes, node: str) -> None:
        _, on_nodes = self._wishes[wishes]
        _decrement(on_nodes, node)
        if not on_nodes:
            del self._wishes[wishes]
            for namespace in namespaces_of(wishes):
                del self._wishing[namespace][wishes]
                if not self._wishing[namespace]:
                    del self._wishing[namespace]

    def remove(self, kind: PodKind, node: str) -> None:
        """Remove one pod of a kind from that node."""
        if self._frozen is not None:
            self._changed[kind] = None
        if kind.wishes:
            self._unwish(kind.wishes, node)
        on_nodes = self._pods[kind.namespace][kind]
        _decrement(on_nodes, node)
        if kind.volumes or kind.inline:
            _decrement(self._holding[node], kind)
            if not self._holding[node]:
                del self._holding[node]
        if not on_nodes:
            del self._pods[kind.namespace][kind], self._kinds[kind]
            self._lookup.drop(kind)
            self._repelling.pop(kind, None)
            if not self._pods[kind.namespace]:
                del self._pods[kind.namespace]

    @contextmanager
    def without(self, pods: Iterable[tuple[PodKind, str]]) -> Iterator[None]:
        """The neighbourhood as if these pods, each on its node, had ended."""
        removed = tuple(pods)
        for kind, node in removed:
            self.remove(kind, node)
        try:
            yield
        finally:
            for kind, node in removed:
                self.add(kind, node)

    @property
    def excludes(self) -> bool:
        """Whether a pod there has anti-affinity."""
        return bool(self._repelling)

    # -- questions ------------------------------------------------------------------------------------------------

    def concerns(self, rules: PodRules) -> bool:
        """Whether other pods, volumes or a profile can affect a pod's placement. The result False is cheap."""
        if rules.constrained or rules.profile in self.profiles:
            return True
        return bool(self._repelling) and self._lookup.excludes(rules)

    def refused(self, rules: PodRules, needs: PodNeeds, nodes: Iterable[NodeState]) -> Mapping[str, Reason]:
        """The nodes that a pod cannot use because of other pods, volumes or devices, each with the reason."""
        if not needs.compute.scalars and not self.concerns(rules):
            return NOWHERE_REFUSED
        if (rules.volumes or rules.inline) and self.storage is None:
            return {node.name: UNREAD for node in nodes}
        if rules.claims and self.devices is None and Gate.CLAIMS in self.gates:
            return {node.name: UNREAD_DEVICES for node in nodes}
        return clusterfilters.refused(rules, needs, self.narrowed(rules), nodes, self._filters)

    def preference(self, rules: PodRules, needs: PodNeeds) -> Callable[[Sequence[NodeState]], Sequence[int]] | None:
        """
        How much a pod prefers each of some nodes, more is better; None if neither the pod nor any other pod or node has
        a preference.
        """
        differs = (
            rules.prefers is not NO_PREFERENCES
            or self._tainted
            or EVERYWHERE in self._wishing
            or rules.namespace in self._wishing
            or rules.profile in self.profiles
        )
        return partial(preferences.total, rules, needs, self.cluster(rules)) if differs else None

    def refused_if_new(self, rules: PodRules, needs: PodNeeds, empty: NodeState) -> Reason | None:
        """
        Why a pod could not be on a new node like `empty`, which does not exist yet; None if it could.

        As in cluster-autoscaler, the node is checked as a node of the cluster, with a host name that no node has.
        """
        if not self.concerns(rules):
            return None
        new = as_new(empty)
        self.nodes[new.name] = new
        try:
            return self.refused(rules, needs, (new,)).get(new.name)
        finally:
            del self.nodes[new.name]

    def narrowed(self, rules: PodRules) -> Cluster:
        """Like `cluster`, with only the pods that can matter to the filters for a pod with these rules."""
        return self._lookup.narrowed(self.cluster(rules), rules)

    def cluster(self, rules: PodRules) -> Cluster:
        """The cluster that filters read for a pod with these rules. It changes along with this object."""
        follows = rules.volumes or rules.inline
        return Cluster(
            nodes=self.nodes,
            pods=self._pods,
            repelling=self._repelling,
            holding=self._holding,
            wishing=self._wishing,
            namespaces=self.namespaces,
            storage=self.storage if follows and self.storage is not None else NO_STORAGE,
            devices=self.devices if self.devices is not None else NO_DEVICES,
            gates=self.gates,
            profiles=self.profiles,
        )

    def snapshot(self) -> NeighbourSnapshot:
        """The state at this moment. Only kinds that have changed since the last snapshot are created again."""
        frozen = {} if self._frozen is None else self._frozen
        for kind in self._kinds if self._frozen is None else self._changed:
            on_nodes = self._pods.get(kind.namespace, {}).get(kind)
            if on_nodes is None:
                frozen.pop(kind, None)
            else:
                frozen[kind] = PodsOfKind(self._kinds[kind], tuple(on_nodes.items()))
        self._frozen = frozen
        self._changed = {}
        return NeighbourSnapshot(
            tuple(self.nodes.values()),
            tuple(frozen.values()),
            self.namespaces,
            self.storage,
            self.devices,
            self.gates,
            self.profiles,
            self._filters,
        )

    def check_invariants(self, places: Iterable[tuple[PodKind, str]]) -> None:
        """Raise unless the counts are those of these pods."""
        found: dict[str, dict[PodKind, dict[str, int]]] = {}
        wishing: dict[str, dict[PodWishes, dict[str, int]]] = {}
        for kind, node in places:
            counted = [found.setdefault(kind.namespace, {}).setdefault(kind, {})]
            meant = namespaces_of(kind.wishes)
            counted += [wishing.setdefault(namespace, {}).setdefault(kind.wishes, {}) for namespace in meant]
            for on_nodes in counted:
                on_nodes[node] = on_nodes.get(node, 0) + 1
        if found != self._pods:
            raise AssertionError("the pods by kind are not the pods on nodes")
        kinds = [kind for of_namespace in found.values() for kind in of_namespace]
        holding: dict[str, dict[PodKind, int]] = {}
        for kind in kinds:
            for node, number in found[kind.namespace][kind].items() if kind.volumes or kind.inline else ():
                holding.setdefault(node, {})[kind] = number
        if holding != self._holding:
            raise AssertionError("the pods with volumes by node are not those of the pods on nodes")
        if self._repelling.keys() != {kind for kind in kinds if kind.anti_affinity} or self._kinds.keys() != set(kinds):
            raise AssertionError("the kinds are not those of the pods on nodes")
        if wishing != self._wishing or self._wishes.keys() != {kind.wishes for kind in kinds if kind.wishes}:
            raise AssertionError("the wishes are not those of the pods on nodes")


def _decrement(counts: dict[_Key, int], key: _Key) -> None:
    """Reduce a count by one, and remove it at 0."""
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def as_new(empty: NodeState) -> NodeState:
    """A node that does not exist yet. No other node has its name or host name, because no node's name has a slash."""
    name = f"{empty.name}/new"
    return replace(empty, name=name, labels={**empty.labels, _HOSTNAME: name})
