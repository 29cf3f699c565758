"""
Which kinds of node there are, and who owns which GPU: what `engine.could_ever` needs, without a look at every node.

Nodes whose GPUs are alike in all but their UUIDs, position by position, are one kind and have one answer. Only a
wish for certain GPUs by UUID tells two of a kind apart, so the nodes that own one of those are asked on their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from allocator.engine import reference
from allocator.engine.reference import Unschedulable
from contract.model import FractionRequest, Gpu, NodeState, PoolSharing
from contract.scheduling.filters import Limits, kind_accepted
from contract.scheduling.reasons import Code, ReasonCount
from contract.scheduling.request import SchedulingRequest

Kind = tuple[tuple[str, int, int, PoolSharing, int], ...]
"""Model, memory in all, usable memory, how it is shared and the NUMA node of each GPU, in their order."""


class NodeClasses:
    """The kinds of the nodes that have GPUs. Not thread-safe: one owner calls it."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeState] = {}
        self._kind_of: dict[str, Kind] = {}
        self._members: dict[Kind, dict[str, None]] = {}
        self._owners: dict[str, tuple[str, ...]] = {}

    def put(self, node: NodeState) -> None:
        """A node is new or changed."""
        before = self._nodes.get(node.name)
        if before is not None and before.gpus is not node.gpus and before.gpus != node.gpus:
            self.drop(node.name)
            before = None
        if before is None and node.gpus:
            kind = tuple((gpu.model, gpu.memory, gpu.usable, gpu.sharing, gpu.numa) for gpu in node.gpus)
            self._kind_of[node.name] = kind
            self._members.setdefault(kind, {})[node.name] = None
            alone = (node.name,)
            for gpu in node.gpus:
                others = self._owners.get(gpu.uuid)
                self._owners[gpu.uuid] = alone if others is None else (*others, node.name)
        self._nodes[node.name] = node

    def drop(self, name: str) -> None:
        """A node is gone."""
        node, kind = self._nodes.pop(name, None), self._kind_of.pop(name, None)
        if node is None or kind is None:
            return
        del self._members[kind][name]
        if not self._members[kind]:
            del self._members[kind]
        for gpu in node.gpus:
            others = tuple(owner for owner in self._owners.get(gpu.uuid, ()) if owner != name)
            if others:
                self._owners[gpu.uuid] = others
            else:
                self._owners.pop(gpu.uuid, None)

    def owners(self, uuids: Iterable[str]) -> Iterator[tuple[str, str]]:
        """(node, uuid) for each of these GPUs that exists."""
        for uuid in uuids:
            for name in self._owners.get(uuid, ()):
                yield name, uuid

    def could_ever(self, ask: SchedulingRequest, limits: Limits) -> Unschedulable | None:
        """The same as `engine.could_ever` on all nodes."""
        wishes = [fraction.wishes for fraction in ask.request.containers]
        named = {uuid for wish in wishes for uuid in (*wish.use_uuids, *wish.avoid_uuids)}
        apart = {name for name, _ in self.owners(named)}
        total: dict[Code, ReasonCount] = {}
        for node, number in self._groups(apart):
            found = reference.could_ever({node.name: node}, ask, limits=limits)
            if found is None:
                return None
            for tally in found.reasons:
                total[tally.code] = _plus(total.get(tally.code), tally, number)
        return Unschedulable(tuple(total[code] for code in sorted(total))) if total else None

    def _groups(self, apart: set[str]) -> Iterator[tuple[NodeState, int]]:
        """A node, and how many nodes it stands for."""
        for name in apart:
            yield self._nodes[name], 1
        for members in self._members.values():
            number = len(members) - sum(name in members for name in apart)
            if number:
                yield self._nodes[next(name for name in members if name not in apart)], number

    def smallest_accepted(self, fraction: FractionRequest) -> int:
        """Usable bytes of the smallest GPU that the request accepts by kind and UUID; 0 where there is none."""
        wishes = fraction.wishes
        apart = {name for name, _ in self.owners((*wishes.use_uuids, *wishes.avoid_uuids))}
        gpus = (gpu for node, _ in self._groups(apart) for gpu in node.gpus)
        return min((gpu.usable for gpu in gpus if _accepted(gpu, fraction)), default=0)


def _accepted(gpu: Gpu, fraction: FractionRequest) -> bool:
    wishes = fraction.wishes
    if (wishes.use_uuids and gpu.uuid not in wishes.use_uuids) or gpu.uuid in wishes.avoid_uuids:
        return False
    return kind_accepted(gpu.model, gpu.memory, fraction)


def _plus(before: ReasonCount | None, found: ReasonCount, number: int) -> ReasonCount:
    if before is None:
        return ReasonCount(found.code, number, found.wanted, found.most, found.what)
    return ReasonCount(
        found.code,
        before.nodes + number,
        max(before.wanted, found.wanted),
        max(before.most, found.most),
        min(before.what, found.what),
    )
