"""
What the tables say of each node as it stands, whatever is asked: the part of a cost that all classes share.

By slot, which a node keeps while others join and leave, and made anew only for nodes that changed. Beside what
`allocator.policies.plain` calls a room there are, per card, the places in the tables from which a change of that card
alone is read off, at the CPU price at which the node is worth least. Only `allocator.policies.ranks` uses this.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from allocator.columns import Columns
from allocator.policies.kinds import CARD, kind_of
from allocator.policies.tables import LANES, Tables
from contract.model import MOST_GPUS, WHOLE

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_UNKNOWN = -1
_AT_ONCE = 1024
"""Nodes looked at in one go, which bounds the memory that this takes for a moment."""
_PER_CARD = ("kinds", "models", "left", "by_memory", "over", "by_cores", "fragments_at", "fragments_of")


class Rooms:
    """
    The nodes of some columns by one set of tables. Arrays are by slot, then by card; read-only to everybody else.

    `kinds` are the tables' numbers of the cards' kinds, `models` the columns'. `by_memory`, `by_cores` and `left` are
    the remainders by either side and in all; `over` is what rounding down leaves over of the first, in bytes times
    `CARD`. `worth_at` and `fragments_at` are places in the flat tables, `worth_of` and `fragments_of` what is there.
    """

    kinds: Longs
    models: Longs
    left: Longs
    by_memory: Longs
    over: Longs
    by_cores: Longs
    fragments_at: Longs
    fragments_of: Longs

    def __init__(self, tables: Tables, columns: Columns) -> None:
        self.tables, self._columns = tables, columns
        self._kind_of: list[int] = []
        self.functions = tables.worth.shape[2] // LANES
        """How many functions of worth there are that differ."""
        if self.functions and not (tables.worth[..., :LANES] != tables.worth[..., LANES:]).any():
            self.functions = 1
        self.worth: Ints = np.ascontiguousarray(tables.worth.transpose(0, 2, 1)).reshape(-1)
        self.fragments: Longs = (np.arange(CARD + 1) * tables.weight - tables.single).reshape(-1)
        self.several: Longs = tables.several.reshape(-1)
        self._make(0, 1)

    def _make(self, size: int, width: int) -> None:
        self.size, self.width = size, width
        self.stamp: Longs = np.full(size, _UNKNOWN, np.int64)
        for name in _PER_CARD:
            setattr(self, name, np.zeros((size, width), np.int64))
        self.full: Flags = np.zeros((size, width), np.bool_)
        """Cards on which the next sharer is the last."""
        self.sums: Ints = np.zeros((size, self.tables.worth.shape[2]), np.int32)
        self.lowest: Ints = np.zeros((size, 2), np.int32)
        """What the node is worth, by either function."""
        self.price: Ints = np.zeros((size, 2), np.int32)
        """The CPU price at which it is."""
        self.worth_at = [np.zeros((size, width), np.int64) for _ in range(self.functions)]
        self.worth_of = [np.zeros((size, width), np.int32) for _ in range(self.functions)]
        self.scattered: Longs = np.zeros(size, np.int64)
        """`plain.fragments`."""
        self.several_at: Longs = np.zeros(size, np.int64)
        self.cpu: Longs = np.zeros(size, np.int64)
        self.mixed = False
        """Whether the cards of some node differ."""

    def grow(self) -> bool:
        """Make room for nodes that joined; True if all that was known went."""
        columns = self._columns
        if columns.slots <= self.size and columns.width <= self.width:
            return False
        self._make(max(self.size, columns.slots * 5 // 4), max(self.width, columns.width))
        return True

    def refresh(self, rows: Longs) -> None:
        """Look anew at those of these nodes that changed."""
        rows = rows[self.stamp[self._columns.slot[rows]] != self._columns.stamp[rows]]
        for start in range(0, len(rows), _AT_ONCE):
            self._refresh(rows[start : start + _AT_ONCE])

    def _refresh(self, rows: Longs) -> None:
        columns, tables, slots = self._columns, self.tables, self._columns.slot[rows]
        exists, models = columns.exists[:, rows].T, columns.model[:, rows].T
        kinds: Longs = np.where(exists, self._kinds_of()[models], 0)
        if not self.mixed:
            self.mixed = bool((exists & (models != models[:, :1])).any())
        capacity, free = columns.capacity[:, rows].T, columns.free[:, rows].T * CARD
        by_memory = free // np.maximum(capacity, 1)
        by_cores = columns.free_cores[:, rows].T * CARD // WHOLE
        left = np.where(columns.open[:, rows].T, np.maximum(np.minimum(by_memory, by_cores), 0), 0)
        cpu = columns.free_cpu[rows]
        self.kinds[slots], self.models[slots], self.left[slots] = kinds, models, left
        self.by_memory[slots], self.by_cores[slots], self.cpu[slots] = by_memory, by_cores, cpu
        self.over[slots] = free - by_memory * capacity
        self.full[slots] = columns.sharers[:, rows].T + 1 >= columns.limits.max_sharers
        step = np.searchsorted(tables.cpu_steps, cpu, side="right")
        at = (kinds * tables.single.shape[1] + step[:, None]) * (CARD + 1)
        self.fragments_at[slots] = at
        self.fragments_of[slots] = fragments = self.fragments.take(at + left)
        several_at = (kinds[:, 0] * tables.single.shape[1] + step) * (MOST_GPUS + 1) + (left == CARD).sum(axis=1)
        self.several_at[slots] = several_at
        self.scattered[slots] = fragments.sum(axis=1) - self.several.take(several_at)
        if self.functions:
            self._refresh_worth(slots, kinds, left, cpu)
        self.stamp[slots] = columns.stamp[rows]

    def _refresh_worth(self, slots: Longs, kinds: Longs, left: Longs, cpu: Longs) -> None:
        self.sums[slots] = sums = self.tables.worth[kinds, left].sum(axis=1, dtype=np.int32)
        totals = self.totals(sums, cpu)
        lane = totals.argmin(axis=2)
        self.lowest[slots] = np.take_along_axis(totals, lane[:, :, None], axis=2)[:, :, 0]
        self.price[slots] = self.tables.cpu_prices[lane]
        for function in range(self.functions):
            at = (kinds * (2 * LANES) + (function * LANES + lane[:, function])[:, None]) * (CARD + 1)
            self.worth_at[function][slots] = at
            self.worth_of[function][slots] = self.worth.take(at + left)

    def totals(self, sums: Ints, cpu: Longs) -> Ints:
        """Both functions of worth at every CPU price: by node, function and price."""
        totals: Ints = sums + self.tables.cpu_prices * cpu.astype(np.int32)[:, None]
        return totals.reshape(len(sums), 2, LANES)

    def _kinds_of(self) -> Longs:
        """The tables' kinds by the columns' models."""
        columns = self._columns
        for gpu in columns.models[len(self._kind_of) :]:
            self._kind_of.append(self.tables.kinds.get(kind_of(gpu, columns.limits), 0))
        return np.array(self._kind_of or [0], np.int64)

    def kind_of(self, model: int) -> int:
        """The tables' kind of one of the columns' models."""
        return int(self._kinds_of()[model])
