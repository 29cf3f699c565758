"""
GPUNodes that report the same UUID: the card takes new pods on only one of the nodes.

The ledger books the cards of each node separately. If two nodes report the same card, as two kubelets of one machine
do, it would be booked twice. So one of them keeps it: one where pods hold it, else the one that reported it first. On
the others it counts as unhealthy, so that no new pod comes; pods that are there stay.

A lying node can thus close cards of other nodes to new pods: free ones that it reported before their own node did. Each
of the nodes shows it (an Event and a condition), since only an administrator can say which of them lies.

Pure. Not thread-safe: its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from contract.model import Gpu, Inventory
from contract.nodes import repeated
from contract.nodes.repeated import RepeatedGpu

AGAIN = 10.0
"""Seconds until an annotation is written again that does not appear."""
_AT_ONCE = 50

Held = Callable[[str, str], bool]
"""Whether pods on a node hold the card with a UUID."""


@dataclass(frozen=True, slots=True)
class RepeatedNote:
    """The annotation of a GPUNode on its cards that other nodes report too."""

    key: str
    """The node's name."""
    text: str
    uid: str = ""


class RepeatedGpus:
    """Inventories by node; every method returns the inventories that it changes, as decisions are to see them."""

    def __init__(self) -> None:
        self._inventories: dict[str, Inventory] = {}
        self._reporters: dict[str, list[str]] = {}
        """The nodes that report each UUID, in the order of their first report."""
        self._several: set[str] = set()
        """UUIDs that more than one node reports."""
        self._keepers: dict[str, str] = {}
        """The node on which the card takes new pods, by UUID."""
        self._changes: set[str] = set()
        """UUIDs whose reporting nodes changed, so that their keeper must be chosen again."""
        self._seen: dict[str, Inventory] = {}
        """The last result for each node that has had repeated cards."""
        self._noted: dict[str, str] = {}
        """The value of each GPUNode's annotation."""
        self._requested: dict[str, tuple[str, float]] = {}
        self._reported: dict[str, str] = {}

    def replace(self, published: Mapping[str, Inventory], held: Held) -> dict[str, Inventory]:
        """All GPUNodes that exist."""
        for node in self._inventories.keys() - published.keys():
            self._forget(node)
        for node in sorted(published):
            self._take(published[node])
        self._choose(self._changes, held)
        return {node: self._judged(node) for node in published}

    def put(self, published: Inventory, held: Held) -> tuple[Inventory, ...]:
        """A GPUNode is new or changed. Returns it, and the others that it affects."""
        self._take(published)
        others = self._choose(self._changes, held) - {published.node}
        return (self._judged(published.node), *self._changed(others))

    def drop(self, node: str, held: Held) -> tuple[Inventory, ...]:
        """A GPUNode was deleted. Returns the others that this affects."""
        self._forget(node)
        return self._changed(self._choose(self._changes, held))

    def settle(self, held: Held) -> tuple[Inventory, ...]:
        """The holders of shares are known again."""
        return self._changed(self._choose(self._several, held))

    def note(self, node: str, text: str) -> None:
        """Apply the current annotation of a GPUNode."""
        self._noted[node] = text

    def repeated(self, node: str) -> tuple[RepeatedGpu, ...]:
        """The cards of the node that others report too."""
        found = []
        for gpu in self._inventories[node].gpus if node in self._inventories else ():
            reporters = self._reporters[gpu.uuid]
            if len(reporters) > 1:
                keeper = self._keepers[gpu.uuid]
                other = keeper if keeper != node else next(name for name in reporters if name != node)
                found.append(RepeatedGpu(gpu.uuid, other, keeper != node))
        return tuple(found)

    def look(self, now: float) -> tuple[list[RepeatedNote], list[tuple[str, str]]]:
        """
        The annotations to write, at most so many; and the news about nodes, for an Event on each. Call it about once a
        second. An annotation that does not appear is written again.
        """
        concerned = {node for uuid in self._several for node in self._reporters[uuid]}
        concerned |= {node for node, text in self._noted.items() if text}
        notes, news = list[RepeatedNote](), list[tuple[str, str]]()
        for node in sorted(concerned):
            found = self.repeated(node)
            text = repeated.to_text(found)
            if text and self._reported.get(node) != text:
                news.append((node, "; ".join(each.words for each in found[:8])))
            if text:
                self._reported[node] = text
            else:
                self._reported.pop(node, None)
            if node not in self._noted or self._noted[node] == text or len(notes) >= _AT_ONCE:
                continue
            requested, at = self._requested.get(node, ("", float("-inf")))
            if requested != text or now - at >= AGAIN:
                self._requested[node] = text, now
                notes.append(RepeatedNote(node, text))
        return notes, news

    # -- inside ---------------------------------------------------------------------------------------------------

    def _take(self, published: Inventory) -> None:
        node, before = published.node, self._inventories.get(published.node)
        had = {gpu.uuid for gpu in before.gpus} if before is not None else set()
        has = {gpu.uuid for gpu in published.gpus}
        self._leave(node, had - has)
        for uuid in has - had:
            self._reporters.setdefault(uuid, []).append(node)
            self._count(uuid)
        self._inventories[node] = published

    def _forget(self, node: str) -> None:
        removed = self._inventories.pop(node, None)
        self._leave(node, {gpu.uuid for gpu in removed.gpus} if removed is not None else ())
        for notes in (self._seen, self._noted, self._requested, self._reported):
            notes.pop(node, None)

    def _leave(self, node: str, uuids: Iterable[str]) -> None:
        for uuid in uuids:
            self._reporters[uuid].remove(node)
            self._count(uuid)
            if not self._reporters[uuid]:
                del self._reporters[uuid]

    def _count(self, uuid: str) -> None:
        self._changes.add(uuid)
        if len(self._reporters[uuid]) > 1:
            self._several.add(uuid)
        else:
            self._several.discard(uuid)

    def _choose(self, uuids: Iterable[str], held: Held) -> set[str]:
        """
        Choose the nodes that keep these cards. Returns the nodes that report them, all of which must be evaluated
        again.
        """
        concerned = set[str]()
        for uuid in uuids:
            reporters = self._reporters.get(uuid, [])
            concerned.update(reporters)
            self._keepers.pop(uuid, None)
            if len(reporters) > 1:
                self._keepers[uuid] = next((node for node in reporters if held(node, uuid)), reporters[0])
        self._changes.clear()
        return concerned

    def _changed(self, nodes: Iterable[str]) -> tuple[Inventory, ...]:
        found = []
        for node in sorted(nodes):
            before = self._seen.get(node, self._inventories[node])
            now = self._judged(node)
            if now != before:
                found.append(now)
        return tuple(found)

    def _judged(self, node: str) -> Inventory:
        inventory = self._inventories[node]
        closed = {each.uuid: each for each in self.repeated(node) if each.closed}
        if closed:
            gpus = tuple(_closed(gpu, closed.get(gpu.uuid)) for gpu in inventory.gpus)
            self._seen[node] = replace(inventory, gpus=gpus)
            return self._seen[node]
        self._seen.pop(node, None)
        return inventory


def _closed(gpu: Gpu, why: RepeatedGpu | None) -> Gpu:
    if why is None or not gpu.healthy:
        return gpu
    return replace(gpu, healthy=False, reason=f"node {why.other} also reports a GPU with this UUID", withheld="")
