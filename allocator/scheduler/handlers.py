"""
What the watches bring, into the allocator's state: pods, nodes and GPUNodes that are new, changed or gone.

It owns the state and its one lock. Every public method takes the lock, works on memory only and returns at once. It
decides nothing: where something might help a pod that waits, it says so and wakes whoever decides.

An error of ours that comes of one pod stays with it (`allocator.queue.queue.quarantine`): everybody else is taken in,
and if it may hold a share that is not counted, its node takes no new pods.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from allocator.cache.capacities import Capacities
from allocator.cache.excluded import ExcludedGpus
from allocator.cache.ledger import Reservation
from allocator.cache.podinfo import AllocatedPods, TrackedPod
from allocator.cache.unbound import UnboundPods
from allocator.queue import quarantine
from allocator.queue.quarantine import INTERNAL_ERROR, READING
from allocator.queue.queue import QueuedPodInfo, SchedulingQueue
from allocator.queue.reporting import EventRecord, LastReported, PodRecords, StatusUpdate
from allocator.scheduler import messages
from allocator.scheduler.context import SchedulerContext
from allocator.scheduler.leadership import KEPT_OUT
from contract import names, pods
from contract.encoding import quantity
from contract.model import Inventory
from contract.nodes import excluded
from contract.nodes.attributes import NodeFacts
from contract.nodes.excluded import KeptOut
from contract.scheduling import needs

JSON = dict[str, Any]
_ALLOCATED = "Allocated"
_UNREADABLE = "Unreadable"
_ALL_OUT = "until then no GPU of the node takes new pods"


class Intake:
    """The allocator's state behind one lock, as the watches make it."""

    def __init__(self, context: SchedulerContext) -> None:
        self._lock = threading.Lock()  # guards everything below
        self._cluster, self._mandate = context.cluster, context.mandate
        self._unbound = UnboundPods(context.options.unbound_after)
        self._cluster.hold()
        self._clock, self._wake, self._asked = context.clock, context.wake, context.asked
        self._faulted = context.faulted
        self._queue, self._line = SchedulingQueue(), PodRecords()
        self._kept_out = ExcludedGpus()
        self._capacities = Capacities()
        self._listed: set[str] = set()
        """The uids in the parts of a list that have come so far."""
        self._told_in: int | None = None
        """The leadership in which pods were told what is noted that they were told."""
        self._amid_a_list = False
        """Some of a list was taken in and some was not: pods may be known that are gone."""
        self._failing: set[str] = set()
        """Pods that hold a share for as long as it takes until they have failed."""
        self._sharers = AllocatedPods()
        self._untried = False
        """Something happened that may help the line, and the line has not been tried since."""
        self._changed = False
        """Something happened that helps nobody, but of which pods may have been told other figures."""

    def replace_pods(
        self, items: Iterable[JSON], *, first: bool = True, last: bool = True, tenure: int | None = None
    ) -> None:
        """
        The list of pods, trimmed, or a part of it: between parts others have their turn, and nobody holds all of it.

        `first`, `last`: this part begins the list, and ends it. `tenure`: the list was asked for in this leadership,
        after it began.
        """
        with self._lock:
            now, helped = self._clock(), False
            if first:
                self._listed.clear()
                self._begin_leadership(tenure)
            self._cluster.hold()
            for pod in items:
                self._listed.add(quarantine.named(pod)[0])
                helped |= self._take_in(pod, now)
            if last:
                for gone in (self._uids() | self._line.quarantine.uids()) - self._listed:
                    helped |= self._take_out(gone)
                self._listed.clear()
            self._amid_a_list = not last
            self._catch_up()
            self._waken(helped)
            if last:
                self._synced("pods", tenure)

    def _begin_leadership(self, tenure: int | None) -> None:
        """
        What we noted that pods were told may be old, if another has led since, or never have reached them. From here on
        counts what their conditions say, and only what is otherwise by now is told anew.
        """
        if tenure is not None and tenure != self._told_in:
            self._told_in = tenure
            self._line.tell_anew()

    def put_pod(self, pod: JSON) -> None:
        """A pod, trimmed, is new or changed."""
        with self._lock:
            self._waken(self._take_in(pod, self._clock()))

    def drop_pod(self, uid: str) -> None:
        """A pod is gone."""
        with self._lock:
            self._waken(self._take_out(uid))

    def _take_in(self, pod: JSON, now: float, trim: Callable[[JSON], JSON] | None = None) -> bool:
        """
        `_put_pod`, whatever the pod is made of. What it has held goes on being counted where it cannot be read.

        `trim`: makes a pod small that comes whole.
        """
        (uid, key), held = quarantine.named(pod), None
        try:
            pod = trim(pod) if trim is not None else pod
            held = self._cluster.ledger.holding(uid)
            helped = self._put_pod(pod, now)
        except Exception:
            there = frozenset[str]() if held is None else frozenset((held.allocation.node,))
            self._set_aside(READING, uid, key, pod, quarantine.made_of(pod))
            self._cluster.close(uid, there | quarantine.may_hold(pod))
            return False
        entry = self._queue.pod(uid)
        self._line.quarantine.taken_in(uid, _tried_as(entry) if entry is not None else None)
        return self._cluster.open(uid) or helped

    def _take_out(self, uid: str) -> bool:
        """`_drop_pod`, whatever is known of the pod. What cannot be given back is counted on."""
        try:
            return self._drop_pod(uid) | self._cluster.open(uid)
        except Exception:
            self._faulted("gone", uid)
            return False

    def _leave_alone(self, place: str, entry: QueuedPodInfo) -> None:
        """To be called where an error of ours came of what is done for a pod in line, as it is handled."""
        self._set_aside(place, entry.uid, entry.key, entry.pod, _tried_as(entry))

    def _set_aside(self, place: str, uid: str, key: str, pod: Mapping[str, Any], made_of: object) -> None:
        """
        To be called where an error of ours came of a pod, as it is handled: the pod is left alone, and told so.

        A pod that may hold a share is told by an Event only: its condition says that it has one, and so it is.
        `made_of`: a pod of which this changes may be tried again.
        """
        now = self._clock()
        fault = self._line.quarantine.known(uid, place, made_of, now)
        if fault is None:
            found = self._faulted(place, key)
            if not uid:
                return
            fault = self._line.quarantine.put(uid, key, made_of, place, found, now)
        if not self._mandate.leads():
            return
        text = quarantine.said(fault)
        if self._cluster.ledger.holding(uid) is None and not quarantine.may_hold(pod):
            self._line.tell(StatusUpdate(key, uid, False, INTERNAL_ERROR, text, warning=INTERNAL_ERROR), now)
        elif fault.since == now:
            self._line.note(EventRecord("Pod", key, uid, INTERNAL_ERROR, text))
        self._wake()

    def _put_pod(self, pod: JSON, now: float) -> bool:
        uid = pods.uid(pod)
        if self._line.outdated(uid, pods.version(pod)):
            return False
        self._line.shows(uid, pods.key(pod), stands(pod), now)
        known = self._queue.pod(uid) is not None or self._cluster.ledger.holding(uid) is not None
        might_help = self._feed(uid, pod, now)
        holding = self._cluster.ledger.holding(uid)
        if not known:
            self._tell_what_is_asked(uid, pod, holding)
        if holding is None:
            self._failing.discard(uid)
            self._unbound.drop(uid)
            self._sharers.drop(uid)
            self._tell_unreadable(uid, now)
            if not self._tracks(uid):
                self._line.drop(uid)  # nobody would notice if its end were missed
            return might_help
        self._sharers.see(pod, holding, self._cluster.compute_of(uid), now)
        cured = self._unbound.see(pod, holding.allocation.node, now)
        if self._mandate.leads() and (cured or not _says_allocated(pod)) and uid not in self._failing:
            text = messages.allocated(holding.allocation)
            if self._line.tell(StatusUpdate(holding.pod, uid, True, _ALLOCATED, text), now):
                self._wake()
        return might_help

    def _tell_unreadable(self, uid: str, now: float) -> None:
        """A pod behind our gate that cannot be placed as it is learns why; nothing would let it go otherwise."""
        found = self._queue.unreadable.get(uid)
        if found is None or not self._mandate.leads():
            return
        if self._line.tell(StatusUpdate(found.key, uid, False, _UNREADABLE, f"waiting: {found.why}"), now):
            self._wake()

    def _tell_what_is_asked(self, uid: str, pod: JSON, holding: Reservation | None) -> None:
        waiting = self._queue.pod(uid)
        if (waiting is not None and waiting.ask.request.claim) or (holding is not None and holding.allocation.claim):
            return  # how much a claim asks for is not the pod's to say
        if waiting is not None:
            self._asked(waiting.ask.request, waiting.ask.needs.compute.cpu)
        elif holding is not None:
            try:
                cpu = needs.effective_compute(pod.get("spec") or {}).cpu
            except quantity.BadQuantity:
                cpu = 0
            self._asked(holding.request, cpu)

    def _drop_pod(self, uid: str) -> bool:
        self._failing.discard(uid)
        self._line.drop(uid)
        self._unbound.drop(uid)
        self._sharers.drop(uid)
        self._queue.drop(uid)
        return self._cluster.drop_pod(uid)

    def _feed(self, uid: str, pod: JSON, now: float) -> bool:
        """Put a pod into the queue, if our gate holds it, else into the cache. True if that may help."""
        freed, ended = self._cluster.put_pod(pod, now), pods.finished(pod)
        if not ended and names.GATE in pods.gates(pod):
            return self._queue.put(uid, pod) or freed
        left = self._queue.drop(uid)
        return freed or (left and not ended)

    def _tracks(self, uid: str) -> bool:
        """Whether the pod waits, or takes something of a node."""
        return self._queue.knows(uid) or self._cluster.tracks(uid)

    def _tracked(self, uid: str) -> TrackedPod:
        """Where a pod stands by what the watches brought."""
        return replace(self._cluster.tracked(uid), waits=self._queue.knows(uid))

    def _uids(self) -> frozenset[str]:
        """Every pod that waits, takes something of a node, or is about to."""
        return self._cluster.pod_uids().union(self._queue.uids())

    def replace_nodes(self, items: Iterable[NodeFacts]) -> None:
        """The whole list of nodes."""
        with self._lock:
            self._cluster.replace_nodes({item.name: item for item in items})
            self._synced("nodes")

    def put_node(self, node: NodeFacts) -> None:
        """A node is new or changed."""
        with self._lock:
            self._waken(self._cluster.put_node(node))

    def drop_node(self, name: str) -> None:
        """A node is gone."""
        with self._lock:
            self._cluster.drop_node(name)
            self._changed = True

    def replace_inventories(self, items: Iterable[Inventory]) -> None:
        """The whole list of GPUNodes."""
        with self._lock:
            published = {item.node: item for item in items}
            self._cluster.replace_inventories(self._kept_out.inventories(published))
            self._tell_of_strangers()
            self._synced("gpunodes")

    def put_inventory(self, inventory: Inventory) -> None:
        """A GPUNode is new or changed."""
        with self._lock:
            self._waken(self._cluster.put_inventory(self._kept_out.inventory(inventory)))
            self._tell_of_strangers()

    def drop_inventory(self, name: str) -> None:
        """A GPUNode is gone."""
        with self._lock:
            self._kept_out.drop(name)
            self._capacities.drop(name)
            self._cluster.drop_inventory(name)
            self._changed = True

    def said_beyond(self, node: str, text: str) -> None:
        """What a GPUNode says of what pods hold beyond its GPUs' promise; empty where it says nothing."""
        with self._lock:
            self._capacities.see(node, text)

    def replace_kept_out(self, items: Iterable[KeptOut]) -> None:
        """Every list of cards that are kept out."""
        with self._lock:
            lists = {item.node: item for item in items}
            self._take_over(self._kept_out.lists(lists), lists.values())
            self._synced(KEPT_OUT)

    def put_kept_out(self, node: str, found: KeptOut | None) -> None:
        """A node's list is new or changed; None for one that is gone."""
        with self._lock:
            self._take_over(self._kept_out.list(node, found), (found,) if found is not None else ())

    def _take_over(self, changed: Iterable[Inventory], lists: Iterable[KeptOut]) -> None:
        told = False
        for found in lists:
            if found.wrong:
                self._note_list(found, "ListUnreadable", f"{found.wrong}; {_ALL_OUT}")
                told = True
        self._waken(any([told, *(self._cluster.put_inventory(inventory) for inventory in changed)]))
        self._tell_of_strangers()

    def _tell_of_strangers(self) -> None:
        """A list that names a card which is not there keeps nothing out, and whoever wrote it believes otherwise."""
        for found, wrong in self._kept_out.take_warnings():
            self._note_list(found, "ListNamesNoGPU", wrong)
            self._wake()

    def _note_list(self, found: KeptOut, code: str, said: str) -> None:
        key = f"{excluded.NAMESPACE}/{excluded.PREFIX}{found.node}"
        self._line.note(EventRecord("ConfigMap", key, found.uid, code, said))

    def _synced(self, kind: str, tenure: int | None = None) -> None:
        self._mandate.listed(kind, tenure)
        self._catch_up()
        self._wake()

    def _catch_up(self) -> None:
        """Nodes' states are worth making once everything has been seen; the first decision must not wait for that."""
        if not self._mandate.unready():
            self._cluster.catch_up()
            self._cluster.prepare()

    def _waken(self, might_help: bool) -> None:
        if might_help:
            self._rouse()
        self._changed = True

    def _rouse(self) -> None:
        """Have the line tried again. Until it has been, nobody who comes later is placed before it."""
        self._untried = True
        self._wake()


def stands(pod: Mapping[str, Any]) -> LastReported | None:
    """What the pod's own condition says; None where it has none."""
    for each in (pod.get("status") or {}).get("conditions") or ():
        if each.get("type") == names.ALLOCATED_CONDITION:
            return LastReported(each.get("status") == "True", str(each.get("reason", "")), str(each.get("message", "")))
    return None


def _says_allocated(pod: JSON) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == names.ALLOCATED_CONDITION and c.get("status") == "True" for c in conditions)


def _tried_as(entry: QueuedPodInfo) -> object:
    """What trying a pod depends on."""
    return entry.ask, entry.foreign, entry.priority
