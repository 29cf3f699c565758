"""
Bounds of the shares that admissions hold before their pods are stored: the amount, the time, and pods to store first.

A share is reserved before quotas and storage decide about the pod, so pods that are refused afterwards hold shares for
nothing. Three bounds: what one namespace may hold this way, what all of them may, and nothing for a namespace whose
recent pods did not come. Beyond them a pod is gated instead, and gets its share once it is stored, a moment later.

How long a pod may take to come is learnt from those that came (`Arrivals`). Pure: times are passed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from allocator.cache.ledger import Reservation
from contract.model import WHOLE, Allocation, PodRequest

_PART_OF_ONE, _PART_OF_ALL = 4, 2
"""A namespace may hold a quarter of the cluster's GPUs unconfirmed, all namespaces together half."""
OVERDUE = 2.0
"""Seconds after which a pod that was not seen counts as one that may not come; most come within some milliseconds."""
PROBATION = 60.0
"""Seconds for which a namespace whose pod did not come has its pods stored first."""
_NAMESPACES = 4096
"""The number of remembered namespaces; any client of the webhook's port can invent names."""


def weight(request: PodRequest, allocation: Allocation, sharers: int) -> int:
    """The part of GPUs that the allocation takes, in percent of one. A share counts at least 1/`sharers` of a GPU."""
    whole = {fraction.container for fraction in request.containers if fraction.exclusive}
    return sum(
        WHOLE
        if container.container in whole
        else max(-(-share.memory * WHOLE // max(share.gpu_memory, 1)), share.cores, -(-WHOLE // max(sharers, 1)))
        for container in allocation.containers
        for share in container.shares
    )


def namespace_of(holding: Reservation) -> str:
    """The namespace of a reservation's pod."""
    return holding.pod.split("/", 1)[0]


def of_admissions(assumed: Iterable[Reservation]) -> list[Reservation]:
    """The reservations that were made at admission; a waiting pod's and a claim's have their objects already."""
    return [holding for holding in assumed if holding.judged is not None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The holding of a pod at admission: `namespace`, and the `weight` of its allocation."""

    namespace: str
    weight: int


class Unconfirmed:
    """
    Decides which pods must be stored before they get a share. `most`: reservations of one namespace at a time; 0 for no
    bound at all. Not thread-safe: one owner calls it.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._ended: dict[str, float] = {}

    def ended(self, namespace: str, now: float) -> None:
        """A reservation of this namespace ended, since its pod did not come."""
        self._ended.pop(namespace, None)
        self._ended[namespace] = now
        while len(self._ended) > _NAMESPACES:
            del self._ended[next(iter(self._ended))]

    def why_stored_first(self, wanted: Wanted, held: Iterable[Reservation], gpus: int, sharers: int, now: float) -> str:
        """Why this pod must be stored first; empty if it need not. `held`: all reservations of admissions."""
        if not self._most:
            return ""
        everybody = [(namespace_of(each), each) for each in held]
        own = [each for namespace, each in everybody if namespace == wanted.namespace]
        if any(now - each.since > OVERDUE for each in own) or now - self._ended.get(wanted.namespace, -1e9) < PROBATION:
            return "earlier pods of this namespace got a share and were not stored"
        if len(own) >= self._most:
            return f"{len(own)} pods of this namespace have a share and are not stored yet"
        if own and _weight(own, sharers) + wanted.weight > gpus * WHOLE // _PART_OF_ONE:
            return "pods of this namespace that are not stored yet have a quarter of the cluster's GPUs"
        if (
            everybody
            and _weight((each for _, each in everybody), sharers) + wanted.weight > gpus * WHOLE // _PART_OF_ALL
        ):
            return "pods that are not stored yet have half of the cluster's GPUs"
        return ""


def _weight(holdings: Iterable[Reservation], sharers: int) -> int:
    return sum(weight(holding.request, holding.allocation, sharers) for holding in holdings)


class Arrivals:
    """
    Measures the time from pods' admission until the watch brings them, and so how long to expect one.

    The bound is several times what the slowest recent pod took, in its namespace and in all of them; until some have
    been seen, and at most, it is `longest`. A pod that comes after its reservation ended counts too. Not thread-safe:
    one owner calls it.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._all: deque[float] = deque(maxlen=256)
        self._of: dict[str, deque[float]] = {}
        self._given_back: dict[str, tuple[str, float]] = {}

    def came(self, namespace: str, took: float) -> None:
        """A pod was seen this many seconds after its share was reserved."""
        known = self._of.pop(namespace, None) or deque[float](maxlen=32)
        self._of[namespace] = known
        known.append(took)
        self._all.append(took)
        while len(self._of) > _NAMESPACES:
            del self._of[next(iter(self._of))]

    def given_back(self, allocation: str, namespace: str, since: float) -> None:
        """The pod of this reservation, made at `since`, has not come in time."""
        self._given_back[allocation] = (namespace, since)
        while len(self._given_back) > _NAMESPACES:
            del self._given_back[next(iter(self._given_back))]

    def came_late(self, allocation: str, now: float) -> None:
        """A pod carries this allocation, which is no longer held."""
        found = self._given_back.pop(allocation, None)
        if found is not None:
            self.came(found[0], now - found[1])

    def within(self, namespace: str) -> float:
        """Seconds within which a pod of this namespace comes, if it comes."""
        if len(self._all) < _ENOUGH:
            return self._longest
        slowest = max(*self._all, *self._of.get(namespace, (0.0,)))
        return min(self._longest, max(_LEAST, _TIMES * slowest))


_ENOUGH, _TIMES, _LEAST = 8, 4.0, 5.0
