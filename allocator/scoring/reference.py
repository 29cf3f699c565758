"""
The cost of a placement on one node, by the tables: the specification, readable and slow.

`allocator.scoring.ranking` gives the same numbers for all nodes at once; a property test holds the two equal. Whole
numbers only, so that they are equal. Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from allocator.scoring import constants
from allocator.scoring.classes import CARD, card_place, kind_of, left, place, remainder, sides_left
from allocator.scoring.tables import LANES, Tables
from allocator.table import TIE_BITS, tie
from contract.model import FractionRequest, NodeState, PodRequest
from contract.reasons.nodes import Reason
from contract.scheduling import fit
from contract.scheduling.filters import Limits, gpu_reason
from contract.scheduling.fit import Fit


@dataclass(frozen=True, slots=True)
class Room:
    """
    A node as the tables see it. `kinds`, `left` and `places` (by both sides) run parallel to its GPUs; `cpu` is free,
    in thousandths.
    """

    kinds: tuple[int, ...]
    left: tuple[int, ...]
    cpu: int
    places: tuple[int, ...] = ()


def evaluate(
    node: NodeState, request: PodRequest, cpu: int, limits: Limits, tables: Tables
) -> tuple[int, Fit] | Reason:
    """
    The score of a node that passes the filters (smaller is better; ties included), with the cards that give it.

    A pod of one container, or one whose containers share their cards; `cpu` is the pod's. Several cards are taken
    best fit first; for one card each that bears it is tried. Of cards of equal cost the first is taken; in a roomy
    cluster the one that is left with least.
    """
    found = fit.fit(node, request, limits, fit.least_free)
    if isinstance(found, Reason):
        return found
    if not request.containers:
        here = cost(node, None, (), cpu, limits, tables)
        return _ranked(here, room(node, limits, tables).left, node, limits, tables), found
    fraction = fit.combined(request) if request.same_gpus else request.containers[0]
    choices = list(_choices(node, fraction, limits, found))
    costs = [cost(node, fraction, positions, cpu, limits, tables) for positions in choices]
    left_of = [_left_after(node, fraction, positions, room(node, limits, tables), limits)[0] for positions in choices]
    fits = [left[positions[0]] if tables.roomy else 0 for left, positions in zip(left_of, choices, strict=True)]
    best = min(range(len(choices)), key=lambda at: (costs[at], fits[at]))
    positions = choices[best]
    memory = sum(fraction.memory_on(node.gpus[position].usable) for position in positions)
    chosen = Fit((positions,) * len(request.containers), memory, fraction.cores * len(positions))
    return _ranked(costs[best], left_of[best], node, limits, tables), chosen


def _ranked(amount: int, left_after: tuple[int, ...], node: NodeState, limits: Limits, tables: Tables) -> int:
    return (amount + spared(node, limits, tables) << TIE_BITS) + order(node, left_after, tables)


def spared(node: NodeState, limits: Limits, tables: Tables) -> int:
    """
    What it costs to use a node from which a waiting pod may get its whole cards, by the cards that are free there.

    So other pods go to smaller nodes, and to those with fewer free cards, and the rest become entirely free. This does
    not apply if only some kinds of card can serve some requests: those kinds would be filled with pods that fit
    anywhere.
    """
    if not tables.awaited or tables.limited or len(node.gpus) < tables.awaited:
        return 0
    return constants.PER_SPARED_NODE + constants.PER_FREE_CARD * room(node, limits, tables).left.count(CARD)


def order(node: NodeState, left_after: tuple[int, ...], tables: Tables) -> int:
    """
    The order of nodes of equal cost, the least first. `left_after`: what is left of its cards after the placement.

    In a roomy cluster that of best fit, the fullest node first, then the hash of the name. Else the hash, of which a
    quarter counts on a node with fewer cards than the largest: small nodes fill sooner, and requests for whole large
    nodes find some later.
    """
    if tables.roomy:
        free = sum(left_after) * constants.FREE_STEPS // max(len(node.gpus), 1)
        return (free << TIE_BITS - constants.FREE_BITS) + (tie(node.name) >> constants.FREE_BITS)
    return tie(node.name) >> (constants.SMALLER_SOONER if len(node.gpus) < tables.largest else 0)


def _choices(node: NodeState, fraction: FractionRequest, limits: Limits, found: Fit) -> Iterator[tuple[int, ...]]:
    if fraction.count > 1:
        yield found.chosen[0]
        return
    for position, (gpu, usage) in enumerate(zip(node.gpus, node.usage, strict=True)):
        if gpu_reason(gpu, usage, fraction, limits) is None:
            yield (position,)


def cost(
    node: NodeState,
    fraction: FractionRequest | None,
    positions: tuple[int, ...],
    cpu: int,
    limits: Limits,
    tables: Tables,
) -> int:
    """The cost, in millionths of a card, of placing this share on these cards of the node with this CPU."""
    before = room(node, limits, tables)
    left_after, places = _left_after(node, fraction, positions, before, limits)
    after = Room(before.kinds, left_after, before.cpu - cpu, places)
    level = bisect_right(tables.levels, fragments(before, tables) - fragments(after, tables))
    if tables.policy == "fragmentation":
        return -level
    lost, pressed = (loss(before, after, tables, function) for function in (0, 1))
    total = in_steps(lost, constants.STEP, constants.STEP)
    total += in_steps(pressed, constants.STEP_OF_PRESSED, constants.SHARE_OF_PRESSED)
    times, over = constants.PER_SCARCE_CARD
    for position in positions:
        assert fraction is not None
        taken = size(node, position, fraction, limits)
        total += int(tables.scarcity[before.kinds[position]]) * taken * times // (CARD * over)
    return total - constants.PER_LEVEL * level


def in_steps(lost: int, step: int, worth: int) -> int:
    """The cost of a loss with the nearest number of steps, each of which counts `worth`."""
    return worth * ((lost + step // 2 + constants.ROUNDING_SLACK) // step)


def size(node: NodeState, position: int, fraction: FractionRequest, limits: Limits) -> int:
    """The share's part of the card, on the scale of `CARD`."""
    from_free = left(
        limits.capacity(node.gpus[position]), fraction.memory_on(node.gpus[position].usable), fraction.cores
    )
    return CARD if fraction.exclusive else CARD - from_free


