"""
What is allocated on each card: added up from the API server's objects at every commit, without the allocator's ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allocator.features.elasticgpuclaims import objects
from contract import names, pods
from contract.encoding import codec
from contract.model import WHOLE, Allocation, Gpu
from contract.nodes.inventories import inventory_from_object
from contract.scheduling.demand import demands, of_claim
from playground.api.kinds.values import JSON
from playground.api.store.store import Change
from tests.simulation.feature import Feature, Goal, Invariant, Violation
from tests.simulation.run import Run

GPUNODES = f"{names.GPUNODE_PLURAL}.{names.GROUP}"
SHARES = "elasticgpus.elasticgpu.io"
MOST_SHARERS = 48
RESERVED = 4.5
"""Seconds: a reservation for a pod that has not been stored lasts at least 5 s."""
BOOKED_ONCE = "no card is booked twice"
NEVER_MOVES = "a share never moves"
NO_REJECTION = "no kubelet rejects a pod with a share"
ROOM_COUNTED = "what is placed has room by what Kubernetes counts"
Place = tuple[str, str]
"""A node and the UUID of a card there."""


@dataclass(frozen=True, slots=True)
class Held:
    """
    What one holder has of one card: bytes, percent of its cores, and whether it has the card alone. `together`:
    identifies a share that several pods have together; empty for a pod's own share.
    """

    memory: int
    cores: int
    alone: bool
    together: str = ""


def each_once(held: Mapping[str, Held]) -> list[Held]:
    """The shares of a card, where a share that several holders have together counts once."""
    shares: dict[str, Held] = {}
    for holder, found in held.items():
        before = shares.get(found.together or holder, found)
        shares[found.together or holder] = replace(
            found,
            memory=max(before.memory, found.memory),
            cores=max(before.cores, found.cores),
            alone=before.alone or found.alone,
        )
    return list(shares.values())


def allocation_of(pod: JSON) -> Allocation | None:
    """The share that the pod holds; None if it holds none, or has ended."""
    if pods.finished(pod) or names.GATE in pods.gates(pod):
        return None
    request = pods.admitted(pod)
    return None if request is None else pods.allocation_of(pod, request)


def held_by_pod(pod: JSON) -> dict[Place, Held]:
    """What a pod holds, by card. A claim's share is counted with the ElasticGPU."""
    allocation, request = allocation_of(pod), pods.admitted(pod)
    if allocation is None or request is None or allocation.claim:
        return {}
    found = demands(request, allocation)
    return {
        (allocation.node, uuid): Held(d.memory, d.cores, d.exclusive, allocation.shared) for uuid, d in found.items()
    }


def held_by_share(value: JSON) -> dict[Place, Held]:
    """What an ElasticGPU holds."""
    allocation = objects.share(value).allocation
    if allocation is None:
        return {}
    found = of_claim(allocation)
    return {(allocation.node, uuid): Held(d.memory, d.cores, d.exclusive) for uuid, d in found.items()}


