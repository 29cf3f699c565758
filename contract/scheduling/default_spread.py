"""
Default topology spread constraints of kube-scheduler's profiles: to which pods they apply, and which pods they count.

A pod without constraints of its own gets those of its profile. They count the pods that its Services and its controller
select; a pod that nothing selects has no constraint. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from contract.scheduling.clusterfilters.objects import NO_PROFILE, Controller, PodRules, Profile
from contract.scheduling.clusterfilters.selectors import Expression, Labels, LabelSelector, read_equal, read_selector

JSON = Mapping[str, Any]
SERVICES, REPLICATION_CONTROLLERS = "services", "replicationcontrollers"


def _by_labels(document: JSON) -> LabelSelector:
    """The selector of a kind with labels only; absent if there is none."""
    return read_equal((document.get("spec") or {}).get("selector"))


def _by_selector(document: JSON) -> LabelSelector:
    return read_selector((document.get("spec") or {}).get("selector"))


SELECTING: Mapping[str, tuple[str, Callable[[JSON], LabelSelector]]] = {
    SERVICES: ("v1", _by_labels),
    REPLICATION_CONTROLLERS: ("v1", _by_labels),
    "replicasets": ("apps/v1", _by_selector),
    "statefulsets": ("apps/v1", _by_selector),
}
"""Every kind whose selector counts, by its plural: its API version, and the function that reads the selector."""
NO_SELECTOR = LabelSelector(absent=True)


def profile_for(rules: PodRules, profiles: Mapping[str, Profile]) -> Profile:
    """The profile whose default constraints apply to the pod; `NO_PROFILE` if none do."""
    profile = profiles.get(rules.profile, NO_PROFILE)
    return profile if profile.spreads and not has_own(rules) else NO_PROFILE


def has_own(rules: PodRules) -> bool:
    """Whether the pod has constraints of its own, so that no default applies."""
    return bool(rules.spread or rules.prefers.spread)


def selector_of(
    labels: Labels, services: Iterable[LabelSelector], controller: Controller | None, own: LabelSelector
) -> LabelSelector:
    """
    The selector of the pods that belong together with one with these labels: those selected by the `services` of its
    namespace and by its controller, whose selector is `own`. Without expressions if none of them selects it. See
    `DefaultSelector` of kube-scheduler (plugins/helper/spread.go).
    """
    by_label: dict[str, Expression] = {}
    for selector in services:
        if selector.matches(labels):
            by_label.update(_by_key(selector))
    if controller is not None and controller[0] == REPLICATION_CONTROLLERS:
        # The original merges its labels with those of the Services, and adds the expressions of other kinds.
        return LabelSelector(tuple((by_label | _by_key(own)).values()))
    return LabelSelector(tuple(dict.fromkeys((*by_label.values(), *own.expressions))))


def with_defaults(rules: PodRules, profile: Profile, selector: LabelSelector) -> PodRules:
    """The rules with the constraints of `profile_for`; the pods that `selector` selects count."""
    if profile is NO_PROFILE or not selector.expressions:
        return rules  # as in the original if nothing defines which pods belong together
    hard, soft = (
        tuple(replace(each, selector=selector) for each in given)
        for given in (profile.spread, profile.preferred_spread)
    )
    return replace(rules, spread=hard, prefers=replace(rules.prefers, spread=soft))


def _by_key(selector: LabelSelector) -> dict[str, Expression]:
    return {expression[0]: expression for expression in selector.expressions}
