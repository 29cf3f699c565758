"""
The cached costs of placements on all nodes at once: the results of `allocator.scoring.reference`.

Per class of request and node a lower bound of the cost is remembered until the node changes. It is what the placement
would cost if the node's price of CPU did not change, read from a few numbers per card. On most nodes it is the cost
itself, which the two next prices show. Otherwise costs are computed, but only for nodes that could still be the best:
those with the least bounds, a few at a time, until no bound is left below the least cost. So a decision looks at the
nodes that changed since the last request of this class, and the first one of a class costs some thirty operations over
all cards. Only the fast engine uses this; it makes a new one when the tables change.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from allocator.scoring import constants
from allocator.scoring.classes import CARD, left
from allocator.scoring.cost_table import (
    BY_CORES,
    BY_MEMORY,
    CPU,
    CPU_OVER,
    FRAGMENTS,
    FRAGMENTS_AT,
    FREE,
    FULL,
    KIND,
    LEFT,
    LOWEST,
    MODEL,
    NEAR,
    OVER,
    PRICE,
    SCATTERED,
    SEVERAL_AT,
    TIE,
    WORTH,
    WORTH_AT,
    Flags,
    Longs,
    Rooms,
    places,
)
from allocator.scoring.tables import Tables
from allocator.table import TIE_BITS, Columns
from contract.model import WHOLE, FractionRequest

_CLASSES = 256
"""Classes of request whose costs are remembered; the one not requested for longest is forgotten first."""
_BOUNDED_AT_ONCE, _AT_ONCE = 2048, 1024
"""
Nodes whose bounds, and nodes whose costs are computed in one go. This limits the memory that a new class takes for a
moment: about 2 KiB for each node with a bound.
"""
_FIRST_FEW, _THEN_TIMES = 24, 8
"""Nodes whose cost is computed at first, and how many times as many each time that this did not suffice."""
_NEVER = np.iinfo(np.int64).max
_FAR = 1 << 56
"""More bytes than any card has, and still 64 bits when multiplied by a node's number of cards."""
_UNKNOWN, _BOUND = -1, -1
Choose = Callable[[Longs], Longs]
"""Some of these rows, one at least."""


@dataclass(slots=True)
class ClassCosts:
    """
    The costs of one class of request, by slot: the state of the node for which they are, the least that the cost can be
    with the node's tie below it, and the best card; the card is `_BOUND` where the cost itself is not known.
    """

    stamp: Longs
    rank: Longs
    card: npt.NDArray[np.int8]
    wanted: RequestClass | None = None


@dataclass(frozen=True, slots=True)
class RequestClass:
    """
    A class of request. What it takes of a card, by the columns' models: `whole` thousandths of its memory and `over`
    bytes times `CARD` alongside them, and what `scarce` costs. `fraction` None is a pod that takes CPU only.
    """

    fraction: FractionRequest | None
    cpu: int
    whole: Longs
    over: Longs
    by_cores: int
    scarce: Longs
    scarce_at_all: bool


