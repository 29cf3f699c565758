"""
What is decided: one pod with its share and its needs, and the same pod for its preferred models alone.

A pod that accepts several models in order is decided for the first alone, then for the next, and at last for all of
them, which may mix. So the engines know one rule, whether a GPU is accepted, and only pods with such a wish cost more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from contract.model import FractionRequest, PodRequest
from contract.scheduling.needs import PodNeeds

MOST = 8
"""Models that are tried one after the other; those named later are accepted, in no order."""


@dataclass(frozen=True, slots=True)
class SchedulingRequest:
    """One pod to place: its share, and what else it needs of a node. Hashable: equal asks have equal answers."""

    request: PodRequest
    needs: PodNeeds

    @property
    def together(self) -> bool:
        """Whether all containers are on the same GPUs, as a single one always is."""
        return len(self.request.containers) <= 1 or self.request.same_gpus

    @property
    def numa_bound(self) -> bool:
        """Whether some container's GPUs must all be on one NUMA node."""
        return any(fraction.one_numa for fraction in self.request.containers)


def queue_order(priority: int, request: PodRequest, created: str) -> tuple[int, int, str]:
    """
    The sort key of a waiting pod, as objects show it: the higher PriorityClass first, then the higher priority of
    the dialect, then the older pod. `created`: its creationTimestamp (RFC 3339, UTC), whose text order is time order.
    """
    return (-priority, -request.priority, created)


def narrowed(ask: SchedulingRequest) -> Iterator[SchedulingRequest]:
    """The same pod for its most preferred models alone, then for the next; nothing where no order was wished for."""
    containers = ask.request.containers
    choices = max((len(f.wishes.use_models) for f in containers if f.wishes.ordered), default=0)
    for rank in range(min(choices, MOST)):
        only = tuple(_only(fraction, rank) for fraction in containers)
        yield replace(ask, request=replace(ask.request, containers=only))


def _only(fraction: FractionRequest, rank: int) -> FractionRequest:
    wishes = fraction.wishes
    if not wishes.ordered or not wishes.use_models:
        return fraction
    word = wishes.use_models[min(rank, len(wishes.use_models) - 1)]
    return replace(fraction, wishes=replace(wishes, use_models=(word,), ordered=False))
