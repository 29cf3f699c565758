"""
The demand seen, turned into numbers to look up: what the remainders of a node's cards and its free CPU are good for.

Two measures, both sums over the cards of a node, so that a placement changes only the terms of the cards it touches:

Fragmentation (Weng et al., "Beware of Fragmentation", USENIX ATC'23): of the node's free card thousandths those that a
request drawn from the demand could not use, on average over the requests. Counted here as what it could use, weighed
by whole numbers, so that every machine gets the same sums.

Worth: the most valuable shares that could still be put on the node, by their cutting-stock prices. CPU is bought for
them at a price per core; the lowest total over a list of such prices is taken (a Lagrangian bound of the knapsack over
cards and CPU). Two functions of worth: shares by price alone, and with a part for the CPU that they use, which matters
where CPU and not GPUs will run out. In millionths of a card of average memory: a card counts by its memory, else a
share in bytes, which takes a smaller part of a larger card, would always look cheaper on the largest.

Pure; a finished table never changes. Making one takes tens of milliseconds, so it is done alongside the decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from allocator.scoring import constants
from allocator.scoring import pricing as stock
from allocator.scoring.classes import CARD, SIDE, Demanded, Kind, Supply
from contract.model import MOST_GPUS, WHOLE

Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Target = Mapping[Demanded, float]
"""The frequency of each class of request, in any unit."""

Prices = dict[tuple[tuple[int, float], ...], dict[int, float]]

LANES = len(constants.CPU_PRICES)
"""Prices of CPU, side by side in the tables."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """
    One state of what was learnt, for one of the policies: `target` is the demand from which the rest was made.

    `kinds` numbers the kinds of card from 1; 0 stands for a kind that joined later, on which nothing has any worth.
    `worth[kind, remainder]` holds `LANES` numbers per function of worth, none under `fragmentation`; `cpu_prices` is
    their price of a thousandth of a core. `cpu_steps` are the CPU amounts at which requests become possible;
    `single[kind, step, remainder]` and `several[kind, step, free cards]` say what can be used of the free thousandths,
    times weight, and `weight` is the sum of weights. `levels` are the bounds between which changes of fragmentation
    count as equal. `scarcity` per kind: in millionths, how much more than its part is requested by name.

    `roomy`: whether neither CPU nor models are scarce. Then worth does not go by CPU, and nodes of
    equal cost are taken in the order of best fit: whole cards stay together for requests that nothing announced.
    `sided[kind, place]` takes the place of `worth` where shares are priced by both sides; else there is none.
    `limited`: whether some requests can be served by some kinds only, so that what is taken changes the scarcity.
    `largest`: between equals, nodes with fewer cards than this come sooner (`allocator.scoring.reference.order`).
    `awaited` is not learned but given: the most whole cards of one node that a waiting pod requests, 0 if none asks
    for several (`allocator.scoring.reference.spared`).
    """

    policy: str
    target: Target
    kinds: Mapping[Kind, int]
    worth: Ints
    cpu_prices: Ints
    cpu_steps: Longs
    single: Longs
    several: Longs
    weight: int
    levels: Longs
    scarcity: Longs
    limited: bool = False
    roomy: bool = False
    largest: int = 0
    sided: Ints | None = None
    awaited: int = 0


def fragmentation(target: Target, supply: Supply) -> Tables:
    """The published policy: the change of fragmentation in 100 levels, nothing else."""
    return _tables("fragmentation", target, supply, levels=constants.LEVELS_OF_FRAGMENTATION, lanes=0)


def value(target: Target, supply: Supply) -> Tables:
    """Our own: worth first, and the change of fragmentation between equals."""
    return _tables("value", target, supply, levels=constants.LEVELS_BETWEEN_EQUALS, lanes=2 * LANES)


BUILDERS = {"fragmentation": fragmentation, "value": value}


def _tables(policy: str, target: Target, supply: Supply, *, levels: int, lanes: int) -> Tables:
    kinds = {kind: number for number, kind in enumerate(sorted(supply.stocks), 1)}
    weights = _popular(target)
    steps = _cpu_steps(weights)
    roomy = bool(lanes) and is_roomy(target, supply)
    single, several = _usable(weights, kinds, steps, whole_cards=not roomy)
    total = sum(weights.values())
    bounds = [math.ceil(1000 * math.log(level / (levels - level)) * total) for level in range(1, levels)]
    worth = np.zeros((len(kinds) + 1, CARD + 1, lanes), np.int32)
    scarcity = np.zeros(len(kinds) + 1, np.int64)
    if lanes:
        pressed, cpu_per_card = pressure(target, supply)
        prices: Prices = {}
        for kind, number in kinds.items():
            counts = kind.capacity / supply.capacity * supply.cards if supply.capacity else 1.0
            offer = Offer(kind, supply.stocks[kind].cpu, counts, pressed, cpu_per_card)
            worth[number] = _worth(without_cpu(target) if roomy else target, offer, prices)
            scarcity[number] = round(constants.ONE * counts * scarce_in_steps(target, supply, kind))
    sided = None
    if roomy and is_two_sided(target):
        sided = np.zeros((len(kinds) + 1, SIDE * SIDE), np.int32)
        for kind, number in kinds.items():
            counts = kind.capacity / supply.capacity * supply.cards if supply.capacity else 1.0
            sided[number] = _worth_by_sides(target, kind, constants.ONE * counts)
    cpu_prices = np.array(constants.CPU_PRICES * (lanes // LANES), np.int32)
    return Tables(
        policy,
        target,
        kinds,
        worth,
        cpu_prices,
        np.array(steps, np.int64),
        single,
        several,
        total,
        np.array(bounds),
        scarcity,
        bool(lanes) and any(d.count and not _everywhere(d, supply) for d in target),
        roomy,
        supply.largest if lanes else 0,
        sided,
    )


def _popular(target: Target) -> dict[Demanded, int]:
    """The most frequent classes until `COVERED` of the requests are in, with whole weights."""
    total = sum(target.values())
    ordered = sorted(target.items(), key=lambda item: (-item[1], _largest_first(item[0])))
    chosen: dict[Demanded, int] = {}
    covered = 0.0
    for demanded, amount in ordered:
        if covered >= constants.COVERED * total:
            break
        chosen[demanded] = max(1, round(constants.WEIGHTS * amount / total))
        covered += amount
    return chosen


def _largest_first(d: Demanded) -> tuple[object, ...]:
    return (
        -d.cpu,
        -d.count,
        -d.memory,
        -d.percent,
        -d.cores,
        not d.exclusive,
        d.use_models,
        d.avoid_models,
        d.least_memory,
    )


def _cpu_steps(weights: Mapping[Demanded, int]) -> list[int]:
    steps = sorted({demanded.cpu for demanded in weights})
    if len(steps) > (most := constants.MOST_CPU_STEPS):
        steps = [steps[-1 - at * len(steps) // most] for at in range(most)][::-1]
    return steps


def _usable(
    weights: Mapping[Demanded, int], kinds: Mapping[Kind, int], steps: list[int], *, whole_cards: bool
) -> tuple[Longs, Longs]:
    """
    The part of a card, and of a node's free cards, that the demand can use, by the free CPU.

    A request for a part of each of several cards counts as if for one of them. So does one for several whole cards
    without `whole_cards`: best fit keeps them together, and the measure would keep pairs on many nodes for requests for
    two and leave no node for larger ones.
    """
    single = np.zeros((len(kinds) + 1, len(steps) + 1, CARD + 1), np.int64)
    several = np.zeros((len(kinds) + 1, len(steps) + 1, MOST_GPUS + 1), np.int64)
    for kind, number in kinds.items():
        for demanded, weight in weights.items():
            size = demanded.size_on(kind)
            if demanded.count == 0 or size > CARD or not demanded.accepts(kind):
                continue
            step = next(at for at, cpu in enumerate(steps) if cpu >= demanded.cpu) + 1
            if whole_cards and demanded.count > 1 and size == CARD:
                several[number, step:, demanded.count :] += weight
            else:
                single[number, step:, size:] += weight
    return single * np.arange(CARD + 1), several * (CARD * np.arange(MOST_GPUS + 1))


def pressure(target: Target, supply: Supply) -> tuple[float, float]:
    """How much CPU counts in a share's worth (0 to `PRESSED`), and the cluster's CPU (thousandths) per card."""
    if not supply.cards or not supply.cpu:
        return 0.0, 1.0
    part = min(1.0, max(0.0, (_cpu_needed(target, supply) - constants.PRESSED_FROM) / constants.PRESSED_OVER))
    return constants.PRESSED * part, supply.cpu / supply.cards


def _cpu_needed(target: Target, supply: Supply) -> float:
    """The demand's CPU per card over the cluster's CPU per card; 0 if either is unknown."""
    if not supply.cards or not supply.cpu:
        return 0.0
    cpu = sum(amount * d.cpu for d, amount in target.items())
    volume = sum(amount * d.count * _typical(d, supply) for d, amount in target.items())
    return cpu / volume * CARD / (supply.cpu / supply.cards) if volume else 0.0


def is_roomy(target: Target, supply: Supply) -> bool:
    """
    Whether neither CPU nor models are scarce.

    What was not requested yet cannot be learnt. So as long as nobody requests all cards of the largest node, a part of
    the demand is taken to be such requests (`PRIOR_OF_LARGE`): whole cards need less CPU than as many cards of shares.
    """
    if names_models(target):
        return False
    needed = _cpu_needed(target, supply)
    per_card = needed * supply.cpu / max(supply.cards, 1)
    tight = sum(stock.cards for stock in supply.stocks.values() if stock.cpu < per_card * stock.together)
    if tight > constants.MOST_TIGHT * supply.cards:
        return False
    whole = {d: amount for d, amount in target.items() if d.count and d.exclusive}
    if whole and not any(d.count >= supply.largest for d in whole):
        needed += constants.PRIOR_OF_LARGE * min(0.0, _cpu_needed(whole, supply) - needed)
    return needed < constants.ROOMY_BELOW


def without_cpu(target: Target) -> Target:
    """The same demand with unlimited CPU: a card's worth does not depend on the CPU alongside it."""
    found: dict[Demanded, float] = {}
    for each, amount in target.items():
        bare = replace(each, cpu=0)
        found[bare] = found.get(bare, 0.0) + amount
    return found


