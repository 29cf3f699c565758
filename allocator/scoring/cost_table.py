"""
The part of a cost that all classes of request share: the tables' values of each node in its current state.

By slot, which a node keeps while others join and leave, and made again only for nodes that changed. Alongside what
`allocator.scoring.reference` calls a room there are, per card, the places in the tables from which a change of that
card alone is read, at the CPU price at which the node is worth least. Only `allocator.scoring.ranking` uses this.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from allocator.scoring import constants
from allocator.scoring.classes import CARD, SIDE, kind_of
from allocator.scoring.tables import LANES, Tables
from allocator.table import Columns
from contract.model import MOST_GPUS, WHOLE

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]

_UNKNOWN = -1
_AT_ONCE = 1024
"""Nodes looked at in one go, which bounds the memory that this takes for a moment."""

KIND, MODEL, LEFT, BY_MEMORY, OVER, BY_CORES, FULL, FRAGMENTS_AT, FRAGMENTS, *_WORTH = range(17)
"""
The fields of a card. The tables' number of its kind, the columns' of its model; the remainder in all and by either
side, and what rounding down leaves over of that of memory, in bytes times `CARD`; whether the next sharer is the last;
and places in the flat tables, each with the present value: of fragments, and of either function of worth at the CPU
price at which the node is worth least. Alongside that of worth the values at the price below and the one above.
"""
WORTH_AT, WORTH, _WORTH_NEAR = _WORTH[0::4], _WORTH[1::4], (_WORTH[2::4], _WORTH[3::4])
CPU, CPU_OVER, SCATTERED, SEVERAL_AT, LOWEST, _LOWEST_PRESSED, PRICE, _PRICE_PRESSED, TIE, FREE, *_NEAR = range(22)
"""
The fields of a node: free CPU, and how much of it may be taken before fewer requests find enough;
`reference.fragments`; the place in the table of several cards; what the node is worth by either function, and the CPU
price at which it is worth that; `reference.order`, of which a roomy cluster has only the part by the node's name; in a
roomy cluster what is left of its cards in all.
"""
_NODE_FIELDS = 22
_EVER = 1 << 40


class Near(NamedTuple):
    """
    The fields for the CPU price below or above: of a card its worth; of a node how far away in the table that price is,
    the price, and how much less the node is worth at its own price.
    """

    worth: int
    offset: int
    price: int
    gap: int


NEAR = tuple(
    tuple(Near(_WORTH_NEAR[side][f], *_NEAR[3 * (2 * f + side) : 3 * (2 * f + side) + 3]) for side in (0, 1))
    for f in (0, 1)
)
"""By function of worth: the price below, the price above; the node's own where there is none."""


