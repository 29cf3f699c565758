"""
The reserved amounts of every GPU, and the pods for which they are reserved.

A reservation is one pod's, or one admission's whose pod has not been seen yet:

    assume ──▶ ASSUMED ──confirm (pod seen with this allocation)──▶ CONFIRMED ──release (finished, deleted)──▶ out
                  │
                  └──forget (write failed, or no pod came in time)──▶ out

The pods are the source of truth: `confirm` books whatever a pod carries, even an allocation that this process never
made, and even beyond what a GPU has; `overcommitted` then names the GPU. `assume`, which is our own decision, never
books more than there is.

A claim's share is held by its ElasticGPU and by every pod that uses it; that of a ResourceClaim which several pods use,
by these pods. It counts once on each GPU for all of them, so it makes no difference which of them is seen first, or is
deleted last. Kubernetes counts such a ResourceClaim for each of its pods: see `counted_again`.

Pure: time is passed in. Memory in bytes, cores in percent.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from allocator.engine.pinning import Judged
from contract.model import FREE, NO_OVERCOUNT, Allocation, Compute, Gpu, Overcount, PodRequest, Usage
from contract.scheduling.clusterfilters.objects import PodRules
from contract.scheduling.demand import Demand, demands, overcount
from contract.scheduling.fairness import NOTHING, Held, held_of
from contract.scheduling.filters import DEFAULT_LIMITS, Limits, overcommitment
from contract.scheduling.needs import SchedulingRequest

OWN = "egpu/"
"""The prefix of the keys of an ElasticGPU's own reservations; no pod's uid has a slash."""


class LedgerBug(AssertionError):
    """The program contradicts itself; tenants and the cluster cannot cause this."""


class ReservationState(Enum):
    """Whether the reservation's pod has been seen."""

    ASSUMED = "assumed"
    CONFIRMED = "confirmed"


@dataclass(frozen=True, slots=True)
class Reservation:
    """One pod's shares, and its other resources of the node."""

    key: str
    """The pod's uid, or the allocation's id while no pod has been seen."""
    pod: str
    """`namespace/name`, for people."""
    request: PodRequest
    allocation: Allocation
    compute: Compute
    state: ReservationState
    since: float
    """When it was assumed or confirmed, by the injected clock."""
    host_ports: frozenset[tuple[str, str, int]] = frozenset()
    judged: Judged | None = None
    """The basis of the decision, if it was made at admission and no pod has been seen."""
    pin: str = ""
    """The pin in the answer to admission."""
    held_since: float = 0.0
    """Since when its pod has the share according to the pod, in seconds since 1970; 0 if missing."""
    rules: PodRules | None = None
    """The parts of its pod that matter to other pods, while the pod has not been seen."""


class ShareMoved(NamedTuple):
    """A share of one card is new, changed or, with `demand` None, not held any more."""

    node: str
    uuid: str
    key: str
    """The key of the reservation, or of the claim for all its users."""
    namespace: str
    dialect: str
    demand: Demand | None
    since: float = 0.0
    """Since when, according to its pod, in seconds since 1970; 0 if missing."""


class CardsChanged(NamedTuple):
    """The cards of a node changed to these."""

    node: str
    gpus: tuple[Gpu, ...]
    since: float = 0.0
    """Since when, according to the node, in seconds since 1970; 0 if missing."""


class SharesIdle(NamedTuple):
    """These shares of pods on the node compute nothing, and no others do."""

    node: str
    since: Mapping[str, float]
    """Since when by the injected clock, by the pod's uid."""


Change = ShareMoved | CardsChanged | SharesIdle


class Journal:
    """
    The shares of pods and claims that came and went, and the nodes whose cards changed, until they are taken.

    Reservations whose pod was not seen are not in it. Not thread-safe: one owner calls it.
    """

    def __init__(self) -> None:
        self._new: list[Change] = []
        self._stamped: list[tuple[float, Change]] = []

    def note(self, change: Change) -> None:
        """Something changed."""
        self._new.append(change)

    def stamp(self, now: float, wall: float) -> None:
        """
        Stamp what was noted since the last call: known from now on, and in effect since the time in its object. `now`
        is by the injected clock, `wall` the same moment in seconds since 1970.
        """
        for change in self._new:
            since = 0.0 if isinstance(change, SharesIdle) else change.since
            self._stamped.append((now - max(0.0, wall - since) if since else now, change))
        self._new.clear()

    def take(self) -> list[tuple[float, Change]]:
        """The changes stamped since the last call, each with its time by the injected clock, in their order."""
        taken, self._stamped = self._stamped, []
        return taken


