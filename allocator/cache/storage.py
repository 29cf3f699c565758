"""
Claims, volumes and what belongs to them, as far as filters read them.

They are followed only once a pod that asks for a share has a claim: until then nobody reads them, and until all of them
were listed such a pod waits. Pure; not thread-safe: one owner calls it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allocator.cache.followed import Followed, FollowedKind
from contract import kinds
from contract.scheduling.clusterfilters import objects
from contract.scheduling.clusterfilters.objects import StorageObjects, Volume

JSON = Mapping[str, Any]
_CORE, _STORAGE = "v1", "storage.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Attachment:
    """A VolumeAttachment: a volume that is attached to a node, or is about to be."""

    driver: str
    node: str
    volume: str


def _attachment(document: JSON) -> Attachment:
    spec = document.get("spec") or {}
    volume = (spec.get("source") or {}).get("persistentVolumeName") or ""
    return Attachment(spec.get("attacher", ""), spec.get("nodeName", ""), volume)


def _publishes_capacity(driver: JSON) -> bool:
    return bool((driver.get("spec") or {}).get("storageCapacity"))


KINDS = {
    kind.plural: kind
    for kind in (
        FollowedKind(_CORE, kinds.PERSISTENTVOLUMECLAIMS, objects.read_claim),
        FollowedKind(_CORE, kinds.PERSISTENTVOLUMES, objects.read_volume),
        FollowedKind(_STORAGE, kinds.STORAGECLASSES, objects.read_class),
        FollowedKind(_STORAGE, kinds.CSINODES, objects.read_driver_limits),
        FollowedKind(_STORAGE, kinds.CSIDRIVERS, _publishes_capacity),
        FollowedKind(_STORAGE, kinds.CSISTORAGECAPACITIES, objects.read_capacity),
        FollowedKind(_STORAGE, kinds.VOLUMEATTACHMENTS, _attachment),
    )
}
"""Every kind that the filters of volumes read, by its plural."""


class Storage(Followed):
    """What was read of each kind. Wanted once a pod that asks for a share has a claim."""

    def __init__(self) -> None:
        super().__init__(KINDS)
        self._objects, self._made_at = StorageObjects(), 0

    # -- what filters read ----------------------------------------------------------------------------------------

    def objects(self) -> StorageObjects:
        """What filters read, made again once something has changed."""
        if self._made_at != self.changes:
            self._objects, self._made_at = self._made(), self.changes
        return self._objects

    def _made(self) -> StorageObjects:
        volumes = self._by_name("persistentvolumes")
        drivers = self._found["csidrivers"].items()
        return StorageObjects(
            claims=dict(self._found["persistentvolumeclaims"]),
            volumes=volumes,
            classes=self._by_name("storageclasses"),
            driver_limits=self._by_name("csinodes"),
            attached=_attached(self._found["volumeattachments"].values(), volumes),
            capacity_tracked=frozenset(name for (_, name), publishes in drivers if publishes),
            capacities=tuple(self._found["csistoragecapacities"].values()),
        )

    def _by_name(self, plural: str) -> dict[str, Any]:
        return {name: found for (_, name), found in self._found[plural].items()}


def _attached(
    attachments: Iterable[Attachment], volumes: Mapping[str, Volume]
) -> dict[str, frozenset[tuple[str, str]]]:
    """Driver and handle of the CSI volumes that are attached, by node."""
    found: dict[str, set[tuple[str, str]]] = {}
    for each in attachments:
        volume = volumes.get(each.volume)
        if each.driver and volume is not None and volume.driver:
            found.setdefault(each.node, set()).add((each.driver, volume.handle))
    return {node: frozenset(attached) for node, attached in found.items()}
