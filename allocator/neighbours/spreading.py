"""
Services and controllers, whose selectors define which pods belong together, for default topology spread constraints.

They are followed only once the administrator has set default constraints. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable

from allocator.neighbours.followed import Followed, FollowedKind, Key
from contract import kinds
from contract.reasons.base import Cure
from contract.scheduling.clusterfilters.objects import Controller
from contract.scheduling.clusterfilters.selectors import Labels, LabelSelector
from contract.scheduling.default_spread import NO_SELECTOR, REPLICATION_CONTROLLERS, SELECTING, selector_of

KINDS = {
    kind.plural: FollowedKind(version, kind, read, Cure.SELECTING)
    for kind in (kinds.SERVICES, kinds.REPLICATIONCONTROLLERS, kinds.REPLICASETS, kinds.STATEFULSETS)
    for version, read in (SELECTING[kind.plural],)
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
        """The pods of the namespace that belong together with one with these labels, by `selector_of`."""
        plural, name = controller or (REPLICATION_CONTROLLERS, "")
        own = self._found[plural].get((namespace, name), NO_SELECTOR)
        return selector_of(labels, self._services.get(namespace, {}).values(), controller, own)
