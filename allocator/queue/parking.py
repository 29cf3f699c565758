"""
Chooses which waiting pods of a namespace are kept in memory, and which are parked: only their names are kept.

Tenants choose how many pods wait and how much each of them says. So each namespace has a budget in bytes, and all of
them together have one. Beyond it a pod is parked: only its place in the order is kept. It is read again from the API
server when its turn comes.

                new, beyond the budget                          room, or its turn
    (arrives) ───────────────────────────▶ parked ──────────▶ reading ──────────▶ kept
        │                                    ▲ ▲                  │ failed          │
        │ new, within the budget             │ └──────────────────┘                 │ budget, or another's turn
        └────────────▶ kept ─────────────────┴──────────────────────────────────────┘

- The first of a namespace in the order are kept. One that comes later and precedes others in the order, such as a pod
  of higher priority, takes the place of the last.
- Half of the budget is for the first in the order. The other half rotates: pods that were tried and did not fit give
  their place to those that have not been tried for longest. So no pod waits forever behind others that fit nowhere.
- A namespace's budget is its own. If all of them together exceed the common budget, the namespace that uses most gives
  way.
- A namespace has at least one pod in memory, and a pod whose binding is being written stays.

A parked pod leaves by its deletion, by losing its gate, or by being read. Not thread-safe: one owner calls it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field, replace

Order = tuple[int, int, float, int, str]
"""
The place of a pod among those of its namespace: Kubernetes' priority and the dialect's, each with the higher one first,
creation time, how many pods were seen before it, uid.
"""
EACH, TOTAL = 32 << 20, 192 << 20
"""Bytes that the waiting pods of one namespace have, and those of all."""
READS = 8
"""Parked pods that are read at once."""


@dataclass(frozen=True, slots=True)
class PodCost:
    """Bytes of a waiting pod: its own, and those of its request, which equal pods of its namespace share."""

    own: int
    request: int
    shared: Hashable

    @property
    def alone(self) -> int:
        """Bytes of the pod if no other one requests the same."""
        return self.own + self.request


@dataclass(frozen=True, slots=True)
class ParkedPod:
    """A pod of which nothing else is kept."""

    uid: str
    key: str
    """`namespace/name`."""
    order: Order
    size: int
    """Bytes that it takes when it is read, if it was seen."""
    version: int | None
    foreign: bool
    """Another system's gate holds it too."""
    turn: int = 0
    """The turn in which it was last kept or parked; those of the least one are read first."""

    @property
    def priority(self) -> int:
        """That of its PriorityClass."""
        return -self.order[0]


@dataclass(frozen=True, slots=True)
class _Kept:
    cost: PodCost
    order: Order


@dataclass(slots=True)
class _Namespace:
    used: int = 0
    kept: dict[str, _Kept] = field(default_factory=dict)
    """By uid, those kept for longest first."""
    requests: Counter[Hashable] = field(default_factory=Counter)
    order: list[Order] = field(default_factory=list)
    """The bytes of the pods that are kept."""
    parked: dict[str, ParkedPod] = field(default_factory=dict)
    waiting: list[Order] = field(default_factory=list)
    """The bytes of the pods that are parked."""
    tried: set[str] = field(default_factory=set)
    """Those kept ones that were tried since they were read."""

    def more(self, cost: PodCost) -> int:
        """Bytes that another pod takes."""
        return cost.own + (0 if self.requests[cost.shared] else cost.request)

    def add(self, uid: str, kept: _Kept) -> int:
        """Keep a pod; how many bytes that takes. A known pod keeps its place among those kept for longest."""
        more = self.more(kept.cost)
        self.kept[uid] = kept
        self.requests[kept.cost.shared] += 1
        insort(self.order, kept.order)
        self.used += more
        return more

    def take(self, uid: str) -> int:
        """Take a pod out of the budget, and leave its place among those kept for longest; how many bytes that frees."""
        cost, order = self.kept[uid].cost, self.kept[uid].order
        self.requests[cost.shared] -= 1
        if not self.requests[cost.shared]:
            del self.requests[cost.shared]
        less = self.more(cost)
        del self.order[bisect_left(self.order, order)]
        self.used -= less
        return less


