"""
The recorded demand through the webhook's admission and the allocator's core, in virtual time.

Each pod is admitted as the webhook would admit it, decided by the allocator's controller, and leaves after it has run
as long as it did. A deleted pod leaves when it was deleted, whether it has started or not. Writes take no time and
never fail, kube-scheduler binds at once, and no pod is evicted. What a cluster has besides, such as volumes,
namespaces' labels and the pods of nodes without cards, is not known here.

Nothing here decides: `webhook.admission` and `allocator.scheduler` do, as they do in a cluster. Pure: the only clock is
that of the recording.
"""

from __future__ import annotations

import base64
import heapq
import itertools
import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from allocator.cache.cache import Cache
from allocator.cache.podinfo import pod_event
from allocator.engine.engine import Engine
from allocator.engine.reference import Policy
from allocator.queue.records import Binding, StatusUpdate
from allocator.scheduler.core import Controller
from allocator.scheduler.events import (
    AssumedChecked,
    BindFailed,
    BindSucceeded,
    CheckAssumed,
    ExcludedGpusListed,
    InventoriesListed,
    InventoryChanged,
    InventoryDeleted,
    NamespacesLabelled,
    NodeChanged,
    NodeDeleted,
    NodesListed,
    ParkedRead,
    PodDeleted,
    QueueWeighed,
    ReadParked,
    TickPhase,
    pods_listed,
)
from allocator.scoring import estimator
from allocator.scoring.classes import supply_of
from allocator.scoring.estimator import Learner
from allocator.settings import Settings
from allocator.workers import binder
from contract import names, pods
from contract.encoding import moments, quantity
from contract.encoding.plain import plain
from contract.model import Inventory, PodRequest
from contract.options import NO_OPTIONS, PoolOptions
from contract.scheduling.filters import DEFAULT_LIMITS
from shadow.recording.records import DONE, NodeGone, NodeSeen
from shadow.replay import cards
from shadow.replay.demand import DemandWindow, PodDemand
from shadow.replay.outcome import Fates, PodFate, UseMeter
from shadow.replay.patches import PatchFailed, patched
from webhook.admission import admit
from webhook.admission.review import Review

JSON = dict[str, Any]
_LOOK_EVERY = 60.0
"""Seconds between two ticks while pods wait: by then time alone may have changed what is decided."""
_MOST_CYCLES = 200
"""Scheduling cycles after one event; a queue that still asks for another one is tried again with the next tick."""
_PHASES = (
    TickPhase.FOREIGN_GATES,
    TickPhase.UNBOUND_PODS,
    TickPhase.UPKEEP,
    TickPhase.BINDINGS,
    TickPhase.RESERVATIONS,
)
_LIST = 1.0
"""Seconds that the first list of nodes takes."""
Translate = Callable[[PodDemand], JSON]
"""The pod's manifest as it is created after the switch."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The quota of a namespace's pods, of the accounting resources; None: any amount."""

    memory: int | None = None
    cores: int | None = None


@dataclass(frozen=True, slots=True)
class ClusterChoices:
    """An administrator's choices. `quotas`: by namespace. `translate`: as `Translate`."""

    settings: Settings = field(default_factory=Settings)
    options: PoolOptions = NO_OPTIONS
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    weights: Mapping[str, int] = field(default_factory=dict)
    slices: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """MIG layouts: bytes of each slice of a card, by a word of its model."""
    translate: Translate = lambda pod: dict(pod.pod)


@dataclass(slots=True)
class _Pod:
    demand: PodDemand
    came: float
    stored: JSON | None = None
    """None before its creation is admitted: a quota keeps it out."""
    placed: float | None = None
    memory: int = 0
    charge: tuple[int, int] = (0, 0)
    """The amounts that a quota counts of it, once they are known."""
    cards: tuple[str, ...] = ()
    why: str = ""
    refused: str = ""
    gone: bool = False


