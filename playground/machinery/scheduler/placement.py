"""
The node for a pod, or kube-scheduler's message on why no node fits.

The filters and their order are those of kube-scheduler's default profile that need no other pod than the node's own:
NodeUnschedulable, TaintToleration, NodeAffinity, NodePorts, NodeResourcesFit; the score is LeastAllocated. Each node is
counted under its first failing filter. Sources: "Scheduler Configuration" in the Kubernetes documentation, and the
messages of release 1.30. Pure: nodes and needs in, a choice or the reasons out. Ties go to the node with fewer pods
(the real score counts 100m and 200 MB for a container that asks for nothing, to the same effect), then to the first
name; kube-scheduler chooses one at random.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from contract.model import NodeState, Taint
from contract.scheduling import needs as scheduling
from playground.machinery.objects.resources import NOT_READY, PODS, UNSCHEDULABLE, Account, Amounts, HostPort, shortages


@dataclass(frozen=True, slots=True)
class Wish:
    """The requirements of a pod for its node."""

    needs: scheduling.PodNeeds
    requests: Amounts

    @property
    def key(self) -> tuple[scheduling.PodNeeds, tuple[tuple[str, int], ...]]:
        """A key that is equal for pods with the same result."""
        return self.needs, tuple(sorted(self.requests.items()))


@dataclass(frozen=True, slots=True)
class Candidate:
    """One node with its resources and the amounts in use. `state.host_ports` is unused: the account has the ports."""

    state: NodeState
    allocatable: Amounts
    account: Account

    @property
    def ports(self) -> frozenset[HostPort]:
        return self.account.ports


@dataclass(frozen=True, slots=True)
class Unschedulable:
    """No node fits the pod. `message` is kube-scheduler's."""

    message: str


def choose(wish: Wish, candidates: Iterable[Candidate]) -> str | Unschedulable:
    """The name of the best node, or why there is none."""
    reasons: Counter[str] = Counter()
    total, best = 0, None
    for candidate in candidates:
        total += 1
        against = objections(wish, candidate)
        if against:
            reasons.update(against)
            continue
        rank = (
            _avoided(wish, candidate.state),
            -_least_allocated(wish, candidate),
            candidate.account.used.get(PODS, 0),
            candidate.state.name,
        )
        best = rank if best is None else min(best, rank)
    if best is not None:
        return best[-1]
    return Unschedulable(_explain(total, reasons))


def objections(wish: Wish, candidate: Candidate) -> list[str]:
    """Why the node does not fit the pod: the reasons of the first filter that rejects it; empty if it fits."""
    state, needs = candidate.state, wish.needs
    if state.cordoned and not _tolerated(needs, UNSCHEDULABLE):
        return ["node(s) were unschedulable"]
    taint = scheduling.untolerated(state, needs.tolerations)
    if taint is None and not state.ready and not _tolerated(needs, NOT_READY):
        taint = NOT_READY
    if taint is not None:
        return [f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"]
    if not scheduling.selects(needs, state):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if needs.host_ports and scheduling.port_conflict(needs, replace(state, host_ports=candidate.ports)):
        return ["node(s) didn't have free ports for the requested pod ports"]
    short = shortages(wish.requests, candidate.account.free(candidate.allocatable))
    return ["Too many pods" if name == PODS else f"Insufficient {name}" for name in short]


def _tolerated(needs: scheduling.PodNeeds, taint: Taint) -> bool:
    return any(toleration.tolerates(taint) for toleration in needs.tolerations)


def _avoided(wish: Wish, state: NodeState) -> int:
    """How many of the node's soft taints the pod does not tolerate; fewer is better."""
    soft = [taint for taint in state.taints if taint.effect == "PreferNoSchedule"]
    return sum(not _tolerated(wish.needs, taint) for taint in soft)


def _least_allocated(wish: Wish, candidate: Candidate) -> int:
    """The mean percentage of CPU and memory that would stay free, as NodeResourcesFit scores it."""
    scores = []
    for name in (scheduling.CPU, scheduling.MEMORY):
        has = candidate.allocatable.get(name, 0)
        taken = candidate.account.used.get(name, 0) + wish.requests.get(name, 0)
        scores.append(max(has - taken, 0) * 100 // has if has else 0)
    return sum(scores) // len(scores)


def _explain(total: int, reasons: Mapping[str, int]) -> str:
    if not total:
        return "no nodes available to schedule pods"
    listed = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    return f"0/{total} nodes are available: {listed}."
