"""
Applies watch events to the cache and the queue. Pure; the shell holds the lock.

An event decides nothing: if it might help a waiting pod, it requests a scheduling cycle. An internal error caused by
one pod affects only that pod (`allocator.queue.records`): all others are taken in, and if it may hold a share that is
not counted, its node takes no new pods.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from allocator.cache import unconfirmed
from allocator.cache.excluded import ExcludedGpus
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import PodEvent, PodInfo, TrackedPod, made_of, may_hold
from allocator.queue.records import READING, EventRecord, Eviction, StatusUpdate, tried_as
from allocator.scheduler import messages
from allocator.scheduler.events import (
    BarrierWritten,
    Effect,
    ExcludedGpusChanged,
    ExcludedGpusListed,
    HeldBeyondChanged,
    IdleSharesReported,
    InventoriesListed,
    InventoryChanged,
    InventoryDeleted,
    NamespacesLabelled,
    NodeChanged,
    NodeDeleted,
    NodesListed,
    ParkedRead,
    PodDeleted,
    PodFenced,
    PodsListed,
    ProfilesDeclared,
    ReadParked,
    ReadUntold,
    StorageChanged,
    StorageDeleted,
    StorageListed,
    UntoldRead,
)
from allocator.scheduler.housekeeping import ForeignGates
from allocator.scheduler.leadership import KEPT_OUT, PODS, SchedulerState
from allocator.scheduler.parts import NO_GANGS, Gangs
from allocator.scheduler.succession import Barrier, Fence, LatePods
from allocator.scheduler.unbound import UnboundPods
from allocator.settings import Settings
from contract.model import Inventory, PodRequest
from contract.nodes import excluded
from contract.nodes.excluded import KeptOut
from contract.pods import UnreadShare
from contract.reasons.gpunodes import NodeEventReason
from contract.reasons.pods import PodReason

JSON = dict[str, Any]
log = logging.getLogger(__name__)
_ALL_OUT = "until then, no GPU of the node accepts new pods"


class EventHandlers:
    """Feeds the cache and the queue."""

    def __init__(
        self,
        state: SchedulerState,
        *,
        settings: Settings,
        evict: Callable[[Eviction], None],
        forgotten: Callable[[str], None],
        on_request: Callable[[PodRequest, int], None],
    ) -> None:
        self._cache = state.cache
        self._queue = state.queue
        self._records = state.records
        self._trigger = state.trigger
        self._leadership = state.leadership
        self.barrier = Barrier(state)
        self.fence = Fence(state)
        self.late = LatePods(state)
        self.gates = ForeignGates(state)
        self.unbound = UnboundPods(state, settings=settings, evict=evict)
        self._capacities = state.capacities
        self._faults = state.faults
        self._arrivals = state.arrivals
        self._forgotten = forgotten
        self._on_request = on_request
        self.gangs: Gangs = NO_GANGS
        self._tells_all = settings.placement.condition == "always"
        self._kept_out = ExcludedGpus()
        self._repeated = state.repeated
        self._listed: set[str] = set()
        """The uids in the parts of a list that were taken in so far."""
        self._told_unread: set[str] = set()
        """The uids of pods to which this term has reported that their share is unreadable."""
        self._reported_in: int | None = None
        """The term in which the conditions in the records were written."""
        self.listing = False
        """Only a part of a list was taken in: deleted pods may still be tracked."""
        self._cache.hold()

    def pods_listed(self, event: PodsListed, now: float) -> None:
        """A list of pods, or a part of it. The last part removes the pods that no part named."""
        helped = False
        if event.first:
            self._listed.clear()
            self._begin_leadership(event.term)
        self._cache.hold()
        for pod in event.pods:
            self._listed.add(pod.uid)
            helped |= self.take_in(pod, now)
            if self.barrier.tried:
                self._note_fence(pod)
        if event.last:
            for deleted in (self.uids() | self._records.quarantine.uids()) - self._listed:
                helped |= self.take_out(deleted)
            self._listed.clear()
        self.listing = not event.last
        self._catch_up()
        self._trigger.event(helped)
        if event.last:
            self._put_inventories(self._repeated.settle(self.holds))
            self.synced(PODS, event.term)
            self._pass_barrier()

    def _begin_leadership(self, term: int | None) -> None:
        """
        Our record of pods' conditions may be old, since another replica may have led meanwhile. From now on the pods'
        conditions are the record, and only a condition that is no longer true is written again.
        """
        if term is not None and (self._reported_in is None or term > self._reported_in):
            self._reported_in = term
            for uid, key in self._records.forget_reports().items():
                self._leadership.untold.note(uid, key)
            self._told_unread.clear()

    def pod_changed(self, event: PodEvent, now: float) -> None:
        """A pod is new or changed, as the watch shows it."""
        self._trigger.event(self.take_in(event, now))
        if self.barrier.tried:
            self._note_fence(event)
            self._pass_barrier()

    def _note_fence(self, event: PodEvent) -> None:
        if event.info is not None:
            self.barrier.shows(event.uid, event.pod)

    def barrier_written(self, event: BarrierWritten, now: float) -> None:
        """The write by which the watch is known to be up to date has an answer; the watch may have shown it already."""
        self.barrier.written(event, now)
        if not self.listing:
            self._pass_barrier()

    def _pass_barrier(self) -> None:
        """If the watch has brought all that the former leader wrote, it is as after a list."""
        term = self.barrier.passed()
        if term is not None:
            self._begin_leadership(term)
            self._put_inventories(self._repeated.settle(self.holds))
            self.synced(PODS, term)

    def pod_deleted(self, event: PodDeleted, now: float) -> None:
        """A pod was deleted."""
        self._trigger.event(self.take_out(event.uid))

    def take_in(self, event: PodEvent, now: float) -> bool:
        """
        Take in a pod of any shape. If it cannot be read, what it held is still counted.

        True if that may help a pending pod.
        """
        uid = event.uid
        if uid in self._leadership.untold.noted:
            self._leadership.untold.settle(uid)
        held = self._cache.ledger.holding(uid)
        try:
            helped = not self._records.outdated(uid, event.version) and self._put_pod(event.read(), now)
        except Exception:
            there = frozenset[str]() if held is None else frozenset((held.allocation.node,))
            self._faults.set_aside(READING, uid, event.key, event.pod, made_of(event.pod))
            self._cache.close(uid, there | may_hold(event.pod))
            return False
        entry = self._queue.pod(uid)
        self._records.quarantine.taken_in(uid, tried_as(entry) if entry is not None else None)
        unread = event.info.unread if event.info is not None else None
        if unread is None:
            self._told_unread.discard(uid)
            return self._cache.open(uid) or helped
        if self._cache.close(uid, frozenset((unread.node,)), unread.texts) or uid not in self._told_unread:
            self._report_unread(uid, event.key, unread)
        return helped

    def _report_unread(self, uid: str, key: str, unread: UnreadShare) -> None:
        text = messages.unread(unread.why)
        log.warning("share not counted", extra={"pod": key, "node": unread.node, "reason": text})
        if self._leadership.may_tell(uid, key):
            self._told_unread.add(uid)
            self._records.note(EventRecord("Pod", key, uid, PodReason.SHARE_UNREAD, text))
            self._trigger.wake()

    def take_out(self, uid: str) -> bool:
        """`_drop_pod`, for any pod. What cannot be given back is still counted."""
        self._leadership.untold.settle(uid)
        self._told_unread.discard(uid)
        try:
            return self._drop_pod(uid) | self._cache.open(uid)
        except Exception:
            self._faults.surfaced("gone", uid)
            return False

    def _put_pod(self, pod: PodInfo, now: float) -> bool:
        uid, ledger = pod.uid, self._cache.ledger
        freed = not self.tracks(uid) and self._arrives(pod, now)
        announced = ledger.holding(uid) is not None or ledger.holding(pod.allocation_id) is not None
        helps = self._apply(pod, now) or freed
        if not announced and ledger.holding(uid) is not None:
            self.late.took_in(uid)
        return helps

    def _arrives(self, pod: PodInfo, now: float) -> bool:
        """
        A pod is seen for the first time. True if that gave something back: what was reserved for it before its share
        was replaced, or for another creation of its name, which the API server refuses from now on.
        """
        identity, key, ledger = pod.allocation_id, pod.key, self._cache.ledger
        reserved = ledger.holding(identity) if identity else None
        if reserved is not None and reserved.judged is not None:
            self._arrivals.came(unconfirmed.namespace_of(reserved), now - reserved.since)
        elif identity and reserved is None:
            self._arrivals.came_late(identity, now)
        returned, namespace = pod.returned, key.split("/", 1)[0]
        freed = False
        for each in unconfirmed.of_admissions(ledger.assumed()):
            own = unconfirmed.namespace_of(each) == namespace and each.key == returned
            if each.key != identity and (own or each.pod == key) and self._cache.forget(each.key):
                self._forgotten("replaced")
                freed = True
        return freed

    def _apply(self, pod: PodInfo, now: float) -> bool:
        uid = pod.uid
        self._records.shows(uid, pod.key, pod.condition, now)
        known = self._queue.pod(uid) is not None or self._cache.ledger.holding(uid) is not None
        was_unbound = self._cache.allocated.is_reported_unbound(uid)
        might_help = self._feed(pod, now)
        self.unbound.see(pod, now)
        holding = self._cache.ledger.holding(uid)
        if not known:
            self._report_request(pod, holding)
        if pod.behind:
            self.gates.see(pod)
        elif uid in self.gates.pods:
            del self.gates.pods[uid]
        if holding is None:
            self.late.failing.discard(uid)
            self._tell_unreadable(uid, now)
            self._tell_parked(pod, now)
            if not self.tracks(uid):
                self._records.drop(uid)  # otherwise a missed end would go unnoticed
            return might_help
        bound = was_unbound and not self._cache.allocated.is_reported_unbound(uid)
        shown = pod.condition is not None and pod.condition.allocated
        if (bound or not shown) and uid not in self.late.failing and not pod.behind:
            self._tell_allocated(pod, holding, now)
        return might_help

    def _tell_allocated(self, pod: PodInfo, holding: Reservation, now: float) -> None:
        """
        A pod with another condition gets the condition that it has its share.

        All others have it in their annotations from the beginning, so nothing is written.
        """
        told = pod.condition is not None or self._records.has_told(pod.uid)
        if not (told or self._tells_all) or not self._leadership.may_tell(pod.uid, pod.key):
            return
        inventory = self._cache.inventory(holding.allocation.node)
        models = {gpu.uuid: gpu.model for gpu in inventory.gpus} if inventory is not None else {}
        text = messages.allocated(holding.request, holding.allocation, models)
        # If kube-scheduler has yet to bind the pod, its Event `Scheduled` will name the node.
        news = StatusUpdate(holding.pod, pod.uid, True, PodReason.ALLOCATED, text, event=pod.bound)
        if self._records.tell(news, now):
            self._trigger.wake()

    def _tell_unreadable(self, uid: str, now: float) -> None:
        """A pod behind our gate that cannot be placed as it is learns why; nothing would release it otherwise."""
        found = self._queue.unreadable.get(uid)
        if found is None or not self._leadership.may_tell(uid, found.key):
            return
        if self._records.tell(StatusUpdate(found.key, uid, False, PodReason.UNREADABLE, f"waiting: {found.why}"), now):
            self._trigger.wake()

    def _tell_parked(self, pod: PodInfo, now: float) -> None:
        """Tell parked pods: this one, and those that were parked because of it."""
        parked = {each.uid: each for each in self._queue.take_parked()}
        known = self._queue.parking.pod(pod.uid)
        if known is not None:
            parked.setdefault(pod.uid, known)
        for each in parked.values():
            if not self._leadership.may_tell(each.uid, each.key):
                continue
            text = messages.parked(each.size, self._queue.parking.each)
            stands = pod.condition if each.uid == pod.uid else None
            if self._records.tell(StatusUpdate(each.key, each.uid, False, PodReason.PARKED, text), now, stands):
                self._trigger.wake()

    def parked_read(self, event: ParkedRead, now: float) -> None:
        """
        A parked pod whose turn it is was read. A state that is older than the watch's does not count.
        """
        uid, parked = event.uid, self._queue.parking.pod(event.uid)
        if parked is None:
            return
        if event.deleted:
            self._trigger.event(self.take_out(uid))
            return
        read = event.pod
        if read is None or read.uid != uid or (read.version or 0) < (parked.version or 0):
            self._queue.parking.unread(uid)
            return
        self._queue.is_due(uid)
        self._trigger.event(self.take_in(read, now))
        self._queue.parking.unread(uid)
        if self.tracks(uid):
            self._records.touched(uid, read.version)

    def read_parked(self) -> list[Effect]:
        """The parked pods whose turn it is, if this replica may decide."""
        return [ReadParked(each) for each in self._queue.parking.due()] if self._leadership.holds() else []

    def read_untold(self) -> list[Effect]:
        """The pods to read because they should have learnt something before this replica led."""
        if not self._leadership.tells():
            return []
        return [ReadUntold(key, uid, number) for uid, key, number in self._leadership.untold.take()]

    def untold_read(self, event: UntoldRead, now: float) -> None:
        """A pod that should have learnt something was read; it counts if the watch has brought nothing newer since."""
        uid, read = event.uid, event.pod
        failed = not event.deleted and (read is None or read.uid != uid)
        if not self._leadership.untold.was_read(uid, event.number, failed=failed):
            return
        if event.deleted or read is None:
            self._trigger.event(self.take_out(uid))
        elif self._queue.parking.pod(uid) is None:
            self._trigger.event(self.take_in(read, now))
            self._records.touched(uid, read.version)
        elif read.info is not None:
            self._tell_parked(read.info, now)

    def _report_request(self, pod: PodInfo, holding: Reservation | None) -> None:
        waiting = self._queue.pod(pod.uid)
        if (waiting is not None and waiting.ask.request.claim) or (holding is not None and holding.allocation.claim):
            return  # the pod does not contain the amounts of a claim
        if waiting is not None:
            self._on_request(waiting.ask.request, waiting.ask.needs.compute.cpu)
        elif holding is not None:
            self._on_request(holding.request, pod.compute.cpu)

    def _drop_pod(self, uid: str) -> bool:
        self.late.failing.discard(uid)
        self.gates.pods.pop(uid, None)
        self.unbound.drop(uid)
        self._records.drop(uid)
        self._queue.drop(uid)
        self.gangs.drop(uid)
        return self._cache.drop_pod(uid)

    def _feed(self, pod: PodInfo, now: float) -> bool:
        """Put a pod into the queue, if our gate holds it, else into the cache. True if that may help other pods too."""
        waited = self._queue.pod(pod.uid) is not None
        freed, changed = self._cache.put_pod(pod, now), self._queue.put(pod)
        self.gangs.see(pod)
        if changed and not waited:
            self._trigger.join()
            return freed
        return freed or (changed and not pod.finished)

    def tracks(self, uid: str) -> bool:
        """Whether the pod waits, takes something of a node, or had a share taken back."""
        return self._queue.knows(uid) or self._cache.tracks(uid) or uid in self.unbound.withdrawn

    def tracked(self, uid: str) -> TrackedPod:
        """The state of a pod according to the watches."""
        return replace(self._cache.tracked(uid), waits=self._queue.knows(uid))

    def uids(self) -> frozenset[str]:
        """Every pod that waits, takes something of a node, or is about to."""
        return self._cache.pod_uids().union(self._queue.uids(), self.unbound.withdrawn)

    def namespaces_labelled(self, event: NamespacesLabelled, now: float) -> None:
        """The labels of all namespaces, by which pods' affinity selects namespaces."""
        self._cache.neighbours.label_namespaces(event.labels)
        self.synced("namespaces")

    def profiles_declared(self, event: ProfilesDeclared, now: float) -> None:
        """The administrator's profiles of kube-scheduler changed; pods may fit that did not."""
        self._cache.neighbours.declare(event.profiles)
        self._trigger.wake()

    def storage_listed(self, event: StorageListed, now: float) -> None:
        """All claims, volumes, or what belongs to them, of one kind."""
        self._cache.neighbours.followed(event.plural).listed(event.plural, event.found)
        self._cache.devices_changed()
        self._trigger.wake()

    def storage_changed(self, event: StorageChanged, now: float) -> None:
        """One of them is new or changed."""
        self._cache.neighbours.followed(event.plural).put(event.plural, event.key, event.found)
        self._note_devices(event.plural)

    def storage_deleted(self, event: StorageDeleted, now: float) -> None:
        """One of them was deleted."""
        self._cache.neighbours.followed(event.plural).drop(event.plural, event.key)
        self._note_devices(event.plural)

    def _note_devices(self, plural: str) -> None:
        """Which extended resources nodes have by claims follows from the DeviceClasses."""
        if plural == "deviceclasses":
            self._trigger.event(self._cache.devices_changed())

    def nodes_listed(self, event: NodesListed, now: float) -> None:
        """The whole list of nodes."""
        self._cache.replace_nodes({node.name: node for node in event.nodes})
        self.synced("nodes")

    def node_changed(self, event: NodeChanged, now: float) -> None:
        """A node is new or changed."""
        self._trigger.event(self._cache.put_node(event.node))

    def node_deleted(self, event: NodeDeleted, now: float) -> None:
        """A node was deleted."""
        self._cache.drop_node(event.name)
        self._trigger.outdated = True

    def inventories_listed(self, event: InventoriesListed, now: float) -> None:
        """The whole list of GPUNodes."""
        published = {inventory.node: inventory for inventory in event.inventories}
        once = self._repeated.replace(published, self.holds)
        self._cache.replace_inventories(self._kept_out.inventories(once))
        self._cache.retain_idle(published)
        self._tell_of_strangers()
        self.synced("gpunodes")

    def inventory_changed(self, event: InventoryChanged, now: float) -> None:
        """A GPUNode is new or changed."""
        self._put_inventories(self._repeated.put(event.inventory, self.holds))
        self._tell_of_strangers()

    def inventory_deleted(self, event: InventoryDeleted, now: float) -> None:
        """A GPUNode was deleted."""
        self._kept_out.drop(event.node)
        self._capacities.drop(event.node)
        self._cache.drop_idle(event.node)
        self._cache.drop_inventory(event.node)
        self._put_inventories(self._repeated.drop(event.node, self.holds))
        self._trigger.outdated = True

    def holds(self, node: str, uuid: str) -> bool:
        """Whether pods on the node hold the card."""
        return uuid in self._cache.ledger.used(node)

    def _put_inventories(self, changed: Iterable[Inventory]) -> None:
        for inventory in changed:
            self._trigger.event(self._cache.put_inventory(self._kept_out.inventory(inventory)))

    def held_beyond_changed(self, event: HeldBeyondChanged, now: float) -> None:
        """Apply a GPUNode's report about the amounts that pods hold beyond its GPUs' promise."""
        self._capacities.see(event.node, event.text)
        self._repeated.note(event.node, event.repeated)

    def idle_shares_reported(self, event: IdleSharesReported, now: float) -> None:
        """Apply a GPUNode's report about idle shares."""
        self._cache.report_idle(event.node, event.report, now, listed=event.listed)

    def excluded_gpus_listed(self, event: ExcludedGpusListed, now: float) -> None:
        """Every list of excluded GPUs."""
        lists = {item.node: item for item in event.lists}
        self._take_over(self._kept_out.lists(lists), lists.values())
        self.synced(KEPT_OUT)

    def excluded_gpus_changed(self, event: ExcludedGpusChanged, now: float) -> None:
        """A node's list of excluded GPUs is new, changed or deleted."""
        found = event.found
        self._take_over(self._kept_out.list(event.node, found), (found,) if found is not None else ())

    def _take_over(self, changed: Iterable[Inventory], lists: Iterable[KeptOut]) -> None:
        reported = False
        for found in lists:
            if found.wrong:
                self._note_list(found, NodeEventReason.LIST_UNREADABLE, f"{found.wrong}; {_ALL_OUT}")
                reported = True
        self._trigger.event(any([reported, *(self._cache.put_inventory(inventory) for inventory in changed)]))
        self._tell_of_strangers()

    def _tell_of_strangers(self) -> None:
        """A list that names a card which does not exist excludes nothing, but its author believes otherwise."""
        for found, wrong in self._kept_out.take_warnings():
            self._note_list(found, NodeEventReason.LIST_NAMES_NO_GPU, wrong)
            self._trigger.wake()

    def _note_list(self, found: KeptOut, code: NodeEventReason, message: str) -> None:
        key = f"{excluded.NAMESPACE}/{excluded.PREFIX}{found.node}"
        self._records.note(EventRecord("ConfigMap", key, found.uid, code, message))

    def synced(self, kind: str, term: int | None = None) -> None:
        self._leadership.listed(kind, term)
        self._catch_up()
        self._trigger.wake()

    def _catch_up(self) -> None:
        """Nodes' states are worth making once everything has been seen; the first decision must not wait for that."""
        if not self._leadership.unready():
            self._cache.catch_up()
            self._cache.prepare()

    def pod_fenced(self, event: PodFenced, now: float) -> None:
        """A pod now has a later version, or will never have one."""
        self.fence.fenced(event.uid)
        if event.pod is not None and self._queue.pod(event.uid) is not None:
            self._trigger.event(self.take_in(event.pod, now))
            self._records.touched(event.uid, event.pod.version)
