"""
The cluster's GPUs as columns of numbers, so that a question is asked of all nodes at once.

One place along the last axis is a node, in the order of node names, so that the first of several equals is the one with
the lesser name. Along the first axis of what is kept per GPU are the GPUs of a node: numpy then works through thousands
of nodes in one go instead of through eight GPUs thousands of times. A changed node rewrites its own place; one that
joins or leaves moves the others over. Memory in bytes, cores in percent. Only the fast engine uses this.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from allocator.table.static_filter import NodeAttributes
from contract.model import WHOLE, Gpu, NodeState, PoolSharing
from contract.scheduling.filters import Limits
from contract.scheduling.reasons import of_withheld

Amounts = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Move = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]

TIE_BITS = 32

_PER_GPU: Mapping[str, type] = {
    **dict.fromkeys(("exists", "healthy", "exclusive", "open"), np.bool_),
    **dict.fromkeys(
        ("usable", "capacity", "free", "left", "free_cores", "sharers", "most_sharers", "model", "numa", "withheld"),
        np.int64,
    ),
}
_PER_NODE: Mapping[str, type] = dict.fromkeys(
    (
        "gpus",
        "free_cpu",
        "free_memory",
        "free_storage",
        "free_pods",
        "total",
        "taken",
        "taken_cores",
        "slot",
        "stamp",
        "tie",
    ),
    np.int64,
)


class Columns:
    """The columns of one set of nodes. Attributes are read-only to everybody else."""

    exists: Flags
    healthy: Flags
    exclusive: Flags
    open: Flags
    """Healthy, not held whole, and with room for one more sharer."""
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
    numa: Amounts
    withheld: Amounts
    """The code of why a GPU that is not healthy takes no new pods; 0 of one that is."""

    gpus: Amounts
    free_cpu: Amounts
    free_memory: Amounts
    free_storage: Amounts
    free_pods: Amounts
    total: Amounts
    taken: Amounts
    taken_cores: Amounts
    slot: Amounts
    """A number of the node's own that it keeps while it is here, unlike its row; a later node may get it again."""
    stamp: Amounts
    """Differs from every earlier one in that slot once the node has changed."""
    tie: Amounts
    """`scores.tie` of the name."""

    def __init__(self, nodes: Iterable[NodeState], limits: Limits) -> None:
        self.limits = limits
        self.slots = 0
        """All slots are below."""
        self.layout = 0
        """Differs from every earlier one once the sorts of GPUs are in other places."""
        self._free_slots: list[int] = []
        self._changes = 0
        self.nodes = sorted(nodes, key=lambda node: node.name)
        self.names = [node.name for node in self.nodes]
        self.row_of = {name: row for row, name in enumerate(self.names)}
        self.models: list[Gpu] = []
        """One GPU of each sort, alike in model, memory and sharing, by the number that `model` has for them."""
        self._model_ids: dict[tuple[str, int, int, PoolSharing], int] = {}
        height, self.width = len(self.nodes), max((len(node.gpus) for node in self.nodes), default=1) or 1
        for name, kind in _PER_GPU.items():
            setattr(self, name, np.zeros((self.width, height), kind))
        for name, kind in _PER_NODE.items():
            setattr(self, name, np.zeros(height, kind))
        self.facts = NodeAttributes(self.nodes)
        for row, node in enumerate(self.nodes):
            self._write(row, None, node)

    def put(self, node: NodeState) -> bool:
        """Take over a new or changed node. False if it has more GPUs than there is room for: make the columns anew."""
        if len(node.gpus) > self.width:
            return False
        row = self.row_of.get(node.name)
        if row is None:
            row = bisect_left(self.names, node.name)
            self.nodes.insert(row, node)
            self.names.insert(row, node.name)
            self._move(lambda column: np.insert(column, row, 0, axis=-1), row)
            self.facts.insert(row, node)
            self._write(row, None, node)
        else:
            before, self.nodes[row] = self.nodes[row], node
            self.facts.rewrite(row, before, node)
            self._write(row, before, node)
        return True

    def drop(self, name: str) -> None:
        """A node that is here is gone."""
        row = self.row_of.pop(name)
        self._free_slots.append(int(self.slot[row]))
        del self.nodes[row], self.names[row]
        self._move(lambda column: np.delete(column, row, axis=-1), row)
        self.facts.delete(row)

    def _move(self, change: Move, first: int) -> None:
        self.layout += 1
        for name in (*_PER_GPU, *_PER_NODE):
            setattr(self, name, change(getattr(self, name)))
        self.row_of.update(zip(self.names[first:], range(first, len(self.names)), strict=True))

    def _write(self, row: int, before: NodeState | None, node: NodeState) -> None:
        if before is None:
            self.slot[row] = self._take_slot()
            self.tie[row] = tie(node.name)
        self._changes += 1
        self.stamp[row] = self._changes
        if before is None or before.gpus is not node.gpus:
            self._write_gpus(row, node)
        self._write_usage(row, node)
        has, taken = node.allocatable, node.requested
        self.free_cpu[row] = has.cpu - taken.cpu
        self.free_memory[row] = has.memory - taken.memory
        self.free_storage[row] = has.storage - taken.storage
        self.free_pods[row] = has.pods - taken.pods

    def _take_slot(self) -> int:
        if self._free_slots:
            return self._free_slots.pop()
        self.slots += 1
        return self.slots - 1

    def _write_gpus(self, row: int, node: NodeState) -> None:
        """What pods coming and going do not change."""
        gpus, width = node.gpus, len(node.gpus)
        before = self.model[:, row].tolist(), self.gpus[row]
        for name in _PER_GPU:
            getattr(self, name)[width:, row] = 0
        self.exists[:width, row] = True
        self.healthy[:width, row] = [gpu.healthy for gpu in gpus]
        self.withheld[:width, row] = [0 if gpu.healthy else of_withheld(gpu) for gpu in gpus]
        self.usable[:width, row] = [gpu.usable for gpu in gpus]
        self.capacity[:width, row] = [self.limits.capacity(gpu) for gpu in gpus]
        self.most_sharers[:width, row] = [self.limits.sharers(gpu) for gpu in gpus]
        self.model[:width, row] = [self._model_id(gpu) for gpu in gpus]
        self.numa[:width, row] = [gpu.numa for gpu in gpus]
        self.gpus[row] = width
        self.layout += before != (self.model[:, row].tolist(), width)
        self.total[row] = sum(gpu.usable for gpu in gpus)

    def _model_id(self, gpu: Gpu) -> int:
        sort = gpu.model, gpu.memory, gpu.usable, gpu.sharing
        number = self._model_ids.get(sort)
        if number is None:
            number = self._model_ids[sort] = len(self.models)
            self.models.append(gpu)
        return number

    def _write_usage(self, row: int, node: NodeState) -> None:
        usage, width = node.usage, len(node.gpus)
        memory = np.array([u.memory for u in usage], np.int64)
        self.exclusive[:width, row] = [u.exclusive for u in usage]
        self.free[:width, row] = self.capacity[:width, row] - memory
        self.left[:width, row] = self.usable[:width, row] - memory
        self.free_cores[:width, row] = [WHOLE - u.cores for u in usage]
        self.sharers[:width, row] = [u.sharers for u in usage]
        self.open[:width, row] = (
            self.healthy[:width, row]
            & ~self.exclusive[:width, row]
            & (self.sharers[:width, row] < self.most_sharers[:width, row])
        )
        self.taken[row] = sum(u.memory for u in usage)
        self.taken_cores[row] = sum(u.cores for u in usage)


def tie(name: str) -> int:
    """
    The order of nodes between which the tables see no difference: by a hash of the name, the same for ever.

    Not by name, which often says the kind of node: the first kind would be used up before the second is touched, and
    requests that only the first kind can serve would find nothing.
    """
    return int.from_bytes(hashlib.blake2s(name.encode(), digest_size=TIE_BITS // 8).digest())
