"""
Finds amounts that pods hold beyond the promise of their node's GPUs, and pods whose GPU is unhealthy or no longer
exists.

The node's agent needs the first for the node's capacity (`contract.nodes.capacity`), and reads it in an annotation of
the GPUNode. The second is reported to the pods. Only changed nodes are checked, and each of them again until the watch
shows the written annotation on its GPUNode.

Pure. Not thread-safe: its owner's lock guards it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from allocator.cache.cache import Cache
from allocator.cache.ledger import OWN, Reservation, ReservationState
from contract.encoding.plain import plain
from contract.model import Gpu, Inventory
from contract.nodes import capacity
from contract.reasons.pods import PodEventReason

AGAIN = 30.0
"""Seconds until an annotation that the watch does not show is written again."""
_AT_ONCE = 500
"""The number of nodes that are checked in one turn: some milliseconds."""
_LASTS = 3.0
"""
Seconds for which a GPU must be missing or unhealthy until that is reported to its pods; agents publish while a machine
starts.
"""
_RESTS = 600.0
"""Seconds for which a GPU must be healthy before its next failure is reported: its state may change every second."""
_MOST_WHY = 200
"""Bytes of an agent's reason in an Event."""


@dataclass(frozen=True, slots=True)
class Stranded:
    """A pod that holds a share of a GPU that is unhealthy or does not exist."""

    key: str
    """`namespace/name`."""
    uid: str
    code: PodEventReason
    why: str


@dataclass(frozen=True, slots=True)
class HeldBeyond:
    """The annotation of a GPUNode about the amounts that pods hold beyond the promise of its GPUs."""

    key: str
    """The node's name."""
    text: str
    uid: str = ""


class Capacities:
    """The notes about each node."""

    def __init__(self) -> None:
        self._seen: dict[str, str] = {}
        self._requested: dict[str, tuple[str, float]] = {}
        self._owing: dict[str, None] = {}
        self._missing: dict[str, dict[str, float]] = {}
        """GPUs that pods hold and that do not exist, by node, and since when."""
        self._reported: set[tuple[str, str]] = set()
        """Pods and GPUs that were reported."""
        self._unhealthy: dict[str, dict[str, float]] = {}
        """GPUs that pods hold and that are unhealthy, by node, and since when."""
        self._warned: dict[tuple[str, str], float] = {}
        """Pods with a report about an unhealthy GPU, and when the GPU was last unhealthy."""

    def see(self, node: str, text: str) -> None:
        """Store the current value of a GPUNode's annotation."""
        if self._seen.get(node) != text:
            self._seen[node] = text
            self._owing[node] = None

    def drop(self, node: str) -> None:
        """A GPUNode was deleted."""
        for notes in (self._seen, self._requested, self._owing, self._missing, self._unhealthy):
            notes.pop(node, None)

    def look(self, cache: Cache, now: float) -> list[HeldBeyond]:
        """The annotations to write, for a limited number of nodes per call; the others follow at the next one."""
        self._owing.update(dict.fromkeys(cache.take_touched()))
        words = []
        for node in list(self._owing)[:_AT_ONCE]:
            del self._owing[node]
            inventory = cache.inventory(node)
            if inventory is None or node not in self._seen:
                continue
            self._note_gpus(inventory, cache, now)
            promised = capacity.promises(inventory.gpus)
            besides = cache.unserved(node) + cache.counted_again(node)
            wanted = capacity.to_text(capacity.beyond(promised, cache.ledger.used(node), besides))
            if wanted == self._seen[node]:
                self._requested.pop(node, None)
                continue
            self._owing[node] = None
            text, at = self._requested.get(node, ("", 0.0))
            if text != wanted or now - at >= AGAIN:
                self._requested[node] = wanted, now
                words.append(HeldBeyond(node, wanted))
        return words

    def _note_gpus(self, inventory: Inventory, cache: Cache, now: float) -> None:
        """
        Note the GPUs that are missing or unhealthy. While the driver does not answer, its GPUs do not count as missing;
        a GPU that an administrator withholds counts as healthy.
        """
        used = cache.ledger.used(inventory.node).keys()
        missing = set[str]() if inventory.problem else used - {gpu.uuid for gpu in inventory.gpus}
        unhealthy = used & {gpu.uuid for gpu in inventory.gpus if not gpu.healthy and not gpu.withheld}
        for notes, uuids in ((self._missing, missing), (self._unhealthy, unhealthy)):
            before = notes.pop(inventory.node, {})
            if uuids:
                notes[inventory.node] = {uuid: before.get(uuid, now) for uuid in sorted(uuids)}

    def stranded(self, cache: Cache, now: float) -> list[Stranded]:
        """The pods to report to, each once for as long as it lasts."""
        found = {
            (holding.key, uuid): _stranded(holding, uuid, cache.inventory(node))
            for node, uuid, holding in _lasting(self._missing, cache, now)
        }
        new = [stranded for about, stranded in found.items() if about not in self._reported]
        self._reported = set(found)
        ill = {
            (holding.key, uuid): _on_unhealthy(holding, uuid, cache.inventory(node))
            for node, uuid, holding in _lasting(self._unhealthy, cache, now)
        }
        new += [stranded for about, stranded in ill.items() if about not in self._warned]
        held = {about: at for about, at in self._warned.items() if cache.ledger.holding(about[0]) is not None}
        self._warned = {about: at for about, at in held.items() if now - at < _RESTS} | dict.fromkeys(ill, now)
        return new


