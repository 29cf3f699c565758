"""
Pods that start alone (`names.START`): whether one of them is starting, and since when, as its own status says.

A serving engine measures what is free on its GPU when it starts. Two of them that start on one GPU at the same time
measure each other. Everything here is read from the pod, so each replica and each new leader finds the same. Pure.

A pod is starting from its placement until it is ready. The time counts from the start of its containers that use a GPU,
or from its placement as long as none has started, and again after one was restarted. So a container that keeps ending
is not starting forever.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from contract.encoding import moments
from contract.model import PodRequest

JSON = dict[str, Any]
_READY = ("Ready", "ContainersReady")
"""The second leaves out a load balancer's conditions."""


def starting_since(pod: Mapping[str, Any], request: PodRequest, placed: float) -> float | None:
    """
    Since when the pod has been starting, in seconds since 1970; 0 if missing; None if it is not starting.

    `placed`: since when it has its share; 0 if that is unknown.
    """
    if not request.alone:
        return None
    status = pod.get("status") or {}
    conditions = [each for each in status.get("conditions") or () if each.get("type") in _READY]
    if any(each.get("status") == "True" for each in conditions):
        return None
    started = _started(status, {each.container for each in request.containers if not each.init})
    if not started:
        return placed
    changed = (moments.seconds(each.get("lastTransitionTime")) for each in conditions if each.get("type") == "Ready")
    if any(moment is not None and moment > started for moment in changed):
        return None  # it has been ready since its containers started, and is not any more
    return max(started, placed)  # a node's clock may be behind


def _started(status: Mapping[str, Any], containers: set[str]) -> float:
    """When the last of the containers started; 0 if none runs, or one was restarted."""
    found = 0.0
    for each in _states(status):
        if each.get("name") not in containers:
            continue
        if each.get("restartCount"):
            return 0.0
        running = (each.get("state") or {}).get("running") or {}
        found = max(found, moments.seconds(running.get("startedAt")) or 0.0)
    return found


def _states(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainerStatuses", "containerStatuses"):
        yield from status.get(kind) or ()
