"""
The value of a share of a card: the prices of the cutting-stock problem, and the best filling of the rest.

Cutting cards into shares so that as few cards as possible serve a given demand is a linear program; its dual gives each
size of share a price in cards, its own part and the waste that it causes (Gilmore and Gomory 1961, "A Linear
Programming Approach to the Cutting-Stock Problem"). A share of 810 costs a whole card where nothing fits alongside it;
one that fills the holes which others leave costs nothing. At most `MOST_SIZES` sizes, so a dense simplex does. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from allocator.scoring import constants
from allocator.scoring.classes import CARD, SIDE
from contract.model import WHOLE

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.int32]

Sides = tuple[int, int]
"""Percent of a card's memory and of its cores."""

_NOTHING = 1e-9


def coarse(sizes: Sequence[int]) -> int:
    """The finest grid, in thousandths of a card, on which the sizes rounded up are at most `MOST_SIZES`."""
    for grid in constants.GRIDS:
        if len({-(-size // grid) for size in sizes}) <= constants.MOST_SIZES:
            return grid
    return constants.GRIDS[-1]


def prices(amounts: Mapping[int, float]) -> dict[int, float]:
    """
    The price in cards of a share of each size (1 to `CARD` less 1), from how often each is requested.

    Column generation over a simplex tableau that is solved again at each step: small, and without drift.
    """
    sizes = sorted(amounts)
    if not sizes:
        return {}
    needed = np.array([amounts[size] for size in sizes])
    dual = _dual(needed, [CARD // size for size in sizes], partial(_best_cut, sizes))
    return dict(zip(sizes, dual, strict=True))


def prices_by_sides(amounts: Mapping[Sides, float]) -> dict[Sides, float]:
    """The same for shares with two sides, in percent of a card each: cards are cut in both at once."""
    sizes = sorted(amounts)
    if not sizes:
        return {}
    needed = np.array([amounts[size] for size in sizes])
    dual = _dual(needed, [WHOLE // max(size) for size in sizes], partial(_best_cut_by_sides, sizes))
    return dict(zip(sizes, dual, strict=True))


def _dual(needed: Floats, alone: Sequence[int], best_cut: Callable[[Floats], tuple[Floats, float]]) -> list[float]:
    """`alone`: how many shares of each size a card takes if it takes no others."""
    number = len(needed)
    basis = np.diag([float(most) for most in alone])
    costs = np.ones(number)
    dual: Floats = costs
    for _ in range(50 * number):
        dual = np.linalg.solve(basis.T, costs)
        entering, cost = _entering(dual, best_cut)
        if entering is None:
            break
        direction = np.linalg.solve(basis, entering)
        level = np.maximum(np.linalg.solve(basis, needed), 0)
        ratios = np.full(number, np.inf)
        np.divide(level, direction, out=ratios, where=direction > _NOTHING)
        leaving = int(ratios.argmin())
        if not np.isfinite(ratios[leaving]):
            break
        basis[:, leaving], costs[leaving] = entering, cost
    clipped: list[float] = np.clip(dual, 0.0, 1.0).tolist()
    return clipped


def _entering(dual: Floats, best_cut: Callable[[Floats], tuple[Floats, float]]) -> tuple[Floats | None, float]:
    """A column that lowers the cost: serving more than is needed where a price is negative, or a better cut."""
    lowest = int(dual.argmin())
    if dual[lowest] < -_NOTHING:
        surplus = np.zeros(len(dual))
        surplus[lowest] = -1.0
        return surplus, 0.0
    cut, worth = best_cut(dual)
    return (cut, 1.0) if worth > 1 + 1e-7 else (None, 1.0)


def _best_cut(sizes: Sequence[int], dual: Floats) -> tuple[Floats, float]:
    """The most valuable way to cut one card (an unbounded knapsack)."""
    step = math.gcd(*sizes)
    widths, room = [size // step for size in sizes], CARD // step
    best, last = [0.0] * (room + 1), [-1] * (room + 1)
    items = [(width, float(price), at) for at, (width, price) in enumerate(zip(widths, dual, strict=True)) if price > 0]
    for at in range(1, room + 1):
        most, item = best[at - 1], -1
        for width, price, number in items:
            if width <= at and best[at - width] + price > most + _NOTHING:
                most, item = best[at - width] + price, number
        best[at], last[at] = most, item
    cut, at = np.zeros(len(sizes)), room
    while at > 0:
        if last[at] < 0:
            at -= 1
        else:
            cut[last[at]] += 1
            at -= widths[last[at]]
    return cut, best[room]


def _best_cut_by_sides(sizes: Sequence[Sides], dual: Floats) -> tuple[Floats, float]:
    """The most valuable way to cut one card in two dimensions."""
    best, last = _filled({size: float(price) for size, price in zip(sizes, dual, strict=True) if price > _NOTHING})
    cut, memory, cores = np.zeros(len(sizes)), WHOLE, WHOLE
    items = [size for size, price in zip(sizes, dual, strict=True) if price > _NOTHING]
    while (item := int(last[memory, cores])) >= 0:
        cut[sizes.index(items[item])] += 1
        memory, cores = memory - items[item][0], cores - items[item][1]
    return cut, float(best[WHOLE, WHOLE])


def _filled(values: Mapping[Sides, float]) -> tuple[Floats, Ints]:
    """The best filling of every pair of remainders, in percent, and the share that is put there last; -1 for none."""
    best, last = np.zeros((SIDE, SIDE)), np.full((SIDE, SIDE), -1, np.int32)
    changed = True
    while changed:
        changed = False
        for number, ((memory, cores), value) in enumerate(values.items()):
            more = best[: SIDE - memory, : SIDE - cores] + value
            there, put = best[memory:, cores:], last[memory:, cores:]
            better = more > there + _NOTHING
            if better.any():
                there[better], put[better], changed = more[better], number, True
    return best, last


def fillings_by_sides(values: Mapping[Sides, int]) -> Ints:
    """`fillings` for shares with two sides: what every pair of remainders is worth, by `classes.place`."""
    best, _ = _filled({size: float(value) for size, value in values.items() if value > 0})
    flat: Ints = np.rint(best).astype(np.int32).reshape(-1)
    return flat


def fillings(values: Mapping[int, Ints], lanes: int) -> Ints:
    """
    For every remainder 0 to `CARD` what the best filling with these shares is worth, in each of several lanes.

    `values` gives per size the worth in each lane; what is not positive is left out.
    """
    best = np.zeros((CARD + 1, lanes), np.int32)
    if not values:
        return best
    step = math.gcd(CARD, *values)
    sizes = np.array(sorted(values), np.int64) // step
    worth = np.maximum(np.stack([values[int(size) * step] for size in sizes]), 0)
    steps = np.zeros((CARD // step + 1, lanes), np.int32)
    for at in range(1, len(steps)):
        fitting = int(np.searchsorted(sizes, at, side="right"))
        steps[at] = steps[at - 1]
        if fitting:
            np.maximum(steps[at], (steps[at - sizes[:fitting]] + worth[:fitting]).max(axis=0), out=steps[at])
    best[:] = np.repeat(steps, step, axis=0)[: CARD + 1]
    return best
