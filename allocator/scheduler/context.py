"""
What everything that works on the allocator's state is given: the state, the right to decide, options, and the outside.

One value, so that a part which needs one thing more changes this module and the wiring, and not every class between.
The outside comes as functions, so that the classes read no clock of their own and tests choose what they see. Must not:
do anything; what is made of these values is the classes' own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from allocator.cache.cache import Cache
from allocator.faults import Faulted
from allocator.scheduler.leadership import Leadership
from allocator.scheduler.options import SchedulerOptions
from contract.model import PodRequest


@dataclass(frozen=True, slots=True)
class SchedulerContext:
    """Made once for each controller, and shared by all that it is made of."""

    cluster: Cache
    mandate: Leadership
    options: SchedulerOptions
    clock: Callable[[], float]
    """Seconds, from any start, that never go back."""
    new_id: Callable[[], str]
    """An allocation's id, which no other has."""
    wake: Callable[[], None]
    """Told that there may be something to decide or to write."""
    forgotten: Callable[[str], None]
    """Told why a reservation is given back before its pod was seen: see `RESERVATIONS_FORGOTTEN`."""
    asked: Callable[[PodRequest, int], None]
    """Told once of each pod that asks for a share: the request, and its CPU in thousandths."""
    faulted: Faulted
    """Told in the handler of an error of ours that must stay with one pod."""