@dataclass
class Booked:
    """Which holder has what of each card, and how large each card is."""

    holders: dict[str, dict[Place, Held]] = field(default_factory=dict)
    by_card: dict[Place, dict[str, Held]] = field(default_factory=dict)
    cards: dict[Place, Gpu] = field(default_factory=dict)

    def set(self, holder: str, held: dict[Place, Held]) -> None:
        """The holder now has exactly this."""
        for place in self.holders.pop(holder, {}):
            self.by_card[place].pop(holder, None)
        if held:
            self.holders[holder] = held
            for place, amount in held.items():
                self.by_card.setdefault(place, {})[holder] = amount

    def publish(self, node: str, gpus: Iterator[Gpu] | tuple[Gpu, ...]) -> None:
        """A node's agent reports these cards. A card that shrinks or goes keeps its holders, so its maximum counts."""
        for gpu in gpus:
            before = self.cards.get((node, gpu.uuid))
            if before is None or before.usable < gpu.usable:
                self.cards[node, gpu.uuid] = gpu

    def wrong(self, place: Place) -> Violation | None:
        """How the card is allocated beyond what it has."""
        held = self.by_card.get(place)
        if not held:
            return None
        gpu = self.cards.get(place)
        if gpu is None:
            return f"{sorted(held)} hold a share of {place}, which no agent ever reported"
        shares = each_once(held)
        memory, cores = sum(h.memory for h in shares), sum(h.cores for h in shares)
        if memory > gpu.usable:
            return f"{sorted(held)} hold {memory >> 20} MiB of {place}, which has {gpu.usable >> 20} MiB"
        if cores > WHOLE:
            return f"{sorted(held)} hold {cores} % of the cores of {place}"
        if len(shares) > 1 and any(h.alone for h in shares):
            return f"one of {sorted(held)} has {place} alone, and the others are there too"
        if len(shares) > MOST_SHARERS:
            return f"{len(shares)} pods share {place}"
        return None

    def take(self, change: Change) -> list[Place]:
        """Take a change in. Returns the cards that it concerns."""
        gone = change.type == "DELETED"
        if change.resource == "pods":
            held, key = (
                {} if gone else held_by_pod(change.object),
                f"pod {_name(change.object)} {pods.uid(change.object)}",
            )
        elif change.resource == SHARES:
            held, key = {} if gone else held_by_share(change.object), f"claim {change.object['metadata']['name']}"
        else:
            if change.resource == GPUNODES and not gone:
                found = inventory_from_object(change.object)
                self.publish(found.node, found.gpus)
            return []
        self.set(key, held)
        return list(held)


def _name(value: JSON) -> str:
    return f"{value['metadata'].get('namespace', '')}/{value['metadata']['name']}"


class LatePods:
    """
    Pods that were stored so long after their review that their reservation may have ended. Another pod may have their
    share until the leader has failed them, so this can be checked only at rest.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._reviewed: dict[str, float] = {}
        self.holders: set[str] = set()
        run.world.reviewed.append(self.review)

    def review(self, document: JSON) -> None:
        """A webhook has answered a review."""
        request = document.get("request") or {}
        metadata = (request.get("object") or {}).get("metadata") or {}
        name = request.get("name") or metadata.get("name", "")
        self._reviewed[f"{request.get('namespace', '')}/{name}"] = self._run.kernel.seconds()

    def take(self, change: Change) -> None:
        """Note whether a new pod is late."""
        if change.resource == "pods" and change.type == "ADDED":
            at = self._reviewed.pop(_name(change.object), None)
            if at is not None and self._run.kernel.seconds() - at > RESERVED:
                self.holders.add(f"pod {_name(change.object)} {pods.uid(change.object)}")


def _booked_once(run: Run) -> Callable[[Any], Violation | None]:
    booked, late = Booked(), LatePods(run)
    run.notes[BOOKED_ONCE] = booked

    def holds(change: Change) -> Violation | None:
        late.take(change)
        places = booked.take(change)
        judged = (place for place in places if late.holders.isdisjoint(booked.by_card.get(place, ())))
        return next(filter(None, map(booked.wrong, judged)), None)

    return holds


def _booked_at_rest(run: Run) -> list[Violation]:
    """Cards that stay allocated twice. Not checked after a fault that excuses it, because shares do not move."""
    if run.was_suspended(BOOKED_ONCE):
        return []
    found: Booked = run.notes[BOOKED_ONCE]
    return [wrong for place in sorted(found.by_card) if (wrong := found.wrong(place))]


def _never_moves(run: Run) -> Callable[[Any], Violation | None]:
    def holds(change: Change) -> Violation | None:
        if change.resource != "pods" or change.type != "MODIFIED" or change.previous is None:
            return None
        before, after = pods.carried_allocation(change.previous), pods.carried_allocation(change.object)
        if before is None or after is None or names.GATE in pods.gates(change.previous):
            return None
        return None if before == after else f"the share of {_name(change.object)} was {before} and is {after}"

    return holds


def _by_kubelet(run: Run) -> Callable[[Any], Violation | None]:
    def holds(change: Change) -> Violation | None:
        status = change.object.get("status") or {}
        if change.resource != "pods" or status.get("phase") != "Failed" or allocation_carried(change.object) is None:
            return None
        reason = str(status.get("reason") or "")
        rejected = reason.startswith("OutOf") or reason in ("UnexpectedAdmissionError", "NodeAffinity")
        return f"the kubelet rejected {_name(change.object)}: {status.get('message')}" if rejected else None

    return holds


def _containers_read(run: Run) -> Callable[[Any], Violation | None]:
    """A pod that holds a share carries what its containers' environment is read from, unless the pod is terminating."""

    def holds(change: Change) -> Violation | None:
        pod = change.object
        if change.resource != "pods" or change.type == "DELETED" or "activeDeadlineSeconds" in pod["spec"]:
            return None
        allocation, found = allocation_of(pod), pods.annotations_of(pod)
        if allocation is None:
            return None
        wanted = codec.container_annotations(allocation)
        wrong = {key: found.get(key) for key, value in wanted.items() if found.get(key) != value}
        return f"{_name(pod)} has {allocation}, and its containers read {wrong}" if wrong else None

    return holds


