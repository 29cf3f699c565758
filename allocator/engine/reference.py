"""
Decide where a pod goes: Filter, Score, choose.

Pure: the same snapshot, request and policy always give the same decision. No clock, no API, no logging, no randomness.
This is the specification, plain and slow: it evaluates every GPU of every node. `allocator.engine.engine` makes the
same decisions fast, and a property test compares the two.

Score decides which of the fitting GPUs and nodes is preferred: two policies at each level, `binpack` and `spread`.
Integers only, so that a decision is the same on every machine; the smaller score wins, and ties go to the lower index
or the lesser name. Between nodes of the same score the pod's preferences come first (`Prefer`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from allocator.scoring import reference
from allocator.scoring.tables import Tables
from allocator.table import TIE_BITS
from contract.model import WHOLE, ContainerAllocation, NodeState, PodRequest, Usage
from contract.reasons.nodes import Reason, ReasonCount, tally
from contract.scheduling import counting, fit
from contract.scheduling.filters import DEFAULT_LIMITS, Limits, compute_reason, lasting_reason
from contract.scheduling.fit import Fit, GpuScore, Steps
from contract.scheduling.needs import SchedulingRequest, narrowed

FINE = 1_000_000
"""Steps of the used share of a node."""

LEARNED = frozenset(("fragmentation", "value"))
"""Node policies that use the learned demand, and choose the GPUs of the node too."""


@dataclass(frozen=True, slots=True)
class Policy:
    """
    The preferences for nodes and for the GPUs of a node; each is `binpack` or `spread`.

    `node` may be one of `LEARNED`; then `gpu` is not used.
    """

    node: str = "binpack"
    gpu: str = "binpack"

    @property
    def learned(self) -> bool:
        """Whether the policy uses the learned demand."""
        return self.node in LEARNED


DEFAULT_POLICY = Policy()


def policy_of(request: SchedulingRequest, default: Policy) -> Policy:
    """The tenant's choice if there is one. If it is incomplete and the default would learn, the rest is best fit."""
    wanted = request.request
    if default.learned:
        if not wanted.node_policy and not wanted.gpu_policy:
            return default
        default = DEFAULT_POLICY
    return Policy(wanted.node_policy or default.node, wanted.gpu_policy or default.gpu)


def most_free(usable: int, usage: Usage) -> int:
    """The GPU with the most free memory comes first."""
    return usage.memory - usable


GPU_SCORES: Mapping[str, GpuScore] = {"binpack": fit.least_free, "spread": most_free}


def used_share(node: NodeState, memory: int, cores: int) -> int:
    """
    The used part of the node's GPUs, the larger of memory and cores, with `memory` bytes and `cores` percent more.

    In millionths of all that the node has. Memory is counted in MiB here, so that the products fit 64 bits.
    """
    total = taken_memory = taken_cores = 0
    for gpu, usage in zip(node.gpus, node.usage, strict=True):
        total += gpu.usable
        taken_memory += usage.memory
        taken_cores += usage.cores
    if not total:
        return 0
    by_memory = ((taken_memory + memory) >> 20) * FINE // max(total >> 20, 1)
    by_cores = (taken_cores + cores) * FINE // (WHOLE * len(node.gpus))
    return max(by_memory, by_cores)


def fullest(share: int) -> int:
    """The node that becomes the fullest comes first."""
    return -share


def emptiest(share: int) -> int:
    """The node that stays the emptiest comes first."""
    return share


NODE_SCORES: Mapping[str, Callable[[int], int]] = {"binpack": fullest, "spread": emptiest}


Prefer = Callable[[Sequence[NodeState]], Sequence[int]]
"""The pod's preference for each of these nodes, in their order; more is better. Called for nodes of the same score."""
NOWHERE: Mapping[str, Reason] = {}
"""No node is refused for anything beyond it."""
Snapshot = Mapping[str, NodeState]
"""Every node by name, each value frozen. A changed node is a new value."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The pod fits: on this node, these shares."""

    node: str
    containers: tuple[ContainerAllocation, ...]


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """The pod fits nowhere now; the reasons of all nodes, added up."""

    reasons: tuple[ReasonCount, ...]


Decision = Placement | Unschedulable
NodeResult = tuple[int, Fit] | Reason
"""The result for one node: its score (smaller is better) and the fit, or the reason of a refusal."""


def tables_of(request: SchedulingRequest, policy: Policy, tables: Tables | None) -> Tables | None:
    """
    The tables that decide, if any.

    Nothing learnt yet, containers on GPUs of their own, or several GPUs that depend on each other (on one NUMA node, of
    one model): the best fit, `DEFAULT_POLICY`, decides.
    """
    return tables if policy.learned and request.together and not request.alike else None


def forms_of(request: SchedulingRequest, policy: Policy, tables: Tables | None) -> tuple[SchedulingRequest, ...]:
    """
    The requests to try one after the other until one fits. The last one is the pod's own.

    Where tables decide, containers that may be on the same GPUs are first requested as the one share that they add up
    to: the tables know the effect of a share on a card, but not of several on several cards.
    """
    if not policy.learned or tables is None or request.together or request.alike:
        return (request,)
    joined = fit.joined(request.request)
    return (request,) if joined is None else (replace(request, request=joined, stored=request.as_stored), request)


