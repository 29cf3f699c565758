"""
Translates disks of cloud providers to the CSI volumes that replace them (k8s.io/csi-translation-lib of 1.36).

Volumes and pods may still name a disk by the provider's own field. Its CSI driver attaches it anyway, so it counts
against the driver's limit, and its zones are read by the driver's label. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from contract.scheduling.needs import Requirement, Term

JSON = Mapping[str, Any]

_GA_ZONE, _BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
_GA_REGION, _BETA_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
_SEVERAL = "__"
_EBS = re.compile("vol-[^/]*")
_UNSPECIFIED = "UNSPECIFIED"


@dataclass(frozen=True, slots=True)
class Plugin:
    """A provider's plugin, the CSI driver in its place, and that driver's label for zones, if it has one."""

    name: str
    driver: str
    zone: str
    handle: Callable[[JSON, Mapping[str, str]], str | None]
    """The handle of a disk, by its field and the volume's labels; None if there is none."""


@dataclass(frozen=True, slots=True)
class InTree:
    """A disk as a CSI volume. `handle` is None if it cannot be translated."""

    plugin: str
    driver: str
    handle: str | None
    affinity: tuple[Term, ...] | None = None
    """The nodes that reach it, by the driver's labels; None for all."""


def _ebs(source: JSON, labels: Mapping[str, str]) -> str | None:
    text = source.get("volumeID") or ""
    if not text.startswith("aws://"):
        return str(text)
    name = text.removeprefix("aws://").partition("/")[2].strip("/")
    return name if _EBS.fullmatch(name) else None


def _google(source: JSON, labels: Mapping[str, str]) -> str | None:
    name = source.get("pdName") or ""
    zones = (labels.get(_BETA_ZONE) or labels.get(_GA_ZONE) or "").split(_SEVERAL)
    if len(zones) == 1:
        return f"projects/{_UNSPECIFIED}/zones/{zones[0] or _UNSPECIFIED}/disks/{name}"
    parts = [zone.split("-") for zone in zones]
    regions = {"-".join(part[:2]) for part in parts}
    if len(regions) != 1 or any(len(part) != 3 for part in parts):
        return None
    return f"projects/{_UNSPECIFIED}/regions/{regions.pop()}/disks/{name}"


def _azure(source: JSON, labels: Mapping[str, str]) -> str | None:
    # Kubernetes uses the kind `Shared` if none is given, and translates only managed disks.
    return str(source.get("diskURI") or "") if str(source.get("kind") or "").lower() == "managed" else None


def _by_volume_id(source: JSON, labels: Mapping[str, str]) -> str | None:
    return str(source.get("volumeID") or "")


PLUGINS: Mapping[str, Plugin] = {
    "awsElasticBlockStore": Plugin("kubernetes.io/aws-ebs", "ebs.csi.aws.com", "topology.ebs.csi.aws.com/zone", _ebs),
    "gcePersistentDisk": Plugin("kubernetes.io/gce-pd", "pd.csi.storage.gke.io", "topology.gke.io/zone", _google),
    "azureDisk": Plugin("kubernetes.io/azure-disk", "disk.csi.azure.com", "", _azure),
    "cinder": Plugin(
        "kubernetes.io/cinder", "cinder.csi.openstack.org", "topology.cinder.csi.openstack.org/zone", _by_volume_id
    ),
    "portworxVolume": Plugin("kubernetes.io/portworx-volume", "pxd.portworx.com", "", _by_volume_id),
}
"""The translations by the field in which a volume names its disk."""
DRIVERS: Mapping[str, str] = {
    **{plugin.name: plugin.driver for plugin in PLUGINS.values()},
    "kubernetes.io/azure-file": "",
    "kubernetes.io/vsphere-volume": "",
}
"""The CSI driver that replaces each translated plugin; empty for plugins whose volumes have no limit."""


def of_volume(spec: JSON, labels: Mapping[str, str], affinity: tuple[Term, ...] | None) -> InTree | None:
    """The disk of a PersistentVolume with these labels and this node affinity; None for any other volume."""
    for key, plugin in PLUGINS.items():
        source = spec.get(key)
        if source is not None:
            nodes = _translated(affinity, labels, plugin.zone) if plugin.zone else affinity
            return InTree(plugin.name, plugin.driver, plugin.handle(source, labels), nodes)
    return None


def of_inline(volume: JSON) -> tuple[str, str] | None:
    """Driver and handle of a disk that a pod names itself; None for any other volume, or without a handle."""
    for key, plugin in PLUGINS.items():
        source = volume.get(key)
        if source is not None:
            handle = plugin.handle(source, {})
            return None if handle is None else (plugin.driver, handle)
    return None


def _translated(affinity: tuple[Term, ...] | None, labels: Mapping[str, str], csi_zone: str) -> tuple[Term, ...] | None:
    """
    The node affinity in terms of the driver's label: its zones, or else those of the volume's label. Regions under the
    old label are moved to the new one.
    """
    old = _is_old(affinity, labels)
    zone = _BETA_ZONE if old else _GA_ZONE
    renamed = {_BETA_REGION: _GA_REGION} if old and _values(affinity, _BETA_REGION) else {}
    if _values(affinity, zone):
        return _renamed(affinity, {**renamed, zone: csi_zone})
    affinity = _renamed(affinity, renamed)
    zones = tuple(sorted({part.strip() for part in labels.get(zone, "").split(_SEVERAL)} - {""}))
    if not zones:
        return affinity
    return tuple((*term, Requirement(csi_zone, "In", zones)) for term in affinity or ((),))


def _is_old(affinity: tuple[Term, ...] | None, labels: Mapping[str, str]) -> bool:
    """Whether zones and regions have the old labels: affinity takes precedence over labels, and new over old."""
    keys = {each.key for term in affinity or () for each in term if not each.field}
    for found in (keys, labels):
        if _GA_ZONE in found:
            return False
        if _BETA_ZONE in found:
            return True
    return False


def _values(affinity: tuple[Term, ...] | None, key: str) -> bool:
    return any(each.values for term in affinity or () for each in term if each.key == key and not each.field)


def _renamed(affinity: tuple[Term, ...] | None, keys: Mapping[str, str]) -> tuple[Term, ...] | None:
    if affinity is None or not keys:
        return affinity
    return tuple(
        tuple(
            each if each.field or each.key not in keys else Requirement(keys[each.key], each.operator, each.values)
            for each in term
        )
        for term in affinity
    )
