"""
The feature's part of the core: it decides which pods of a gang get which shares, and when.

    waiting ──all of the first so many fit──▶ opening ──the first pod's write took effect──▶ begun
       ▲                                         │
       └──────────it did not take effect─────────┘

While a gang is opening, all its shares are assumed, and only the first pod is written, with the plan for all of them.
If that write fails, nothing has started. Once it takes effect, the gang has begun: this replica or the next leader
writes the others by the plan before it decides anything else. A pod of a begun gang that is in no plan (it is new, or a
replacement) is placed by itself, preferably on the cards that a pod of its gang had.

Pure; the shell holds the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace

from allocator.cache import arrangement
from allocator.cache.arrangement import Arranged, FellShort, Member
from allocator.cache.cache import FrozenCluster
from allocator.cache.podinfo import PodInfo
from allocator.cache.reserved import HeldNode
from allocator.cache.trial import Trial
from allocator.engine import reference
from allocator.engine.reference import Placement
from allocator.features.gangs import words
from allocator.features.gangs.members import GangIndex, Members
from allocator.features.gangs.settings import GangSettings
from allocator.queue import reservation
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import Binding, EventRecord
from allocator.queue.reservation import Staying
from allocator.scheduler.events import TickPhase
from allocator.scheduler.parts import Core, FeaturePart, GangWaits, Together
from contract import pods
from contract.encoding import gangplans
from contract.gangs import GangKey, Membership
from contract.model import FREE, Allocation
from contract.reasons.nodes import NodeCode, codes_of
from contract.reasons.pods import PodEventReason, PodReason

_NOTHING_HELPS = frozenset[NodeCode]()
_MOST_REFUSED = 5
"""After so many failed writes in a row, a pod of a begun gang gives its share back."""
_STARTING = GangWaits(PodReason.GANG_INCOMPLETE, "", _NOTHING_HELPS)
"""The answer for another pod of a gang that is opening: it is tried again in a moment."""
_MOST_HELD = 64
"""The most nodes that are reserved for one starving gang."""
_LEADS_ALONE_AFTER = 30.0
"""Seconds for which the leader of a LeaderWorkerSet waits for its workers to be created."""
_SHAPES = 4096
"""The most gangs that do not fit and are remembered in one round."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    """Why a gang waits, for all its pods. `version`: the version of `Members` for which this holds."""

    version: int
    waits: GangWaits


@dataclass(frozen=True, slots=True)
class _Look:
    """The pods of a gang that start together, and the input of the decision for each; `state`: its source."""

    state: tuple[int, int, int]
    first: list[QueuedPodInfo]
    shapes: tuple[Hashable, ...]


@dataclass(frozen=True, slots=True)
class _First:
    """The pods of a gang that start together, or too few. `queued`: all that are in the queue."""

    pods: list[QueuedPodInfo]
    minimum: int
    queued: list[QueuedPodInfo]

    @property
    def lacks(self) -> bool:
        """Whether too few can be placed."""
        return len(self.pods) < self.minimum


def _minimum(queued: Sequence[QueuedPodInfo], members: Members, now: float) -> int:
    """
    How many pods start together: the largest number that a pod of the gang requests.

    The leader of a LeaderWorkerSet starts alone once it has waited for a while without any other pod of its group: with
    `startupPolicy: LeaderReady` none is created before it runs.
    """
    alone = len(queued) == len(members.waiting) == 1 and queued[0].gang is not None and queued[0].gang.leads
    if not alone:
        members.alone_since = None
    elif members.alone_since is None:
        members.alone_since = now
    elif now - members.alone_since >= _LEADS_ALONE_AFTER:
        return 1
    return max((each.gang.minimum for each in queued if each.gang is not None), default=0)


class GangScheduling:
    """Decides for gangs."""

    def __init__(self, core: Core, settings: GangSettings) -> None:
        state = core.state
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._leadership = state.leadership
        self._trigger = state.trigger
        self._faults = state.faults
        self._dialects = state.dialects
        self._pools = core.pools
        self._new_id = core.new_id
        self._index = GangIndex()
        self._verdicts: dict[GangKey, _Verdict] = {}
        self._looks: dict[GangKey, _Look] = {}
        """The gangs that this round has not tried yet."""
        self._short: dict[tuple[Hashable, ...], FellShort] = {}
        """The results of this round that do not fit, by the input of the decision."""
        self._opening: dict[str, tuple[Binding, ...]] = {}
        """The other pods, which are not written yet, by the pod that is written first."""
        self._starting: set[GangKey] = set()
        """The gangs that are opening."""
        self._assumed: dict[str, str] = {}
        """Shares that are assumed for pods which are not written yet: the allocation's id by the pod's uid."""
        self._refused: dict[str, int] = {}
        """The number of failed writes in a row, for each pod of a begun gang."""
        self._trial: Trial | None = None
        self._trial_at = -1
        """The value of `Cache.changes` that the trial includes."""

    def part(self) -> FeaturePart:
        """What it adds to the core."""
        return FeaturePart(gangs=self, ticks={TickPhase.UPKEEP: self._tick})

    def counts(self) -> tuple[int, int]:
        """The number of gangs that wait as a whole, and of gangs that have begun."""
        return self._index.counts()

    # -- what the watches bring -----------------------------------------------------------------------------------

    def see(self, pod: PodInfo) -> None:
        """A pod is new or changed."""
        uid = pod.uid
        if pod.gang is None and self._index.key_of(uid) is None:
            return
        self._index.see(pod)
        if pod.waiting is not None:
            return
        self._refused.pop(uid, None)
        self._assumed.pop(uid, None)
        if uid in self._opening and pod.plan:
            self._end_opening(uid, keep=True)  # the watch was faster than the write's answer

    def drop(self, uid: str) -> None:
        """A pod was deleted. A share that was assumed for it and not written goes back."""
        if self._index.key_of(uid) is None:
            return
        self._index.drop(uid)
        self._refused.pop(uid, None)
        if uid in self._assumed and not self._records.is_writing(uid):
            self._cache.forget(self._assumed.pop(uid))

    # -- the cycle ------------------------------------------------------------------------------------------------

    def begin_round(self) -> None:
        """Try every gang again."""
        self._verdicts.clear()
        self._looks.clear()
        self._short.clear()

    def is_completing(self) -> bool:
        """Whether pods of a begun gang wait for the share that their plan gives them."""
        return any(uid not in self._refused for uid, _ in self._planned())

    def _planned(self) -> Iterator[tuple[str, Allocation | None]]:
        for key in self._index.open:
            members = self._index.of(key)
            if members is not None:
                yield from members.planned()

    def due(self, now: float) -> Iterator[tuple[QueuedPodInfo, Allocation]]:
        """The pods of begun gangs to write now, by their plans. The caller assumes each share."""
        for uid, planned in list(self._planned()):
            entry = self._queue.pod(uid)
            if entry is None or entry.foreign or not self._records.is_schedulable(uid, now):
                continue
            if self._refused.get(uid, 0) >= _MOST_REFUSED:
                continue
            try:
                found = self._by_plan(entry, planned)
            except Exception:
                self._faults.leave_alone("gang", entry)
                continue
            if found is None:
                self._refused[uid] = _MOST_REFUSED  # it waits like any other pod
            else:
                self._assumed[uid] = found.id
                yield entry, found

    def _by_plan(self, entry: QueuedPodInfo, planned: Allocation | None) -> Allocation | None:
        """The share that is assumed for the pod, or else that of the plan, or else any; None if nothing fits."""
        identity = self._assumed.get(entry.uid) or (planned.id if planned is not None else "")
        held = self._cache.ledger.holding(identity)
        if held is not None and pods.is_granted(entry.ask.request, held.allocation):
            return held.allocation
        if held is not None:
            self._cache.forget(held.key)  # the pod's request has changed
        if planned is not None and pods.is_granted(entry.ask.request, planned):
            found = self._again(entry, planned)
            if found is not None:
                return Allocation(planned.id, found.node, found.containers)
        decision = self._cache.decide(entry.ask, entry.requester)
        if isinstance(decision, Placement):
            return Allocation(self._new_id(), decision.node, decision.containers)
        return None

    def _again(self, entry: QueuedPodInfo, former: Allocation) -> Placement | None:
        """The pod on the cards of this allocation; None if they have no room for it."""
        node = self._cache.snapshot.get(former.node)
        cards = {each.container: tuple(share.uuid for share in each.shares) for each in former.containers}
        if node is None or former.claim or cards.keys() != {each.container for each in entry.ask.request.containers}:
            return None
        refused = self._cache.refused_by_others(entry.ask, entry.requester, (node,))
        if node.name in refused or any(one.node == node.name for one in self._cache.reservations):
            return None
        engine = self._cache.engine
        found = reference.decide(
            {node.name: node},
            arrangement.only_on(entry.ask, cards),
            limits=engine.limits,
            policy=engine.policy,
            tables=engine.tables,
        )
        return found if isinstance(found, Placement) else None

    def place(
        self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float
    ) -> Together | Allocation | GangWaits | None:
        """The shares of the pod's whole gang, or of this pod alone, or why it waits; None: it is placed alone."""
        members = self._whole(entry)
        if members is None or entry.gang is None:
            return self._former(entry)
        first = self._first(members, now)
        if first.lacks:
            return self._incomplete(entry.gang, members, first)
        return self._decide(entry.gang, members, first.pods, shape)

    def known(self, entry: QueuedPodInfo, shape: Callable[[QueuedPodInfo], Hashable], now: float) -> GangWaits | None:
        """Why the pod's gang waits, if this round already has the answer for it or for an equal one."""
        members = self._whole(entry)
        if members is None or entry.gang is None:
            return None
        key = entry.gang.key
        if key in self._starting:
            return _STARTING
        verdict = self._verdicts.get(key)
        if verdict is not None and verdict.version == members.version:
            return verdict.waits
        found = self._found(entry.gang, members, shape, now)
        if found is not None:
            self._verdicts[key] = _Verdict(members.version, found)
        return found

    def _whole(self, entry: QueuedPodInfo) -> Members | None:
        """The pods of the pod's gang, if it has not begun."""
        key = entry.gang.key if entry.gang is not None else None
        members = self._index.of(key) if key is not None else None
        return None if members is None or members.has_begun() else members

    def _found(
        self, gang: Membership, members: Members, shape: Callable[[QueuedPodInfo], Hashable], now: float
    ) -> GangWaits | None:
        """
        Why the gang waits, if too few of its pods can be placed or an equal one was found not to fit. The gang is read
        once, until its pods or the cluster change, because each of its pods comes here.
        """
        look, state = self._looks.get(gang.key), (members.version, self._cache.changes, self._cache.neighbours.version)
        if look is None or look.state != state:
            first = self._first(members, now)
            if first.lacks:
                return self._incomplete(gang, members, first)
            look = self._looks[gang.key] = _Look(state, first.pods, tuple(map(shape, first.pods)))
        short = self._short.get(look.shapes) if self._short else None
        return self._short_of(gang, look.first, short) if short is not None else None

    def _former(self, entry: QueuedPodInfo) -> Allocation | None:
        """The cards that a pod of the gang had, for that pod's replacement."""
        members = self._index.of(entry.gang.key) if entry.gang is not None else None
        for former in members.former if members is not None else ():
            found = self._again(entry, former)
            if found is not None and members is not None:
                members.former.remove(former)
                return Allocation(self._new_id(), found.node, found.containers)
        return None

    def _first(self, members: Members, now: float) -> _First:
        """The pods that start together, in the order of the queue."""
        queued = [found for uid in members.waiting if (found := self._queue.pod(uid)) is not None]
        ready = [each for each in queued if self._is_ready(each, now)]
        minimum = _minimum(queued, members, now)
        ready.sort(key=lambda each: each.order)
        return _First(ready[:minimum], minimum, queued)

    def _incomplete(self, gang: Membership, members: Members, first: _First) -> GangWaits:
        """Too few pods of the gang can be placed."""
        ready, foreign = len(first.pods), sum(bool(each.foreign) for each in first.queued)
        parked, busy = len(members.waiting) - len(first.queued), len(first.queued) - ready - foreign
        text = words.incomplete(gang, ready, first.minimum, foreign=foreign, parked=parked, busy=busy)
        return GangWaits(PodReason.GANG_INCOMPLETE, text, _NOTHING_HELPS)

    def _decide(
        self,
        gang: Membership,
        members: Members,
        first: Sequence[QueuedPodInfo],
        shape: Callable[[QueuedPodInfo], Hashable],
    ) -> Together | GangWaits:
        found = self._arranged(first)
        if isinstance(found, FellShort):
            if len(self._short) < _SHAPES:
                self._short[tuple(map(shape, first))] = found
            waits = self._short_of(gang, first, found)
            self._verdicts[gang.key] = _Verdict(members.version, waits)
            return waits
        shares = [Allocation(self._new_id(), placed.node, placed.containers) for placed in found.placements]
        plan = gangplans.to_text({each.uid: share for each, share in zip(first, shares, strict=True)})
        return Together(tuple(zip(first, shares, strict=True)), plan)

    def held(self, entry: QueuedPodInfo, now: float) -> tuple[HeldNode, ...] | None:
        """
        The nodes on which the pod's gang fits soonest, once their holders end; None if it is placed by itself.

        As for one pod, shares of its own namespace's pods do not count as released. If the gang has no room otherwise,
        nodes are reserved against its own namespace only.
        """
        members = self._whole(entry)
        if members is None or entry.gang is None:
            return None
        key = entry.gang.key
        chosen, namespace = self._first(members, now), key.namespace
        if chosen.lacks:
            return ()
        first = chosen.pods
        priority = min(each.priority for each in first)
        for staying, against in ((self._cache.ledger.held_by(namespace), ""), ({}, namespace)):
            nodes = self._soonest(first, staying)
            if nodes:
                return tuple(
                    HeldNode(
                        node, first[0].uid, priority, against=against, namespace=namespace, gang=entry.gang.key.text
                    )
                    for node in nodes
                )
        return ()

    def _soonest(self, first: Sequence[QueuedPodInfo], staying: Staying) -> list[str]:
        """The smallest set of nodes that lack the least on which all of these pods would fit if they were empty."""
        limits, asks = self._cache.engine.limits, {each.ask for each in first}
        kept = {one.node for one in self._cache.reservations}
        lacking = []
        for name, node in self._cache.snapshot.items():
            lacks = [lack for ask in asks if (lack := reservation.shortage(node, ask, limits)) is not None]
            if lacks:
                lacking.append((name not in kept, min(lacks), name))
        trial = Trial(limits, self._cache.engine.policy)
        trial.begin(FrozenCluster(()))
        members = [Member(each.ask, replace(each.requester, gang="")) for each in first]
        for number, (_, _, name) in enumerate(sorted(lacking)[:_MOST_HELD], 1):
            empty = self._cache.idle(name)
            if empty is None:
                continue
            left = staying.get(name, {})
            trial.open(replace(empty, usage=tuple(left.get(gpu.uuid, FREE) for gpu in empty.gpus)))
            if number & (number - 1) and number != min(len(lacking), _MOST_HELD):
                continue  # tried with 1, 2, 4, 8 ... nodes
            found = arrangement.arrange(trial, members, steps=0)
            if isinstance(found, Arranged):
                return sorted({placed.node for placed in found.placements})
        return []

    def _is_ready(self, entry: QueuedPodInfo, now: float) -> bool:
        return not entry.foreign and not entry.ask.request.claim and self._records.is_schedulable(entry.uid, now)

    def _arranged(self, first: Sequence[QueuedPodInfo]) -> Arranged | FellShort:
        trial = self._current()
        refusals = self._cache.refusals
        found = arrangement.arrange(
            trial, [Member(each.ask, each.requester, dict(refusals.of(each.family))) for each in first]
        )
        if isinstance(found, Arranged):
            self._trial_at = -1  # until the caller has assumed what is on the trial
        return found

    def _current(self) -> Trial:
        engine = self._cache.engine
        if self._trial is None:
            self._trial = Trial(engine.limits, engine.policy)
        if self._trial_at != self._cache.changes:
            self._trial.begin(self._cache.frozen(self._pools.nodes))
            self._trial_at = self._cache.changes
        return self._trial

    def _short_of(self, gang: Membership, first: Sequence[QueuedPodInfo], found: FellShort) -> GangWaits:
        text = words.falls_short(gang, first[found.member], len(first), found, self._dialects)
        return GangWaits(PodReason.GANG_DOES_NOT_FIT, text, codes_of(found.decision.reasons))

    # -- what became of writes ------------------------------------------------------------------------------------

    def opening(self, first: Binding, others: Sequence[Binding]) -> None:
        """The shares of a gang are assumed; the first binding is about to be written, and the others are kept here."""
        self._opening[first.pod.uid] = tuple(others)
        if first.pod.gang is not None:
            self._starting.add(first.pod.gang.key)
        self._assumed.update({each.pod.uid: each.allocation.id for each in others})

    def succeeded(self, binding: Binding) -> None:
        """A binding took effect. If it was the first of a gang, the others follow by the plan."""
        self._end_opening(binding.pod.uid, keep=True)

    def keeps(self, binding: Binding) -> bool:
        """
        A binding failed and its pod still exists. Returns whether its share stays assumed for another try. If it was
        the first of a gang, all shares of the gang are released: nothing has started.
        """
        uid = binding.pod.uid
        if uid in self._opening or uid not in self._assumed:
            return False
        self._refused[uid] = self._refused.get(uid, 0) + 1
        if self._refused[uid] < _MOST_REFUSED:
            return True
        self._records.note(
            EventRecord("Pod", binding.pod.key, uid, PodEventReason.GANG_MEMBER_LOST, words.lost(binding.pod.gang))
        )
        return False

    def failed(self, binding: Binding) -> None:
        """A binding failed, and its share is released."""
        self._assumed.pop(binding.pod.uid, None)
        self._end_opening(binding.pod.uid, keep=False)

    def _end_opening(self, uid: str, *, keep: bool) -> None:
        """The first write of a gang is over. `keep`: the other shares stay assumed, to be written by the plan."""
        others = self._opening.pop(uid, ())
        planned = {each for each, _ in self._planned()} if keep and others else set[str]()
        for each in others:
            if each.pod.gang is not None:
                self._starting.discard(each.pod.gang.key)
            self._records.done(each.pod.uid)
            if each.pod.uid not in planned:
                self._assumed.pop(each.pod.uid, None)
                self._cache.forget(each.allocation.id)
            self._trigger.requeue_helped()

    def _tick(self, now: float) -> tuple[()]:
        """This replica may no longer decide: release the shares of pods that it has not written."""
        self._index.prune(now)
        if self._trial is not None:
            self._trial.rest()
            self._trial_at = -1
        if not self._leadership.holds() and (self._assumed or self._opening):
            for uid in tuple(self._opening):
                self._end_opening(uid, keep=False)
            for uid, identity in tuple(self._assumed.items()):
                if not self._records.is_writing(uid):
                    self._cache.forget(identity)
                    del self._assumed[uid]
        return ()