def names_models(target: Target) -> bool:
    """Whether so many requests name models or sizes of card that these count as scarce."""
    total = sum(amount for d, amount in target.items() if d.count)
    named = sum(amount for d, amount in target.items() if d.use_models or d.avoid_models or d.least_memory)
    return named >= constants.NAMED_FROM * total > 0


def _typical(demanded: Demanded, supply: Supply) -> float:
    """Its size on the cluster's cards, on average."""
    sizes = ((min(demanded.size_on(kind), CARD), stock.cards) for kind, stock in supply.stocks.items())
    return sum(size * cards for size, cards in sizes) / supply.cards


def scarce(target: Target, supply: Supply, kind: Kind) -> float:
    """
    The part of the demand that only some kinds can serve, this one among them, over this kind's part of what is free.

    Because it names models, or because it is too large for other cards. Where models are named, so are the kinds that
    have enough cards on one node: otherwise requests that name nothing would fill the large nodes for the sake of the
    small ones. Demand that several kinds can serve is split between them by what is free of them.
    """
    total = only = 0.0
    named = names_models(target)
    for demanded, amount in target.items():
        able = {
            each: stock.free
            for each, stock in supply.stocks.items()
            if _serves(each, demanded) and (not named or demanded.count <= stock.together)
        }
        volume = amount * demanded.count * _typical(demanded, supply) if demanded.count else 0.0
        total += volume
        if kind in able and len(able) < len(supply.stocks):
            only += volume / max(sum(able.values()), 1)
    return min(constants.MOST_SCARCE, only / total * supply.free) if total else 0.0


