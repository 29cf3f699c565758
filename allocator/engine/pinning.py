"""
Chooses how to pin a placed pod to its node, and records what its placement depends on.

`choose`: `nodeName` binds at admission, and `affinity` leaves the binding to kube-scheduler. `nodeName` is correct only
if all of kube-scheduler's checks were made here, if no work remains when the pod is bound, and if a pod that
kube-scheduler binds at the same moment makes no difference: the node has room for both (else a kubelet would reject the
second one), and no rule between pods applies.

`Judged`: admission may call the allocator again for one creation, after other webhooks have changed the pod. The first
result is kept only if nothing has changed on which the choice of node, GPUs or pin depends. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from contract import names, pods
from contract.encoding import resourceclaims
from contract.encoding.plain import NAME, plain
from contract.model import Compute, NodeState
from contract.scheduling import needs as scheduling
from contract.scheduling.clusterfilters.left_open import NOTHING, LeftOpen
from contract.scheduling.clusterfilters.objects import NO_RULES, PodRules
from contract.scheduling.needs import PodNeeds, SchedulingRequest

Pin = Literal["nodeName", "affinity"]

_HEADROOM = 4
"""One part in 4 of a node's CPU and memory stays free under `nodeName`: other programs may see an older state of the
node than we do, and we see an older state than the real one."""
_NOTHING = Compute()
_DEFAULT_SCHEDULERS = ("", "default-scheduler")
NOT_EVALUATED = ("scheduler", "claims")
"""The parts that are not evaluated: another scheduler's rules, and the devices of other drivers' ResourceClaims."""


def choose(
    mode: str,
    left_to_scheduler: bool,
    needs: PodNeeds,
    node: NodeState,
    pending: Compute = _NOTHING,
    left_open: LeftOpen = NOTHING,
) -> Pin:
    """
    The pin for a pod that goes to `node`, whose state does not count the pod yet.

    `left_to_scheduler`: the result of `only_scheduler_can_judge` for the pod. `pending`: the amounts that
    kube-scheduler is about to place somewhere. `left_open`: its remaining checks and work for the pod on this node. A
    mode other than `nodeName` and `affinity` counts as `auto`.

    If a pod that is left to its scheduler already had its node, the scheduler would not check it or bind its claims. So
    it is pinned by affinity even if `nodeName` is requested, unless it names its node itself.
    """
    if needs.node_name:
        return "nodeName"
    if mode == "affinity" or left_to_scheduler or left_open != NOTHING:
        return "affinity"
    return "nodeName" if mode == "nodeName" or has_headroom(needs, node, pending) else "affinity"


def other_scheduler(spec: Mapping[str, Any]) -> str:
    """The scheduler that the pod's spec names, in a form for messages; empty for the default one."""
    named = spec.get("schedulerName", "")
    return "" if named in _DEFAULT_SCHEDULERS else plain(str(named), NAME)


def not_evaluated(pod: Mapping[str, Any]) -> tuple[str, ...]:
    """The rules that restrict the pod's nodes but are not fully evaluated here: words of `NOT_EVALUATED`."""
    spec = pod.get("spec") or {}
    found = bool(other_scheduler(spec)), bool(resourceclaims.without_claim(spec).get("resourceClaims"))
    return tuple(what for what, holds in zip(NOT_EVALUATED, found, strict=True) if holds)


def only_scheduler_can_judge(pod: Mapping[str, Any]) -> bool:
    """Whether another scheduler must check the pod, regardless of its request."""
    return bool(other_scheduler(pod.get("spec") or {}))


def has_headroom(needs: PodNeeds, node: NodeState, pending: Compute = _NOTHING) -> bool:
    """
    Whether the node keeps headroom with the pod and everything pending on it, including one pod slot. Nodes have only
    small amounts of other resources, so a pod that needs those never has headroom.
    """
    if needs.compute.scalars:
        return False
    has, taken, wanted = node.allocatable, node.requested, needs.compute
    return (
        (taken.cpu + wanted.cpu + pending.cpu) * _HEADROOM <= has.cpu * (_HEADROOM - 1)
        and (taken.memory + wanted.memory + pending.memory) * _HEADROOM <= has.memory * (_HEADROOM - 1)
        and taken.storage + wanted.storage + pending.storage <= has.storage
        and taken.pods + wanted.pods + pending.pods < has.pods
    )


@dataclass(frozen=True, slots=True)
class Judged:
    """The parts of a pod on which its placement depends."""

    ask: SchedulingRequest
    """The request; and selectors, affinity, tolerations, CPU, memory, storage, ports, runtime class, isolation."""
    pin: str
    """The pin that the pod or the administrator wants."""
    left_to_scheduler: bool
    """Whether the pod has a requirement that only kube-scheduler can check."""
    priority: int = 0
    foreign_gates: frozenset[str] = frozenset()
    """Other systems' scheduling gates."""
    rules: PodRules = NO_RULES
    """The rules between pods: labels, affinity to pods, topology spread."""


def judged(pod: Mapping[str, Any], ask: SchedulingRequest, default_pin: str, rules: PodRules = NO_RULES) -> Judged:
    """The parts of a pod without our pin on which its decision depends. `default_pin` is the administrator's."""
    return Judged(
        ask=ask,
        pin=pods.annotations_of(pod).get(names.PLACEMENT, "") or default_pin,
        left_to_scheduler=only_scheduler_can_judge(pod),
        priority=pods.priority(pod),
        foreign_gates=frozenset(pods.gates(pod)) - {names.GATE},
        rules=rules,
    )


def stands(before: Judged, now: Judged, node: str) -> bool:
    """
    Whether a placement on `node` that was chosen with `before` is still correct with `now`.

    Both are compared with the pin. A requirement of the pod's author that equals our pin is removed with it on a second
    pass, which makes no difference.
    """
    return _tied(before, node) == _tied(now, node)


def _tied(seen: Judged, node: str) -> Judged:
    needs = seen.ask.needs
    tied = replace(needs, affinity=scheduling.pinned(needs.affinity, node))
    return replace(seen, ask=SchedulingRequest(seen.ask.request, tied))
