"""
The arithmetic of the workload controllers: which pods count, which are deleted first, how far a rollout may step.

The rules are those of kube-controller-manager (`pkg/controller/controller_utils.go`, `pkg/controller/deployment`,
release 1.30), without its I/O. Pure.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from playground.api.kinds.values import JSON, seconds_of
from playground.machinery.objects import conditions

HASH_LABEL = "pod-template-hash"
_DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_PHASES = {"Pending": 0, "": 0, "Unknown": 1, "Running": 2}


def is_active(pod: Mapping[str, Any]) -> bool:
    """Whether a ReplicaSet counts the pod: it has neither ended nor is it being deleted."""
    return phase(pod) not in ("Succeeded", "Failed") and not pod["metadata"].get("deletionTimestamp")


def phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase") or "")


def is_ready(pod: Mapping[str, Any]) -> bool:
    return conditions.holds(pod, "Ready")


def available_in(pod: Mapping[str, Any], min_ready: int, now: float) -> float | None:
    """Seconds until the pod counts as available, 0 where it does; None where it is not ready."""
    ready = conditions.find(pod, "Ready")
    if ready is None or ready["status"] != "True":
        return None
    since = seconds_of(ready.get("lastTransitionTime"))
    return max(min_ready - (now - since), 0.0) if min_ready and since is not None else 0.0


def going_first(pods: Iterable[JSON]) -> list[JSON]:
    """The pods in the order in which a scale-down deletes them."""
    return sorted(pods, key=_deletion_rank)


def _deletion_rank(pod: JSON) -> tuple[Any, ...]:
    """Unscheduled, then not running, then not ready, then cheap to delete, then short ready, restarted, young."""
    ready = conditions.find(pod, "Ready") or {}
    restarts = sum(int(c.get("restartCount") or 0) for c in (pod.get("status") or {}).get("containerStatuses") or [])
    return (
        bool(pod["spec"].get("nodeName")),
        _PHASES.get(phase(pod), 2),
        is_ready(pod),
        _cost(pod),
        -(seconds_of(ready.get("lastTransitionTime")) or 0.0) if is_ready(pod) else 0.0,
        -restarts,
        -(seconds_of(pod["metadata"].get("creationTimestamp")) or 0.0),
        -int(pod["metadata"].get("resourceVersion") or 0),
    )


def _cost(pod: JSON) -> int:
    try:
        return int((pod["metadata"].get("annotations") or {}).get(_DELETION_COST, 0))
    except ValueError:
        return 0


# -- templates ----------------------------------------------------------------------------------------------------


def template_hash(template: Mapping[str, Any], collisions: int = 0) -> str:
    """Ten characters that distinguish this template from others. Another count of `collisions` gives another hash."""
    text = json.dumps([_without_hash(template), collisions], sort_keys=True, separators=(",", ":"))
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return "".join(_ALPHABET[(number >> (5 * i)) % len(_ALPHABET)] for i in range(10))


def same_template(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two templates differ in nothing but the hash label."""
    return _without_hash(one) == _without_hash(other)


def _without_hash(template: Mapping[str, Any]) -> JSON:
    metadata = dict(template.get("metadata") or {})
    metadata["labels"] = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
    return {"metadata": {key: value for key, value in metadata.items() if value}, "spec": template.get("spec") or {}}


# -- rollouts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Size:
    """One ReplicaSet of a Deployment: what it should have, and what it has available."""

    name: str
    wanted: int
    available: int = 0


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many pods a Deployment may have during a rollout: at most `desired + surge`, available at least the rest."""

    desired: int
    surge: int
    unavailable: int


def bounds(spec: Mapping[str, Any]) -> Bounds:
    """A Deployment's bounds: percentages of `replicas`, surge rounded up, unavailable down, never both 0."""
    desired = int(spec.get("replicas", 1))
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Bounds(desired, 0, desired)
    rolling = strategy.get("rollingUpdate") or {}
    surge = _scaled(rolling.get("maxSurge", "25%"), desired, up=True)
    unavailable = _scaled(rolling.get("maxUnavailable", "25%"), desired, up=False)
    return Bounds(desired, surge, min(unavailable if surge or unavailable else 1, desired))


def _scaled(value: Any, total: int, *, up: bool) -> int:
    if isinstance(value, str) and value.endswith("%"):
        exact = int(value[:-1]) * total
        return -(-exact // 100) if up else exact // 100
    return int(value)


def rolling(limits: Bounds, new: Size, olds: Sequence[Size]) -> dict[str, int]:
    """The next step of a rolling update: ReplicaSets to change, and their new sizes. Empty if there is no step yet."""
    target = _grown(limits, new, sum(old.wanted for old in olds))
    if target != new.wanted:
        return {new.name: target}
    return _shrunk(limits, new, olds)


def _grown(limits: Bounds, new: Size, in_olds: int) -> int:
    if new.wanted >= limits.desired:
        return limits.desired
    room = limits.desired + limits.surge - in_olds - new.wanted
    return new.wanted + max(min(room, limits.desired - new.wanted), 0)


def _shrunk(limits: Bounds, new: Size, olds: Sequence[Size]) -> dict[str, int]:
    """Remove unavailable pods first, then as many others as the bound on unavailable pods allows."""
    least = limits.desired - limits.unavailable
    everything = new.wanted + sum(old.wanted for old in olds)
    budget = everything - least - max(new.wanted - new.available, 0)
    sizes = {old.name: old.wanted for old in olds}
    for old in olds:
        cut = min(max(old.wanted - old.available, 0), max(budget, 0))
        sizes[old.name] -= cut
        budget -= cut
    spare = new.available + sum(min(old.available, sizes[old.name]) for old in olds) - least
    for old in olds:
        cut = min(sizes[old.name], max(min(spare, budget), 0))
        sizes[old.name] -= cut
        spare -= cut
        budget -= cut
    return {old.name: sizes[old.name] for old in olds if sizes[old.name] != old.wanted}


def recreating(limits: Bounds, new: Size | None, olds: Sequence[Size], old_pods: int) -> dict[str, int]:
    """The next step of `Recreate`: scale the old ReplicaSets to 0, and scale up the new one once no old pod is left."""
    shrink = {old.name: 0 for old in olds if old.wanted}
    if shrink or old_pods or new is None or new.wanted == limits.desired:
        return shrink
    return {new.name: limits.desired}