class VirtualCluster:
    """One replay. `run` returns the outcome of the pods."""

    def __init__(self, window: DemandWindow, choices: ClusterChoices) -> None:
        self._window = window
        self._choices = choices
        self._now = window.begin
        self._numbers, self._versions, self._order = itertools.count(1), itertools.count(1), itertools.count()
        self._woken = False
        self._learner, self._due = Learner(), False
        self._policy = Policy(choices.settings.placement.node_policy, choices.settings.placement.gpu_policy)
        self._controller = self._made()
        self._configuration = admit.Configuration(pools=choices.options)
        self._pods: dict[str, _Pod] = {}
        self._events: list[tuple[float, int, int, Callable[[], None]]] = []
        self._meter = UseMeter(window.begin)
        self._used: Counter[str] = Counter()
        self._spent: dict[str, list[int]] = {}
        self._inventories: dict[str, Inventory] = {}
        self._parents: dict[str, str] = {}
        self._waiting: dict[str, None] = {}
        self._faults = 0
        self._ticking = False

    def _made(self) -> Controller:
        return Controller(
            cache=Cache(engine=Engine(limits=DEFAULT_LIMITS, policy=self._policy), patience=0.0),
            settings=self._choices.settings,
            clock=lambda: self._now,
            wall=lambda: self._now,
            new_id=lambda: f"{next(self._numbers):032x}",
            leading=lambda: True,
            wake=self._wake,
            on_request=self._requested,
        )

    def _wake(self) -> None:
        self._woken = True

    def _requested(self, request: PodRequest, cpu: int) -> None:
        if self._policy.learned and self._learner.see(request, cpu):
            self._due = True

    # -- the run ------------------------------------------------------------------------------------------------------

    def run(self) -> Fates:
        """Replay it all."""
        window, initial = self._window, {id(each) for each in self._begin()}
        for change in window.nodes:
            if id(change) not in initial:
                self._at(change.at, 0, partial(self._node, change))
        for pod in window.pods:
            if pod.besides is None:
                self._at(max(pod.created, window.begin), 2, partial(self._create, pod))
            elif pod.on is not None:
                self._at(max(pod.on, window.begin), 1, partial(self._beside, pod))
        while self._events and self._events[0][0] <= window.end:
            self._step()
        self._meter.until(window.end)
        return Fates({uid: self._fate(uid, pod) for uid, pod in self._pods.items()}, self._meter.result(), self._faults)

    def _at(self, when: float, rank: int, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, rank, next(self._order), happens))

    def _step(self) -> None:
        """All that happens at one moment, then what is decided of it."""
        self._now = now = max(self._now, self._events[0][0])
        self._meter.until(now)
        while self._events and self._events[0][0] <= now:
            heapq.heappop(self._events)[3]()
        self._settle()
        if self._waiting and not self._ticking:
            self._ticking = True
            self._at(now + _LOOK_EVERY, 9, self._look)

    def _look(self) -> None:
        self._ticking = False

    def _settle(self) -> None:
        self._admit_again()
        for _ in range(_MOST_CYCLES):
            for phase in _PHASES:
                for effect in self._controller.tick(phase):
                    self._carry_out(effect)
            if self._due:
                self._learn()
            if not self._woken:
                return
            self._woken = False
            bindings, reports = self._controller.schedule_pending()
            for binding in bindings:
                self._bind(binding)
            for report in reports:
                self._carry_out(report)

    def _learn(self) -> None:
        self._due = False
        supply = supply_of({node.name: node for node in self._controller.nodes()}, DEFAULT_LIMITS)
        made = estimator.make(self._policy.node, self._learner.target(), supply)
        if made is not None:
            self._controller.adopt(made)

    def _carry_out(self, effect: object) -> None:
        match effect:
            case StatusUpdate(uid=uid, allocated=False, reason=reason):
                if uid in self._pods:
                    self._pods[uid].why = reason
            case Binding():
                self._bind(effect)
            case ReadParked(parked):
                found = self._pods.get(parked.uid)
                stored = found.stored if found is not None and not found.gone else None
                event = pod_event(pods.trim(stored)) if stored is not None else None
                self._controller.handle(ParkedRead(parked.uid, event, deleted=event is None))
            case CheckAssumed(reservations):
                self._controller.handle(AssumedChecked(reservations, frozenset()))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def _begin(self) -> list[NodeSeen]:
        """The nodes that were there from the start: those that were in the first list of nodes."""
        window, first = self._window, dict[str, NodeSeen]()
        until = self._listed()
        for change in window.nodes:
            if isinstance(change, NodeSeen) and change.name not in first and change.at <= until:
                first[change.name] = change
        initial = list(first.values())
        self._controller.handle(NodesListed(tuple(map(cards.facts_of, initial))))
        self._controller.handle(InventoriesListed(tuple(map(self._inventory, initial))))
        self._controller.handle(ExcludedGpusListed(()))
        self._controller.handle(NamespacesLabelled({}))
        self._controller.handle(pods_listed(()))
        if self._choices.weights:
            self._controller.handle(QueueWeighed(self._choices.weights))
        return initial

    def _listed(self) -> float:
        """When the first node was seen, and a little more: a list takes a moment."""
        return next((each.at for each in self._window.nodes), self._window.begin) + _LIST

    def _node(self, change: NodeSeen | NodeGone) -> None:
        if isinstance(change, NodeGone):
            self._controller.handle(NodeDeleted(change.name))
            self._controller.handle(InventoryDeleted(change.name))
            self._count(change.name, None)
            return
        self._controller.handle(NodeChanged(cards.facts_of(change)))
        self._controller.handle(InventoryChanged(self._inventory(change)))

    def _inventory(self, seen: NodeSeen) -> Inventory:
        found = cards.inventory_of(seen, self._choices.options)
        found = cards.sliced(found, self._choices.slices)
        self._count(seen.name, found)
        return found

    def _count(self, name: str, found: Inventory | None) -> None:
        before = self._inventories.pop(name, None)
        for known, sign in ((before, -1), (found, 1)):
            if known is not None:
                whole = {gpu.parent or gpu.uuid for gpu in known.gpus}
                self._meter.cards += sign * len(whole)
                self._meter.memory += sign * sum(gpu.usable for gpu in known.gpus)
        if found is not None:
            self._inventories[name] = found
            self._parents |= {gpu.uuid: gpu.parent or gpu.uuid for gpu in found.gpus}

    # -- pods ---------------------------------------------------------------------------------------------------------

    def _beside(self, demand: PodDemand) -> None:
        """A pod without a GPU, which is where it was."""
        cpu, memory, storage = demand.besides or (0, 0, 0)
        requests = {"cpu": f"{cpu}m", "memory": str(memory), "ephemeral-storage": str(storage)}
        spec = {"nodeName": demand.node, "containers": [{"name": "main", "resources": {"requests": requests}}]}
        self._controller.handle(pod_event(self._identified(demand, {"metadata": {}, "spec": spec})))
        if demand.ended is not None:
            uid = demand.uid
            self._at(max(demand.ended, self._now), 0, partial(self._controller.handle, PodDeleted(uid)))

    def _create(self, demand: PodDemand) -> None:
        found = self._pods[demand.uid] = _Pod(demand, self._now)
        if demand.ended is not None and demand.how != DONE:
            self._at(max(demand.ended, self._now), 0, partial(self._leave, found))
        self._waiting[demand.uid] = None
        self._admit(found)

    def _admit(self, pod: _Pod) -> None:
        """The creation of a pod: the webhook's answer, then the quota's."""
        try:
            self._admitted(pod)
        except Exception as error:
            # An internal error affects only its pod, as in the programs. It is counted and reported.
            self._faults += 1
            self._refuse(pod, f"it could not be replayed: {type(error).__name__}")

    def _admitted(self, pod: _Pod) -> None:
        demand = pod.demand
        created = dict(self._choices.translate(demand))
        metadata = {**(created.get("metadata") or {}), "name": demand.name, "namespace": demand.namespace}
        spec = created.get("spec") or {}
        if spec.get("priority") is None:
            spec = {key: value for key, value in spec.items() if key != "priority"}
        created = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        review = Review(demand.uid, "CREATE", demand.namespace, False, created, {}, "Pod")
        nanoseconds = int(self._now * 1e9)
        body = admit.admit(
            review, self._configuration, self._controller.reserve, lambda node: frozenset(), now_ns=nanoseconds
        ).body
        response = json.loads(body)["response"]
        if not response["allowed"]:
            self._refuse(pod, plain(str((response.get("status") or {}).get("message", ""))))
            return
        operations = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
        self._store(pod, patched(created, operations))

    def _store(self, pod: _Pod, made: JSON) -> None:
        charge = _charge(made)
        if not self._has_quota(pod.demand.namespace, charge):
            self._give_back(pod, made)
            pod.charge, pod.why = charge, "the namespace's quota is used up"
            return
        pod.charge = charge
        spent = self._spent.setdefault(pod.demand.namespace, [0, 0])
        spent[0] += charge[0]
        spent[1] += charge[1]
        self._see(pod, self._identified(pod.demand, made))

    def _give_back(self, pod: _Pod, made: JSON) -> None:
        """A quota refused the pod after admission: its share must not wait for it."""
        uid = f"{pod.demand.uid}-refused"
        stored = self._identified(pod.demand, made)
        stored["metadata"] = {**stored["metadata"], "uid": uid}
        self._controller.handle(pod_event(pods.trim(stored)))
        self._controller.handle(PodDeleted(uid))

    def _has_quota(self, namespace: str, charge: tuple[int, int]) -> bool:
        quota = self._choices.quotas.get(namespace)
        if quota is None:
            return True
        memory, cores = self._spent.get(namespace, (0, 0))
        return (quota.memory is None or memory + charge[0] <= quota.memory) and (
            quota.cores is None or cores + charge[1] <= quota.cores
        )

    def _admit_again(self) -> None:
        """Creations that a quota kept out, the oldest first: their controllers try again."""
        if not self._choices.quotas:
            return
        for uid in list(self._waiting):
            pod = self._pods[uid]
            out = pod.stored is None and not pod.gone and not pod.refused
            if out and pod.charge != (0, 0) and self._has_quota(pod.demand.namespace, pod.charge):
                self._admit(pod)

    def _identified(self, demand: PodDemand, made: JSON) -> JSON:
        """As the API server stores it."""
        metadata = {
            **(made.get("metadata") or {}),
            "name": demand.name,
            "namespace": demand.namespace,
            "uid": demand.uid,
            "resourceVersion": str(next(self._versions)),
            "creationTimestamp": moments.stamp(demand.created),
        }
        return {**made, "metadata": metadata}

    def _see(self, pod: _Pod, stored: JSON) -> None:
        """The watch brings the pod; kube-scheduler binds one that is pinned, and NVIDIA's runtime starts it."""
        allocation = pods.carried_allocation(stored)
        ungated = allocation is not None and names.GATE not in pods.gates(stored)
        if allocation is not None and ungated and not stored["spec"].get("nodeName"):
            stored = {**stored, "spec": {**stored["spec"], "nodeName": allocation.node}}
        pod.stored = stored
        self._controller.handle(pod_event(pods.trim(stored)))
        if allocation is None and not pods.gates(stored):
            self._refuse(pod, "it requests nothing that gpufraction serves, and stays as it is")
        if allocation is None or not ungated or pod.placed is not None:
            return
        pod.placed = self._now
        self._waiting.pop(pod.demand.uid, None)
        shares = [share for each in allocation.containers for share in each.shares]
        pod.cards = tuple({self._parents.get(share.uuid, share.uuid) for share in shares})
        pod.memory = sum(share.memory for share in shares)
        self._meter.allocated += pod.memory
        for uuid in pod.cards:
            self._meter.used += not self._used[uuid]
            self._used[uuid] += 1
        length = _ran(pod.demand)
        if length is not None:
            self._at(self._now + length, 0, partial(self._leave, pod))

    def _bind(self, binding: Binding) -> None:
        pod = self._pods.get(binding.pod.uid)
        if pod is None or pod.gone or pod.stored is None:
            self._controller.handle(BindFailed(binding, None))
            return
        try:
            made = patched(pod.stored, binder.operations(binding, int(self._now * 1e9)))
        except PatchFailed as error:
            self._controller.handle(BindFailed(binding, pod_event(pods.trim(pod.stored)), str(error)))
            return
        made["metadata"] = {**made["metadata"], "resourceVersion": str(next(self._versions))}
        self._controller.handle(BindSucceeded(binding, pod_event(pods.trim(made))))
        self._see(pod, self._identified(pod.demand, made))

    def _leave(self, pod: _Pod) -> None:
        """The pod has ended, or was deleted."""
        if pod.gone:
            return
        pod.gone = True
        self._waiting.pop(pod.demand.uid, None)
        if pod.stored is not None:
            pod.stored = None  # it is no longer needed, and there may be very many
            self._controller.handle(PodDeleted(pod.demand.uid))
            spent = self._spent[pod.demand.namespace]
            spent[0] -= pod.charge[0]
            spent[1] -= pod.charge[1]
        if pod.placed is not None:
            self._meter.allocated -= pod.memory
            for uuid in pod.cards:
                self._used[uuid] -= 1
                self._meter.used -= not self._used[uuid]

    def _refuse(self, pod: _Pod, words: str) -> None:
        pod.refused = words or "refused"
        self._waiting.pop(pod.demand.uid, None)

    def _fate(self, uid: str, pod: _Pod) -> PodFate:
        demand, window = pod.demand, self._window
        until = pod.placed
        if until is None:
            until = demand.ended if demand.ended is not None and demand.how != DONE else window.end
        return PodFate(
            uid,
            demand.namespace,
            waited=0.0 if pod.refused else max(0.0, until - pod.came),
            placed=pod.placed is not None,
            refused=pod.refused,
            why="" if pod.placed is not None and pod.placed == pod.came else pod.why,
            fresh=demand.created >= window.begin,
        )


def _ran(demand: PodDemand) -> float | None:
    """Seconds for which a pod that ended by itself ran; None of one that was deleted, or runs."""
    if demand.how != DONE or demand.ended is None or demand.on is None:
        return None
    return max(0.0, demand.ended - demand.on)


def _charge(stored: JSON) -> tuple[int, int]:
    """The amounts that a quota counts of a stored pod: bytes and percent of cores over all app containers."""
    memory = cores = 0
    for container in (stored.get("spec") or {}).get("containers") or ():
        limits = (container.get("resources") or {}).get("limits") or {}
        memory += quantity.integer_or(limits.get(str(names.GPU_MEMORY)), 0)
        cores += quantity.integer_or(limits.get(str(names.GPU_CORES)), 0)
    return memory, cores


def replayed(window: DemandWindow, choices: ClusterChoices | None = None) -> Fates:
    """The outcome of the recorded demand under these choices."""
    return VirtualCluster(window, choices or ClusterChoices()).run()
