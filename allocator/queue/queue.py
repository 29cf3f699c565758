"""
The queue: which pods wait for a share, in what order they are tried, and which of them in one scheduling cycle.

Filled from what the watch brings. It knows no nodes and no GPUs; for the fair order, what namespaces hold. What a
pod was last reported, and when it may be tried again, is in `allocator.queue.records`. Pure: it reads no clock;
creation times and a count say which pod came first.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from allocator.cache import refusals
from allocator.cache.cache import Cache
from allocator.cache.podinfo import PodInfo, WaitingPod
from allocator.cache.reserved import Requester
from allocator.queue.parking import Order, ParkedPod, Parking, PodCost
from contract import pods
from contract.gangs import Membership
from contract.model import WHOLE
from contract.reasons.base import Cure
from contract.reasons.nodes import NodeCode, cured_by
from contract.scheduling import fairness
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules
from contract.scheduling.demand import whole_cards
from contract.scheduling.fairness import Held, QueuePlace, Shares
from contract.scheduling.needs import SchedulingRequest, queue_order

T = TypeVar("T")
BUDGET = 400
"""Decisions in one cycle for all namespaces together: some tenths of a second at 1,000 nodes."""
LEAST = 8
"""Decisions that each namespace gets in a cycle, however many namespaces there are."""
_SEVERAL = 20
"""The decisions that a search for several containers' GPUs counts as."""
_IN_ORDER = 8
"""Models in order of preference for which a pod is decided one after the other, at most."""
_EXPRESSED = 64
"""Characters of CEL expressions that cost as much as a decision, when they are compiled and evaluated first."""


