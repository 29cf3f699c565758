"""Claims and volumes: watched once a pod needs them, and read as filters read them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from allocator.neighbours.followed import key_of
from allocator.neighbours.storage import KINDS, Devices, Storage
from contract.scheduling.clusterfilters.objects import (
    DeviceClaim,
    DeviceObjects,
    StorageClass,
    StorageObjects,
    Volume,
    VolumeClaim,
)

JSON = dict[str, Any]
CLAIM: JSON = {
    "metadata": {
        "name": "disk",
        "namespace": "team",
        "uid": "1",
        "managedFields": [{"manager": "x"}],
        "annotations": {"pv.kubernetes.io/bind-completed": "yes", "note": "x" * 100_000},
    },
    "spec": {"volumeName": "vol", "storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}},
    "status": {"phase": "Bound"},
}
VOLUME = {
    "metadata": {"name": "vol"},
    "spec": {"csi": {"driver": "disk.example.com", "volumeHandle": "h"}, "capacity": {"storage": "1Gi"}},
    "status": {"phase": "Available"},
}
ATTACHMENT = {
    "metadata": {"name": "at"},
    "spec": {"attacher": "disk.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "vol"}},
}
CLASS = {"metadata": {"name": "fast"}, "provisioner": "disk.example.com", "volumeBindingMode": "WaitForFirstConsumer"}


def put(it: Storage, plural: str, document: JSON) -> None:
    """Deliver it as the informer of the kind does."""
    kind = KINDS[plural]
    slim = kind.of.keep(document)
    it.put(plural, key_of(slim), kind.read(slim))


def test_nothing_is_known_before_every_kind_was_listed() -> None:
    it = Storage(set())
    *most, last = KINDS
    for plural in most:
        it.listed(plural, ())
    assert not it.known
    it.listed(last, ())
    assert it.known


def test_claims_and_classes_of_devices_are_followed_each_by_itself() -> None:
    it, claim = Devices(set()), DeviceClaim("team", "c")
    it.of_kind("deviceclasses").listed("deviceclasses", [(("", "card"), "example.com/card")])
    assert (it.classes.known, it.claims.known) == (True, False)
    it.of_kind("resourceclaims").put("resourceclaims", ("team", "c"), claim)
    assert it.objects() == DeviceObjects({("team", "c"): claim}, {"card": "example.com/card"})
    assert it.objects() is it.objects()
    it.of_kind("resourceclaims").drop("resourceclaims", ("team", "c"))
    assert it.objects() == DeviceObjects({}, {"card": "example.com/card"})


def test_objects_are_read_from_what_is_left_of_them() -> None:
    it = Storage(set())
    for plural, document in (
        ("persistentvolumeclaims", CLAIM),
        ("persistentvolumes", VOLUME),
        ("volumeattachments", ATTACHMENT),
        ("storageclasses", CLASS),
    ):
        put(it, plural, document)
    claim = VolumeClaim("team", "disk", uid="1", volume="vol", bound=True, storage_class="fast", size=1 << 30)
    volume = Volume("vol", size=1 << 30, available=True, driver="disk.example.com", handle="h")
    assert it.objects() == StorageObjects(
        claims={("team", "disk"): claim},
        volumes={"vol": volume},
        classes={"fast": StorageClass("fast", "disk.example.com", delayed=True)},
        attached={"n1": frozenset({("disk.example.com", "h")})},
    )


def test_annotations_that_nobody_reads_are_not_kept() -> None:
    slim = KINDS["persistentvolumeclaims"].of.keep(CLAIM)
    assert slim["metadata"] == {
        "name": "disk",
        "namespace": "team",
        "uid": "1",
        "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
    }


def test_only_a_change_of_what_is_read_counts_as_a_change() -> None:
    it = Storage(set())
    put(it, "persistentvolumeclaims", CLAIM)
    before = it.changes
    changed = deepcopy(CLAIM)
    changed["metadata"]["annotations"]["note"] = "y"
    put(it, "persistentvolumeclaims", changed)
    assert it.changes == before