def places(by_memory: Longs, by_cores: Longs, some: Flags) -> Longs:
    """`classes.place` of cards; `some`: of which something is left."""
    at: Longs = (by_memory * WHOLE // CARD * SIDE + by_cores * WHOLE // CARD) * some
    return at


class Rooms:
    """
    The nodes of some columns by one set of tables: `nodes` by field and slot, `cards` by field, card and slot.
    Read-only.

    The slots come last, as the nodes do in `Columns` and for the same reason.
    """

    def __init__(self, tables: Tables, columns: Columns) -> None:
        self.tables = tables
        self._columns = columns
        self._kind_of: list[int] = []
        self.functions = tables.worth.shape[2] // LANES
        """The number of different functions of worth."""
        if self.functions and not (tables.worth[..., :LANES] != tables.worth[..., LANES:]).any():
            self.functions = 1
        self.sided = tables.sided is not None
        """Whether shares are priced by both sides of a card, in one function of worth and without CPU."""
        self.worth: Longs = tables.worth.transpose(0, 2, 1).astype(np.int64).reshape(-1)
        if tables.sided is not None:
            self.functions = 1
            self.worth = tables.sided.astype(np.int64).reshape(-1)
        self.fragments: Longs = (np.arange(CARD + 1) * tables.weight - tables.single).reshape(-1)
        self.several: Longs = tables.several.reshape(-1)
        self._steps: Longs = np.concatenate((np.zeros(1, np.int64), tables.cpu_steps))
        self._fields = WORTH_AT[0] + 4 * self.functions
        self._make(0, 1)

    def _make(self, size: int, width: int) -> None:
        self.size = size
        self.width = width
        self.stamp: Longs = np.full(size, _UNKNOWN, np.int64)
        self.cards: Longs = np.zeros((self._fields, width, size), np.int64)
        self.nodes: Longs = np.zeros((_NODE_FIELDS, size), np.int64)
        self.sums: Ints = np.zeros((size, self.tables.worth.shape[2]), np.int32)
        """The sums of the cards' worth, by function and CPU price."""
        self.mixed = False
        """Whether the cards of some node differ."""

    def grow(self) -> bool:
        """Make room for nodes that joined; True if that cleared all fields."""
        columns = self._columns
        if columns.slots <= self.size and columns.width <= self.width:
            return False
        self._make(max(self.size, columns.slots * 5 // 4), max(self.width, columns.width))
        return True

    def refresh(self, rows: Longs) -> None:
        """Make the fields again of those of these nodes that changed."""
        rows = rows[self.stamp[self._columns.slot[rows]] != self._columns.stamp[rows]]
        for start in range(0, len(rows), _AT_ONCE):
            self._refresh(rows[start : start + _AT_ONCE])

    def _refresh(self, rows: Longs) -> None:
        columns, slots = self._columns, self._columns.slot[rows]
        exists, models = columns.exists.take(rows, axis=1), columns.model.take(rows, axis=1)
        if not self.mixed:
            self.mixed = bool((exists & (models != models[:1])).any())
        cards = np.empty((self._fields, columns.width, len(rows)), np.int64)
        nodes = np.empty((_NODE_FIELDS, len(rows)), np.int64)
        cards[KIND], cards[MODEL] = np.where(exists, self._kinds_of()[models], 0), models
        capacity, free = columns.capacity.take(rows, axis=1), columns.free.take(rows, axis=1) * CARD
        cards[BY_MEMORY] = by_memory = free // np.maximum(capacity, 1)
        cards[BY_CORES] = by_cores = columns.free_cores.take(rows, axis=1) * CARD // WHOLE
        cards[LEFT] = np.where(columns.open.take(rows, axis=1), np.maximum(np.minimum(by_memory, by_cores), 0), 0)
        cards[OVER] = free - by_memory * capacity
        cards[FULL] = np.greater(columns.sharers.take(rows, axis=1), columns.most_sharers.take(rows, axis=1) - 2)
        nodes[CPU] = cpu = columns.free_cpu[rows]
        step = self.tables.cpu_steps.searchsorted(cpu, side="right")
        nodes[CPU_OVER] = np.where(step > 0, cpu - self._steps[step], _EVER)
        self._write_order(rows, cards, nodes)
        self._look_up_fragments(cards, nodes)
        if self.sided:
            self._look_up_sides(cards, nodes)
        elif self.functions:
            self.sums[slots] = self._look_up_worth(cards, nodes)
        self.cards[:, :, slots], self.nodes[:, slots], self.stamp[slots] = cards, nodes, columns.stamp[rows]

    def _write_order(self, rows: Longs, cards: Longs, nodes: Longs) -> None:
        tie, tables = self._columns.tie[rows], self.tables
        if tables.roomy:
            nodes[TIE], nodes[FREE] = tie >> constants.FREE_BITS, np.add.reduce(cards[LEFT], axis=0)
        else:
            nodes[TIE] = tie >> (constants.SMALLER_SOONER * (self._columns.gpus[rows] < tables.largest))

    def _look_up_fragments(self, cards: Longs, nodes: Longs) -> None:
        at, several_at = self.fragments_at(cards[KIND], cards[LEFT], nodes[CPU])
        cards[FRAGMENTS_AT], nodes[SEVERAL_AT] = at, several_at
        cards[FRAGMENTS] = fragments = self.fragments.take(at + cards[LEFT])
        nodes[SCATTERED] = fragments.sum(axis=0) - self.several.take(several_at)

    def free_cards(self, slots: Longs) -> Longs:
        """The number of completely free cards of each of these nodes."""
        free: Longs = self.nodes[SEVERAL_AT, slots] % (MOST_GPUS + 1)
        return free

    def fragments_at(self, kinds: Longs, left: Longs, cpu: Longs) -> tuple[Longs, Longs]:
        """Places in the flat tables for nodes with so much CPU: of each card with nothing left, and of the node."""
        step = self.tables.cpu_steps.searchsorted(cpu, side="right")
        at = kinds * self.tables.single.shape[1] + step
        return at * (CARD + 1), at[0] * (MOST_GPUS + 1) + (left == CARD).sum(axis=0)

    def _look_up_worth(self, cards: Longs, nodes: Longs) -> Ints:
        kinds, left = cards[KIND], cards[LEFT]
        sums: Ints = self.tables.worth[kinds, left].sum(axis=0, dtype=np.int32)
        totals = self.totals(sums, nodes[CPU])
        lane = totals.argmin(axis=2).T
        nodes[LOWEST:PRICE] = totals.min(axis=2).T
        nodes[PRICE : PRICE + 2] = self.tables.cpu_prices[lane]
        for function in range(self.functions):
            at = (kinds * (2 * LANES) + (function * LANES + lane[function])) * (CARD + 1)
            cards[WORTH_AT[function]], cards[WORTH[function]] = at, self.worth.take(at + left)
            for near, other in zip(NEAR[function], self._beside(lane[function]), strict=True):
                offset = (other - lane[function]) * (CARD + 1)
                cards[near.worth] = self.worth.take(at + offset + left)
                nodes[near.offset], nodes[near.price] = offset, self.tables.cpu_prices[other]
                nodes[near.gap] = nodes[LOWEST + function] - totals[np.arange(len(sums)), function, other]
        return sums

    def _look_up_sides(self, cards: Longs, nodes: Longs) -> None:
        at = cards[KIND] * (SIDE * SIDE)
        worth = self.worth.take(at + places(cards[BY_MEMORY], cards[BY_CORES], cards[LEFT] > 0))
        cards[WORTH_AT[0]], cards[WORTH[0]] = at, worth
        nodes[LOWEST] = nodes[_LOWEST_PRESSED] = worth.sum(axis=0)
        nodes[PRICE] = 0
        for near in NEAR[0]:  # no price of CPU is alongside this one
            cards[near.worth] = worth
            nodes[near.offset] = nodes[near.price] = nodes[near.gap] = 0

    def _beside(self, lane: Longs) -> tuple[Longs, Longs]:
        return np.maximum(lane - 1, 0), np.minimum(lane + 1, LANES - 1)

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