@dataclass(frozen=True, slots=True)
class QueuedPodInfo:
    """A pod that is gated by us. `foreign` names other gates, whose owners must remove them before we place it."""

    uid: str
    key: str
    ask: SchedulingRequest
    priority: int
    created: float
    """Seconds since 1970."""
    pod: Mapping[str, Any]
    """`pods.outline` of it: no more than its commit and its condition need."""
    foreign: tuple[str, ...] = ()
    rules: PodRules = NO_RULES
    """The rules about other pods and volumes."""
    owner: str = ""
    """As in `PodInfo`."""
    came: int = 0
    """The number of pods seen before it: creation times have whole seconds, with many pods of a Deployment in one."""
    gang: Membership | None = None
    """Set if it starts together with others."""

    @property
    def requester(self) -> Requester:
        """The pod as reserved nodes see it."""
        gang = self.gang.key.text if self.gang is not None else ""
        return Requester(self.uid, self.priority, self.key.split("/", 1)[0], self.rules, self.family, gang)

    @property
    def family(self) -> str:
        """As in `allocator.cache.refusals`."""
        return refusals.family_of(self.key, self.owner, self.rules)

    @property
    def order(self) -> tuple[int, float, int, str]:
        """
        `queue_order`, then the pod that was seen first: the order of age, before `own_order`.

        The latter is on no object, so the plugin shows the places that pods of one second have together.
        """
        return (*queue_order(self.priority, self.created), self.came, self.uid)

    @property
    def place(self) -> QueuePlace:
        """The fields that determine the order of the queue."""
        return QueuePlace(self.priority, namespace_of(self), self.created, self.ask.request.priority > 0)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A gated pod that cannot be placed as it is: `namespace/name`, and why."""

    key: str
    why: str


class Shared(Generic[T]):
    """One value for all that are equal, while one of them is in use: pods of one Deployment request the same."""

    def __init__(self) -> None:
        self._used: dict[T, _Users[T]] = {}

    def __len__(self) -> int:
        return len(self._used)

    def take(self, value: T) -> T:
        """The value to use in place of this one."""
        users = self._used.get(value)
        if users is None:
            users = self._used[value] = _Users(value)
        users.number += 1
        return users.of

    def give_back(self, value: T) -> None:
        """One that `take` gave is no longer used."""
        users = self._used[value]
        users.number -= 1
        if not users.number:
            del self._used[value]


@dataclass(slots=True)
class _Users(Generic[T]):
    of: T
    number: int = 0


class SchedulingQueue:
    """The pods behind our gate. Not thread-safe: one owner calls it."""

    def __init__(self, parking: Parking | None = None) -> None:
        self.reads_gangs = False
        """Whether pods that request it start together; otherwise each of them is placed by itself."""
        self.parking = parking or Parking()
        """The waiting pods of which only the name is kept."""
        self._turns: set[str] = set()
        self._parked: list[ParkedPod] = []
        self.unreadable: dict[str, Unreadable] = {}
        """Gated pods (by uid) that cannot be placed as they are."""
        self._waiting: dict[str, QueuedPodInfo] = {}
        self._by_age: list[tuple[int, float, int, str]] = []
        """`QueuedPodInfo.order` of each, the first first; its last part is the uid."""
        self._preferred = 0
        """The number of pods that their dialect puts before others of their namespace."""
        self._joined: set[str] = set()
        self._came = 0
        self._sizes: dict[str, int] = {}
        self._asks = Shared[SchedulingRequest]()
        self._rules = Shared[PodRules]()
        self.constrained = 0
        """The number of pods in the queue that depend on other pods or on volumes; other parts only read it."""
        self._cards = Counter[int]()
        """The number of pods by the whole cards for which they wait; without those behind another system's gate."""

    def __len__(self) -> int:
        """The number of pods in the queue."""
        return len(self._waiting)

    def in_order(self) -> list[QueuedPodInfo]:
        """The pods in the queue, the first first: by priority and age, and each namespace's in its `own_order`."""
        by_age = [self._waiting[order[-1]] for order in self._by_age]
        return list(fairness.own_order(by_age, lambda entry: entry.place)) if self._preferred else by_age

    def in_any_order(self) -> Iterable[QueuedPodInfo]:
        """The pods in the queue, unsorted; a live view."""
        return self._waiting.values()

    def pod(self, uid: str) -> QueuedPodInfo | None:
        """A pod in the queue by its uid."""
        return self._waiting.get(uid)

    def cards(self) -> Collection[int]:
        """For how many whole cards of one node pods wait, each number once; a live view."""
        return self._cards.keys()

    def knows(self, uid: str) -> bool:
        """Whether this pod is in the queue or parked, or would be if it could be read."""
        return uid in self._waiting or uid in self.unreadable or self.parking.pod(uid) is not None

    def uids(self) -> Iterable[str]:
        """Every pod that is in the queue or parked, or would be if it could be read."""
        return (*self._waiting, *self.unreadable, *(pod.uid for pod in self.parking.pods()))

    def take_parked(self) -> list[ParkedPod]:
        """The pods that were parked since the last call."""
        parked, self._parked = self._parked, []
        return parked

    def is_due(self, uid: str) -> None:
        """The next `put` of this parked pod is its turn."""
        self._turns.add(uid)

    def tried(self, uid: str) -> None:
        """A pod was tried."""
        self.parking.tried(uid)

    def put(self, pod: PodInfo) -> bool:
        """A pod is new or changed. True if it joined the queue or left it, or requests something else now."""
        uid, waiting = pod.uid, pod.waiting
        if waiting is None:
            return self.drop(uid)
        request = waiting.request
        if request is None:
            self.drop(uid)
            self.unreadable[uid] = Unreadable(pod.key, waiting.unreadable)
            return False
        self.unreadable.pop(uid, None)
        known = self._waiting.get(uid)
        came = self._came_as(uid)
        ask = self._asks.take(SchedulingRequest(request, waiting.needs))
        if not self._has_room(pod, waiting, ask, came):
            self._asks.give_back(ask)
            return self._remove(uid)
        if known is not None:
            self._asks.give_back(known.ask)
            self._give_rules_back(known.rules)
            self._count(known, -1)
        entry = QueuedPodInfo(
            uid=uid,
            key=pod.key,
            ask=ask,
            priority=pod.priority,
            created=pod.created,
            pod=waiting.outline,
            foreign=waiting.foreign,
            rules=self._take_rules(pod.rules),
            owner=pod.owner,
            came=came,
            gang=pod.gang if self.reads_gangs else None,
        )
        if known is None or known.order != entry.order:
            self._out_of_order(known)
            insort(self._by_age, entry.order)
        if known is None:
            self._joined.add(uid)
        self._waiting[uid] = entry
        self._sizes[uid] = waiting.size + waiting.request_size
        self._count(entry, 1)
        if known is None:
            return True
        changed = _asked_as(known) != _asked_as(entry)
        if changed:
            self._joined.add(uid)  # what it lacked before is no indication of what it lacks now
        return changed

    def drop(self, uid: str) -> bool:
        """A pod no longer waits. True if it was in the queue."""
        self.unreadable.pop(uid, None)
        self.parking.drop(uid)
        return self._remove(uid)

    def _came_as(self, uid: str) -> int:
        """The number of pods seen before this one."""
        known, parked = self._waiting.get(uid), self.parking.pod(uid)
        if known is not None or parked is not None:
            return known.came if known is not None else parked.order[3] if parked is not None else 0
        self._came += 1
        return self._came - 1

    def _has_room(self, pod: PodInfo, waiting: WaitingPod, ask: SchedulingRequest, came: int) -> bool:
        """Whether the pod is kept in memory; others may be parked for it."""
        uid, namespace = pod.uid, pod.key.split("/", 1)[0]
        known, parked, turn = self._waiting.get(uid), self.parking.pod(uid), uid in self._turns
        self._turns.discard(uid)
        order = _own_order(pod.priority, ask, pod.created, came, uid)
        cost = PodCost(waiting.size, waiting.request_size, ask)
        room = True
        for displaced in self.parking.put(uid, namespace, order, cost, turn=turn):
            if displaced == uid:
                room = False
                state = ParkedPod(uid, pod.key, order, cost.alone, pod.version, bool(waiting.foreign))
                if parked is None or turn:
                    self._parked.append(state)
                self.parking.park(state, namespace, had_turn=turn or known is not None)
            else:
                self._park(self._waiting[displaced])
        return room

    def _park(self, entry: QueuedPodInfo) -> None:
        size = self._sizes[entry.uid]
        order = _own_order(entry.priority, entry.ask, entry.created, entry.came, entry.uid)
        state = ParkedPod(entry.uid, entry.key, order, size, pods.version(entry.pod), bool(entry.foreign))
        self._parked.append(state)
        self.parking.park(state, namespace_of(entry), had_turn=True)
        self._remove(entry.uid)

    def _remove(self, uid: str) -> bool:
        self._sizes.pop(uid, None)
        known = self._waiting.pop(uid, None)
        if known is not None:
            self._out_of_order(known)
            self._joined.discard(uid)
            self._asks.give_back(known.ask)
            self._give_rules_back(known.rules)
            self._count(known, -1)
        return known is not None

    def take_joined(self) -> Collection[str]:
        """The uids of the pods that are in the queue and have joined it since the last call."""
        joined, self._joined = self._joined, set()
        return joined

    def _take_rules(self, rules: PodRules) -> PodRules:
        self.constrained += rules.constrained
        return self._rules.take(rules)

    def _give_rules_back(self, rules: PodRules) -> None:
        self.constrained -= rules.constrained
        self._rules.give_back(rules)

    def _out_of_order(self, known: QueuedPodInfo | None) -> None:
        if known is not None:
            del self._by_age[bisect_left(self._by_age, known.order)]

    def _count(self, entry: QueuedPodInfo, more: int) -> None:
        self._preferred += more * entry.place.preferred
        cards = 0 if entry.foreign or entry.ask.request.claim else whole_cards(entry.ask.request)
        if cards:
            self._cards[cards] += more
            if not self._cards[cards]:
                del self._cards[cards]


