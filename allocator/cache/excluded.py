"""
GPUNodes as decisions see them: what the agents publish, without the cards that an administrator's list keeps out.

Pure. Not thread-safe: its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contract.model import Inventory
from contract.nodes.excluded import KeptOut


class ExcludedGpus:
    """Inventories and lists by node; every method returns the inventories that it changes."""

    def __init__(self) -> None:
        self._inventories: dict[str, Inventory] = {}
        self._lists: dict[str, KeptOut] = {}
        self._warned: dict[str, str] = {}
        self._warnings: dict[str, tuple[KeptOut, str]] = {}

    def inventories(self, published: Mapping[str, Inventory]) -> dict[str, Inventory]:
        """All GPUNodes that exist."""
        self._inventories = dict(published)
        return {name: self._seen(name) for name in published}

    def inventory(self, published: Inventory) -> Inventory:
        """A GPUNode is new or changed."""
        self._inventories[published.node] = published
        return self._seen(published.node)

    def drop(self, node: str) -> None:
        """A GPUNode was deleted."""
        self._inventories.pop(node, None)

    def lists(self, lists: Mapping[str, KeptOut]) -> tuple[Inventory, ...]:
        """All lists that exist."""
        changed = {node for node in lists.keys() | self._lists.keys() if lists.get(node) != self._lists.get(node)}
        self._lists = dict(lists)
        return tuple(self._seen(node) for node in sorted(changed & self._inventories.keys()))

    def list(self, node: str, found: KeptOut | None) -> tuple[Inventory, ...]:
        """A list is new or changed; None for one that was deleted."""
        lists = {name: known for name, known in self._lists.items() if name != node}
        return self.lists({**lists, node: found} if found is not None else lists)

    def take_warnings(self) -> tuple[tuple[KeptOut, str], ...]:
        """Lists with a card that their node does not have, and the error; each once while it lasts."""
        found, self._warnings = tuple(self._warnings.values()), {}
        return found

    def _seen(self, node: str) -> Inventory:
        inventory, found = self._inventories[node], self._lists.get(node)
        if not inventory.problem:
            self._warn(node, found, found.strangers(inventory.gpus) if found is not None else "")
        gpus = found.without(inventory.gpus) if found is not None else inventory.gpus
        return inventory if gpus is inventory.gpus else replace(inventory, gpus=gpus)

    def _warn(self, node: str, found: KeptOut | None, wrong: str) -> None:
        if found is not None and wrong and self._warned.get(node) != wrong:
            self._warnings[node] = found, wrong
        if wrong:
            self._warned[node] = wrong
        else:
            self._warned.pop(node, None)
            self._warnings.pop(node, None)