class Ranks:
    """Costs by one set of tables, for the nodes of some columns. Not thread-safe: one owner calls it."""

    def __init__(self, tables: Tables, columns: Columns) -> None:
        self.tables = tables
        self._columns = columns
        self._rooms = Rooms(tables, columns)
        self._mixed = False
        self._known: OrderedDict[object, ClassCosts] = OrderedDict()
        self._shift, self._lowest_bin, self._levels, self._sure = _bins(tables)

    def warm(self, first: int, end: int) -> None:
        """Look at the nodes in these rows, as far as there are any, before the first decision."""
        self._grow()
        self._rooms.refresh(np.arange(first, min(end, len(self._columns.nodes))))

    def best(
        self, fraction: FractionRequest | None, cpu: int, bears: Flags, rows: Longs, choose: Choose | None = None
    ) -> tuple[int, tuple[int, ...]]:
        """
        The row of the best node among `rows`, which all take the share, and the positions of the cards there.

        `bears`: which cards take the share. `choose`: which of the nodes of the least cost are left for the tie.
        """
        columns = self._columns
        self._grow()
        slots, known = columns.slot.take(rows), self._of_class(fraction, cpu)
        stale = rows[known.stamp.take(slots) != columns.stamp.take(rows)]
        self._rooms.refresh(stale)
        if self._rooms.mixed and not self._mixed:
            self._mixed = True
            self._known.clear()
            return self.best(fraction, cpu, bears, rows, choose)
        wanted = known.wanted
        if wanted is None or len(wanted.whole) < len(columns.models):
            wanted = known.wanted = self._wanted(fraction, cpu)
        for start in range(0, len(stale), _BOUNDED_AT_ONCE):
            self._bound(wanted, bears, stale[start : start + _BOUNDED_AT_ONCE], known)
        at = self._least(wanted, bears, rows, slots, known)
        if choose is not None:
            at = self._chosen(wanted, bears, rows, slots, known, at, choose)
        row, slot = int(rows[at]), int(slots[at])
        if fraction is None:
            return row, ()
        if fraction.count == 1:
            return row, (int(known.card[slot]),)
        return row, tuple(int(card) for card in _best_fit(columns, bears, rows[at : at + 1], fraction.count)[:, 0])

    # -- inside ---------------------------------------------------------------------------------------------------

    def _grow(self) -> None:
        if self._rooms.grow():
            self._known.clear()
            self._mixed = False

    def _of_class(self, fraction: FractionRequest | None, cpu: int) -> ClassCosts:
        key: object = cpu
        if fraction is not None:
            key = (cpu, fraction.count, fraction.memory, fraction.percent, fraction.cores, fraction.exclusive)
            wishes = fraction.wishes
            by_card = wishes.use_uuids or wishes.avoid_uuids or wishes.selects
            if self._mixed or by_card:  # they take some cards of a node and not others
                key = (key, wishes)
        known = self._known.get(key)
        if known is None:
            size = self._rooms.size
            known = ClassCosts(np.full(size, _UNKNOWN, np.int64), np.zeros(size, np.int64), np.zeros(size, np.int8))
            self._known[key] = known
            if len(self._known) > _CLASSES:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    def _wanted(self, fraction: FractionRequest | None, cpu: int) -> RequestClass:
        """What the share takes of each sort of card: `reference.size` and the like, once for all cards of the sort."""
        models = self._columns.models
        whole, over, scarce = (np.zeros(len(models), np.int64) for _ in range(3))
        times, per = constants.PER_SCARCE_CARD
        for number, gpu in enumerate(models if fraction is not None else ()):
            assert fraction is not None
            capacity, requested = self._columns.limits.capacity(gpu), fraction.memory_on(gpu.usable)
            whole[number], over[number] = divmod(requested * CARD, max(capacity, 1))
            taken = CARD if fraction.exclusive else CARD - left(capacity, requested, fraction.cores)
            scarcity = int(self.tables.scarcity[self._rooms.kind_of(number)])
            scarce[number] = scarcity * taken * times // (CARD * per)
        return RequestClass(
            fraction, cpu, whole, over, (fraction.cores if fraction else 0) * CARD // WHOLE, scarce, bool(scarce.any())
        )

    def _least(self, wanted: RequestClass, bears: Flags, rows: Longs, slots: Longs, known: ClassCosts) -> int:
        """The node of the least cost. Computes no more costs than needed to be sure."""
        ranks, few = self._ranks(rows, slots, known), _FIRST_FEW
        while True:
            at = int(ranks.argmin())
            if known.card[slots[at]] != _BOUND:
                return at
            nearest = np.argpartition(ranks, few)[:few] if few < len(ranks) else np.arange(len(ranks))
            nearest = nearest[known.card[slots[nearest]] == _BOUND]
            for start in range(0, len(nearest), _AT_ONCE):
                self._judge(wanted, bears, rows[nearest[start : start + _AT_ONCE]], known)
            ranks[nearest] = self._ranks(rows[nearest], slots[nearest], known)
            few *= _THEN_TIMES

    def _chosen(
        self,
        wanted: RequestClass,
        bears: Flags,
        rows: Longs,
        slots: Longs,
        known: ClassCosts,
        least: int,
        choose: Choose,
    ) -> int:
        """Where the least tie is among those of the least cost that are chosen. `least`: where the least cost is."""
        ranks = self._ranks(rows, slots, known)
        cost = ranks[least] >> TIE_BITS
        near = np.flatnonzero(ranks >> TIE_BITS == cost)
        unsure = near[known.card[slots[near]] == _BOUND]
        for start in range(0, len(unsure), _AT_ONCE):
            self._judge(wanted, bears, rows[unsure[start : start + _AT_ONCE]], known)
        ranks[unsure] = self._ranks(rows[unsure], slots[unsure], known)
        equal = near[ranks[near] >> TIE_BITS == cost]
        left = equal[np.isin(rows[equal], choose(rows[equal]))]
        return int(left[ranks[left].argmin()])

    def _ranks(self, rows: Longs, slots: Longs, known: ClassCosts) -> Longs:
        """The ranks of these nodes with `reference.spared`, which is not remembered: it changes with the queue."""
        ranks: Longs = known.rank.take(slots)
        awaited = self.tables.awaited
        if awaited and not self.tables.limited:
            cost = constants.PER_SPARED_NODE + constants.PER_FREE_CARD * self._rooms.free_cards(slots)
            ranks += cost * (self._columns.gpus[rows] >= awaited) << TIE_BITS
        return ranks

    def _bound(self, wanted: RequestClass, bears: Flags, rows: Longs, known: ClassCosts) -> None:
        """The least cost of placements on these nodes: the cost at the node's present price of CPU."""
        rooms, fraction, slots = self._rooms, wanted.fraction, self._columns.slot[rows]
        alone = fraction is not None and fraction.count == 1
        if alone:
            cards = rooms.cards.take(slots, axis=2)
        else:
            cards = rooms.cards[:, self._taken_cards(fraction, bears, rows), slots]
        nodes, together = rooms.nodes.take(slots, axis=1), _as_it_is if alone else _added_up
        after = _after(wanted, cards)
        broken = together((cards[LEFT] == CARD) & (after < CARD))
        change = together(cards[FRAGMENTS] - rooms.fragments.take(cards[FRAGMENTS_AT] + after))
        several_at = nodes[SEVERAL_AT]
        change += rooms.several.take(several_at - broken) - rooms.several.take(several_at)
        bins = np.maximum(np.minimum((change >> self._shift) - self._lowest_bin, len(self._levels) - 1), 0)
        cost = self._levels.take(bins) * (-constants.PER_LEVEL if rooms.functions else -1)
        exact: Flags = self._sure.take(bins) & (nodes[CPU_OVER] >= wanted.cpu)
        if rooms.functions:
            at = _places_after(wanted, cards, after) if rooms.sided else after
            losses = [self._lost(wanted, f, together, cards, nodes, at, exact) for f in range(rooms.functions)]
            cost += _in_steps(losses[0], losses[-1])
            if wanted.scarce_at_all:
                cost += together(wanted.scarce.take(cards[MODEL]))
        if alone:
            np.copyto(cost, _NEVER >> TIE_BITS, where=~bears.take(rows, axis=1))
        roomy, every = self.tables.roomy, np.arange(len(rows))
        best = (_tightest(cost, after) if roomy and alone else cost).argmin(axis=0)
        free = nodes[FREE] - together(cards[LEFT] - after)[best, every] if roomy else None
        known.rank[slots] = (cost[best, every] << TIE_BITS) + self._order(rows, nodes, free)
        known.card[slots] = np.where(exact[best, every], best, _BOUND)
        known.stamp[slots] = self._columns.stamp[rows]

    def _taken_cards(self, fraction: FractionRequest | None, bears: Flags, rows: Longs) -> Longs:
        """The cards that a share of several takes on these nodes, one line for each; none for a pod without a share."""
        if fraction is None:
            return np.zeros((0, len(rows)), np.int64)
        return _best_fit(self._columns, bears, rows, fraction.count)

    def _order(self, rows: Longs, nodes: Longs, free: Longs | None) -> Longs:
        """`reference.order` of these nodes. `free`: what is left of their cards in all, in a roomy cluster."""
        tie: Longs = nodes[TIE]
        if free is None:
            return tie
        free = free * constants.FREE_STEPS // np.maximum(self._columns.gpus[rows], 1)
        return (free << TIE_BITS - constants.FREE_BITS) + tie

    def _lost(
        self,
        wanted: RequestClass,
        function: int,
        together: Callable[[Longs], Longs],
        cards: Longs,
        nodes: Longs,
        after: Longs,
        exact: Flags,
    ) -> Longs:
        """
        What is lost of a node's worth at its price of CPU; `exact` becomes false where another price will be lower.

        A node's worth over the price of CPU is a sum of maxima of straight lines, hence convex: a price at which it is
        no higher than at the two alongside it is the lowest of all.
        """
        worth, at = self._rooms.worth, cards[WORTH_AT[function]] + after
        lost: Longs = together(cards[WORTH[function]] - worth.take(at)) + nodes[PRICE + function] * wanted.cpu
        for near in NEAR[function]:
            there = together(cards[near.worth] - worth.take(at + nodes[near.offset]))
            exact &= lost - there >= nodes[near.gap] + nodes[near.price] * wanted.cpu
        return lost

    def _judge(self, wanted: RequestClass, bears: Flags, rows: Longs, known: ClassCosts) -> None:
        """The cost on these nodes and the card that gives it."""
        fraction, slots = wanted.fraction, self._columns.slot[rows]
        roomy, every = self.tables.roomy, np.arange(len(rows))
        if fraction is not None and fraction.count == 1:
            chosen, of = np.nonzero(bears.take(rows, axis=1))
            table = np.full((self._columns.width, len(rows)), _NEVER >> TIE_BITS, np.int64)
            table[chosen, of] = self._costs(wanted, slots, of, chosen[None, :])
            of_all = self._rooms.cards[:, :, slots] if roomy else None
            best = (table if of_all is None else _tightest(table, _after(wanted, of_all))).argmin(axis=0)
            known.card[slots] = best
            costs, chosen = table[best, every], best[None, :]
        else:
            chosen = self._taken_cards(fraction, bears, rows)
            known.card[slots] = 0
            costs = self._costs(wanted, slots, every, chosen)
        nodes = self._rooms.nodes[:, slots]
        free = nodes[FREE] - self._taken_from(wanted, slots, chosen) if roomy else None
        known.rank[slots] = (costs << TIE_BITS) + self._order(rows, nodes, free)

    def _taken_from(self, wanted: RequestClass, slots: Longs, chosen: Longs) -> Longs:
        """How much less is left of each node's cards in all after the placement on these cards."""
        cards = self._rooms.cards[:, chosen, slots]
        taken: Longs = (cards[LEFT] - _after(wanted, cards)).sum(axis=0)
        return taken

    def _costs(self, wanted: RequestClass, slots: Longs, of: Longs, chosen: Longs) -> Longs:
        """`reference.cost` of each trial: `of` is the node, `chosen` its cards, one line for each."""
        tables, rooms = self.tables, self._rooms
        all_cards, nodes = rooms.cards[:, :, slots], rooms.nodes[:, slots]
        cards = all_cards[:, chosen, of]
        kinds, before, after = cards[KIND], cards[LEFT], _after(wanted, cards)
        cpu = nodes[CPU] - wanted.cpu
        at, several_at = rooms.fragments_at(all_cards[KIND], all_cards[LEFT], cpu)
        others = rooms.fragments.take(at + all_cards[LEFT]).sum(axis=0)
        at = at[chosen, of]
        scattered = others[of] + (rooms.fragments.take(at + after) - rooms.fragments.take(at + before)).sum(axis=0)
        broken = ((before == CARD) & (after < CARD)).sum(axis=0)
        change = nodes[SCATTERED, of] - scattered + rooms.several.take(several_at[of] - broken)
        level: Longs = np.searchsorted(tables.levels, change, side="right")
        if not rooms.functions:
            return -level
        if rooms.sided:
            there = rooms.worth.take(cards[WORTH_AT[0]] + _places_after(wanted, cards, after))
            change = (cards[WORTH[0]] - there).sum(axis=0)
            cost = _in_steps(change, change) - constants.PER_LEVEL * level
            cost += wanted.scarce[cards[MODEL]].sum(axis=0)
            return cost
        sums = rooms.sums[slots][of]
        for kind, here, then in zip(kinds, before, after, strict=True):
            sums += tables.worth[kind, then]
            sums -= tables.worth[kind, here]
        lost = nodes[LOWEST:PRICE, of] - rooms.totals(sums, cpu[of]).min(axis=2).T
        cost = _in_steps(lost[0], lost[1]) - constants.PER_LEVEL * level
        if wanted.scarce_at_all:
            cost += wanted.scarce[cards[MODEL]].sum(axis=0)
        return cost


