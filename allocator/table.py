"""
The table of all nodes: each question to the cluster is evaluated for every node at once.

`Columns` has the GPUs as columns of numbers. One place along the last axis is a node, in the order of node names, so
that the first of several equals is the one with the lesser name. Along the first axis of what is kept per GPU are the
GPUs of a node: numpy then works through thousands of nodes in one go instead of through eight GPUs thousands of times.
A changed node rewrites its own place; one that joins or leaves moves the others over. Memory in bytes, cores in
percent.

`NodeAttributes` has the nodes' labels, taints and the like, and gives the same answers as `filters.lasting_reason`,
host ports aside. A node's attributes change rarely and pods of one shape come often, so an answer is remembered per
shape, and only nodes that changed are asked again. The first of a shape costs only tens of microseconds because a
selector is evaluated for each value of a label, not for each node.

The fast engine and the learned policies compute on it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from contract.model import WHOLE, Compute, Delivery, FractionRequest, Gpu, NodeState, PoolSharing, Taint
from contract.reasons.nodes import Code, Reason, of_withheld
from contract.reslicing import reslices
from contract.scheduling import counting
from contract.scheduling import needs as scheduling
from contract.scheduling.filters import (
    ONE_FOLD,
    UNSCHEDULABLE,
    WAYS,
    Limits,
    largest_limit,
    lasting_reason,
    limit_factor,
)
from contract.scheduling.needs import ONE_POD, PodNeeds, Requirement, SchedulingRequest, Term
from contract.scheduling.nodefilters.resources import scalar_shortage
from contract.scheduling.selecting import CardSeen, kind_seen

Amounts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Ids = npt.NDArray[np.int32]
Codes = npt.NDArray[np.int8]
Move = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

TIE_BITS = 32
_SHAPES = 256
"""Pod shapes whose answer is remembered; the one not requested for longest is forgotten first."""
_LABELS = 64
"""Labels whose values are kept as a column; tenants choose their selectors, so there must be a bound."""
_KEYS = 4096
"""Names of labels that are remembered after their nodes have left."""
_BARE = NodeState("")
"""A node without any label."""
_ABSENT = -1
_UNKNOWN = -1
_MENDED = 64
"""The most nodes that are evaluated one by one after a change; more are evaluated all at once."""

_GPU_FLAGS = ("exists", "healthy", "exclusive", "open")
_GPU_KIND = (
    *("capacity", "usable", "in_all", "most_sharers", "model", "sight", "numa", "largest_limit", "limit_factor"),
    "withheld",
)
"""`Columns._numbers` has the same order; `withheld` is the only one that GPUs of a sort do not share."""
_GPU_USE = ("free", "left", "free_limits", "free_cores", "sharers", "starting")
_NODE_USE = ("free_cpu", "free_memory", "free_storage", "free_pods", "taken", "taken_cores", "stamp")
_NODE_KIND = ("gpus", "total", "slot", "tie")


class Columns:
    """
    The columns of one set of nodes. Attributes are read-only to everybody else.

    Each is a view of one of four blocks, so that a change of a node is a few writes and not one per column.
    """

    exists: Flags
    healthy: Flags
    exclusive: Flags
    open: Flags
    """Healthy, not held exclusively, and with room for one more sharer."""
    usable: Amounts
    capacity: Amounts
    free: Amounts
    """Of the capacity, so with oversubscription."""
    left: Amounts
    """Of the usable memory, which is what best fit compares."""
    free_cores: Amounts
    sharers: Amounts
    most_sharers: Amounts
    model: Amounts
    sight: Amounts
    """Which of `sights` it is."""
    numa: Amounts
    withheld: Amounts
    """The code of why an unhealthy GPU takes no new pods; 0 of a healthy one."""
    largest_limit: Amounts
    """The largest memory limit above a request that the GPU can hold."""
    limit_factor: Amounts
    """The most thousandths of its request that a container's memory limit may have there."""
    in_all: Amounts
    """The largest sum of the memory limits of its pods."""
    free_limits: Amounts
    """The remainder of that sum."""
    starting: Amounts
    """The number of starting pods there that start alone."""

    gpus: Amounts
    free_cpu: Amounts
    free_memory: Amounts
    free_storage: Amounts
    free_pods: Amounts
    total: Amounts
    taken: Amounts
    taken_cores: Amounts
    slot: Amounts
    """A number that a node keeps, unlike its row, until it is deleted; a later node may get it again."""
    stamp: Amounts
    """Changes whenever the node in that slot does."""
    tie: Amounts
    """`tie` of the name."""

    def __init__(self, nodes: Iterable[NodeState], limits: Limits) -> None:
        self.limits = limits
        self.slots = 0
        """All slots are less than this."""
        self.layout = 0
        """Changes whenever the sorts of GPUs are in other places."""
        self._free_slots: list[int] = []
        self._changes = 0
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.names = [node.name for node in self.nodes]
        self.row_of = {name: row for row, name in enumerate(self.names)}
        self.models: list[Gpu] = []
        """One GPU of each sort, alike in model, memory and sharing, by the number that `model` has for them."""
        self._model_ids: dict[tuple[str, int, int, PoolSharing], int] = {}
        self._numbers_of: dict[tuple[object, ...], tuple[int, ...]] = {}
        self.sights: list[Gpu] = []
        """One GPU of each kind that selectors tell apart, by the number that `sight` has for them."""
        self._sight_ids: dict[CardSeen, int] = {}
        height, self.width = len(self.nodes), max((len(node.gpus) for node in self.nodes), default=1) or 1
        self._flags: Flags = np.zeros((len(_GPU_FLAGS), self.width, height), np.bool_)
        self._kinds: Amounts = np.zeros((len(_GPU_KIND), self.width, height), np.int64)
        self._uses: Amounts = np.zeros((len(_GPU_USE), self.width, height), np.int64)
        self._of_node: Amounts = np.zeros((len(_NODE_USE) + len(_NODE_KIND), height), np.int64)
        self._name_columns()
        self.attributes = NodeAttributes(self.nodes)
        self._of_size: dict[int, dict[str, None]] = {}
        """Nodes by the usable bytes of their smallest GPU."""
        self._overcounted: dict[str, None] = {}
        """Nodes for whose pods Kubernetes counts more than they hold."""
        for row, node in enumerate(self.nodes):
            self._write(row, None, node)

    def allowed_limit(self, fraction: FractionRequest) -> Amounts:
        """`filters.allowed_limit` of every GPU."""
        amount, factor = fraction.memory or fraction.percent, self.limit_factor
        most = amount // ONE_FOLD * factor + amount % ONE_FOLD * factor // ONE_FOLD
        found: Amounts = np.minimum(most if fraction.memory else self.usable * most // WHOLE, self.largest_limit)
        return found

    def put(self, node: NodeState) -> bool:
        """Take over a new or changed node. False if it has more GPUs than there is room for: make new columns."""
        if len(node.gpus) > self.width:
            return False
        row = self.row_of.get(node.name)
        if row is None:
            row = bisect_left(self.names, node.name)
            self.nodes.insert(row, node)
            self.names.insert(row, node.name)
            self._move(lambda column: np.insert(column, row, 0, axis=-1), row)
            self.attributes.insert(row, node)
            self._write(row, None, node)
        else:
            before, self.nodes[row] = self.nodes[row], node
            self.attributes.rewrite(row, before, node)
            self._write(row, before, node)
        return True

    def drop(self, name: str) -> None:
        """A node was deleted."""
        row = self.row_of.pop(name)
        self._free_slots.append(int(self.slot[row]))
        self._overcounted.pop(name, None)
        self._note_size(self.nodes[row], None)
        del self.nodes[row], self.names[row]
        self._move(lambda column: np.delete(column, row, axis=-1), row)
        self.attributes.delete(row)

    def most_on_one_numa(self, bears: Flags) -> Amounts:
        """Per node the most GPUs of one NUMA node among those that bear a share."""
        most: Amounts = np.zeros(len(self.nodes), np.int64)
        for numa in np.unique(self.numa):
            np.maximum(most, np.count_nonzero(bears & (self.numa == numa), axis=0), out=most)
        return most

    def _move(self, change: Move, first: int) -> None:
        self.layout += 1
        self._flags, self._kinds, self._uses = change(self._flags), change(self._kinds), change(self._uses)
        self._of_node = change(self._of_node)
        self._name_columns()
        self.row_of.update(zip(self.names[first:], range(first, len(self.names)), strict=True))

    def _name_columns(self) -> None:
        for names, block in (
            (_GPU_FLAGS, self._flags),
            (_GPU_KIND, self._kinds),
            (_GPU_USE, self._uses),
            ((*_NODE_USE, *_NODE_KIND), self._of_node),
        ):
            for name, column in zip(names, block, strict=True):
                setattr(self, name, column)

    def _write(self, row: int, before: NodeState | None, node: NodeState) -> None:
        if before is None:
            self.slot[row] = self._take_slot()
            self.tie[row] = tie(node.name)
        if before is None or before.gpus is not node.gpus:
            self._write_gpus(row, node)
            self._note_size(before, node)
        self._write_usage(row, node)
        if node.overcount:
            self._overcounted[node.name] = None
        else:
            self._overcounted.pop(node.name, None)

    def _note_size(self, before: NodeState | None, after: NodeState | None) -> None:
        if before is not None and before.gpus:
            size = min(gpu.usable for gpu in before.gpus)
            del self._of_size[size][before.name]
            if not self._of_size[size]:
                del self._of_size[size]
        if after is not None and after.gpus:
            size = min(gpu.usable for gpu in after.gpus)
            self._of_size.setdefault(size, {})[after.name] = None

    def counted_shortages(self, ask: SchedulingRequest) -> dict[int, Reason]:
        """Places of nodes on which Kubernetes has no room for what it counts of the pod, with the reason."""
        some: Iterable[str] = self._overcounted
        if counting.concerned_anywhere(ask):
            some = self.names
        elif counting.concerned_by_size(ask):
            sizes = (nodes for size, nodes in self._of_size.items() if counting.exceeds(ask, size))
            some = dict.fromkeys(chain(some, *sizes))
        rows = (self.row_of[name] for name in some)
        found = ((row, counting.shortage(self.nodes[row], ask)) for row in rows)
        return {row: reason for row, reason in found if reason is not None}

    def scalar_shortages(self, wanted: Compute) -> dict[int, Reason]:
        """Places of nodes with too little left of a resource that has no column, with the reason."""
        if not wanted.scalars:
            return {}
        found = ((row, scalar_shortage(node, wanted)) for row, node in enumerate(self.nodes))
        return {row: reason for row, reason in found if reason is not None}

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self.slots += 1
        return self.slots - 1

    def _write_gpus(self, row: int, node: NodeState) -> None:
        """The properties that pods do not change."""
        gpus, width = node.gpus, len(node.gpus)
        before = self.model[:, row].tolist(), self.gpus[row]
        self._flags[:, :, row], self._kinds[:, :, row], self._uses[:, :, row] = False, 0, 0
        self.exists[:width, row] = True
        self.healthy[:width, row] = [gpu.healthy for gpu in gpus]
        self._kinds[:, :width, row] = _columns([self._numbers(gpu) for gpu in gpus], _GPU_KIND)
        for position, gpu in enumerate(gpus):
            if not gpu.healthy:
                self.withheld[position, row] = of_withheld(gpu)
        self.gpus[row], self.total[row] = width, sum(gpu.usable for gpu in gpus)
        self.layout += before != (self.model[:, row].tolist(), width)

    def _numbers(self, gpu: Gpu) -> tuple[int, ...]:
        """The fields of `_GPU_KIND` of a healthy GPU of this sort."""
        sort = gpu.model, gpu.memory, gpu.usable, gpu.sharing, gpu.numa, gpu.capability, bool(gpu.parent)
        found = self._numbers_of.get(sort)
        if found is None:
            limits = self.limits
            found = self._numbers_of[sort] = (
                *(limits.capacity(gpu), gpu.usable, limits.in_all(gpu), limits.sharers(gpu)),
                *(self._model_id(gpu), self._sight_id(gpu), gpu.numa, largest_limit(gpu), limit_factor(gpu), 0),
            )
        return found

    def _model_id(self, gpu: Gpu) -> int:
        sort = gpu.model, gpu.memory, gpu.usable, gpu.sharing
        number = self._model_ids.get(sort)
        if number is None:
            number = self._model_ids[sort] = len(self.models)
            self.models.append(gpu)
        return number

    def _sight_id(self, gpu: Gpu) -> int:
        seen = kind_seen(gpu)
        number = self._sight_ids.get(seen)
        if number is None:
            number = self._sight_ids[seen] = len(self.sights)
            self.sights.append(gpu)
        return number

    def _write_usage(self, row: int, node: NodeState) -> None:
        usage, width, has, taken = node.usage, len(node.gpus), node.allocatable, node.requested
        capacity, usable, in_all, most_sharers = self._kinds[:4, :width, row]
        used = [(u.memory, u.burst, u.cores, u.sharers, u.starting, u.exclusive) for u in usage]
        memory, burst, cores, sharers, starting, exclusive = _columns(used, ("memory", *_GPU_USE[1:]))
        free, left = capacity - memory, usable - memory
        self._uses[:, :width, row] = free, left, in_all - memory - burst, WHOLE - cores, sharers, starting
        self.exclusive[:width, row] = exclusive
        self.open[:width, row] = self.healthy[:width, row] & (exclusive == 0) & (sharers < most_sharers)
        self._changes += 1
        self._of_node[: len(_NODE_USE), row] = (
            *(has.cpu - taken.cpu, has.memory - taken.memory, has.storage - taken.storage, has.pods - taken.pods),
            *(memory.sum(), cores.sum(), self._changes),
        )


def _columns(rows: Sequence[tuple[int, ...]], names: Sequence[str]) -> Amounts:
    """Tuples of numbers with these names, by name."""
    columns: Amounts = np.array(rows, np.int64).reshape(len(rows), len(names)).T
    return columns


def tie(name: str) -> int:
    """
    The order of nodes that are equal for the tables: by a hash of the name, which never changes.

    Not by name, which often says the kind of node: the first kind would be used up before the second is touched, and
    requests that only the first kind can serve would find nothing.
    """
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=TIE_BITS // 8).digest())


@dataclass(slots=True)
class StaticFilterResult:
    """Per node the code of the reason why it does not take the shape, 0 for none. Read-only to others."""

    codes: Codes
    passes: Flags
    taints: dict[int, str]
    """The taint that stands in the way, by the id of a node's set of taints."""
    changed: bool = False
    """Whether some nodes' codes are `_UNKNOWN`, because the node changed."""


class NodeAttributes:
    """Nodes' attributes as columns, in the places that `Columns` gives the nodes."""

    def __init__(self, nodes: Sequence[NodeState]) -> None:
        self._nodes = nodes
        self._taint_sets: dict[tuple[Taint, ...], int] = {}
        self._labels: OrderedDict[str, tuple[Ids, dict[str, int]]] = OrderedDict()
        self._keys: frozenset[str] | None = None
        """Every label that some node has or had; None if they must be collected again."""
        self._known: OrderedDict[PodNeeds, StaticFilterResult] = OrderedDict()
        self._has_gpus: Flags = np.array([bool(node.gpus) for node in nodes], np.bool_)
        self._cordoned: Flags = np.array([node.cordoned for node in nodes], np.bool_)
        self._ready: Flags = np.array([node.ready for node in nodes], np.bool_)
        self._silent: Flags = np.array([node.silent for node in nodes], np.bool_)
        self._reslicing: Flags = np.array([reslices(node.labels) for node in nodes], np.bool_)
        self.taints: Ids = np.array([self._taint_set(node) for node in nodes], np.int32)
        self._ways: dict[tuple[Delivery | None, tuple[str, ...], frozenset[str] | None], int] = {}
        self._way: Ids = np.array([self._way_of(node) for node in nodes], np.int32)
        self.ports: Flags = np.array([bool(node.host_ports) for node in nodes], np.bool_)
        """Nodes with host ports in use."""

    # -- what changed ---------------------------------------------------------------------------------------------

    def rewrite(self, row: int, before: NodeState, node: NodeState) -> None:
        """The node at this place changed."""
        self.ports[row] = bool(node.host_ports)
        if _compared(before) != _compared(node):
            self._write(row, node)

    def insert(self, row: int, node: NodeState) -> None:
        """A node joined at this place; `nodes` has it already."""
        self._move(lambda column: np.concatenate((column[:row], np.zeros(1, column.dtype), column[row:])))
        self.ports[row] = bool(node.host_ports)
        self._write(row, node)

    def delete(self, row: int) -> None:
        """The node at this place left."""
        self._move(lambda column: np.concatenate((column[:row], column[row + 1 :])))

    def _move(self, change: Move) -> None:
        self._has_gpus = change(self._has_gpus)
        self._cordoned = change(self._cordoned)
        self._ready = change(self._ready)
        self._silent = change(self._silent)
        self._reslicing = change(self._reslicing)
        self.ports = change(self.ports)
        self.taints = change(self.taints)
        self._way = change(self._way)
        for key, (column, ids) in self._labels.items():
            self._labels[key] = (change(column), ids)
        for known in self._known.values():
            known.codes = change(known.codes)
            known.passes = change(known.passes)

    def _write(self, row: int, node: NodeState) -> None:
        if self._keys is not None and not self._keys >= node.labels.keys():
            self._keys = self._keys.union(node.labels) if len(self._keys) < _KEYS else None
        for known in self._known.values():
            known.codes[row], known.changed = _UNKNOWN, True
        self._has_gpus[row], self._cordoned[row], self._ready[row] = bool(node.gpus), node.cordoned, node.ready
        self._silent[row], self._reslicing[row] = node.silent, reslices(node.labels)
        self.taints[row], self._way[row] = self._taint_set(node), self._way_of(node)
        for key, (column, ids) in self._labels.items():
            column[row] = _label_id(node, key, ids)
        self._forget_old_values()

    def _forget_old_values(self) -> None:
        """Drop all values if most of them are no longer on any node."""
        bound = 2 * len(self._nodes) + _LABELS
        if len(self._taint_sets) > bound:
            self._known.clear()
            self._taint_sets.clear()
            self.taints[:] = [self._taint_set(node) for node in self._nodes]
        if len(self._ways) > bound:
            self._ways.clear()
            self._way[:] = [self._way_of(node) for node in self._nodes]
        for key in [key for key, (_, ids) in self._labels.items() if len(ids) > bound]:
            del self._labels[key]

    def _taint_set(self, node: NodeState) -> int:
        return self._taint_sets.setdefault(node.taints, len(self._taint_sets))

    def _way_of(self, node: NodeState) -> int:
        """The id of how GPUs reach containers there, what isolation there is, and what the node declares."""
        return self._ways.setdefault((node.delivery, node.isolation, node.features), len(self._ways))

    # -- questions ------------------------------------------------------------------------------------------------

    def static_filter(self, needs: PodNeeds) -> StaticFilterResult:
        """Which nodes may take pods of this shape, by all that does not change with other pods."""
        shape = _shape(needs)
        known = self._known.get(shape)
        if known is None or (known.changed and not self._mend(known, shape)):
            known = self._known[shape] = self._evaluate(shape)
            if len(self._known) > _SHAPES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(shape)
        return known

    def port_conflicts(self, needs: PodNeeds) -> dict[int, str]:
        """Places of nodes that have one of the pod's host ports in use, and which."""
        found = {}
        if needs.host_ports:
            for row in np.flatnonzero(self.ports):
                conflict = scheduling.port_conflict(needs, self._nodes[int(row)])
                if conflict is not None:
                    found[int(row)] = f"{conflict[2]}/{conflict[1]}"
        return found

    def _mend(self, known: StaticFilterResult, needs: PodNeeds) -> bool:
        """Look at the nodes that changed; False if there are too many."""
        rows = np.flatnonzero(known.codes == _UNKNOWN).tolist()
        if len(rows) > _MENDED:
            return False
        for row in rows:
            reason = lasting_reason(self._nodes[row], needs)
            known.codes[row], known.passes[row] = reason.code if reason else 0, reason is None
            if reason is not None and reason.code is Code.TAINT:
                known.taints[int(self.taints[row])] = reason.what
        known.changed = False
        return True

    def _evaluate(self, needs: PodNeeds) -> StaticFilterResult:
        """The reason that `filters.lasting_reason` gives first is written last."""
        codes: Codes = np.zeros(len(self._nodes), np.int8)
        if needs.node_selector or needs.affinity is not None:
            codes[~self._selects(needs)] = Code.SELECTOR
        refusing = self._refusing_taints(needs)
        if refusing:
            codes[_among(self.taints, refusing, len(self._taint_sets))] = Code.TAINT
        codes[self._reslicing] = Code.RESLICING
        codes[self._silent] = Code.AGENT_SILENT
        codes[~self._ready] = Code.NOT_READY
        if not any(toleration.tolerates(UNSCHEDULABLE) for toleration in needs.tolerations):
            codes[self._cordoned] = Code.CORDONED
        for code, serves in reversed(WAYS):
            refusing_ways = self._refusing_ways(needs, serves)
            if refusing_ways:
                codes[_among(self._way, refusing_ways, len(self._ways))] = code
        if needs.node_name:
            codes[[node.name != needs.node_name for node in self._nodes]] = Code.NODE_NAME
        codes[~self._has_gpus] = Code.NO_GPUS
        return StaticFilterResult(codes, codes == 0, refusing)

    def _refusing_taints(self, needs: PodNeeds) -> dict[int, str]:
        found = {}
        for taints, number in self._taint_sets.items():
            taint = scheduling.untolerated(NodeState("", taints=taints), needs.tolerations)
            if taint is not None:
                found[number] = f"{taint.key}={taint.value}:{taint.effect}"
        return found

    def _refusing_ways(self, needs: PodNeeds, serves: Callable[[NodeState, PodNeeds], bool]) -> list[int]:
        return [
            number
            for (delivery, isolation, features), number in self._ways.items()
            if not serves(NodeState("", delivery=delivery, isolation=isolation, features=features), needs)
        ]

    def _selects(self, needs: PodNeeds) -> Flags:
        """`scheduling.selects` of every node."""
        selected: Flags = np.ones(len(self._nodes), np.bool_)
        for key, value in needs.node_selector:
            if not self._is_used(key):
                return np.zeros(len(self._nodes), np.bool_)
            column, ids = self._label(key)
            selected &= column == ids.get(value, _ABSENT - 1)
        if needs.affinity is not None:
            any_term: Flags = np.zeros(len(self._nodes), np.bool_)
            for term in needs.affinity:
                requirements = self._node_requirements(term)
                if requirements is not None:
                    any_term |= np.logical_and.reduce([selected, *map(self._holds, requirements)])
            selected &= any_term
        return selected

    def _is_used(self, key: str) -> bool:
        """Whether some node has the label, or had it: tenants may select by a thousand that no node ever had."""
        if self._keys is None:
            self._keys = frozenset().union(*(node.labels for node in self._nodes))
        return key in self._keys

    def _node_requirements(self, term: Term) -> list[Requirement] | None:
        """The requirements in which nodes may differ; None if another one holds on no node."""
        requirements = []
        for requirement in term:
            if requirement.field or self._is_used(requirement.key):
                requirements.append(requirement)
            elif not requirement.holds(_BARE):
                return None
        return requirements if term else None

    def _holds(self, requirement: Requirement) -> Flags:
        if requirement.field:
            return np.array([requirement.holds(node) for node in self._nodes], np.bool_)
        column, ids = self._label(requirement.key)
        if requirement.operator in ("In", "NotIn"):  # the only ones that are asked about labels unique to a node
            among = _among(column, [ids[value] for value in requirement.values if value in ids], len(ids))
            return among if requirement.operator == "In" else ~among
        answers = [requirement.holds(NodeState("", labels={requirement.key: value})) for value in ids]
        # The last one is what a node without the label answers: `_ABSENT` picks it from the end.
        holds: Flags = np.array([*answers, requirement.holds(NodeState(""))], np.bool_)[column]
        return holds

    def _label(self, key: str) -> tuple[Ids, dict[str, int]]:
        found = self._labels.get(key)
        if found is None:
            ids: dict[str, int] = {}
            found = np.array([_label_id(node, key, ids) for node in self._nodes], np.int32), ids
            self._labels[key] = found
            if len(self._labels) > _LABELS:
                self._labels.popitem(last=False)
        else:
            self._labels.move_to_end(key)
        return found


@lru_cache(maxsize=_SHAPES)
def _shape(needs: PodNeeds) -> PodNeeds:
    """The needs that do not depend on other pods."""
    return replace(needs, compute=ONE_POD, host_ports=frozenset())


def _among(column: Ids, wanted: Iterable[int], number: int) -> Flags:
    """Where the column has one of these ids, of `number` that there are; `_ABSENT` is none of them."""
    table: Flags = np.zeros(number + 1, np.bool_)
    table[list(wanted)] = True
    among: Flags = table[column]
    return among


def _label_id(node: NodeState, key: str, ids: dict[str, int]) -> int:
    value = node.labels.get(key)
    return _ABSENT if value is None else ids.setdefault(value, len(ids))


def _compared(node: NodeState) -> tuple[object, ...]:
    attributes = (node.labels, node.taints, node.cordoned, node.ready, node.silent, bool(node.gpus))
    return (*attributes, node.delivery, node.isolation, node.features)
