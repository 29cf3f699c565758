"""
A copy of the cluster on which pods are placed and removed again, to predict the allocator's decisions.

The engine, policy, learned tables and filters are those that decide for pods; nothing is reserved. Kueue's check and
the replay of a snapshot use it. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Mapping

from allocator.cache import reserved
from allocator.cache.cache import FrozenCluster
from allocator.cache.reserved import HeldNode, Requester
from allocator.engine import reference
from allocator.engine.engine import Engine
from allocator.engine.reference import Decision, Placement, Policy
from contract.model import NodeState
from contract.reasons.nodes import Reason
from contract.scheduling import nodeinfo
from contract.scheduling.clusterfilters.neighbourhood import (
    NO_NEIGHBOURS,
    NOWHERE_REFUSED,
    Neighbourhood,
    NeighbourSnapshot,
)
from contract.scheduling.clusterfilters.objects import PodKind, PodRules
from contract.scheduling.filters import Limits
from contract.scheduling.needs import PodNeeds, SchedulingRequest


class Trial:
    """It is kept from one moment to the next: only nodes that have changed are taken in again."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self.engine = Engine(limits=limits, policy=policy)
        """It treats reserved nodes as closed; other parts only query it."""
        self._nodes: dict[str, NodeState] = {}
        self.reservations: tuple[HeldNode, ...] = ()
        self._closed: frozenset[str] = frozenset()
        self._seen: NeighbourSnapshot = NO_NEIGHBOURS
        self._repelled = False
        self._there: Neighbourhood | None = None
        """Made from `_seen` once a pod is tried to which rules about other pods or volumes apply."""
        self._placed: list[tuple[NodeState | None, str, PodKind | None]] = []
        """What was done since the trial began: the node as it was before, its name, and the pod that came."""
        self.changes = 0
        """How many pods have come, by which a pod may fit that did not before."""

    @property
    def nodes(self) -> Mapping[str, NodeState]:
        """The nodes with GPUs, with what was placed there."""
        return self._nodes

    def begin(self, cluster: FrozenCluster) -> None:
        """Forget all placed pods, and start from the cluster at this moment."""
        closed = frozenset(one.node for one in cluster.reservations)
        wanted = {node.name: node for node in cluster.nodes}
        for name in self._nodes.keys() - wanted.keys():
            self._drop(name)
        changed = self._closed ^ closed
        self.reservations = cluster.reservations
        self._closed = closed
        for name, node in wanted.items():
            if self._nodes.get(name) is not node or name in changed:
                self._put(node)
        if cluster.tables is not self.engine.tables:
            self.engine.adopt(cluster.tables)
        if self._seen is not cluster.neighbours or self._placed:
            self._there = None
        self._seen = cluster.neighbours
        self._placed = []
        self._repelled = any(each.kind.anti_affinity for each in self._seen.pods)

    def rest(self) -> None:
        """
        Keep nothing of pods and volumes that were seen, nor for which pods nodes are reserved: they may go before the
        next `begin`.
        """
        self._seen, self._there, self._placed = NO_NEIGHBOURS, None, []
        self.reservations = ()

    # -- questions ------------------------------------------------------------------------------------------------

    def decide(self, ask: SchedulingRequest, who: Requester, out: Mapping[str, Reason] = NOWHERE_REFUSED) -> Decision:
        """The place that the pod would get now. `out`: additional excluded nodes, with the reason."""
        refused = self.refused(who.rules, ask.needs)
        if out:
            refused = {**refused, **out}
        if self.reservations:
            return reserved.decide(self.engine, self._nodes, self.reservations, ask, who, refused)
        return reference.by_preference(lambda form: self.engine.decide(form, refused), ask)

    def concerns(self, rules: PodRules) -> bool:
        """Whether other pods, volumes or a profile may affect the pod's place."""
        if rules.constrained or self._repelled or rules.profile in self._seen.profiles:
            return True
        return any(kind is not None and bool(kind.anti_affinity) for _, _, kind in self._placed)

    def refused(self, rules: PodRules, needs: PodNeeds) -> Mapping[str, Reason]:
        """The nodes that other pods and volumes refuse for the pod, with the reason."""
        if not self.concerns(rules):
            return NOWHERE_REFUSED
        return self._neighbourhood().refused(rules, needs, self._nodes.values())

    def refused_if_new(self, rules: PodRules, needs: PodNeeds, empty: NodeState) -> Reason | None:
        """Why the pod could not use a new node like `empty`; None if it could."""
        return self._neighbourhood().refused_if_new(rules, needs, empty) if self.concerns(rules) else None

    # -- changes --------------------------------------------------------------------------------------------------

    def place(self, ask: SchedulingRequest, who: Requester, out: Mapping[str, Reason] = NOWHERE_REFUSED) -> Decision:
        """Decide, and count the pod where it goes. `out`: as in `decide`."""
        decision = self.decide(ask, who, out)
        if isinstance(decision, Placement):
            node, kind = self._nodes[decision.node], who.rules.placed()
            self._note(node, node.name, kind)
            self._put(nodeinfo.booked(node, ask, decision.containers))
            if self._there is not None:
                self._there.add(kind, node.name)
        return decision

    def open(self, node: NodeState) -> None:
        """Add a node that does not exist yet."""
        self._note(None, node.name, None)
        self._put(node)
        if self._there is not None:
            self._there.nodes[node.name] = node

    def mark(self) -> int:
        """A mark of this moment, for `undo`."""
        return len(self._placed)

    def undo(self, mark: int) -> None:
        """Return to the state at that mark."""
        before: dict[str, NodeState | None] = {}
        while len(self._placed) > mark:
            node, name, kind = self._placed.pop()
            before[name] = node
            if self._there is not None and kind is not None:
                self._there.remove(kind, name)
        for name, was in before.items():
            if was is not None:
                self._put(was)
            else:
                self._drop(name)
                if self._there is not None:
                    self._there.nodes.pop(name, None)

    def _note(self, before: NodeState | None, name: str, kind: PodKind | None) -> None:
        self._placed.append((before, name, kind))
        self.changes += 1

    def _put(self, node: NodeState) -> None:
        self._nodes[node.name] = node
        self.engine.put(reserved.closed(node) if node.name in self._closed else node)

    def _drop(self, name: str) -> None:
        del self._nodes[name]
        self.engine.drop(name)

    def _neighbourhood(self) -> Neighbourhood:
        if self._there is None:
            self._there = Neighbourhood(self._seen)
            for node in self._nodes.values():
                self._there.nodes.setdefault(node.name, node)
            for _, name, kind in self._placed:
                if kind is not None:
                    self._there.add(kind, name)
        return self._there