class Parking:
    """The budgets, and who is parked. `stays`: whether a pod must be kept now, by its uid."""

    def __init__(
        self, *, each: int = EACH, total: int = TOTAL, stays: Callable[[str], bool] = lambda uid: False
    ) -> None:
        self.each = each
        self.total = max(each, total)
        self._stays = stays
        self._namespaces: dict[str, _Namespace] = {}
        self._home: dict[str, str] = {}
        """The namespace of each pod that is kept or parked, by uid."""
        self._reading: set[str] = set()
        self._turn = 0
        self._next = ""
        """The namespace that was served last."""
        self.used = 0
        self.number = 0
        """The number of parked pods."""

    # -- looking ----------------------------------------------------------------------------------------------------

    def pod(self, uid: str) -> ParkedPod | None:
        """A parked pod."""
        home = self._home.get(uid)
        return self._namespaces[home].parked.get(uid) if home is not None else None

    def pods(self) -> Iterator[ParkedPod]:
        """All parked pods."""
        for namespace in self._namespaces.values():
            yield from namespace.parked.values()

    def uses(self, namespace: str) -> tuple[int, int]:
        """Bytes that are used by the pods of a namespace, and how many of its pods are parked."""
        found = self._namespaces.get(namespace)
        return (found.used, len(found.parked)) if found is not None else (0, 0)

    def is_before(self, namespace: str, priority: int) -> bool:
        """Whether a pod of the namespace with at least this priority is parked and has not had its turn."""
        found = self._namespaces.get(namespace)
        if found is None or not found.waiting:
            return False
        return any(-order[0] >= priority and found.parked[order[-1]].turn < self._turn for order in found.waiting)

    # -- pods come and go -------------------------------------------------------------------------------------------

    def put(self, uid: str, namespace: str, order: Order, cost: PodCost, *, turn: bool = False) -> list[str]:
        """
        A waiting pod is new or changed. Returns the uids of the pods that are no longer kept, perhaps this one.

        turn: it was read because its turn has come. A pod that is new is kept where it precedes all parked ones and
        fits, or precedes others that are kept. One that is known stays what it is.
        """
        home = self._namespaces.setdefault(namespace, _Namespace())
        if uid in home.parked and not turn:
            self._reading.discard(uid)
            return [uid]
        parked: list[str] = []
        if uid in home.kept:
            self.used -= home.take(uid)
        else:
            if turn:
                self.drop(uid)
                home = self._namespaces.setdefault(namespace, home)
                parked = self._make_room(home, cost)
            if not self._is_kept(home, order, cost, turn):
                if not home.kept and not home.parked:
                    del self._namespaces[namespace]
                return [*parked, uid]
        self.used += home.add(uid, _Kept(cost, order))
        self._home[uid] = namespace
        return [*parked, *self._settle(home)]

    def _is_kept(self, home: _Namespace, order: Order, cost: PodCost, turn: bool) -> bool:
        if not home.kept:
            return True
        first = turn or not home.waiting or order < home.waiting[0]
        return (first and self._fits(home, home.more(cost))) or self._precedes(home, order, turn)

    def _precedes(self, home: _Namespace, order: Order, turn: bool) -> bool:
        return not turn and any(order < last for last in home.order[-1:])

    def _fits(self, home: _Namespace, more: int) -> bool:
        if home.used + more > self.each:
            return False
        return self.used + more <= self.total or home.used + more < self._most()

    def _most(self) -> int:
        return max((each.used for each in self._namespaces.values() if len(each.kept) > 1), default=0)

    def park(self, pod: ParkedPod, namespace: str, *, had_turn: bool) -> None:
        """
        A pod that `put` has named, with what is kept of it. had_turn: it was tried; a new one counts as tried a round
        ago.
        """
        home = self._namespaces.setdefault(namespace, _Namespace())
        before = home.parked.get(pod.uid)
        if before is not None:
            del home.waiting[bisect_left(home.waiting, before.order)]
            self.number -= 1
        home.parked[pod.uid] = replace(pod, turn=before.turn if before else self._turn - (not had_turn))
        insort(home.waiting, pod.order)
        self._home[pod.uid] = namespace
        self.number += 1

    def _make_room(self, home: _Namespace, cost: PodCost) -> list[str]:
        """Make tried pods give way, those kept for longest first, and none of the first in the order."""
        parked: list[str] = []
        for uid in self._round(home):
            if home.used + home.more(cost) <= self.each and self.used + home.more(cost) <= self.total:
                break
            self._release(home, uid)
            parked.append(uid)
        return parked

    def _round(self, home: _Namespace) -> list[str]:
        """Those that may give way to a pod whose turn it is."""
        first, used = set[str](), 0
        for order in home.order:
            used += home.kept[order[-1]].cost.alone
            if used > self.each // 2:
                break
            first.add(order[-1])
        return [uid for uid in home.kept if uid in home.tried and uid not in first and not self._stays(uid)]

    def _settle(self, home: _Namespace) -> list[str]:
        """Have the last in the order give way until the budgets hold."""
        parked: list[str] = []
        while home.used > self.each and (uid := self._last(home)):
            self._release(home, uid)
            parked.append(uid)
        while self.used > self.total:
            largest = max(
                (each for each in self._namespaces.values() if self._last(each)), key=lambda n: n.used, default=None
            )
            if largest is None:
                break
            uid = self._last(largest)
            self._release(largest, uid)
            parked.append(uid)
        return parked

    def _last(self, home: _Namespace) -> str:
        """The last in the order that may go; empty if none may."""
        if len(home.kept) < 2:
            return ""
        return next((order[-1] for order in reversed(home.order) if not self._stays(order[-1])), "")

    def _release(self, home: _Namespace, uid: str) -> None:
        self.used -= home.take(uid)
        del home.kept[uid]
        home.tried.discard(uid)
        del self._home[uid]

    def drop(self, uid: str) -> None:
        """The pod no longer waits."""
        self._reading.discard(uid)
        namespace = self._home.get(uid)
        if namespace is None:
            return
        home = self._namespaces[namespace]
        if uid in home.kept:
            self._release(home, uid)
        else:
            parked = home.parked.pop(uid)
            del home.waiting[bisect_left(home.waiting, parked.order)]
            self.number -= 1
            del self._home[uid]
        if not home.kept and not home.parked:
            del self._namespaces[namespace]

    # -- turns ------------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Try every pod again."""
        self._turn += 1

    def tried(self, uid: str) -> None:
        """A pod that is kept was tried."""
        namespace = self._home.get(uid)
        if self.number and namespace is not None and uid in self._namespaces[namespace].kept:
            self._namespaces[namespace].tried.add(uid)

    def due(self, most: int = READS) -> list[ParkedPod]:
        """The parked pods to read now, each namespace in turn; `put`, `drop` or `unread` answers each."""
        if not self.number:
            return []
        found: list[ParkedPod] = []
        names = sorted(name for name, home in self._namespaces.items() if home.parked)
        start = bisect_left(names, self._next)
        for name in (*names[start:], *names[:start]):
            if len(found) + len(self._reading) >= most:
                self._next = name
                break
            pod = self._first_due(self._namespaces[name])
            if pod is not None:
                self._reading.add(pod.uid)
                found.append(pod)
        return found

    def _first_due(self, home: _Namespace) -> ParkedPod | None:
        if any(uid in self._reading for uid in home.parked):
            return None  # one at a time, so that what was read counts before the next
        first = home.parked[home.waiting[0][-1]]
        if self._fits(home, first.size) or not home.kept:
            return first
        longest = min(home.parked.values(), key=lambda pod: (pod.turn, pod.order))
        if longest.turn >= self._turn:
            return None  # every one had its turn in this round
        room = self.each - home.used + sum(home.kept[uid].cost.own for uid in self._round(home))
        return longest if longest.size <= room else None

    def unread(self, uid: str) -> None:
        """A parked pod could not be read; it is read again after the others."""
        self._reading.discard(uid)
        namespace = self._home.get(uid)
        if namespace is not None and uid in self._namespaces[namespace].parked:
            home = self._namespaces[namespace]
            home.parked[uid] = replace(home.parked[uid], turn=self._turn)