def assumed(
    ask: SchedulingRequest, allocation: Allocation, pod: str, now: float, rules: PodRules | None = None
) -> Reservation:
    """The reservation of what was just decided for the pod `namespace/name`."""
    return Reservation(
        key=allocation.id,
        pod=pod,
        request=ask.request,
        allocation=allocation,
        compute=ask.needs.compute,
        state=ReservationState.ASSUMED,
        since=now,
        host_ports=ask.needs.host_ports,
        rules=rules,
    )


def gpus_of(holding: Reservation) -> frozenset[str]:
    """UUIDs of the GPUs on which the reservation has shares."""
    return frozenset(share.uuid for each in holding.allocation.containers for share in each.shares)


class Ledger:
    """Reservations by key, and their sums on each GPU. Not thread-safe: one owner calls it."""

    def __init__(self, journal: Journal | None = None) -> None:
        """`journal` notes every share that comes or goes."""
        self._journal = journal
        self._holdings: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, Reservation]] = {}
        self._usage: dict[str, dict[str, dict[str, Demand]]] = {}  # node -> gpu uuid -> key -> demand
        self._totals: dict[str, dict[str, Usage]] = {}  # node -> gpu uuid -> what the demands add up to, where asked
        self._assumed: dict[str, Reservation] = {}
        self._overcounts: dict[str, dict[str, Overcount]] = {}  # node -> key -> overcount, of the few that have one
        self._shared: dict[str, dict[str, dict[str, Demand]]] = {}  # group -> node and gpu uuid -> key -> demand
        self._noted: dict[tuple[str, str, str], Demand] = {}  # group, node and gpu uuid -> what the journal knows
        self._sharing: dict[str, set[str]] = {}  # node -> keys of pods with a ResourceClaim that others may use too
        self._of_namespace: dict[str, Held] | None = None  # what namespaces hold, added up at the first question

    # -- reading --------------------------------------------------------------------------------------------------

    def holding(self, key: str) -> Reservation | None:
        """The reservation under a pod's uid or, while assumed, an allocation's id."""
        return self._holdings.get(key)

    def on_node(self, node: str) -> Iterable[Reservation]:
        """Every reservation on a node, in the order in which they came."""
        return tuple(self._by_node.get(node, {}).values())

    def __iter__(self) -> Iterator[Reservation]:
        return iter(tuple(self._holdings.values()))

    def __len__(self) -> int:
        return len(self._holdings)

    def usage(self, node: str, uuid: str) -> Usage:
        """The usage of one GPU."""
        known = self._totals.get(node, {}).get(uuid)
        if known is not None:
            return known
        usage = self._added_up(node, uuid)
        if usage is not FREE:
            self._totals.setdefault(node, {})[uuid] = usage
        return usage

    def used(self, node: str) -> dict[str, Usage]:
        """The usage of each GPU of a node, including GPUs that the node no longer has."""
        return {uuid: self.usage(node, uuid) for uuid, taken in self._usage.get(node, {}).items() if taken}

    def overcount(self, node: str) -> Overcount:
        """The amounts that Kubernetes counts for a node's pods beyond their shares; reservations count as pods."""
        known = self._overcounts.get(node)
        return sum(known.values(), NO_OVERCOUNT) if known else NO_OVERCOUNT

    def _added_up(self, node: str, uuid: str) -> Usage:
        usage = FREE
        for demand in self._usage.get(node, {}).get(uuid, {}).values():
            usage = demand.added_to(usage)
        return usage

    def _forget_totals(self, node: str, uuids: Iterable[str]) -> None:
        totals = self._totals.get(node)
        if totals is not None:
            for uuid in uuids:
                totals.pop(uuid, None)
            if not totals:
                del self._totals[node]

    def held_by(self, namespace: str) -> Mapping[str, Mapping[str, Usage]]:
        """The usage of a namespace's pods and claims, by node and GPU UUID. It iterates over all reservations."""
        found: dict[str, dict[str, Usage]] = {}
        for holding in self._holdings.values():
            if holding.pod.startswith(f"{namespace}/"):
                gpus = found.setdefault(holding.allocation.node, {})
                for uuid, demand in demands(holding.request, holding.allocation).items():
                    gpus[uuid] = demand.added_to(gpus.get(uuid, FREE))
        return found

    def held(self, namespace: str) -> Held:
        """The total usage of a namespace's pods and claims, each claim once."""
        return self.held_by_namespaces().get(namespace, NOTHING)

    def held_by_namespaces(self) -> Mapping[str, Held]:
        """
        The same of every namespace that holds something; a live view.

        The first call iterates over all reservations. Later changes are counted as they happen. Without a call there is
        no cost.
        """
        if self._of_namespace is None:
            self._of_namespace = self._held_by_namespaces()
        return self._of_namespace

    def users(self, group: str) -> tuple[Reservation, ...]:
        """The reservations of one share, by `Allocation.group`; an ElasticGPU's own included."""
        keys = {key for gpus in self._shared.get(group, {}).values() for key in gpus}
        return tuple(self._holdings[key] for key in sorted(keys))

    def usage_without(self, node: str, uuid: str, group: str) -> Usage:
        """The usage of one GPU without the share of this group."""
        usage = FREE
        for key, demand in self._usage.get(node, {}).get(uuid, {}).items():
            usage = usage if key == group else demand.added_to(usage)
        return usage

    def counted_again(self, node: str) -> Overcount:
        """
        The amounts that Kubernetes counts on a node for pods whose share is counted here for another pod: for a
        ResourceClaim that several pods use, all but one.
        """
        keys = self._sharing.get(node)
        if not keys:
            return NO_OVERCOUNT
        each = [demand for key in keys for demand in _demands(self._holdings[key]).values()]
        groups = {self._holdings[key].allocation.group for key in keys}
        once = [demand for taken in self._usage[node].values() for group, demand in taken.items() if group in groups]
        return Overcount(
            sum(demand.memory for demand in each) - sum(demand.memory for demand in once),
            sum(demand.cores for demand in each) - sum(demand.cores for demand in once),
        )

    def assumed(self) -> tuple[Reservation, ...]:
        """The reservations whose pod has not been seen; they are few even in a large cluster."""
        return tuple(self._assumed.values())

    def compute_assumed(self, node: str) -> tuple[Reservation, ...]:
        """Reservations on the node whose pod has not been seen, so that nothing else counts them."""
        return tuple(h for h in self._by_node.get(node, {}).values() if h.state is ReservationState.ASSUMED)

    # -- moving ---------------------------------------------------------------------------------------------------

    def assume(self, holding: Reservation) -> None:
        """Reserve. Assuming the same allocation again changes nothing."""
        known = self._holdings.get(holding.key)
        if known is not None:
            if known.allocation != holding.allocation:
                raise LedgerBug(f"{holding.pod} is assumed twice with different allocations")
            return
        if holding.state is not ReservationState.ASSUMED:
            raise LedgerBug(f"{holding.pod} is assumed in state {holding.state.value}")
        self._put(holding)

    def confirm(self, holding: Reservation) -> bool:
        """Book what a pod carries, in place of the reservation it came from. True if this changed what is taken."""
        known = self._holdings.get(holding.key)
        assumed = self._holdings.get(holding.allocation.id)
        if assumed is not None and (
            assumed.state is not ReservationState.ASSUMED or assumed.allocation != holding.allocation
        ):
            assumed = None
        if known is not None and _is_booked(known, holding):
            return False
        if known is not None or assumed is not None:
            demands(holding.request, holding.allocation)  # raises before the former one is removed
        for old in {h.key: h for h in (known, assumed) if h is not None}.values():
            self._remove(old)
        self._put(holding)
        return True

    def forget(self, key: str) -> bool:
        """Drop a reservation whose pod will not come. False if it is confirmed by now, or not known."""
        known = self._holdings.get(key)
        if known is None or known.state is not ReservationState.ASSUMED:
            return False
        self._remove(known)
        return True

    def release(self, key: str) -> bool:
        """A pod finished or was deleted: give back its share, once. False if it held none."""
        known = self._holdings.get(key)
        if known is None:
            return False
        self._remove(known)
        return True

    def renew(self, key: str, now: float) -> bool:
        """A reservation counts as made now. False if it is confirmed, or not known."""
        known = self._holdings.get(key)
        if known is None or known.state is not ReservationState.ASSUMED:
            return False
        self._remove(known)
        self._put(replace(known, since=now))
        return True

    def note_ended(
        self, pod: str, uid: str, request: PodRequest, allocation: Allocation, since: float, until: float
    ) -> None:
        """
        Note in the journal a share that had ended before its pod was seen: of the pod `namespace/name`, with its own
        times. A claim's share may be used by others.
        """
        if self._journal is None or allocation.group or not 0.0 < since <= until:
            return
        namespace = pod.split("/", 1)[0]
        for uuid, demand in demands(request, allocation).items():
            held = ShareMoved(allocation.node, uuid, uid, namespace, request.dialect, demand, since)
            self._journal.note(held)
            self._journal.note(held._replace(demand=None, since=until))

    # -- checking -------------------------------------------------------------------------------------------------

    def overcommitted(self, node: str, gpus: Iterable[Gpu], limits: Limits = DEFAULT_LIMITS) -> tuple[str, ...]:
        """UUIDs of GPUs on which more is booked than there is, or that a whole-GPU holder shares with others."""
        return tuple(gpu.uuid for gpu in gpus if is_overcommitted(gpu, self.usage(node, gpu.uuid), limits))

    def check_invariants(self) -> None:
        """Raise `LedgerBug` unless the usage is exactly the sum of the reservations."""
        expected: dict[str, dict[str, dict[str, Demand]]] = {}
        for key, holding in self._holdings.items():
            if key != holding.key:
                raise LedgerBug(f"{holding.pod} is filed under {key}")
            for uuid, demand in demands(holding.request, holding.allocation).items():
                taken = expected.setdefault(holding.allocation.node, {}).setdefault(uuid, {})
                name = holding.allocation.group
                taken[name or key] = demand.beside(taken[name]) if name in taken else demand
        found = {n: {u: d for u, d in gpus.items() if d} for n, gpus in self._usage.items()}
        if {n: g for n, g in found.items() if g} != expected:
            raise LedgerBug("what is taken is not what the holdings add up to")
        by_node: dict[str, dict[str, Reservation]] = {}
        for holding in self._holdings.values():
            by_node.setdefault(holding.allocation.node, {})[holding.key] = holding
        if {n: h for n, h in self._by_node.items() if h} != by_node:
            raise LedgerBug("the index of nodes is not that of the holdings")
        if self._assumed != {key: h for key, h in self._holdings.items() if h.state is ReservationState.ASSUMED}:
            raise LedgerBug("the index of the assumed is not that of the holdings")
        if self._overcounts != self._overcounts_of_holdings():
            raise LedgerBug("what is counted beyond what is held is not what the holdings say")
        if self._of_namespace is not None and self._of_namespace != self._held_by_namespaces():
            raise LedgerBug("what the namespaces hold is not what the holdings add up to")
        sharing = {node: {k for k, h in of.items() if h.allocation.shared} for node, of in by_node.items()}
        if self._sharing != {node: keys for node, keys in sharing.items() if keys}:
            raise LedgerBug("the index of shared ResourceClaims is not that of the holdings")
        totals = {node: {uuid: self._added_up(node, uuid) for uuid in known} for node, known in self._totals.items()}
        if self._totals != totals:
            raise LedgerBug("a GPU's total is not what its demands add up to")

    def _overcounts_of_holdings(self) -> dict[str, dict[str, Overcount]]:
        found: dict[str, dict[str, Overcount]] = {}
        for key, each in self._holdings.items():
            if more := overcount(each.request, each.allocation, demands(each.request, each.allocation).values()):
                found.setdefault(each.allocation.node, {})[key] = more
        return found

    def _held_by_namespaces(self) -> dict[str, Held]:
        found: dict[str, Held] = {}
        claims: dict[str, tuple[str, dict[str, Demand]]] = {}
        for holding in self._holdings.values():
            namespace, taken = _namespace(holding), demands(holding.request, holding.allocation)
            if holding.allocation.group:
                before = claims.setdefault(holding.allocation.group, (namespace, {}))[1]
                for uuid, demand in taken.items():
                    place = f"{holding.allocation.node}/{uuid}"
                    before[place] = demand.beside(before[place]) if place in before else demand
            else:
                found[namespace] = found.get(namespace, NOTHING).plus(held_of(taken.values()))
        for namespace, shared in claims.values():
            found[namespace] = found.get(namespace, NOTHING).plus(held_of(shared.values()))
        return {namespace: held for namespace, held in found.items() if held != NOTHING}

    def _count(self, holding: Reservation, more: Iterable[Demand], less: Iterable[Demand] = ()) -> None:
        if self._of_namespace is None:
            return
        namespace, came, went = _namespace(holding), held_of(more), held_of(less)
        held = self._of_namespace.get(namespace, NOTHING)
        now = Held(held.memory + came.memory - went.memory, held.cores + came.cores - went.cores)
        if now != NOTHING:
            self._of_namespace[namespace] = now
        else:
            self._of_namespace.pop(namespace, None)

    def _put(self, holding: Reservation) -> None:
        # Before anything is changed: a reservation that cannot be added up must not remain in part.
        node, taken = holding.allocation.node, demands(holding.request, holding.allocation)
        more = overcount(holding.request, holding.allocation, taken.values())
        self._holdings[holding.key] = holding
        if holding.state is ReservationState.ASSUMED:
            self._assumed[holding.key] = holding
        self._by_node.setdefault(node, {})[holding.key] = holding
        if more:
            self._overcounts.setdefault(node, {})[holding.key] = more
        gpus = self._usage.setdefault(node, {})
        self._forget_totals(node, taken)
        for uuid, demand in taken.items():
            if holding.allocation.group:
                self._share(holding.allocation.group, node, uuid)[holding.key] = demand
                self._count_shared(holding, uuid)
            else:
                gpus.setdefault(uuid, {})[holding.key] = demand
                if holding.state is ReservationState.CONFIRMED:
                    self._note(holding, uuid, holding.key, demand)
        if not holding.allocation.group:
            self._count(holding, taken.values())
        if holding.allocation.shared:
            self._sharing.setdefault(node, set()).add(holding.key)

    def _note(self, holding: Reservation, uuid: str, key: str, demand: Demand | None) -> None:
        if self._journal is not None:
            node, dialect = holding.allocation.node, holding.request.dialect
            since = holding.held_since if demand is not None else 0.0
            self._journal.note(ShareMoved(node, uuid, key, _namespace(holding), dialect, demand, since))

    def _share(self, group: str, node: str, uuid: str) -> dict[str, Demand]:
        return self._shared.setdefault(group, {}).setdefault(f"{node}/{uuid}", {})

    def _count_shared(self, holding: Reservation, uuid: str) -> None:
        """Book the share of a claim after one of its holders came or ended."""
        group, node = holding.allocation.group, holding.allocation.node
        gpus, held = self._usage.setdefault(node, {}), self._share(group, node, uuid)
        before = gpus.get(uuid, {}).get(group)
        after = functools.reduce(Demand.beside, held.values()) if held else None
        self._count(holding, *((each,) if each is not None else () for each in (after, before)))
        self._note_shared(holding, uuid, held)
        if after is not None:
            gpus.setdefault(uuid, {})[group] = after
            return
        del gpus[uuid][group]
        del self._shared[group][f"{node}/{uuid}"]
        if not self._shared[group]:
            del self._shared[group]

    def _note_shared(self, holding: Reservation, uuid: str, held: Mapping[str, Demand]) -> None:
        """Note in the journal what the share's seen holders take of the GPU."""
        seen = (demand for key, demand in held.items() if self._holdings[key].state is ReservationState.CONFIRMED)
        place = holding.allocation.group, holding.allocation.node, uuid
        now, before = functools.reduce(_larger, seen, None), self._noted.pop(place, None)
        if now is not None:
            self._noted[place] = now
        if now != before:
            self._note(holding, uuid, holding.allocation.group, now)

    def _remove(self, holding: Reservation) -> None:
        node, taken = holding.allocation.node, demands(holding.request, holding.allocation)
        del self._holdings[holding.key]
        self._assumed.pop(holding.key, None)
        del self._by_node[node][holding.key]
        if not self._by_node[node]:
            del self._by_node[node]
        if (known := self._overcounts.get(node)) and known.pop(holding.key, None) and not known:
            del self._overcounts[node]
        gpus = self._usage[node]
        self._forget_totals(node, taken)
        for uuid in taken:
            if holding.allocation.group:
                del self._share(holding.allocation.group, node, uuid)[holding.key]
                self._count_shared(holding, uuid)
            else:
                del gpus[uuid][holding.key]
                if holding.state is ReservationState.CONFIRMED:
                    self._note(holding, uuid, holding.key, None)
            if not gpus[uuid]:
                del gpus[uuid]
        if not gpus:
            del self._usage[node]
        if not holding.allocation.group:
            self._count(holding, (), taken.values())
        if holding.allocation.shared:
            self._sharing[node].discard(holding.key)
            if not self._sharing[node]:
                del self._sharing[node]


def _is_booked(known: Reservation, holding: Reservation) -> bool:
    """Whether the same is booked already."""
    same = known.allocation == holding.allocation and known.request == holding.request
    return same and known.state is ReservationState.CONFIRMED


def _namespace(holding: Reservation) -> str:
    return holding.pod.split("/", 1)[0]


def _larger(one: Demand | None, other: Demand) -> Demand:
    return other if one is None else one.beside(other)


def _demands(holding: Reservation) -> Mapping[str, Demand]:
    return demands(holding.request, holding.allocation)


def is_overcommitted(gpu: Gpu, usage: Usage, limits: Limits) -> bool:
    """Whether more is booked on the GPU than there is, or a whole-GPU holder shares it with others."""
    return bool(overcommitment(gpu, usage, limits))


def usage_of(gpus: Iterable[Gpu], ledger: Ledger, node: str) -> tuple[Usage, ...]:
    """The usage that runs parallel to a node's GPUs."""
    return tuple(ledger.usage(node, gpu.uuid) for gpu in gpus)
