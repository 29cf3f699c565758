"""
GPUNodes as decisions see them: what the agents publish, less the cards that an administrator's list keeps out.

Pure but for what it remembers of either. Not thread-safe: its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from contract.model import Inventory
from contract.nodes.excluded import KeptOut


class ExcludedGpus:
    """Inventories and lists by node; every method gives the inventories that changed by it."""

    def __init__(self) -> None:
        self._inventories: dict[str, Inventory] = {}
        self._lists: dict[str, KeptOut] = {}
        self._warned: dict[str, str] = {}
        self._warnings: dict[str, tuple[KeptOut, str]] = {}

    def inventories(self, published: Mapping[str, Inventory]) -> dict[str, Inventory]:
        """All that there are."""
        self._inventories = dict(published)
        return {name: self._seen(name) for name in published}

    def inventory(self, published: Inventory) -> Inventory:
        """One that is new or changed."""
        self._inventories[published.node] = published
        return self._seen(published.node)

    def drop(self, node: str) -> None:
        """One that is gone."""
        self._inventories.pop(node, None)

    def lists(self, lists: Mapping[str, KeptOut]) -> tuple[Inventory, ...]:
        """All lists that there are."""
        changed = {node for node in lists.keys() | self._lists.keys() if lists.get(node) != self._lists.get(node)}
        self._lists = dict(lists)
        return tuple(self._seen(node) for node in sorted(changed & self._inventories.keys()))

    def list(self, node: str, found: KeptOut | None) -> tuple[Inventory, ...]:
        """One list that is new or changed, None for one that is gone."""
        lists = {name: known for name, known in self._lists.items() if name != node}
        return self.lists({**lists, node: found} if found is not None else lists)

    def take_warnings(self) -> tuple[tuple[KeptOut, str], ...]:
        """Lists that name a card which their node has not, and what is wrong; each once for as long as it lasts."""
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
