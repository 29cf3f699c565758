"""
Decide where a pod goes: Filter, Score, choose.

Pure: the same snapshot, request and policy always give the same decision. No clock, no API, no logging, no randomness.
This is the specification, plain and slow: it looks at every GPU of every node. `allocator.index` gives the same answers
fast, and a property test holds the two equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from allocator import fitting, linking, scores
from allocator.filters import DEFAULT_LIMITS, Limits, node_reason
from allocator.fitting import Fit, Steps
from allocator.policies import plain
from allocator.policies.tables import Tables
from allocator.reasons import Reason, Tally, tally
from allocator.scores import DEFAULT_POLICY, Policy
from contract.model import ContainerAllocation, NodeState, PodRequest, Usage
from contract.scheduling import PodNeeds

Snapshot = Mapping[str, NodeState]
"""Every node by name, each value frozen. A changed node is a new value."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One pod to place: its share, and what else it needs of a node. Hashable: equal asks have equal answers."""

    request: PodRequest
    needs: PodNeeds

    def policy(self, default: Policy) -> Policy:
        """The tenant's choice where there is one; where the rest would be learnt, it is the best fit then."""
        if default.learned:
            if not self.request.node_policy and not self.request.gpu_policy:
                return default
            default = DEFAULT_POLICY
        return Policy(self.request.node_policy or default.node, self.request.gpu_policy or default.gpu)

    @property
    def together(self) -> bool:
        """Whether all containers are on the same GPUs, as a single one always is."""
        return len(self.request.containers) <= 1 or self.request.same_gpus

    @property
    def numa_bound(self) -> bool:
        """Whether some container's GPUs must all be on one NUMA node."""
        return any(fraction.one_numa for fraction in self.request.containers)

    def tables(self, policy: Policy, tables: Tables | None) -> Tables | None:
        """
        The tables that decide, if any.

        Nothing learnt yet, containers on GPUs of their own, or several GPUs that must be on one NUMA node: the best
        fit, `scores.DEFAULT_POLICY`, decides.
        """
        return tables if policy.learned and self.together and not self.numa_bound else None

    def forms(self, policy: Policy, tables: Tables | None) -> tuple[Ask, ...]:
        """
        What is asked one after the other until something fits; the last one is the pod as it came.

        Where tables decide, containers that may be on the same GPUs are first asked for as the one share that they add
        up to: the tables know what a share does to a card, and not what several on several cards do together.
        """
        if not policy.learned or tables is None or self.together or self.numa_bound:
            return (self,)
        request = fitting.joined(self.request)
        return (self,) if request is None else (replace(self, request=request), self)


@dataclass(frozen=True, slots=True)
class Asking:
    """Who asks: an empty uid is that of a pod at admission."""

    uid: str = ""
    priority: int = 0
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The pod fits: on this node, these shares."""

    node: str
    containers: tuple[ContainerAllocation, ...]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The pod fits nowhere now; the reasons of all nodes, added up."""

    reasons: tuple[Tally, ...]


Decision = Chosen | Unplaced
Verdict = tuple[int, Fit] | Reason
"""What one node answers: its score (smaller is better) and the fit, or why not."""


def judge(
    node: NodeState,
    ask: Ask,
    limits: Limits,
    policy: Policy,
    tables: Tables | None = None,
    steps: Steps | None = None,
) -> Verdict:
    """
    Whether and how one node takes the pod. `policy` is what `Ask.policy` says, `tables` what was learnt, if any,
    `steps` what is left of a search that is bounded over several nodes.
    """
    reason = node_reason(node, ask.needs)
    if reason is not None:
        return reason
    if policy.learned:
        learnt = ask.tables(policy, tables)
        if learnt is not None:
            return plain.judge(node, ask.request, ask.needs.compute.cpu, limits, learnt)
        policy = DEFAULT_POLICY
    found = fitting.fit(node, ask.request, limits, scores.GPU_SCORES[policy.gpu], steps)
    if isinstance(found, Reason):
        return found
    return scores.NODE_SCORES[policy.node](scores.used_share(node, found.memory, found.cores)), found


def decide(
    snapshot: Snapshot,
    ask: Ask,
    *,
    limits: Limits = DEFAULT_LIMITS,
    policy: Policy = DEFAULT_POLICY,
    tables: Tables | None = None,
) -> Decision:
    """The best node and its shares, or why there is none. Looks at every node; ties go to the lesser name."""
    chosen = ask.policy(policy)
    decision: Decision = Unplaced(())
    for form in ask.forms(chosen, tables):
        verdicts = ((node, judge(node, form, limits, chosen, tables)) for node in snapshot.values())
        decision = _choose(snapshot, form, limits, verdicts)
        if isinstance(decision, Chosen):
            break
    return decision


def _choose(snapshot: Snapshot, ask: Ask, limits: Limits, verdicts: Iterable[tuple[NodeState, Verdict]]) -> Decision:
    best: tuple[int, str] | None = None
    best_fit: Fit | None = None
    reasons = []
    for node, verdict in verdicts:
        if isinstance(verdict, Reason):
            reasons.append(verdict)
            continue
        rank = (verdict[0], node.name)
        if best is None or rank < best:
            best, best_fit = rank, verdict[1]
    if best is None or best_fit is None:
        return Unplaced(tally(reasons))
    node = snapshot[best[1]]
    return given(node, ask.request, best_fit.chosen, limits)


def given(node: NodeState, request: PodRequest, chosen: fitting.Chosen, limits: Limits) -> Chosen:
    """The decision for a node and its GPUs, of those alike the ones that reach each other best."""
    return Chosen(node.name, fitting.allocate(node, request, linking.connected(node, request, chosen, limits)))


def could_ever(snapshot: Snapshot, ask: Ask, *, limits: Limits = DEFAULT_LIMITS) -> Unplaced | None:
    """
    None if some node would take the pod with all its GPUs free and well; else why not.

    What passes with time is left out: usage, health, cordon, readiness, and everything of the node but its GPUs, since
    another node of the same kind may join. A cluster without any GPU counts as one whose nodes are still to come.
    """
    reasons = []
    for node in snapshot.values():
        if node.gpus:
            found = fitting.fit(emptied(node), ask.request, limits, scores.least_free)
            if not isinstance(found, Reason):
                return None
            reasons.append(found)
    return Unplaced(tally(reasons)) if reasons else None


def emptied(node: NodeState) -> NodeState:
    """The node with all its GPUs free and well."""
    gpus = tuple(gpu if gpu.healthy else replace(gpu, healthy=True, reason="", withheld="") for gpu in node.gpus)
    return NodeState(node.name, gpus, (Usage(),) * len(gpus))
