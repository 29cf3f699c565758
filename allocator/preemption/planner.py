"""
Choose the pods whose eviction makes room for a waiting pod: pods of lower priority, or others that agreed to it.

Pure: node states and holders in, a node and the pods to evict there out. The choice is the fewest pods; of equally few,
those whose most valuable pod has the lowest priority, then the least age, then likewise the next. No pod is evicted for
one of lower priority, nor for one of the same unless it agreed to give way, and none if that would not make enough
room. The shares of pods that leave anyway are counted first.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from allocator.preemption import set_cover
from allocator.preemption.set_cover import Budget
from allocator.queue import reservation
from contract.model import ContainerAllocation, NodeState, PodRequest, Usage
from contract.reasons.nodes import Reason
from contract.scheduling import counting, filters, fit, nodeinfo
from contract.scheduling.demand import Demand, usage_of
from contract.scheduling.filters import Limits, gpu_reason, node_reason
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodefilters.resources import amount_of
from contract.scheduling.nodeinfo import AllocatedPod

_NODES = 100
"""Nodes with a way to make room that are compared, those first that lack least; kube-scheduler compares as many."""
_TARGETS = 256
"""Choices of a node's GPUs that are compared; 8 GPUs have 70 choices of 4."""
_NOTHING = (0, 0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class PreemptionPlan:
    """The node, and the pods to evict there; none if the pods that leave anyway make room."""

    node: str
    victims: tuple[AllocatedPod, ...]
    containers: tuple[ContainerAllocation, ...] = field(default=(), compare=False)
    """The shares that the pod is to have there, so that the next plan can count them as taken."""

    @property
    def cost(self) -> tuple[int, list[tuple[int, float, str]], str]:
        """The plan with the lower cost is better."""
        return len(self.victims), sorted((v.worth for v in self.victims), reverse=True), self.node


@dataclass(frozen=True, slots=True)
class PreemptionRequest:
    """The pod for which room is sought, and which pods are not candidates."""

    ask: SchedulingRequest
    priority: int
    limits: Limits
    leaving: Container[str] = ()
    """uids of pods that end anyway, so that their shares come back."""
    spared: Container[str] = ()
    """uids of pods that cannot be evicted now, such as for a disruption budget."""
    agreed: Container[str] | None = None
    """
    uids of pods that agreed to be evicted. Where it is given, these of at most the same priority are the candidates;
    else all pods of lower priority are.
    """
    in_the_way: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By node, the uids of pods that must end before the pod may be there, regardless of room."""
    needed: Container[str] = ()
    """uids of pods that the pod has to be alongside, so that it would be refused without them."""
    unserved: Container[str] = ()
    """Namespaces without our label: the API server refuses us evictions there."""


def choose(
    nodes: Iterable[NodeState], sharers: Mapping[str, Sequence[AllocatedPod]], question: PreemptionRequest
) -> PreemptionPlan | None:
    """The best plan over these nodes; None if no eviction makes room. `sharers` are all that are known, by node."""
    best: PreemptionPlan | None = None
    found, budget = 0, Budget()
    for node in _promising(nodes, sharers, question):
        plan = _on(node, sharers[node.name], question, budget, len(best.victims) if best else None)
        if plan is not None:
            best = plan if best is None or plan.cost < best.cost else best
            found += 1
            if found == _NODES or budget.spent:
                break
    return best


def without_any(nodes: Iterable[NodeState], question: PreemptionRequest) -> PreemptionPlan | None:
    """The first of these nodes that has room for the pod as it is; None if none has."""
    for node in sorted(nodes, key=lambda node: node.name):
        if any(uid not in question.leaving for uid in question.in_the_way.get(node.name, ())):
            continue
        room = _room(node, (), question, ())
        if room:
            return PreemptionPlan(node.name, (), room)
    return None


def _promising(
    nodes: Iterable[NodeState], sharers: Mapping[str, Sequence[AllocatedPod]], question: PreemptionRequest
) -> Iterator[NodeState]:
    """Nodes with a pod that leaves or may be evicted, those first that lack least; ties go to the lesser name."""
    lacking = []
    for node in nodes:
        if any(s.uid in question.leaving or _may_go(s, question) for s in sharers.get(node.name, ())):
            lack = reservation.shortage(node, question.ask, question.limits)
            if lack is not None:
                lacking.append((lack, node.name, node))
    return (node for _, _, node in sorted(lacking, key=lambda entry: entry[:2]))


def may_end(sharers: Iterable[AllocatedPod], question: PreemptionRequest) -> list[AllocatedPod]:
    """Those that end anyway, and then the candidates, spared ones too; those that should end first come first."""
    unspared = replace(question, spared=())
    ending = [sharer for sharer in sharers if sharer.uid in question.leaving]
    return [*ending, *sorted((sharer for sharer in sharers if _may_go(sharer, unspared)), key=lambda s: s.worth)]


def _may_go(sharer: AllocatedPod, question: PreemptionRequest) -> bool:
    if question.agreed is None:
        goes = sharer.priority < question.priority
    else:
        goes = sharer.priority <= question.priority and sharer.uid in question.agreed
    kept = sharer.uid in question.leaving or sharer.uid in question.spared or sharer.uid in question.needed
    kept = kept or sharer.key.split("/", 1)[0] in question.unserved
    return goes and sharer.ending is None and not kept


def _on(
    node: NodeState, sharers: Sequence[AllocatedPod], question: PreemptionRequest, budget: Budget, most: int | None
) -> PreemptionPlan | None:
    """The best plan on one node that needs at most `most` victims."""
    leaving = [sharer for sharer in sharers if sharer.uid in question.leaving]
    in_the_way = question.in_the_way.get(node.name, frozenset())
    must_go = tuple(s for s in sharers if s.uid in in_the_way and s.uid not in question.leaving)
    if not all(_may_go(sharer, question) for sharer in must_go) or (most is not None and len(must_go) > most):
        return None
    candidates = sorted((s for s in sharers if _may_go(s, question) and s not in must_go), key=lambda s: s.worth)
    best: PreemptionPlan | None = None
    for target in _targets(node, question.ask.request, question.limits):
        lacks = _lacks(node, sharers, target, question)
        for sharer in (*leaving, *must_go):
            lacks = [lack - gain for lack, gain in zip(lacks, _gain(node, sharer, target, question), strict=True)]
        gains = [(sharer, _gain(node, sharer, target, question)) for sharer in candidates]
        helpful = [(s, g) for s, g in gains if any(lack > 0 < got for lack, got in zip(lacks, g, strict=True))]
        bound = len(helpful) if most is None else most - len(must_go)
        places = [range(at, at + len(_NOTHING)) for at in range(0, len(target) * len(_NOTHING), len(_NOTHING))]
        chosen = set_cover.cover([gain for _, gain in helpful], lacks, bound, places=places, budget=budget)
        if chosen is not None:
            victims = (*must_go, *(helpful[position][0] for position in chosen))
            plan = PreemptionPlan(node.name, victims)
            if best is None or plan.cost < best.cost:
                best, most = plan, len(plan.victims)
    room = _room(node, sharers, question, [*leaving, *best.victims]) if best is not None else ()
    return replace(best, containers=room) if best is not None and room else None


def _room(
    node: NodeState, sharers: Sequence[AllocatedPod], question: PreemptionRequest, removed: Sequence[AllocatedPod]
) -> tuple[ContainerAllocation, ...]:
    """
    The shares that the pod would have after that, by the rules of placement themselves, so that no pod is evicted in
    vain should the search above be wrong. Empty if it would have none.
    """
    after = nodeinfo.unbooked(node, sharers, removed)
    if node_reason(after, question.ask.needs) is not None or counting.shortage(after, question.ask) is not None:
        return ()
    found = fit.fit(after, question.ask.request, question.limits, fit.least_free)
    return (
        ()
        if isinstance(found, Reason)
        else fit.allocate(after, question.ask.request, found.chosen, question.limits.selects)
    )


def _targets(node: NodeState, request: PodRequest, limits: Limits) -> Iterator[Mapping[int, Demand]]:
    """What the pod would take of which GPUs, by position, for each choice of GPUs that it accepts."""
    if request.same_gpus and len(request.containers) > 1:
        request = replace(request, containers=(fit.combined(request),), same_gpus=False)
    accepted = [
        [
            position
            for position, (gpu, taken) in enumerate(zip(node.gpus, node.usage, strict=True))
            if gpu_reason(gpu, Usage(starting=taken.starting), fraction, limits) is None
        ]
        for fraction in request.containers
    ]
    choices = fit.choices(node, request, accepted, limits)
    return (fit.demands_of(node, request, chosen) for chosen in islice(choices, _TARGETS))


def _lacks(
    node: NodeState, sharers: Sequence[AllocatedPod], target: Mapping[int, Demand], question: PreemptionRequest
) -> Sequence[int]:
    """What must be given back until `filters.gpu_reason` and `compute_reason` agree; nothing where it is <= 0."""
    limits, lacks = question.limits, []
    for position, demand in target.items():
        gpu, usage = node.gpus[position], node.usage[position]
        alone = [s for s in sharers if gpu.uuid in s.demands and s.demands[gpu.uuid].exclusive]
        lacks += [
            *filters.shortage(gpu, usage, demand, limits),
            max(1, len(alone)) if usage.exclusive else 0,
        ]
    has, taken, wanted = node.allocatable, node.requested, question.ask.needs.compute
    lacks += [
        taken.cpu + wanted.cpu - has.cpu if wanted.cpu else 0,
        taken.memory + wanted.memory - has.memory if wanted.memory else 0,
        taken.storage + wanted.storage - has.storage if wanted.storage else 0,
        taken.pods + wanted.pods - has.pods,
        *counting.lacking(node, question.ask),
        *(amount_of(taken.scalars, name) + more - amount_of(has.scalars, name) for name, more in wanted.scalars or ()),
    ]
    return lacks


def _gain(
    node: NodeState, sharer: AllocatedPod, target: Mapping[int, Demand], question: PreemptionRequest
) -> Sequence[int]:
    """What an eviction of the pod gives back, in the order of `_lacks`."""
    gain: list[int] = []
    for position in target:
        demand = sharer.demands.get(node.gpus[position].uuid)
        if demand is None:
            gain += _NOTHING
        else:
            gain += demand.memory, demand.cores, 1, demand.memory + demand.burst, int(demand.exclusive)
    compute = sharer.compute
    others = [amount_of(compute.scalars, name) for name, _ in question.ask.needs.compute.scalars or ()]
    held, more = usage_of(sharer.demands.values()), sharer.overcount
    counted = held.memory + more.memory, held.cores + more.cores
    return [*gain, compute.cpu, compute.memory, compute.storage, compute.pods, *counted, *others]