def _tightest(cost: Longs, after: Longs) -> Longs:
    """Costs of cards, and between equal ones what is left of the card."""
    return cost * (CARD + 1) + after


def _as_it_is(per_card: npt.NDArray[Any]) -> Longs:
    return per_card


def _added_up(per_card: npt.NDArray[Any]) -> Longs:
    added: Longs = np.add.reduce(per_card, axis=0, keepdims=True)
    return added


def _after(wanted: RequestClass, cards: Longs) -> Longs:
    """The remainder of cards with the share."""
    if wanted.fraction is None or wanted.fraction.exclusive:
        return np.zeros_like(cards[LEFT])
    models = cards[MODEL]
    after: Longs = cards[BY_MEMORY] - wanted.whole.take(models)
    after -= cards[OVER] < wanted.over.take(models)
    np.minimum(after, cards[BY_CORES] - wanted.by_cores, out=after)
    np.maximum(after, 0, out=after)
    after *= 1 - cards[FULL]
    return after


def _places_after(wanted: RequestClass, cards: Longs, after: Longs) -> Longs:
    """The positions of the cards with the share in the table by both sides. `after`: `_after`."""
    models = cards[MODEL]
    by_memory = cards[BY_MEMORY] - wanted.whole[models] - (cards[OVER] < wanted.over[models])
    return places(by_memory, cards[BY_CORES] - wanted.by_cores, after > 0)


