"""
Pack waiting pods onto nodes that are being added, and onto as few new nodes of the pools as possible.

Pure: the same input always gives the same result. The rules of placement decide what fits
(`allocator.features.provisioning.node_states`).

First the pods are placed in some quick ways: one pod after the other, the largest first by different measures; and one
node after the other, each with the pods that suit its room. The result is often optimal, and sums over all pods prove
it. If they do not, a depth-first search tries fewer nodes. It visits states of nodes instead of nodes, so equal nodes
and equal pods count once. `steps` bounds all of this, and `Packing.exact` reports whether the bound was enough.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from operator import sub

import numpy as np
import numpy.typing as npt

from allocator.features.provisioning.node_states import RESERVE, Amounts, NodeStates
from contract.model import NodeState
from contract.scheduling.filters import Limits
from contract.scheduling.fit import Steps
from contract.scheduling.needs import SchedulingRequest

MOST_ASKS = 1_000
"""The most pods of one packing. Later pods follow when they move up."""
_STEPS = 24_000
"""The bound on placements of a pod on a node, with their evaluations; some 20 us each."""
_MOST_TRIES = 24
"""The number of pods that are tried for a node's remaining room, the likeliest first."""
_MOST_REMEMBERED = 10_000
"""The number of different kinds of pods for which the result is remembered."""
_NEVER = 1 << 50
"""A distance larger than any between a need and a room."""


@dataclass(frozen=True, slots=True)
class PoolRoom:
    """A pool from which nodes may be requested."""

    name: str
    node: NodeState
    """An empty node of it."""
    most: int
    """Nodes of it that may be opened."""


@dataclass(frozen=True, slots=True)
class Packing:
    """The nodes to request, and the pods for which they are."""

    opened: tuple[tuple[str, int], ...]
    """(pool, number of nodes to request), in the pools' order; only positive numbers."""
    places: tuple[str, ...]
    """The name of each pod's node: one that is being added, or `POOL/1`, `POOL/2` and so on; empty for none."""
    exact: bool
    """Whether it is certain that fewer nodes do not suffice for these pods, and that no earlier pod can be placed."""


_Question = tuple[tuple[SchedulingRequest, ...], tuple[NodeState, ...], tuple[PoolRoom, ...]]