def scarce_in_steps(target: Target, supply: Supply, kind: Kind) -> float:
    """`scarce`, rounded to the nearest of `SCARCITY_STEPS`."""
    return math.floor(scarce(target, supply, kind) * constants.SCARCITY_STEPS + 0.5) / constants.SCARCITY_STEPS


def _everywhere(demanded: Demanded, supply: Supply) -> bool:
    """Whether every kind or none can serve it."""
    return len({_serves(kind, demanded) for kind in supply.stocks}) <= 1


def _serves(kind: Kind, demanded: Demanded) -> bool:
    return demanded.accepts(kind) and demanded.size_on(kind) <= CARD


@dataclass(frozen=True, slots=True)
class Offer:
    """One kind of card: the CPU of the largest node with it, what it counts, and `pressure`'s figures."""

    kind: Kind
    most_cpu: int
    counts: float
    pressed: float
    cpu_per_card: float


def _worth(target: Target, offer: Offer, known: Prices) -> Ints:
    """
    `stock.fillings` of one kind of card, both functions of worth side by side.

    `known` keeps the prices of demands that were solved before: kinds of one memory size see the same one.
    """
    kind, one, pressed = offer.kind, constants.ONE * offer.counts, offer.pressed
    shares = _shares(target, kind)
    amounts: dict[int, float] = {}
    for demanded, (size, amount) in shares.items():
        if size < CARD and demanded.count == 1:
            amounts[size] = amounts.get(size, 0.0) + amount
    key = tuple(sorted(amounts.items()))
    if key not in known:
        known[key] = stock.prices(amounts) | {CARD: 1.0}
    price = known[key]
    lane_prices = np.array(constants.CPU_PRICES, np.int64)
    values: dict[int, Ints] = {}
    for demanded, (size, _) in shares.items():
        if demanded.cpu > offer.most_cpu or demanded.count != 1 or not demanded.accepts(kind):
            continue
        alone = round(one * price[size])
        with_cpu = round(one * ((1 - pressed) * price[size] + pressed * demanded.cpu / offer.cpu_per_card))
        cost = lane_prices * demanded.cpu
        lanes = np.maximum(np.concatenate([alone - cost, with_cpu - cost]), 0).astype(np.int32)
        values[size] = np.maximum(values[size], lanes) if size in values else lanes
    return stock.fillings(values, 2 * LANES)