def _asked_as(entry: QueuedPodInfo) -> object:
    """The input of a decision about the pod."""
    return entry.ask, entry.foreign, entry.rules, entry.gang


def _own_order(priority: int, ask: SchedulingRequest, created: float, came: int, uid: str) -> Order:
    """The place of a pod among those of its namespace, where the priority of a dialect counts too."""
    return (-priority, -(ask.request.priority > 0), created, came, uid)


def weight(entry: QueuedPodInfo) -> int:
    """The maximum cost of a decision about the pod."""
    request = entry.ask.request
    several = 1 if entry.ask.together else _SEVERAL
    ordered = max((len(f.wishes.use_models) for f in request.containers if f.wishes.ordered), default=0)
    combinations = math.prod(max(1, len(f.wishes.alternatives)) for f in request.containers)
    expressed = sum(map(len, {each for f in request.containers for each in f.wishes.expressions}))
    together = entry.gang.minimum if entry.gang is not None else 1
    forms = 1 + min(ordered, _IN_ORDER) + (combinations if combinations > 1 else 0)
    return several * together * (forms + expressed // _EXPRESSED)


class CycleTrigger:
    """
    The events since the last scheduling cycle began. `wake` makes another cycle run soon.

    Not thread-safe: one owner calls it.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.wake = wake
        self.requeued = False
        """Something happened that may help a pending pod; no later pod is placed before the queue is tried."""
        self.again = False
        """A round must begin: all pods are tried again, not only those that have joined the queue."""
        self.everyone = False
        """In that round each pod is tried, not only those that the changes can help."""
        self.outdated = False
        """Something happened that helps no pending pod, but outdates reported figures."""
        self.running = False
        """A cycle is in progress."""

    def requeue(self) -> None:
        """Have every pending pod tried again."""
        self.everyone = True
        self.requeue_helped()

    def requeue_helped(self) -> None:
        """
        Have the pods tried again that changes of the cache may help, and those with unknown reasons.
        """
        self.requeued = self.again = True
        self.wake()

    def retell(self) -> None:
        """Have every pod tried in the next round, since its reason may change."""
        self.outdated = self.again = self.everyone = True

    def join(self) -> None:
        """A pod has joined the queue and must be tried. It helps no other pod."""
        self.requeued = True
        self.wake()

    def begin(self) -> None:
        """A cycle begins."""
        self.requeued = False
        self.again = False
        self.everyone = False
        self.running = True

    def event(self, helps: bool) -> None:
        """Something changed; `helps`: a pending pod may fit now."""
        if helps:
            self.requeue_helped()
        self.outdated = True


class Rounds:
    """
    Which pods of the queue are tried in one cycle: a budget for each namespace, so that no namespace waits long for the
    pods of another.

    Pods of one shape share one decision, so the cost of a cycle is the number of shapes in the queue, which tenants
    choose. Therefore each namespace may cause only so many decisions in one cycle. The rest of the queue is tried in
    the following cycles; these cycles together are a round. The decisions of a cycle are written before the next cycle
    begins.

    The order of the queue holds within what the budget allows: a pod is passed over only because of other requests of
    its own namespace, never for another one's budget. Half of a namespace's budget is for those first in the queue,
    half for those that were not tried for longest. So every pod is tried within a bounded number of cycles, even where
    freed shares start new rounds all the time. Not thread-safe: one owner calls it.
    """

    def __init__(self, budget: int = BUDGET, least: int = LEAST) -> None:
        self._budget = budget
        self._least = least
        self._round = 0
        self._tried: dict[str, int] = {}
        self._lacks: dict[str, frozenset[NodeCode]] = {}
        """By uid: the codes of all nodes, of a pod that was found not to fit when it was tried last."""
        self.unfinished = False
        """Whether a part of the queue is left for the next cycle."""

    def begin(self, happened: frozenset[Cure] | None = None) -> list[str]:
        """
        A new round. `happened`: what may have let pods fit since the last one began; a pod that was tried since counts
        as tried if this cures none of its reasons. None tries every pod, because its reason may change.

        Returns the pods that are skipped.
        """
        before = self._round
        self._round += 1
        if happened is None:
            return []
        helped = {codes: not happened.isdisjoint(cured_by(codes)) for codes in frozenset(self._lacks.values())}
        left = [uid for uid, codes in self._lacks.items() if not helped[codes] and self._tried.get(uid) == before]
        for uid in left:
            self._tried[uid] = self._round
        return left

    def join(self, uids: Iterable[str]) -> None:
        """These pods have joined the queue, and have not been tried since, even where they were in it before."""
        for uid in uids:
            self._tried.pop(uid, None)
            self._lacks.pop(uid, None)

    def tried(self, uid: str) -> None:
        """The pod was tried, or there was nothing to try; what it lacks is unknown."""
        self._tried[uid] = self._round
        self._lacks.pop(uid, None)

    def lacks(self, uid: str, codes: frozenset[NodeCode]) -> None:
        """The pod, which was tried, fits on no node, with these codes of all nodes."""
        self._lacks[uid] = codes

    def lacked(self, uid: str) -> frozenset[NodeCode]:
        """The codes of all nodes, of a pod that was found not to fit when it was tried last; else none."""
        return self._lacks.get(uid, frozenset())

    def has_tried(self, uid: str) -> bool:
        """Whether the pod has been tried in this round."""
        return self._tried.get(uid) == self._round

    def choose(self, line: Sequence[QueuedPodInfo], free: Callable[[QueuedPodInfo], bool]) -> list[str]:
        """
        The uids of the pods that are tried in this cycle, in the order of the queue. `free`: whether trying a pod costs
        no decision.
        """
        # A new pod counts as tried a round ago, so it does not precede those that have waited for their turn.
        self._tried = {entry.uid: self._tried.get(entry.uid, self._round - 1) for entry in line}
        if len(self._lacks) > len(self._tried):
            self._lacks = {uid: codes for uid, codes in self._lacks.items() if uid in self._tried}
        left = [entry for entry in line if not self.has_tried(entry.uid)]
        to_decide: dict[str, list[QueuedPodInfo]] = {}
        for entry in left:
            if not free(entry):
                to_decide.setdefault(namespace_of(entry), []).append(entry)
        each = max(self._least, self._budget // max(len(to_decide), 1))
        passed_over = {uid for entries in to_decide.values() for uid in self._beyond(entries, each)}
        self.unfinished = bool(passed_over)
        return [entry.uid for entry in left if entry.uid not in passed_over]

    def _beyond(self, entries: Sequence[QueuedPodInfo], budget: int) -> frozenset[str]:
        """Those of one namespace that are passed over."""
        if sum(map(weight, entries)) <= budget:
            return frozenset()
        longest_ago = sorted(entries, key=lambda entry: self._tried[entry.uid])  # equals keep the queue's order
        chosen: set[object] = set()
        spent = 0
        for part, candidates in ((budget // 2, entries), (budget, longest_ago)):
            for entry in candidates:
                shape = _shape(entry)
                if spent >= part:
                    break
                if shape not in chosen:
                    chosen.add(shape)
                    spent += weight(entry)
        return frozenset(entry.uid for entry in entries if _shape(entry) not in chosen)


def namespace_of(entry: QueuedPodInfo) -> str:
    """The pod's namespace."""
    return entry.key.split("/", 1)[0]


def _shape(entry: QueuedPodInfo) -> object:
    """Pods of one shape are decided once, each gang for itself, and each pod that names a claim."""
    if entry.ask.request.claim:
        return entry.uid
    return (entry.ask, entry.priority) if entry.gang is None else (entry.ask, entry.priority, entry.gang.key)


class QueueOrder:
    """
    The order in which pods of the queue are tried: by age, or fair between namespaces (`contract.scheduling.fairness`);
    and which pods are behind others.

    The fair order depends only on what namespaces hold now, so a new leader has it at once. Within a namespace it is
    the queue's own order. Pods compete with those of their Kubernetes priority, whatever their dialect says. Not
    thread-safe: one owner calls it.
    """

    def __init__(self, cache: Cache, queue: SchedulingQueue, *, fair: bool) -> None:
        self._cache = cache
        self._queue = queue
        self.fair = fair
        self._weights: Mapping[str, int] = {}
        self._shares: tuple[Held, Shares] | None = None
        self._waiting: dict[int, Counter[str]] = {}
        """The number of competing pods, by priority and namespace."""
        self._least: dict[int, float] = {}
        """By priority, the least share of a namespace with a competing pod since the last placement; infinite if none
        competes."""

    def weigh(self, weights: Mapping[str, int]) -> bool:
        """The weights of all namespaces that have one. True if they changed."""
        if weights == self._weights:
            return False
        self._weights = weights
        self._shares = None
        return True

    def in_order(self) -> Iterable[QueuedPodInfo]:
        """The queue in the order in which pods are tried, where each one counts as placed in its turn."""
        waiting = self._queue.in_order()
        if not self.fair:
            return waiting
        total, held = self._cache.totals(), self._cache.ledger.held_by_namespaces()
        card = total.memory * WHOLE // max(total.cores, 1)
        return fairness.if_placed(waiting, _place, lambda pod: _asks(pod, card), self._now(), held)

    def turns(self, chosen: Iterable[str], competes: Callable[[QueuedPodInfo], bool]) -> Iterable[str]:
        """
        The uids of these pods, which are in the queue's order, in the order in which they are tried in one cycle. What
        is placed meanwhile counts. `competes`: whether a pod could be placed now.
        """
        if not self.fair:
            return chosen
        self._least.clear()
        self._waiting = {}
        for pod in self._queue.in_any_order():
            if not pod.ask.request.claim and competes(pod):
                self._waiting.setdefault(pod.priority, Counter())[namespace_of(pod)] += 1
        return self._in_turn(entry for uid in chosen if (entry := self._queue.pod(uid)) is not None)

    def _in_turn(self, entries: Iterable[QueuedPodInfo]) -> Iterator[str]:
        for pod in fairness.in_turn(entries, _place, self._share):
            yield pod.uid

    def placed(self, pod: QueuedPodInfo) -> None:
        """The pod no longer waits, and its namespace holds more."""
        self._least.clear()
        if self.fair and not pod.ask.request.claim:
            self._waiting.get(pod.priority, Counter())[namespace_of(pod)] -= 1

    def is_behind(self, pod: QueuedPodInfo) -> bool:
        """Whether a pod of equal priority waits whose namespace holds less for its weight, as of the last cycle."""
        return not pod.ask.request.claim and self._holds_more(pod.priority, namespace_of(pod))

    def will_be_behind(self, priority: int, namespace: str) -> bool:
        """The same for a pod that is not stored yet."""
        return self._holds_more(priority, namespace)

    def _holds_more(self, priority: int, namespace: str) -> bool:
        if not self.fair:
            return False
        least = self._least.get(priority)
        if least is None:
            competing = self._waiting.get(priority, Counter()).items()
            least = min((self._share(each) for each, left in competing if left > 0), default=math.inf)
            self._least[priority] = least
        return least < self._share(namespace)

    def _share(self, namespace: str) -> int:
        return self._now().of(namespace, self._cache.ledger.held(namespace))

    def _now(self) -> Shares:
        total = self._cache.totals()
        if self._shares is None or self._shares[0] is not total:
            self._shares = total, Shares(total, self._weights)
        return self._shares[1]


def _place(pod: QueuedPodInfo) -> QueuePlace:
    return pod.place


def _asks(pod: QueuedPodInfo, card: int) -> Held:
    return fairness.requested(pod.ask.request, card)