class Packer:
    """
    `pack` with its last result: while the same pods wait for the same nodes, nothing is packed again.

    Not thread-safe: one owner calls it.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._last: tuple[_Question, Packing] | None = None
        self._served: dict[tuple[str, SchedulingRequest], bool] = {}
        self._empty: dict[str, NodeState] = {}

    def pack(
        self, asks: Sequence[SchedulingRequest], coming: Sequence[NodeState], pools: Sequence[PoolRoom]
    ) -> Packing:
        """`pack`, or its last result for the same input."""
        question = tuple(asks), tuple(coming), tuple(pools)
        if self._last is None or self._last[0] != question:
            self._last = question, pack(asks, coming, pools, self._limits)
        return self._last[1]

    def serves(self, pool: str, empty: NodeState, ask: SchedulingRequest) -> bool:
        """Whether a pod would fit on an empty node of a pool."""
        if self._empty.get(pool) != empty or len(self._served) > _MOST_REMEMBERED:
            self._empty[pool] = empty
            self._served = {key: held for key, held in self._served.items() if key[0] != pool}
        found = self._served.get((pool, ask))
        if found is None:
            found = self._served[pool, ask] = bool(pack([ask], [], [PoolRoom(pool, empty, 1)], self._limits).places[0])
        return found


def pack(
    asks: Sequence[SchedulingRequest],
    coming: Sequence[NodeState],
    pools: Sequence[PoolRoom],
    limits: Limits,
    *,
    steps: int = _STEPS,
) -> Packing:
    """
    Place pods, in the order of the queue, on the nodes `coming` and on new nodes of `pools`.

    An earlier pod is never left out for later ones. The result opens as few nodes of the last pool as possible, then as
    few of the last but one, and so on: pools are listed with the preferred one first. Nodes that are being added anyway
    are filled first. Every opened node gets a pod.

    If `steps` are not enough, the result is the best that was found. Then only the pods that would need more than their
    part of the evaluations are left out.
    """
    shapes = list(dict.fromkeys(asks[:MOST_ASKS]))
    numbers = {ask: number for number, ask in enumerate(shapes)}
    states = NodeStates(shapes, limits, Steps(steps))
    start = _Bins(
        Counter(states.given(node) for node in coming),
        [min(max(pool.most, 0), len(asks)) for pool in pools],
        [states.given(pool.node) for pool in pools],
    )
    waiting = [numbers[ask] for ask in asks[:MOST_ASKS]]
    packer = _Packer(states, start)
    steps_taken = packer.fewest(packer.served(waiting))
    places = _places(waiting, steps_taken, coming, pools, states)
    opened = Counter(~step.before for step in steps_taken if step.before < 0)
    return Packing(
        tuple((pool.name, opened[position]) for position, pool in enumerate(pools) if opened[position]),
        (*places, *("" for _ in asks[MOST_ASKS:])),
        packer.exact and states.complete and len(asks) <= MOST_ASKS,
    )


@dataclass(frozen=True, slots=True)
class _Step:
    """One placement: the pod's shape, and the node's state before and after; before, `~pool` for a new node."""

    shape: int
    before: int
    after: int


@dataclass(slots=True)
class _Bins:
    """Nodes in use by their states; per pool, the number that may still be opened and the state of an empty node."""

    used: Counter[int]
    left: list[int]
    empty: Sequence[int]

    def copy(self, left: Sequence[int] | None = None) -> _Bins:
        return _Bins(self.used.copy(), list(self.left if left is None else left), self.empty)

    def put(self, step: _Step) -> None:
        if step.before < 0:
            self.left[~step.before] -= 1
        else:
            self._less(step.before)
        self.used[step.after] += 1

    def take_back(self, step: _Step) -> None:
        self._less(step.after)
        if step.before < 0:
            self.left[~step.before] += 1
        else:
            self.used[step.before] += 1

    def _less(self, state: int) -> None:
        if self.used[state] == 1:
            del self.used[state]
        else:
            self.used[state] -= 1

    def openable(self) -> Iterator[int]:
        """The pools from which a node may be opened; of pools with equal nodes only the first."""
        seen = set()
        for pool, (left, state) in enumerate(zip(self.left, self.empty, strict=True)):
            if left > 0 and state not in seen:
                seen.add(state)
                yield pool


Path = list[_Step]
Order = Callable[[int], tuple[int, ...]]


class _Packer:
    """Decides whether pods fit on nodes, within a bound on the steps of all calls together."""

    def __init__(self, states: NodeStates, start: _Bins) -> None:
        self.exact = True
        self._states = states
        self._start = start
        self._steps = states.steps
        measures = states.measure(start.empty)
        shapes = range(len(states.shapes))
        kinds = {*start.used, *start.empty}
        self._accepting = [frozenset(kind for kind in kinds if (kind, shape) in measures.needs) for shape in shapes]
        self._needs = [
            tuple(map(min, zip(*(measures.needs[kind, shape] for kind in accepting), strict=True))) if accepting else ()
            for shape, accepting in enumerate(self._accepting)
        ]
        """The least need of each shape by each measure."""
        self._groups = _groups(self._accepting, kinds)
        self._largest = list(map(max, zip(*map(states.room, sorted(kinds)), strict=True)))
        self._relative = [self._in_parts(need) for need in self._needs]
        self._first_pools = [
            min((pool for pool, empty in enumerate(start.empty) if empty in accepting), default=len(start.empty))
            for accepting in self._accepting
        ]
        self._orders = self._sizes()
        self._fullness: dict[int, int] = {}

    def _in_parts(self, amounts: Amounts) -> npt.NDArray[np.int64]:
        """Amounts by each measure, in thousandths of the largest empty node's amount."""
        parts = [1000 * has // all_ if all_ else 0 for has, all_ in zip(amounts, self._largest, strict=False)]
        return np.array(parts + [0] * (len(self._largest) - len(parts)), np.int64)

    def _sizes(self) -> list[Order]:
        """
        Keys by which shapes are sorted before they are placed.

        Pods that fit only on the last pools come first in each, so that others use the remaining room there. Then the
        largest come first: by the sum of their needs, by their largest need, by their GPUs.
        """
        sums = [int(parts.sum()) for parts in self._relative]
        most = [int(parts.max(initial=0)) for parts in self._relative]
        gpus = [ask.request.containers[0].count for ask in self._states.shapes]

        def key(sizes: Sequence[tuple[int, ...]]) -> Order:
            return lambda shape: (-self._first_pools[shape], *(-size for size in sizes[shape]), shape)

        by_gpus = [(count, int(parts[:1].sum())) for count, parts in zip(gpus, self._relative, strict=True)]
        return [key([(each,) for each in sums]), key([(each,) for each in most]), key(by_gpus)]

    # -- the questions, in their order ------------------------------------------------------------------------------

    def served(self, waiting: Sequence[int]) -> Path:
        """Place as many pods as possible; an earlier one is never left out for later ones."""
        possible = [shape for shape in waiting if any(self._room_at_all(kind) for kind in self._accepting[shape])]
        found = self._quickest(possible, self._start)
        if found is not None:
            return found
        taken: list[int] = []
        placed: Path = []
        bins, hopeless = self._start.copy(), set[int]()
        for number, shape in enumerate(possible, 1):
            if shape in hopeless:
                continue
            # A pod that is hard to evaluate gets only its part of the reserve, so the rest is left for others.
            is_light = self._states.weights[shape] == 1
            self._states.reserve = 0 if is_light else RESERVE * (len(possible) - number) // len(possible)
            step = next(self._ways(shape, bins), None)
            self._states.reserve = RESERVE
            if step is not None:
                bins.put(step)
                placed.append(step)
                taken.append(shape)
                continue
            answer = self._fits([*taken, shape], self._start)
            if answer is None:
                hopeless.add(shape)
                continue
            placed, bins = answer, self._start.copy()
            taken.append(shape)
            for step in placed:
                bins.put(step)
        return placed

    def fewest(self, placed: Path) -> Path:
        """The same pods on fewer nodes, if possible: fewer of the last pool, then of the one before it."""
        wanted = [step.shape for step in placed]
        placed = min((placed, *self._quick(wanted, self._start)), key=lambda steps: self._cost(steps))
        most = list(self._start.left)
        for pool in reversed(range(len(most))):
            most[pool] = self._opened(placed)[pool]
            while most[pool]:
                fewer = [*most[:pool], most[pool] - 1, *most[pool + 1 :]]
                answer = self._fits(wanted, self._start.copy(fewer))
                if answer is None:
                    break
                placed = answer
                most[pool] = self._opened(placed)[pool]
        return placed

    def _room_at_all(self, kind: int) -> bool:
        return kind in self._start.used or any(
            kind == empty and left for empty, left in zip(self._start.empty, self._start.left, strict=True)
        )

    def _opened(self, placed: Path) -> list[int]:
        opened = Counter(~step.before for step in placed if step.before < 0)
        return [opened[pool] for pool in range(len(self._start.left))]

    def _cost(self, placed: Path) -> list[int]:
        return self._opened(placed)[::-1]

    # -- one question -----------------------------------------------------------------------------------------------

    def _fits(self, wanted: Sequence[int], bins: _Bins) -> Path | None:
        """The pods on these nodes; None if they do not fit, or if that stays unknown: then `exact` becomes False."""
        slack = self._slack(wanted, bins)
        if any(left < 0 for of_group in slack for left in of_group):
            return None
        if self._steps.spent:
            self.exact = False
            return None
        found = self._quickest(wanted, bins)
        return found if found is not None else self._search(wanted, bins, slack)

    def _quickest(self, wanted: Sequence[int], bins: _Bins) -> Path | None:
        return next(self._quick(wanted, bins), None)

    def _quick(self, wanted: Sequence[int], bins: _Bins) -> Iterator[Path]:
        """Placements of the pods in some quick ways: only those in which all pods fit."""
        for number, order in enumerate(self._orders):
            if number and self._steps.spent:
                return
            found = self._one_by_one(sorted(wanted, key=order), bins)
            if found is not None:
                yield found
            if not number and not self._steps.spent:
                found = self._node_by_node(wanted, bins)
                if found is not None:
                    yield found

    def _node_by_node(self, wanted: Sequence[int], bins: _Bins) -> Path | None:
        """
        Fill each node before the next one: nodes in use, then new ones for the largest of the remaining pods.

        Pods that fit only on the last pools come first; others then use the remaining room.
        """
        bins, placed = bins.copy(), Path()
        for pool in sorted({self._first_pools[shape] for shape in wanted}, reverse=True):
            left = Counter(shape for shape in wanted if self._first_pools[shape] == pool)
            for state in sorted(bins.used.elements(), key=lambda state: (self._free(state), state)):
                self._fill(state, left, bins, placed)
            while left:
                step = self._first_way(min(left, key=self._orders[0]), bins, ())
                if step is None:
                    return None
                self._put(step, left, bins, placed)
                self._fill(step.after, left, bins, placed)
        return placed

    def _fill(self, state: int, left: Counter[int], bins: _Bins, placed: Path) -> None:
        """
        Place remaining pods on a node until no more fit.

        The next pod is always the one whose needs by all measures are nearest to the room. (Panigrahy and others,
        "Heuristics for vector bin packing", 2011, the norm-based one.)
        """
        while left:
            shapes, room = list(left), self._in_parts(self._states.room(state))
            needs = np.array([self._relative[shape] for shape in shapes])
            far = ((room - needs) ** 2).sum(axis=1) + np.where((needs <= room).all(axis=1), 0, _NEVER)
            for at in np.argsort(far, kind="stable")[:_MOST_TRIES]:
                self._steps.left -= 1
                after = self._states.after(state, shapes[at]) if far[at] < _NEVER else None
                if after is not None:
                    self._put(_Step(shapes[at], state, after), left, bins, placed)
                    state = after
                    break
            else:
                return

    def _put(self, step: _Step, left: Counter[int], bins: _Bins, placed: Path) -> None:
        bins.put(step)
        placed.append(step)
        left[step.shape] -= 1
        if not left[step.shape]:
            del left[step.shape]

    def _one_by_one(self, wanted: Iterable[int], bins: _Bins) -> Path | None:
        """Place each pod on the fullest node in use with room for it, else on a new node of the first suitable pool."""
        bins, placed = bins.copy(), []
        ranked = sorted((self._free(state), state) for state in bins.used)
        for shape in wanted:
            self._steps.left -= 1
            step = self._first_way(shape, bins, ranked)
            if step is None:
                return None
            bins.put(step)
            placed.append(step)
            if step.before >= 0 and step.before not in bins.used:
                del ranked[bisect_left(ranked, (self._free(step.before), step.before))]
            if bins.used[step.after] == 1:
                insort(ranked, (self._free(step.after), step.after))
        return placed

    def _first_way(self, shape: int, bins: _Bins, ranked: Sequence[tuple[int, int]]) -> _Step | None:
        for _, state in ranked:
            after = self._states.after(state, shape)
            if after is not None:
                return _Step(shape, state, after)
        for pool in bins.openable():
            after = self._states.after(bins.empty[pool], shape)
            if after is not None:
                return _Step(shape, ~pool, after)
        return None

    def _ways(self, shape: int, bins: _Bins) -> Iterator[_Step]:
        """Every way to place a pod of this shape, nodes in use first, the fullest of them first."""
        nodes = [(state, state) for state in sorted(bins.used, key=lambda state: (self._free(state), state))]
        nodes += [(~pool, bins.empty[pool]) for pool in bins.openable() if bins.empty[pool] not in bins.used]
        for before, state in nodes:
            for way in count():
                after = self._states.after(state, shape, way)
                if after is None:
                    break
                yield _Step(shape, before, after)

    def _free(self, state: int) -> int:
        """The approximate room of the state, to distinguish full nodes from empty ones."""
        known = self._fullness.get(state)
        if known is None:
            room, given = self._states.room(state), self._states.room(self._states.kinds[state])
            known = sum(1000 * has // all_ for has, all_ in zip(room, given, strict=True) if all_)
            self._fullness[state] = known
        return known

    def _search(self, wanted: Sequence[int], bins: _Bins, slack: list[list[int]]) -> Path | None:
        """
        Try every way to place the pods, depth first, in half of the remaining steps.

        This is a loop and not a recursion, because its depth is the number of pods.
        """
        order = sorted(wanted, key=self._orders[0])
        bins, placed, most = bins.copy(), Path(), self._steps.left // 2
        failed: set[tuple[int, frozenset[tuple[int, int]], tuple[int, ...]]] = set()
        slacks = [slack]
        to_try = [self._ways(order[0], bins)]
        while to_try:
            step = next(to_try[-1], None)
            if step is None:
                failed.add((len(placed), frozenset(bins.used.items()), tuple(bins.left)))
                to_try.pop()
                slacks.pop()
                if placed:
                    bins.take_back(placed.pop())
                continue
            self._steps.left -= 1
            if self._steps.left < most:
                self.exact = False
                return None
            bins.put(step)
            placed.append(step)
            if len(placed) == len(order):
                return placed
            after = self._slack_after(slacks[-1], step, bins)
            if after is None or (len(placed), frozenset(bins.used.items()), tuple(bins.left)) in failed:
                bins.take_back(placed.pop())
                continue
            slacks.append(after)
            to_try.append(self._ways(order[len(placed)], bins))
        return None

    # -- what sums over all pods say --------------------------------------------------------------------------------

    def _slack(self, wanted: Iterable[int], bins: _Bins) -> list[list[int]]:
        """
        For each group of kinds of nodes and each measure, the room of these nodes beyond the needs of the pods that fit
        nowhere else. Pods fit only if no value is negative.
        """
        counts = Counter(wanted)
        slack = []
        for group in self._groups:
            rooms = [(state, number) for state, number in bins.used.items() if self._states.kinds[state] in group]
            rooms += [(s, n) for s, n in zip(bins.empty, bins.left, strict=True) if n > 0 and s in group]
            within = [(self._needs[shape], n) for shape, n in counts.items() if self._accepting[shape] <= group]
            has = [[n * each for each in self._states.room(state)] for state, n in rooms]
            needs = [[n * each for each in need] for need, n in within]
            if needs:
                total = list(map(sum, zip(*has, strict=True))) if has else [0] * len(needs[0])
                slack.append(list(map(sub, total, map(sum, zip(*needs, strict=True)))))
            else:
                slack.append([])
        return slack

    def _slack_after(self, slack: Sequence[list[int]], step: _Step, bins: _Bins) -> list[list[int]] | None:
        """The slack with this pod on a node; None if it becomes negative."""
        before = bins.empty[~step.before] if step.before < 0 else step.before
        kind = self._states.kinds[before]
        was, now = self._states.room(before), self._states.room(step.after)
        after = []
        for group, of_group in zip(self._groups, slack, strict=True):
            left = of_group
            if of_group and kind in group:
                if self._accepting[step.shape] <= group:
                    rows = zip(of_group, self._needs[step.shape], was, now, strict=True)
                    left = [slack + need - had + has for slack, need, had, has in rows]
                else:
                    left = [slack - had + has for slack, had, has in zip(of_group, was, now, strict=True)]
                if min(left) < 0:
                    return None
            after.append(left)
        return after


_MOST_GROUPS = 6


def _groups(accepting: Sequence[frozenset[int]], kinds: Iterable[int]) -> list[frozenset[int]]:
    """The set of all kinds of nodes, and the smallest sets of kinds outside which some pods do not fit."""
    everything = frozenset(kinds)
    some = sorted({each for each in accepting if each} - {everything}, key=lambda group: (len(group), sorted(group)))
    return [everything, *some[: _MOST_GROUPS - 1]]


def _places(
    waiting: Sequence[int],
    placed: Path,
    coming: Sequence[NodeState],
    pools: Sequence[PoolRoom],
    states: NodeStates,
) -> list[str]:
    """
    The name of each pod's node, in the order of the queue. Of equal pods the earlier ones get nodes that are being
    added anyway. A pool's nodes are numbered by the first pod on each.
    """
    at: dict[int, list[int]] = {}
    names: dict[int, str] = {number: node.name for number, node in enumerate(coming)}
    for number, node in enumerate(coming):
        at.setdefault(states.given(node), []).append(number)
    pool_of: dict[int, int] = {}
    nodes_of: dict[int, list[int]] = {}
    for step in placed:
        if step.before < 0:
            node_number = len(coming) + len(pool_of)
            pool_of[node_number] = ~step.before
        else:
            node_number = at[step.before].pop(0)
        at.setdefault(step.after, []).append(node_number)
        nodes_of.setdefault(step.shape, []).append(node_number)
    numbered: Counter[int] = Counter()
    places = []
    for shape in waiting:
        nodes = nodes_of.get(shape)
        if not nodes:
            places.append("")
            continue
        chosen = min(nodes, key=lambda number: (number >= len(coming), number not in names, number))
        nodes.remove(chosen)
        if chosen not in names:
            pool = pool_of[chosen]
            numbered[pool] += 1
            names[chosen] = f"{pools[pool].name}/{numbered[pool]}"
        places.append(names[chosen])
    return places