def by_preference(decide_one: Callable[[SchedulingRequest], Decision], ask: SchedulingRequest) -> Decision:
    """The first placement with only one of the pod's preferred models, in order; else the decision for the pod."""
    for preferred in narrowed(ask):
        found = decide_one(preferred)
        if isinstance(found, Placement):
            return found
    return decide_one(ask)


def evaluate(
    node: NodeState,
    ask: SchedulingRequest,
    limits: Limits,
    policy: Policy,
    tables: Tables | None = None,
    steps: Steps | None = None,
    refused: Reason | None = None,
) -> NodeResult:
    """
    Whether and how one node takes the pod. `policy`: that of `SchedulingRequest.policy`. `tables`: the learned tables,
    if any. `steps`: the remaining steps of a search that is bounded over several nodes. `refused`: why other pods or
    volumes exclude the pod from this node.
    """
    reason = lasting_reason(node, ask.needs) or refused or compute_reason(node, ask.needs)
    reason = reason or counting.shortage(node, ask)
    if reason is not None:
        return reason
    if policy.learned:
        learnt = tables_of(ask, policy, tables)
        if learnt is not None:
            return reference.evaluate(node, ask.request, ask.needs.compute.cpu, limits, learnt)
        policy = DEFAULT_POLICY
    found = fit.fit(node, ask.request, limits, GPU_SCORES[policy.gpu], steps)
    if isinstance(found, Reason):
        return found
    return NODE_SCORES[policy.node](used_share(node, found.memory, found.cores)), found


def decide(
    snapshot: Snapshot,
    ask: SchedulingRequest,
    *,
    limits: Limits = DEFAULT_LIMITS,
    policy: Policy = DEFAULT_POLICY,
    tables: Tables | None = None,
    refused: Mapping[str, Reason] = NOWHERE,
    prefer: Prefer | None = None,
) -> Decision:
    """
    The best node and its shares, or why there is none. Looks at every node. Of nodes of the same score the pod's
    preferences decide, if it has any; ties go to the lesser name.
    """
    chosen = policy_of(ask, policy)
    decision: Decision = Unschedulable(())
    for form in forms_of(ask, chosen, tables):
        verdicts = (
            (node, evaluate(node, form, limits, chosen, tables, refused=refused.get(node.name)))
            for node in snapshot.values()
        )
        learnt = chosen.learned and tables_of(form, chosen, tables) is not None
        decision = _choose(form, limits, verdicts, TIE_BITS if learnt else 0, prefer)
        if isinstance(decision, Placement):
            break
    return decision


def _choose(
    ask: SchedulingRequest,
    limits: Limits,
    verdicts: Iterable[tuple[NodeState, NodeResult]],
    tie_bits: int,
    prefer: Prefer | None,
) -> Decision:
    """`tie_bits`: the number of bits of a score that only break ties."""
    fitting: list[tuple[int, NodeState, Fit]] = []
    reasons = []
    for node, verdict in verdicts:
        if isinstance(verdict, Reason):
            reasons.append(verdict)
        else:
            fitting.append((verdict[0], node, verdict[1]))
    if not fitting:
        return Unschedulable(tally(reasons))
    least = min(score >> tie_bits for score, _, _ in fitting)
    best = [each for each in fitting if each[0] >> tie_bits == least]
    if prefer is not None and len(best) > 1:
        liked = prefer([node for _, node, _ in best])
        best = [each for each, much in zip(best, liked, strict=True) if much == max(liked)]
    _, node, found = min(best, key=lambda each: (each[0], each[1].name))
    return given(node, ask.request, found.chosen, limits)


def given(node: NodeState, request: PodRequest, chosen: fit.GpuChoice, limits: Limits) -> Placement:
    """The decision for a node and its GPUs; of equal GPUs, those with the best paths between them."""
    connected = fit.connected(node, request, chosen, limits)
    return Placement(node.name, fit.allocate(node, request, connected, limits.selects))


def could_ever(snapshot: Snapshot, ask: SchedulingRequest, *, limits: Limits = DEFAULT_LIMITS) -> Unschedulable | None:
    """
    None if some node would take the pod with all its GPUs free and healthy; else why not.

    It ignores temporary conditions: usage, health, cordon, readiness, and everything of the node except its GPUs,
    because another node of the same kind may join. A cluster without any GPU counts as one whose nodes have not joined.
    """
    reasons = []
    for node in snapshot.values():
        if node.gpus:
            empty = emptied(node)
            found = counting.shortage(empty, ask) or fit.fit(empty, ask.request, limits, fit.least_free)
            if not isinstance(found, Reason):
                return None
            reasons.append(found)
    return Unschedulable(tally(reasons)) if reasons else None


def emptied(node: NodeState) -> NodeState:
    """The node with all its GPUs free and healthy."""
    gpus = tuple(gpu if gpu.healthy else replace(gpu, healthy=True, reason="", withheld="") for gpu in node.gpus)
    return NodeState(node.name, gpus, (Usage(),) * len(gpus))
