"""
Services and controllers, whose selectors say which pods belong together: what default topology spread constraints
count by.

They are followed only once the administrator has set default constraints. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from allocator.neighbours.followed import Followed, FollowedKind, Key
from contract import kinds
from contract.reasons.base import Cure
from contract.scheduling.clusterfilters.objects import Controller
from contract.scheduling.clusterfilters.selectors import (
    Expression,
    Labels,
    LabelSelector,
    read_equal,
    read_selector,
)

JSON = Mapping[str, Any]


def _by_labels(document: JSON) -> LabelSelector:
    """The selector of a kind that knows labels only; absent where there is none."""
    return read_equal((document.get("spec") or {}).get("selector"))


def _by_selector(document: JSON) -> LabelSelector:
    return read_selector((document.get("spec") or {}).get("selector"))


KINDS = {
    kind.plural: kind
    for kind in (
        FollowedKind("v1", kinds.SERVICES, _by_labels, Cure.SELECTING),
        FollowedKind("v1", kinds.REPLICATIONCONTROLLERS, _by_labels, Cure.SELECTING),
        FollowedKind("apps/v1", kinds.REPLICASETS, _by_selector, Cure.SELECTING),
        FollowedKind("apps/v1", kinds.STATEFULSETS, _by_selector, Cure.SELECTING),
    )
}
"""Every kind whose selector counts, by its plural."""


class Spreading(Followed):
    """Their selectors."""

    def __init__(self, cures: set[Cure]) -> None:
        super().__init__(KINDS, cures)
        self._services: dict[str, dict[Key, LabelSelector]] = {}
        """By namespace."""

    def listed(self, plural: str, found: Iterable[tuple[Key, object]]) -> None:
        """All objects of a kind."""
        super().listed(plural, found)
        if plural == "services":
            self._services = {}
            for key, selector in self._found[plural].items():
                self._services.setdefault(key[0], {})[key] = selector

    def put(self, plural: str, key: Key, found: object) -> None:
        """An object is new or changed."""
        super().put(plural, key, found)
        if plural == "services":
            self._services.setdefault(key[0], {})[key] = self._found[plural][key]

    def drop(self, plural: str, key: Key) -> None:
        """An object was deleted."""
        super().drop(plural, key)
        if plural == "services":
            self._services.get(key[0], {}).pop(key, None)

    def selector(self, namespace: str, labels: Labels, controller: Controller | None) -> LabelSelector:
        """
        Which pods belong together with one that has these labels: those that its Services and its controller select.
        Without expressions where none of them says so. `DefaultSelector` of kube-scheduler (plugins/helper/spread.go).
        """
        by_label: dict[str, Expression] = {}
        for selector in self._services.get(namespace, {}).values():
            if selector.matches(labels):
                by_label.update(_by_key(selector))
        own = self._of_controller(namespace, controller)
        if controller is not None and controller[0] == kinds.REPLICATIONCONTROLLERS.plural:
            # The original merges its labels with those of the Services, and adds the expressions of other kinds.
            return LabelSelector(tuple((by_label | _by_key(own)).values()))
        return LabelSelector(tuple(dict.fromkeys((*by_label.values(), *own.expressions))))

    def _of_controller(self, namespace: str, controller: Controller | None) -> LabelSelector:
        if controller is None:
            return _NONE
        plural, name = controller
        selector: LabelSelector = self._found[plural].get((namespace, name), _NONE)
        return selector


_NONE = LabelSelector(absent=True)


def _by_key(selector: LabelSelector) -> dict[str, Expression]:
    return {expression[0]: expression for expression in selector.expressions}
