"""
What a pod was judged by when it was given its place, so that a second look can tell whether the place still holds.

Admission may call us again for one creation, after other webhooks have changed the pod. The first answer stands only
while nothing has changed that the node, its GPUs or the way of pinning were chosen by. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from allocator.engine import pinning
from contract import names, pods
from contract.scheduling import needs as scheduling
from contract.scheduling.request import SchedulingRequest


@dataclass(frozen=True, slots=True)
class Judged:
    """Everything about a pod that its placement depends on."""

    ask: SchedulingRequest
    """The request; and selectors, affinity, tolerations, CPU, memory, storage, ports, runtime class, isolation."""
    pin: str
    """The pin that the pod or the administrator wants."""
    left_to_scheduler: bool
    """Whether the pod has a demand that only kube-scheduler can judge."""
    priority: int = 0
    foreign_gates: frozenset[str] = frozenset()
    """Other systems' scheduling gates."""


def judged(pod: Mapping[str, Any], ask: SchedulingRequest, default_pin: str) -> Judged:
    """What is decided by for this pod, which carries no pin of ours. `default_pin` is the administrator's."""
    return Judged(
        ask=ask,
        pin=pods.annotations_of(pod).get(names.PLACEMENT, "") or default_pin,
        left_to_scheduler=pinning.only_scheduler_can_judge(pod),
        priority=pods.priority(pod),
        foreign_gates=frozenset(pods.gates(pod)) - {names.GATE},
    )


def stands(before: Judged, now: Judged, node: str) -> bool:
    """
    Whether a place on `node` that was chosen by `before` is right by `now`.

    They are compared as they are with the pin: a requirement of the pod's author that reads like our pin is taken out
    with it on a second pass, which changes nothing.
    """
    return _tied(before, node) == _tied(now, node)


def _tied(seen: Judged, node: str) -> Judged:
    needs = seen.ask.needs
    tied = replace(needs, affinity=scheduling.pinned(needs.affinity, node))
    return replace(seen, ask=SchedulingRequest(seen.ask.request, tied))