def is_two_sided(target: Target) -> bool:
    """Whether there are enough shares of either sort: more memory than cores, and more cores than memory."""
    total = by_memory = by_cores = 0.0
    for d, amount in target.items():
        if not d.count or d.exclusive:
            continue
        total += amount
        by_memory += amount * (d.memory > 0 or d.percent > d.cores)
        by_cores += amount * (not d.memory and d.cores > d.percent)
    return min(by_memory, by_cores) > constants.TWO_SIDED_FROM * total > 0


def _worth_by_sides(target: Target, kind: Kind, one: float) -> Ints:
    """`_worth` where both sides count: without CPU, since the cluster is roomy."""
    amounts: dict[stock.Sides, float] = {}
    for d, amount in target.items():
        if d.count == 1 and not d.exclusive and d.size_on(kind) <= CARD:
            size = d.sides_on(kind)
            amounts[size] = amounts.get(size, 0.0) + amount
    popular = dict(sorted(amounts.items(), key=lambda item: (-item[1], item[0]))[: constants.MOST_SIZES])
    prices = stock.prices_by_sides(popular) | {(WHOLE, WHOLE): 1.0}
    return stock.fillings_by_sides({size: round(one * price) for size, price in prices.items()})


def _shares(target: Target, kind: Kind) -> dict[Demanded, tuple[int, float]]:
    """The classes that fit a card of this kind: each with its size, rounded up where there are too many, and amount."""
    sizes = {d: d.size_on(kind) for d in target if d.count}
    grid = stock.coarse([size for size in sizes.values() if size <= CARD])
    return {d: (-(-size // grid) * grid, target[d]) for d, size in sizes.items() if size <= CARD}