def _in_steps(lost: Longs, pressed: Longs) -> Longs:
    """The cost of losses of worth."""
    step, step_of_pressed, more = constants.STEP, constants.STEP_OF_PRESSED, constants.ROUNDING_SLACK
    cost: Longs = step * ((lost + (step // 2 + more)) // step)
    cost += constants.SHARE_OF_PRESSED * ((pressed + (step_of_pressed // 2 + more)) // step_of_pressed)
    return cost


def _bins(tables: Tables) -> tuple[int, int, Longs, Flags]:
    """
    The highest level of each bin of changes of fragmentation, since a search per card would cost most of a bound.

    A change falls into the bin `change >> shift`; the bins count from the one before that of the first level's bound.
    At last whether all of the bin has that level.
    """
    shift = max(0, tables.weight.bit_length() - 1)
    first, last = (int(tables.levels[0]) >> shift) - 1, int(tables.levels[-1]) >> shift
    ends = ((np.arange(first, last + 2) + 1) << shift) - 1
    highest = np.searchsorted(tables.levels, ends, side="right").astype(np.int64)
    return shift, first, highest, np.diff(highest, prepend=0) == 0


def _best_fit(columns: Columns, bears: Flags, rows: Longs, count: int) -> Longs:
    """The cards that a share of several takes, one line for each: those with the least free memory, then the first."""
    width = columns.width
    keys = np.where(bears.take(rows, axis=1), columns.left.take(rows, axis=1), _FAR) * width + np.arange(width)[:, None]
    keys.sort(axis=0)
    chosen: Longs = keys[:count] % width
    return chosen
