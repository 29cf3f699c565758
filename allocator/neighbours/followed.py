"""
Objects that are watched only once they are needed.

What is kept of each kind, by namespace and name. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.kinds import ObjectKind
from contract.reasons.base import Cure

JSON = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class FollowedKind:
    """One kind of object: its path, what is kept of it, and what is made from that."""

    group_version: str
    of: ObjectKind
    read: Callable[[JSON], object]
    cure: Cure
    """The name of a change of such an object."""

    @property
    def plural(self) -> str:
        """Its plural."""
        return self.of.plural


Key = tuple[str, str]
"""Namespace, empty for a kind without one, and name."""


def key_of(document: JSON) -> Key:
    """The key of an object."""
    metadata = document.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


class Followed:
    """What was read of each of some kinds."""

    def __init__(self, kinds: Mapping[str, FollowedKind], cures: set[Cure]) -> None:
        """`kinds`: by their plurals. `cures`: what has changed is added to it."""
        self._kinds = kinds
        self._cures = cures
        self._found: dict[str, dict[Key, Any]] = {plural: {} for plural in kinds}
        self._unlisted = set(self._found)
        self.wanted = False
        """Whether they are needed, and so must be watched."""
        self.changes = 0
        """The number of changes."""

    @property
    def known(self) -> bool:
        """Whether all kinds were listed."""
        return not self._unlisted

    def found(self, plural: str) -> dict[Key, Any]:
        """All objects of a kind, as they were read; a copy."""
        return dict(self._found[plural])

    def listed(self, plural: str, found: Iterable[tuple[Key, object]]) -> None:
        """All objects of a kind."""
        self._found[plural] = dict(found)
        self._unlisted.discard(plural)
        self._changed(plural)

    def put(self, plural: str, key: Key, found: object) -> None:
        """An object is new or changed."""
        if self._found[plural].get(key) != found:
            self._changed(plural)
        self._found[plural][key] = found

    def drop(self, plural: str, key: Key) -> None:
        """An object was deleted."""
        if self._found[plural].pop(key, None) is not None:
            self._changed(plural)

    def _changed(self, plural: str) -> None:
        self.changes += 1
        self._cures.add(self._kinds[plural].cure)
