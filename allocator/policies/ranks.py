"""
What a placement costs on every node, remembered: the answers of `allocator.policies.plain`, for all nodes at once.

Per class of request and node the cost and the best card are kept until the node changes, so a decision looks anew at
the nodes that changed since the last request of this class, and only at those of them that have room. Nodes have slots
that stay when others join or leave. Only the fast engine uses this; it makes a new one when the tables change.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from allocator.columns import Columns
from allocator.policies import plain
from allocator.policies.kinds import CARD, Kind
from allocator.policies.tables import LANES, Tables
from contract.model import MOST_GPUS, WHOLE, FractionRequest

Longs = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

_CLASSES = 256
"""Classes of request whose costs are remembered; the one not asked for longest is forgotten first."""
_AT_ONCE = 1024
"""Nodes looked at in one go, which bounds the memory that a new class takes for a moment."""
_NEVER = np.iinfo(np.int64).max
_UNKNOWN = -1
_EARLIER = np.tri(MOST_GPUS, k=-1, dtype=np.bool_)


@dataclass(slots=True)
class Known:
    """What is known of one class of request, by slot: for which state of the node, the cost, and the best card."""

    stamp: Longs
    cost: Longs
    card: npt.NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Batch:
    """Some nodes before the placement; everything but `rows` and `slots` per node, and per card of it."""

    rows: Longs
    slots: Longs
    kinds: Longs
    left: Longs
    capacity: Longs
    free: Longs
    free_cores: Longs
    sharers: Longs
    cpu: Longs


@dataclass(frozen=True, slots=True)
class Trial:
    """Placements to be judged: `of` says on which node of the batch, `cards` on which of its cards."""

    of: Longs
    cards: Longs


class Ranks:
    """Costs by one set of tables. Not thread-safe: one owner calls it."""

    def __init__(self, tables: Tables, max_sharers: int) -> None:
        self.tables, self._max_sharers = tables, max_sharers
        self._known: OrderedDict[object, Known] = OrderedDict()
        self._size = self._width = 0
        self._named: dict[int, str] = {}
        self._ties = np.zeros(0, np.int64)
        self._base = np.zeros(0, np.int64)
        self._kinds = np.zeros((0, 0), np.int64)
        self._left = np.zeros((0, 0), np.int64)
        self._sums = np.zeros((0, tables.worth.shape[2]), np.int32)
        self._worth = np.zeros((0, 2), np.int64)
        self._fragments = np.zeros(0, np.int64)
        self._kind_ids: dict[Kind, int] = {}
        self._gpus: dict[int, object] = {}
        self._mixed = False
        """Whether the cards of some node differ in kind."""

    def best(
        self, columns: Columns, fraction: FractionRequest | None, cpu: int, wanted: Longs, bears: Flags, rows: Longs
    ) -> tuple[int, tuple[int, ...]]:
        """
        The row of the best node among `rows`, which all take the share, and the positions of the cards there.

        `wanted` is bytes of each card, or one number for all; `bears` says which cards take the share.
        """
        self._grow(columns)
        slots = columns.slot[rows]
        known = self._of_class(fraction, cpu)
        stale = rows[known.stamp[slots] != columns.stamp[rows]]
        for start in range(0, len(stale), _AT_ONCE):
            self._judge(columns, fraction, cpu, wanted, bears, stale[start : start + _AT_ONCE], known)
        at = int(((known.cost[slots] << plain.TIE_BITS) + self._ties[slots]).argmin())
        row, slot = int(rows[at]), int(slots[at])
        if fraction is None:
            return row, ()
        if fraction.count == 1:
            return row, (int(known.card[slot]),)
        return row, tuple(int(card) for card in _best_fit(columns, bears, np.array([row]), fraction.count)[0])

    # -- inside ---------------------------------------------------------------------------------------------------

    def _of_class(self, fraction: FractionRequest | None, cpu: int) -> Known:
        key: object = cpu
        if fraction is not None:
            key = (cpu, fraction.count, fraction.memory, fraction.percent, fraction.cores, fraction.exclusive)
            wishes = fraction.wishes
            if self._mixed or wishes.use_uuids or wishes.avoid_uuids:  # they take some cards of a node and not others
                key = (key, wishes)
        known = self._known.get(key)
        if known is None:
            known = Known(
                np.full(self._size, _UNKNOWN, np.int64), np.zeros(self._size, np.int64), np.zeros(self._size, np.int8)
            )
            self._known[key] = known
            if len(self._known) > _CLASSES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _grow(self, columns: Columns) -> None:
        if columns.slots <= self._size and columns.width <= self._width:
            return
        size, width = max(self._size, columns.slots * 5 // 4), max(self._width, columns.width)
        self._ties = np.resize(self._ties, size)
        self._base = np.full(size, _UNKNOWN, np.int64)
        self._kinds, self._left = np.zeros((size, width), np.int64), np.zeros((size, width), np.int64)
        self._sums = np.zeros((size, self._sums.shape[1]), np.int32)
        self._worth, self._fragments = np.zeros((size, 2), np.int64), np.zeros(size, np.int64)
        self._size, self._width = size, width
        self._known.clear()
        self._gpus.clear()

    def _refresh(self, columns: Columns, rows: Longs, slots: Longs) -> None:
        """What is known of nodes without regard to a request, made anew for those that changed."""
        changed = self._base[slots] != columns.stamp[rows]
        rows, slots = rows[changed], slots[changed]
        if not len(rows):
            return
        for row, slot in zip(rows.tolist(), slots.tolist(), strict=True):
            node = columns.nodes[row]
            if self._gpus.get(slot) is not node.gpus or self._named.get(slot) != node.name:
                self._meet(columns, row, slot)
        tables = self.tables
        capacity, free = columns.capacity[:, rows].T, columns.free[:, rows].T
        left = np.where(columns.open[:, rows].T, _left(capacity, free, columns.free_cores[:, rows].T), 0)
        self._left[slots] = left
        kinds, cpu = self._kinds[slots], columns.free_cpu[rows]
        if tables.worth.shape[2]:
            self._sums[slots] = sums = tables.worth[kinds, left].sum(axis=1, dtype=np.int32)
            self._worth[slots] = self._lowest(sums, cpu)
        step = np.searchsorted(tables.cpu_steps, cpu, side="right")
        usable = tables.single[kinds, step[:, None], left].sum(axis=1)
        usable += tables.several[kinds[:, 0], step, (left == CARD).sum(axis=1)]
        self._fragments[slots] = left.sum(axis=1) * tables.weight - usable
        self._base[slots] = columns.stamp[rows]

    def _meet(self, columns: Columns, row: int, slot: int) -> None:
        """A node that is new here, or whose cards changed."""
        node = columns.nodes[row]
        if not self._mixed and len({(gpu.model, gpu.usable, gpu.memory) for gpu in node.gpus}) > 1:
            self._mixed = True
            self._known.clear()
        self._named[slot], self._gpus[slot] = node.name, node.gpus
        self._ties[slot] = plain.tie(node.name)
        self._kinds[slot] = 0
        for position, gpu in enumerate(node.gpus):
            kind = Kind(gpu.model, gpu.usable, int(columns.capacity[position, row]), gpu.memory)
            self._kinds[slot, position] = self.tables.kinds.get(kind, 0)

    def _lowest(self, sums: npt.NDArray[np.int32], cpu: Longs) -> npt.NDArray[np.int32]:
        """Both functions of worth: the total at the CPU price at which it is lowest."""
        totals = sums + self.tables.cpu_prices * cpu.astype(np.int32)[:, None]
        lowest: npt.NDArray[np.int32] = totals.reshape(len(sums), 2, LANES).min(axis=2)
        return lowest

    def _judge(
        self,
        columns: Columns,
        fraction: FractionRequest | None,
        cpu: int,
        wanted: Longs,
        bears: Flags,
        rows: Longs,
        known: Known,
    ) -> None:
        slots = columns.slot[rows]
        self._refresh(columns, rows, slots)
        batch = Batch(
            rows,
            slots,
            self._kinds[slots],
            self._left[slots],
            columns.capacity[:, rows].T,
            columns.free[:, rows].T,
            columns.free_cores[:, rows].T,
            columns.sharers[:, rows].T,
            columns.free_cpu[rows],
        )
        trial = _trial(columns, fraction, bears, batch, self._max_sharers, self._mixed)
        costs = self._costs(batch, trial, fraction, cpu, wanted)
        if fraction is not None and fraction.count == 1:
            table = np.full((len(rows), columns.width), _NEVER, np.int64)
            table[trial.of, trial.cards[:, 0]] = costs
            known.card[slots] = best = table.argmin(axis=1)
            known.cost[slots] = table[np.arange(len(rows)), best]
        else:
            known.cost[slots] = costs
        known.stamp[slots] = columns.stamp[rows]

    def _costs(self, batch: Batch, trial: Trial, fraction: FractionRequest | None, cpu: int, wanted: Longs) -> Longs:
        """`plain.cost` of each trial."""
        tables, of, at = self.tables, trial.of, (trial.of[:, None], trial.cards)
        kinds, before = batch.kinds[at], batch.left[at]
        after, taken = _after(batch, at, fraction, wanted, self._max_sharers)
        cpu_left = batch.cpu - cpu
        step = np.searchsorted(tables.cpu_steps, cpu_left, side="right")
        usable = tables.single[batch.kinds, step[:, None], batch.left].sum(axis=1)[of]
        usable += (tables.single[kinds, step[of, None], after] - tables.single[kinds, step[of, None], before]).sum(
            axis=1
        )
        free = (batch.left == CARD).sum(axis=1)[of] - (before == CARD).sum(axis=1) + (after == CARD).sum(axis=1)
        usable += tables.several[batch.kinds[of, 0], step[of], free]
        total = batch.left.sum(axis=1)[of] + (after - before).sum(axis=1)
        change = self._fragments[batch.slots][of] - (total * tables.weight - usable)
        level: Longs = np.searchsorted(tables.levels, change, side="right")
        if not tables.worth.shape[2]:
            return -level
        sums = self._sums[batch.slots][of]
        for card in range(trial.cards.shape[1]):
            sums += tables.worth[kinds[:, card], after[:, card]]
            sums -= tables.worth[kinds[:, card], before[:, card]]
        lost = self._worth[batch.slots][of] - self._lowest(sums, cpu_left[of])
        step_0, step_1, more = plain.STEP, plain.STEP_OF_PRESSED, plain._HALF_A_BIT_MORE
        cost: Longs = step_0 * ((lost[:, 0] + step_0 // 2 + more) // step_0)
        cost += plain.SHARE_OF_PRESSED * ((lost[:, 1] + step_1 // 2 + more) // step_1)
        times, over = plain.PER_SCARCE_CARD
        cost += (tables.scarcity[kinds] * taken * times // (CARD * over)).sum(axis=1)
        return cost - plain.PER_LEVEL * level


def _left(capacity: Longs, free: Longs, free_cores: Longs) -> Longs:
    """`kinds.left` of many cards."""
    by_memory = free * CARD // np.maximum(capacity, 1)
    return np.maximum(np.minimum(by_memory, free_cores * CARD // WHOLE), 0)


def _after(
    batch: Batch, at: tuple[Longs, Longs], fraction: FractionRequest | None, wanted: Longs, max_sharers: int
) -> tuple[Longs, Longs]:
    """What is left of the cards, and what the share takes of each."""
    if fraction is None:
        nothing: Longs = np.zeros((len(at[0]), 0), np.int64)
        return nothing, nothing
    asked = wanted[at[1], batch.rows[at[0]]] if wanted.ndim else wanted
    capacity = batch.capacity[at]
    after = _left(capacity, batch.free[at] - asked, batch.free_cores[at] - fraction.cores)
    after[batch.sharers[at] + 1 >= max_sharers] = 0
    if fraction.exclusive:
        after[:] = 0
        return after, np.full_like(after, CARD)
    return after, CARD - _left(capacity, capacity - asked, np.full_like(after, WHOLE - fraction.cores))


def _trial(
    columns: Columns,
    fraction: FractionRequest | None,
    bears: Flags,
    batch: Batch,
    max_sharers: int,
    mixed: bool,
) -> Trial:
    """One trial per node, or for a share of one card one per card that differs from the ones before it."""
    every: Longs = np.arange(len(batch.rows))
    if fraction is None:
        return Trial(every, np.zeros((len(every), 0), np.int64))
    if fraction.count > 1:
        return Trial(every, _best_fit(columns, bears, batch.rows, fraction.count))
    able = bears[:, batch.rows].T
    state = (batch.free * (WHOLE + 1) + batch.free_cores) * 2 + (batch.sharers + 1 >= max_sharers)
    same = (state[:, :, None] == state[:, None, :]) & able[:, None, :]
    if mixed:
        same &= batch.kinds[:, :, None] == batch.kinds[:, None, :]
        same &= batch.capacity[:, :, None] == batch.capacity[:, None, :]
    earlier = _EARLIER[: able.shape[1], : able.shape[1]]
    of, cards = np.nonzero(able & ~(same & earlier).any(axis=2))
    return Trial(of, cards[:, None])


def _best_fit(columns: Columns, bears: Flags, rows: Longs, count: int) -> Longs:
    """The cards that a share of several takes: those with the least free memory, then the first."""
    keys = np.where(bears[:, rows], columns.left[:, rows], _NEVER)
    chosen: Longs = keys.argsort(axis=0, kind="stable")[:count].T
    return chosen