def room(node: NodeState, limits: Limits, tables: Tables) -> Room:
    """The node by the tables' kinds and scale."""
    return Room(
        tuple(tables.kinds.get(kind_of(gpu, limits), 0) for gpu in node.gpus),
        tuple(remainder(gpu, usage, limits) for gpu, usage in zip(node.gpus, node.usage, strict=True)),
        node.allocatable.cpu - node.requested.cpu,
        tuple(card_place(gpu, usage, limits) for gpu, usage in zip(node.gpus, node.usage, strict=True)),
    )


def _left_after(
    node: NodeState, fraction: FractionRequest | None, positions: tuple[int, ...], before: Room, limits: Limits
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The remainder of each card, and its positions by both sides."""
    remains, places = list(before.left), list(before.places)
    for position in positions:
        assert fraction is not None
        gpu, usage = node.gpus[position], node.usage[position]
        if fraction.exclusive or usage.sharers + 1 >= limits.sharers(gpu):
            remains[position] = places[position] = 0
        else:
            memory = usage.memory + fraction.memory_on(gpu.usable)
            sides = sides_left(limits.capacity(gpu), memory, usage.cores + fraction.cores)
            remains[position], places[position] = max(0, min(sides)), place(*sides)
    return tuple(remains), tuple(places)


def fragments(state: Room, tables: Tables) -> int:
    """The node's free thousandths that the demand cannot use, times `Tables.weight`."""
    step = bisect_right(tables.cpu_steps, state.cpu)
    usable = sum(int(tables.single[kind, step, remains]) for kind, remains in zip(state.kinds, state.left, strict=True))
    free = sum(remains == CARD for remains in state.left)
    if state.kinds:
        usable += int(tables.several[state.kinds[0], step, free])
    return sum(state.left) * tables.weight - usable


def loss(before: Room, after: Room, tables: Tables, function: int) -> int:
    """The loss of the node's worth, by one of the two functions of worth."""
    return worth(before, tables, function) - worth(after, tables, function)


def worth(state: Room, tables: Tables, function: int) -> int:
    """The most valuable shares that could still be put on the node, at the CPU price that allows the least."""
    if tables.sided is not None:
        return sum(int(tables.sided[kind, at]) for kind, at in zip(state.kinds, state.places, strict=True))
    lanes = range(function * LANES, (function + 1) * LANES)
    return min(
        int(tables.cpu_prices[lane]) * state.cpu
        + sum(int(tables.worth[kind, remains, lane]) for kind, remains in zip(state.kinds, state.left, strict=True))
        for lane in lanes
    )
