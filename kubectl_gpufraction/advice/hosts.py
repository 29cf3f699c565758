"""
The cluster as `advice` sees it: nodes with their pods, and which pods may be evicted. JSON in, values out.

A pod may be evicted if a controller replaces it, no annotation forbids it, and its PodDisruptionBudgets allow it
now. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from contract import names, pods
from contract.encoding import quantity
from contract.model import FREE, Compute, Inventory, NodeState
from contract.nodes import attributes
from contract.nodes.excluded import KeptOut
from contract.scheduling import needs as scheduling
from contract.scheduling import protection
from contract.scheduling.demand import of_claim
from contract.scheduling.fairness import own_order
from contract.scheduling.needs import PodNeeds
from contract.scheduling.nodefilters import resources
from contract.scheduling.nodeinfo import holding
from kubectl_gpufraction.cluster.room import NodeWithPods, ShareHolder
from kubectl_gpufraction.cluster.state import Pod, claims_of, inventory_of, node_of, pod_of

JSON = dict[str, Any]
_NOT_ELSEWHERE = ("DaemonSet", "Node")
"""Owners whose pods belong to their node."""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod in the queue, and what it needs of a node. `foreign`: other systems' gates, which must go first."""

    pod: Pod
    needs: PodNeeds
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AdviceInput:
    """The input of an advice. `allowed`: how many evictions each PodDisruptionBudget allows now."""

    hosts: tuple[NodeWithPods, ...]
    queue: tuple[Waiter, ...]
    allowed: Mapping[str, int]
    leaving: tuple[str, ...] = ()
    """Pods that are being deleted; they no longer count."""

    def waiter(self, key: str = "") -> Waiter | None:
        """The pod in the queue with that `namespace/name`, or the first without a gate of another system."""
        return next((each for each in self.queue if (each.pod.key == key if key else not each.foreign)), None)


def advice_input(
    gpunodes: Iterable[JSON],
    nodes: Iterable[JSON],
    all_pods: Iterable[JSON],
    budgets: Sequence[JSON],
    elasticgpus: Iterable[JSON] = (),
    kept_out: Mapping[str, KeptOut] = MappingProxyType({}),
) -> AdviceInput:
    """
    Read the five lists, and the excluded cards by node. Objects that cannot be read count as absent, as in the
    allocator.
    """
    states = _states(gpunodes, nodes, kept_out)
    for claim in claims_of(elasticgpus):
        # Booked whether or not pods use it, so no eviction would free it.
        if claim.allocation.node in states:
            share = of_claim(claim.allocation), PodNeeds(compute=Compute())
            states[claim.allocation.node] = holding(states[claim.allocation.node], [share])
    holders: dict[str, list[ShareHolder]] = {name: [] for name in states}
    queue, leaving = [], []
    for raw in all_pods:
        if pods.finished(raw):
            continue
        try:
            pod = pod_of(raw)
            needs = scheduling.needs_for(raw, pod.request if pod is not None else None)
        except quantity.BadQuantity:
            continue
        node = node_of(raw, pod)
        resized = resources.resized(raw) if (raw.get("spec") or {}).get("nodeName") else None
        if pod is not None and pod.request.claim:
            pod = None  # its claim has the share
        if pod is not None and pod.deleted:
            continue
        if pod is not None and pod.allocation is None:
            queue.append(Waiter(pod, needs, tuple(gate for gate in pods.gates(raw) if gate != names.GATE)))
        elif node in states and (raw.get("metadata") or {}).get("deletionTimestamp") and pod is not None:
            leaving.append(pod.key)
        elif node in states and pod is not None:
            holders[node].append(replace(_holder(raw, pod, needs, budgets), resized=resized))
        elif node in states:
            taken = needs if resized is None else replace(needs, compute=resized)
            states[node] = holding(states[node], [({}, taken)])
    here = ((states[name], sorted(holders[name], key=lambda holder: holder.pod.key)) for name in sorted(states))
    return AdviceInput(
        tuple(NodeWithPods(state, tuple(found)) for state, found in here),
        tuple(own_order(sorted(queue, key=lambda each: (each.pod.order, each.pod.key)), lambda each: each.pod.place)),
        {_key(budget): int((budget.get("status") or {}).get("disruptionsAllowed") or 0) for budget in budgets},
        tuple(sorted(leaving)),
    )


def _holder(raw: JSON, pod: Pod, needs: PodNeeds, budgets: Iterable[JSON]) -> ShareHolder:
    counting = [budget for budget in budgets if _counts(budget, raw)]
    why = _why_it_stays(raw, counting)
    return ShareHolder(
        pod, pods.uid(raw), scheduling.unpinned(needs), pod.shares(), frozenset(map(_key, counting)), why
    )


def _why_it_stays(raw: JSON, counting: Iterable[JSON]) -> str:
    owner: JSON = next((each for each in raw["metadata"].get("ownerReferences") or [] if each.get("controller")), {})
    if not owner:
        return "no controller would create it again"
    if owner.get("kind") in _NOT_ELSEWHERE:
        return "it belongs to its node"
    if protection.stays(pods.annotations_of(raw)):
        return f"its annotation {protection.SAFE_TO_EVICT} is false"
    for budget in counting:
        if int((budget.get("status") or {}).get("disruptionsAllowed") or 0) <= 0:
            return f"PodDisruptionBudget {budget['metadata']['name']} allows no eviction now"
    return ""


def _key(budget: JSON) -> str:
    metadata = budget.get("metadata") or {}
    return f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"


def _counts(budget: JSON, raw: JSON) -> bool:
    """Whether the budget's selector matches the pod; in policy/v1 an empty one matches all of its namespace."""
    metadata = raw["metadata"]
    if (budget.get("metadata") or {}).get("namespace") != metadata.get("namespace"):
        return False
    selector = (budget.get("spec") or {}).get("selector")
    if selector is None:
        return False
    labels = metadata.get("labels") or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    return all(_holds(each, labels) for each in selector.get("matchExpressions") or [])


def _holds(expression: JSON, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(str(expression.get("key"))), expression.get("values") or ()
    found = scheduling.label_matches(value, str(expression.get("operator")), values)
    return True if found is None else found  # an unreadable selector counts as matching


def _states(gpunodes: Iterable[JSON], nodes: Iterable[JSON], kept_out: Mapping[str, KeptOut]) -> dict[str, NodeState]:
    raw = {str((node.get("metadata") or {}).get("name", "")): node for node in nodes}
    found = {}
    for gpunode in gpunodes:
        inventory = inventory_of(gpunode, kept_out)
        if inventory is not None and inventory.node in raw:
            found[inventory.node] = _state(raw[inventory.node], inventory)
    return found


def _state(node: JSON, inventory: Inventory) -> NodeState:
    here = attributes.facts(node)
    return NodeState(
        here.name,
        inventory.gpus,
        (FREE,) * len(inventory.gpus),
        here.labels,
        here.taints,
        here.cordoned,
        here.ready,
        here.allocatable,
        delivery=inventory.delivery,
        isolation=inventory.isolation,
    )
