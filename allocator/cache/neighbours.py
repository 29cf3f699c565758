"""
The cluster as filters see it that look beyond one node: pods, namespaces and volumes.

All pods on nodes count, those that ask for no GPU too. Pods that are alike are kept once and counted by node, so a
Deployment costs one entry however many replicas it has. A share that was decided a moment ago counts at its node before
its pod is seen there, as kube-scheduler counts what it has assumed. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from allocator.cache.storage import Storage
from contract.model import NodeState
from contract.nodes.attributes import NodeFacts
from contract.reasons.nodes import Code, Reason
from contract.scheduling import clusterfilters
from contract.scheduling.clusterfilters.objects import NO_STORAGE, Cluster, PodKind, PodRules
from contract.scheduling.clusterfilters.selectors import Labels
from contract.scheduling.needs import PodNeeds

_UNREAD = Reason(Code.CLAIM, what="that is still being read")
NOWHERE_REFUSED: Mapping[str, Reason] = {}
"""No node is refused for what is beyond it."""


@dataclass(frozen=True, slots=True)
class _Place:
    kind: PodKind
    node: str


class Neighbours:
    """The pods on nodes by kind, all nodes, and the labels of namespaces."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        """By the pod's uid, or by the id of an allocation whose pod was not seen yet."""
        self._pods: dict[str, dict[PodKind, dict[str, int]]] = {}
        self._repelling: dict[PodKind, dict[str, int]] = {}
        self._kinds: dict[PodKind, PodKind] = {}
        self._nodes: dict[str, NodeState] = {}
        self._namespaces: Mapping[str, Labels] = {}
        self.storage = Storage()
        """Claims and volumes; to others it is for reading."""
        self.changes = 0
        """How often something has changed that a constrained pod is judged by."""

    # -- what changed ---------------------------------------------------------------------------------------------

    def put(self, key: str, kind: PodKind, node: str) -> None:
        """A pod is on a node, or was given one."""
        known = self._places.get(key)
        if known is not None and known.node == node and known.kind == kind:
            return
        self.drop(key)
        on_nodes = self._pods.setdefault(kind.namespace, {}).get(kind)
        if on_nodes is None:
            on_nodes = self._pods[kind.namespace][kind] = {}
            self._kinds[kind] = kind
            if kind.anti_affinity:
                self._repelling[kind] = on_nodes
        on_nodes[node] = on_nodes.get(node, 0) + 1
        self._places[key] = _Place(self._kinds[kind], node)
        self.changes += 1

    def drop(self, key: str) -> None:
        """The pod is on no node any more."""
        place = self._places.pop(key, None)
        if place is None:
            return
        self.changes += 1
        kind, node = place.kind, place.node
        on_nodes = self._pods[kind.namespace][kind]
        on_nodes[node] -= 1
        if not on_nodes[node]:
            del on_nodes[node]
        if not on_nodes:
            del self._pods[kind.namespace][kind], self._kinds[kind]
            self._repelling.pop(kind, None)
            if not self._pods[kind.namespace]:
                del self._pods[kind.namespace]

    def put_node(self, facts: NodeFacts) -> None:
        """A Node is new or changed."""
        known = self._nodes.get(facts.name)
        if known is None or (known.labels, known.taints) != (facts.labels, facts.taints):
            self._nodes[facts.name] = NodeState(facts.name, labels=facts.labels, taints=facts.taints)
            self.changes += 1

    def drop_node(self, name: str) -> None:
        """A Node was deleted."""
        self.changes += self._nodes.pop(name, None) is not None

    def label_namespaces(self, labels: Mapping[str, Labels]) -> None:
        """The labels of all namespaces."""
        self.changes += self._namespaces != labels
        self._namespaces = labels

    # -- questions ------------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows with everything that a constrained pod is judged by."""
        return self.changes + self.storage.changes

    def concerns(self, rules: PodRules) -> bool:
        """Whether other pods or volumes may have a say in where this one goes. False costs nothing to decide."""
        return rules.constrained or bool(self._repelling)

    def refused(self, rules: PodRules, needs: PodNeeds, nodes: Iterable[NodeState]) -> Mapping[str, Reason]:
        """Those of the nodes on which the pod cannot be because of other pods, with the reason."""
        if not self.concerns(rules):
            return NOWHERE_REFUSED
        if rules.volumes and not self.storage.known:
            self.storage.wanted = True
            return {node.name: _UNREAD for node in nodes}
        return clusterfilters.refused(rules, needs, self._cluster(rules), nodes)

    def _cluster(self, rules: PodRules) -> Cluster:
        storage = self.storage.objects() if rules.volumes else NO_STORAGE
        return Cluster(self._nodes, self._pods, self._repelling, self._namespaces, storage)

    def check_invariants(self) -> None:
        """Raise unless the counts are those of the pods."""
        found: dict[str, dict[PodKind, dict[str, int]]] = {}
        for place in self._places.values():
            on_nodes = found.setdefault(place.kind.namespace, {}).setdefault(place.kind, {})
            on_nodes[place.node] = on_nodes.get(place.node, 0) + 1
        if found != self._pods:
            raise AssertionError("the pods by kind are not the pods on nodes")
        kinds = [kind for kinds in found.values() for kind in kinds]
        if self._repelling.keys() != {kind for kind in kinds if kind.anti_affinity} or self._kinds.keys() != set(kinds):
            raise AssertionError("the kinds are not those of the pods on nodes")
