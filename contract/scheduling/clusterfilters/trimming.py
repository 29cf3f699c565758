"""
The part of the cluster that decides about some pods, for a file with which a decision can be repeated.

Labels are untrusted text, and most of them matter to no filter: each pod and namespace keeps only the labels that some
selector uses. Pods to which no rule applies, and volumes without a claim, are left out. For these pods, the filters
have the same results as with the whole cluster. Preferences are left out. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from contract.scheduling.clusterfilters.neighbourhood import NeighbourSnapshot, PodsOfKind, attracts, hinders
from contract.scheduling.clusterfilters.objects import (
    NO_DEVICES,
    NO_PREFERENCES,
    NO_RULES,
    NO_STORAGE,
    DeviceObjects,
    FrozenLabels,
    PodKind,
    PodRules,
    PodTerm,
    StorageObjects,
)
from contract.scheduling.clusterfilters.selectors import Labels, LabelSelector


def trimmed(whole: NeighbourSnapshot, waiting: Sequence[PodRules]) -> tuple[NeighbourSnapshot, tuple[PodRules, ...]]:
    """The part that decides about pods with these rules, and the rules with only the labels that the part needs."""
    waiting = [replace(each, prefers=NO_PREFERENCES, controller=None) for each in waiting]
    rules = [each for each in set(waiting) if each.constrained or each.profile in whole.profiles]
    kept = tuple(each for each in whole.pods if each.kind.anti_affinity or _matters(each.kind, rules, whole))
    if not kept and not rules:
        bare = NeighbourSnapshot(storage=None if whole.storage is None else NO_STORAGE, gates=whole.gates)
        return bare, (NO_RULES,) * len(waiting)
    keys = _Keys.of((*rules, *(each.kind for each in kept)))
    seen = NeighbourSnapshot(
        whole.nodes,
        tuple(replace(each, kind=_slim(each.kind, keys)) for each in kept),
        {name: labels for name, every in whole.namespaces.items() if (labels := _only(every, keys.of_namespaces))},
        _storage(whole.storage, rules, kept),
        _devices(whole.devices, rules),
        whole.gates,
        {name: found for name, found in whole.profiles.items() if any(each.profile == name for each in rules)},
        whole.filters,
    )
    return seen, tuple(replace(each, labels=_only(each.labels, keys.of_pods)) for each in waiting)


def _slim(kind: PodKind, keys: _Keys) -> PodKind:
    return replace(kind, labels=_only(kind.labels, keys.of_pods), wishes=())


def _matters(kind: PodKind, rules: Iterable[PodRules], whole: NeighbourSnapshot) -> bool:
    namespaces = whole.namespaces
    return any(hinders(kind, each, namespaces) or attracts(kind, each, namespaces) for each in rules)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys of the labels that selectors use."""

    of_pods: frozenset[str]
    of_namespaces: frozenset[str]

    @classmethod
    def of(cls, pods: Sequence[PodRules | PodKind]) -> _Keys:
        terms = [term for pod in pods for term in _terms(pod)]
        spread = [each.selector for pod in pods if isinstance(pod, PodRules) for each in pod.spread]
        return cls(
            _keys_of([*(term.selector for term in terms), *spread]),
            _keys_of([term.namespace_selector for term in terms]),
        )


def _terms(pod: PodRules | PodKind) -> Iterable[PodTerm]:
    return (*pod.affinity, *pod.anti_affinity) if isinstance(pod, PodRules) else pod.anti_affinity


def _keys_of(selectors: Iterable[LabelSelector]) -> frozenset[str]:
    return frozenset(key for selector in selectors for key, _, _ in selector.expressions)


def _only(labels: Labels, keys: frozenset[str]) -> FrozenLabels:
    return FrozenLabels({key: value for key, value in labels.items() if key in keys})


def _devices(whole: DeviceObjects | None, rules: Iterable[PodRules]) -> DeviceObjects | None:
    named = {(each.namespace, claim.name) for each in rules for claim in each.claims}
    if whole is None or not named:
        return None if whole is None else NO_DEVICES
    return replace(whole, claims={key: claim for key, claim in whole.claims.items() if key in named})


def _storage(
    whole: StorageObjects | None, rules: Iterable[PodRules], kept: Iterable[PodsOfKind]
) -> StorageObjects | None:
    if whole is None or not any(each.volumes or each.inline for each in rules):
        return None if whole is None else NO_STORAGE
    named = {(each.namespace, volume.claim) for each in rules for volume in each.volumes}
    named |= {(each.kind.namespace, volume.claim) for each in kept for volume in each.kind.volumes}
    claims = {key: claim for key, claim in whole.claims.items() if key in named}
    bound = {claim.volume for claim in claims.values()}
    volumes = {
        name: volume
        for name, volume in whole.volumes.items()
        if name in bound or volume.claim is None or volume.claim[:2] in named
    }
    return replace(whole, claims=claims, volumes=volumes)