def allocation_carried(pod: JSON) -> Allocation | None:
    """The allocation in the pod's annotation, whatever the pod's state."""
    return pods.carried_allocation(pod)


def booked(run: Run) -> Booked:
    """The current sum of the API server's objects."""
    found = Booked()
    store = run.world.api.store
    for each in store.scan(GPUNODES):
        inventory = inventory_from_object(each)
        found.publish(inventory.node, inventory.gpus)
    for pod in store.scan("pods"):
        found.set(f"pod {_name(pod)} {pods.uid(pod)}", held_by_pod(pod))
    for share in store.scan(SHARES):
        found.set(f"claim {share['metadata']['name']}", held_by_share(share))
    return found


def _ledgers(run: Run) -> list[Violation]:
    """Where an allocator's ledger differs from the objects."""
    expected = {
        place: (sum(h.memory for h in shares), sum(h.cores for h in shares), len(shares))
        for place, shares in ((place, each_once(held)) for place, held in booked(run).by_card.items())
        if shares
    }
    wrong = []
    for program in run.world.allocators:
        if not program.alive or program.running is None:
            wrong.append(f"{program.name} does not run")
            continue
        view = program.running.allocator.controller.view()
        found = {
            (node.name, gpu.uuid): (usage.memory, usage.cores, usage.sharers)
            for node in view.nodes
            for gpu, usage in zip(node.gpus, node.usage, strict=True)
            if usage.sharers
        }
        known = {(node.name, gpu.uuid) for node in view.nodes for gpu in node.gpus}
        if found != {place: amounts for place, amounts in expected.items() if place in known}:
            differs = sorted(set(found.items()) ^ set(expected.items()))
            wrong.append(f"the ledger of {program.name} differs from the objects: {differs[:4]}")
    return wrong


def _refused_room(run: Run) -> list[Violation]:
    """
    Pods that were placed where, by kube-scheduler's count, too little is left of what Kubernetes counts for shares.
    """
    short = tuple(f"Insufficient {name}" for name in (names.GPU_MEMORY, names.GPU_CORES, names.GPU_MEMORY_LIMIT))
    wrong = []
    for pod in run.world.api.store.scan("pods"):
        if allocation_carried(pod) is None and names.WITHDRAWN not in pods.annotations_of(pod):
            continue
        conditions = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
        message = str(conditions.get("PodScheduled", {}).get("message") or "")
        if any(each in message for each in short):
            wrong.append(f"{_name(pod)} was placed where Kubernetes has no room for it: {message}")
    return wrong


FEATURE = Feature(
    "cards",
    invariants=(
        Invariant(BOOKED_ONCE, _booked_once),
        Invariant(NEVER_MOVES, _never_moves),
        Invariant(NO_REJECTION, _by_kubelet),
        Invariant("containers read the share that is booked", _containers_read),
    ),
    goals=(
        Goal("ledgers equal the API server", _ledgers),
        Goal("no card stays booked twice", _booked_at_rest),
        Goal(ROOM_COUNTED, _refused_room),
    ),
)