def _lasting(
    notes: Mapping[str, Mapping[str, float]], cache: Cache, now: float
) -> Iterator[tuple[str, str, Reservation]]:
    """For GPUs that have been noted for long enough: the node, the UUID, and the holders of its shares."""
    for node, gpus in notes.items():
        for uuid, since in gpus.items():
            if now - since >= _LASTS:
                yield from ((node, uuid, holding) for holding in _holders(cache, node, uuid))


def _holders(cache: Cache, node: str, uuid: str) -> Iterator[Reservation]:
    for holding in cache.ledger.on_node(node):
        if holding.state is ReservationState.CONFIRMED and not holding.key.startswith(OWN) and uuid in _shares(holding):
            yield holding


def _shares(holding: Reservation) -> Mapping[str, int]:
    """The index of each GPU of a reservation, by UUID."""
    return {share.uuid: share.index for container in holding.allocation.containers for share in container.shares}


def _stranded(holding: Reservation, uuid: str, inventory: Inventory | None) -> Stranded:
    index = _shares(holding)[uuid]
    gpus: tuple[Gpu, ...] = inventory.gpus if inventory is not None else ()
    replaced = any(gpu.index == index and not gpu.parent for gpu in gpus) and not uuid.startswith("MIG-")
    what = "was replaced by another GPU" if replaced else "no longer exists"
    why = (
        f"GPU {index} of node {holding.allocation.node}, of which this pod has a share, {what} ({uuid}); the pod "
        f"keeps running without it. To have the pod placed again, delete it"
    )
    return Stranded(holding.pod, holding.key, PodEventReason.GPU_REPLACED if replaced else PodEventReason.GPU_GONE, why)


def _on_unhealthy(holding: Reservation, uuid: str, inventory: Inventory | None) -> Stranded:
    index = _shares(holding)[uuid]
    gpus: tuple[Gpu, ...] = inventory.gpus if inventory is not None else ()
    reason = plain(next((gpu.reason for gpu in gpus if gpu.uuid == uuid), ""), _MOST_WHY)
    why = (
        f"GPU {index} of node {holding.allocation.node}, of which this pod has a share, is unhealthy "
        f"({reason or 'no reason given'}); the pod keeps running. To have the pod placed on another GPU, delete it"
    )
    return Stranded(holding.pod, holding.key, PodEventReason.UNHEALTHY, why)
