"""Claims of other drivers, disks of cloud providers, and what is left to kube-scheduler: sentence by sentence."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from contract import kinds, pods
from contract.encoding.wire import typed
from contract.model import Compute, NodeState
from contract.reasons.nodes import Code, of_one
from contract.scheduling.clusterfilters import (
    csi_translation,
    left_open,
    objects,
    resource_claims,
    volume_binding,
    volume_limits,
)
from contract.scheduling.clusterfilters.left_open import NOTHING, LeftOpen, OpenRule
from contract.scheduling.clusterfilters.neighbourhood import NeighbourSnapshot
from contract.scheduling.clusterfilters.objects import (
    Cluster,
    CsiNode,
    DeviceClaim,
    DeviceObjects,
    FrozenLabels,
    PodClaim,
    PodKind,
    PodRules,
    PodTerm,
    PodVolume,
    StorageClass,
    StorageObjects,
    Volume,
    VolumeClaim,
    read_rules,
)
from contract.scheduling.clusterfilters.selectors import LabelSelector
from contract.scheduling.clusterfilters.trimming import trimmed
from contract.scheduling.gates import NEWEST, Gate, Gates, of_version
from contract.scheduling.needs import PodNeeds, Requirement
from contract.scheduling.nodefilters.resources import BY_CLAIM

JSON = dict[str, Any]
ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
REGION, OLD_REGION = "topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"
EBS_ZONE = "topology.ebs.csi.aws.com/zone"
NEEDS = PodNeeds()


def in_zone(key: str, *zones: str) -> tuple[Requirement, ...]:
    return (Requirement(key, "In", zones),)


def at(zone: str, key: str = ZONE) -> NodeState:
    return NodeState("n", labels={key: zone})


# -- ResourceClaims -----------------------------------------------------------------------------------------------


def claim(**fields: Any) -> DeviceClaim:
    return DeviceClaim("team", "c", **fields)


SHARE = frozenset({"share.gpufraction.io"})
FREE = claim(classes=frozenset({"plain"}))
NAMED, MADE = PodClaim("c"), PodClaim("c", template=True)
CLAIMS: dict[str, tuple[PodClaim, DeviceClaim | None, str]] = {
    "its claim is not made yet": (PodClaim("", template=True), None, "because of a ResourceClaim that is not made yet"),
    "the claim does not exist": (NAMED, None, "because of a ResourceClaim that does not exist"),
    "the claim is being deleted": (NAMED, claim(deleting=True), "because of a ResourceClaim that is being deleted"),
    "the claim is another pod's": (
        MADE,
        claim(controller="other", allocated=True),
        "because of a ResourceClaim that belongs to another pod",
    ),
    "the claim is its own": (MADE, claim(controller="me", allocated=True), ""),
    "a claim that several pods name belongs to none": (NAMED, claim(controller="other", allocated=True), ""),
    "the DeviceClass does not exist": (
        NAMED,
        claim(classes=frozenset({"gone"})),
        "because of a ResourceClaim whose DeviceClass does not exist",
    ),
    "the class of an allocated claim does not matter": (NAMED, claim(allocated=True, classes=frozenset({"gone"})), ""),
    "no devices are allocated": (NAMED, FREE, ""),
    "devices that every node reaches": (NAMED, claim(allocated=True), ""),
    "devices in the node's zone": (NAMED, claim(allocated=True, nodes=(in_zone(ZONE, "a"),)), ""),
    "devices in another zone": (
        NAMED,
        claim(allocated=True, nodes=(in_zone(ZONE, "b"),)),
        "because of a ResourceClaim whose devices are on other nodes",
    ),
    "a claim of our class, whose DeviceClass nobody has made": (NAMED, claim(classes=SHARE), ""),
    "a claim of our class that an ended process left on another node": (
        NAMED,
        claim(classes=SHARE, allocated=True, nodes=(in_zone(ZONE, "b"),), holder="me"),
        "",
    ),
    "a claim of our class that another pod uses": (
        NAMED,
        claim(classes=SHARE, allocated=True, holder="other"),
        "because of a ResourceClaim that another pod uses",
    ),
    "a device cannot be bound": (
        NAMED,
        claim(allocated=True, failed=True),
        "because of a ResourceClaim whose devices are on other nodes",
    ),
}


def of_claims(found: DeviceClaim | None, gates: Gates = NEWEST) -> Cluster:
    held = {} if found is None else {("team", "c"): found}
    return Cluster(devices=DeviceObjects(held, {"plain": ""}), gates=gates)


def answer(named: PodClaim, cluster: Cluster) -> str:
    check = resource_claims.check(PodRules("team", claims=(named,), uid="me"), NEEDS, cluster)
    reason = check(at("a")) if check is not None else None
    return of_one(reason) if reason is not None else ""


@pytest.mark.parametrize(("named", "found", "want"), CLAIMS.values(), ids=CLAIMS.keys())
def test_what_a_claim_asks_of_a_node(named: PodClaim, found: DeviceClaim | None, want: str) -> None:
    assert answer(named, of_claims(found)) == want


def test_claims_count_where_the_cluster_has_them() -> None:
    assert answer(NAMED, of_claims(None, of_version((1, 33)))) == ""
    failed = claim(allocated=True, failed=True)
    assert answer(NAMED, of_claims(failed, of_version((1, 35)))) == "", "binding conditions count from 1.36"


def test_the_claims_that_a_pod_names() -> None:
    spec = {
        "resourceClaims": [
            {"name": "a", "resourceClaimName": "shared"},
            {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "c", "resourceClaimTemplateName": "t"},
            {"name": "d", "resourceClaimTemplateName": "t"},
            {"name": "gpufraction", "resourceClaimName": "gpufraction-0123"},
        ],
        "schedulingGates": [{"name": "gpufraction.io/allocation"}],
    }
    made = [{"name": "b", "resourceClaimName": "p-b-1"}, {"name": "d"}]
    found = read_rules(pods.trim({"metadata": {"uid": "u"}, "spec": spec, "status": {"resourceClaimStatuses": made}}))
    assert (found.claims, found.uid) == (
        (PodClaim("shared"), PodClaim("p-b-1", template=True), PodClaim("", template=True)),
        "u",
    )


def test_a_claim_is_read_from_what_is_kept_of_it() -> None:
    device = {"driver": "d", "pool": "p", "device": "x"}
    condition = {"type": "Broken", "status": "True", "message": "m" * 1000}
    kept = kinds.DEVICE_CLAIMS.keep(
        {
            "metadata": {
                "name": "c",
                "namespace": "team",
                "annotations": {"note": "x" * 9000},
                "ownerReferences": [{"uid": "u", "controller": True, "name": "p"}],
            },
            "spec": {
                "devices": {
                    "requests": [
                        {"name": "r", "exactly": {"deviceClassName": "one", "selectors": [{"cel": {}}]}},
                        {"name": "s", "firstAvailable": [{"deviceClassName": "two"}]},
                    ]
                }
            },
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{**device, "bindingConditions": ["Ok"], "bindingFailureConditions": ["Broken"]}]
                    },
                    "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [_in(ZONE, "a")]}]},
                },
                "devices": [{**device, "conditions": [condition], "data": {"x": "y"}}],
            },
        }
    )
    assert "annotations" not in kept["metadata"]
    assert objects.read_device_claim(kept) == claim(
        controller="u",
        allocated=True,
        nodes=(in_zone(ZONE, "a"),),
        failed=True,
        classes=frozenset({"one", "two"}),
    )


def _in(key: str, *values: str) -> JSON:
    return {"key": key, "operator": "In", "values": list(values)}


# -- disks of cloud providers -------------------------------------------------------------------------------------

HANDLES: dict[str, tuple[JSON, Mapping[str, str], tuple[str, str | None]]] = {
    "EBS by its name": (
        {"awsElasticBlockStore": {"volumeID": "vol-1"}},
        {},
        ("ebs.csi.aws.com", "vol-1"),
    ),
    "EBS by a URL with a zone": (
        {"awsElasticBlockStore": {"volumeID": "aws://us-east-1a/vol-1"}},
        {},
        ("ebs.csi.aws.com", "vol-1"),
    ),
    "EBS by a URL that names no volume": (
        {"awsElasticBlockStore": {"volumeID": "aws:///disk"}},
        {},
        ("ebs.csi.aws.com", None),
    ),
    "GCE without a zone": (
        {"gcePersistentDisk": {"pdName": "d"}},
        {},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d"),
    ),
    "GCE in a zone": (
        {"gcePersistentDisk": {"pdName": "d"}},
        {ZONE: "us-east1-a"},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/zones/us-east1-a/disks/d"),
    ),
    "GCE in several zones of a region": (
        {"gcePersistentDisk": {"pdName": "d"}},
        {ZONE: "us-east1-a__us-east1-b"},
        ("pd.csi.storage.gke.io", "projects/UNSPECIFIED/regions/us-east1/disks/d"),
    ),
    "GCE in zones that are none": (
        {"gcePersistentDisk": {"pdName": "d"}},
        {ZONE: "a__b"},
        ("pd.csi.storage.gke.io", None),
    ),
    "an Azure disk": (
        {"azureDisk": {"diskURI": "/d", "kind": "Managed"}},
        {},
        ("disk.csi.azure.com", "/d"),
    ),
    "an Azure disk that is not managed": ({"azureDisk": {"diskURI": "/d"}}, {}, ("disk.csi.azure.com", None)),
    "Cinder": ({"cinder": {"volumeID": "v"}}, {}, ("cinder.csi.openstack.org", "v")),
    "Portworx": ({"portworxVolume": {"volumeID": "v"}}, {}, ("pxd.portworx.com", "v")),
}


@pytest.mark.parametrize(("spec", "labels", "want"), HANDLES.values(), ids=HANDLES.keys())
def test_a_disk_as_a_csi_volume(spec: JSON, labels: Mapping[str, str], want: tuple[str, str | None]) -> None:
    found = csi_translation.of_volume(spec, labels, None)
    assert found is not None
    assert (found.driver, found.handle) == want
    if not labels:
        assert csi_translation.of_inline(spec) == (None if want[1] is None else want)


def test_other_volumes_are_no_such_disks() -> None:
    assert csi_translation.of_volume({"nfs": {}}, {}, None) is None
    assert csi_translation.of_inline({"emptyDir": {}}) is None


AFFINITIES: dict[str, tuple[tuple[Any, ...] | None, Mapping[str, str], tuple[Any, ...] | None]] = {
    "a zone of its affinity": ((in_zone(ZONE, "a"),), {}, (in_zone(EBS_ZONE, "a"),)),
    "its affinity goes before its label": ((in_zone(ZONE, "a"),), {ZONE: "b"}, (in_zone(EBS_ZONE, "a"),)),
    "its label": (None, {ZONE: "a__b"}, (in_zone(EBS_ZONE, "a", "b"),)),
    "its old label": (None, {OLD_ZONE: "a"}, (in_zone(EBS_ZONE, "a"),)),
    "its label beside another rule": (
        (in_zone("disk", "x"),),
        {ZONE: "a"},
        ((*in_zone("disk", "x"), *in_zone(EBS_ZONE, "a")),),
    ),
    "zone and region by the old labels": (
        ((*in_zone(OLD_ZONE, "a"), *in_zone(OLD_REGION, "r")),),
        {},
        ((*in_zone(EBS_ZONE, "a"), *in_zone(REGION, "r")),),
    ),
    "nothing about zones": (None, {}, None),
    "a label without a zone": (None, {ZONE: " "}, None),
}


@pytest.mark.parametrize(("affinity", "labels", "want"), AFFINITIES.values(), ids=AFFINITIES.keys())
def test_the_nodes_that_reach_a_disk_by_its_drivers_labels(
    affinity: tuple[Any, ...] | None, labels: Mapping[str, str], want: tuple[Any, ...] | None
) -> None:
    found = csi_translation.of_volume({"awsElasticBlockStore": {"volumeID": "vol-1"}}, labels, affinity)
    assert found is not None
    assert found.affinity == want


def disk_of(zone: str) -> StorageObjects:
    volume = objects.read_volume(
        {
            "metadata": {"name": "v"},
            "spec": {
                "awsElasticBlockStore": {"volumeID": "vol-1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [_in(ZONE, zone)]}]}},
            },
        }
    )
    return StorageObjects(
        claims={("team", "disk"): VolumeClaim("team", "disk", volume="v", bound=True)},
        volumes={"v": volume},
        csi_nodes={"n": CsiNode({"ebs.csi.aws.com": 1}, frozenset({"kubernetes.io/aws-ebs"}))},
    )


WITH_DISK = PodRules("team", volumes=(PodVolume("disk"),))


def test_a_bound_disk_is_read_by_the_drivers_label_where_the_node_has_migrated() -> None:
    migrated = disk_of("a")
    plain = StorageObjects(migrated.claims, migrated.volumes)
    for storage, key, other in ((migrated, EBS_ZONE, ZONE), (plain, ZONE, EBS_ZONE)):
        check = volume_binding.check(WITH_DISK, NEEDS, Cluster(storage=storage))
        assert check is not None
        assert check(at("a", key)) is None
        refusal = check(at("a", other))
        assert refusal is not None
        assert refusal.code is Code.VOLUME


def test_disks_count_against_the_limit_of_the_driver_in_their_place() -> None:
    inline = PodRules("team", inline=(("ebs.csi.aws.com", "vol-2"),))
    there = {"team": {inline.placed(): {"n": 1}}}
    check = volume_limits.check(WITH_DISK, NEEDS, Cluster(pods=there, storage=disk_of("a")))
    assert check is not None
    refusal = check(at("a"))
    assert refusal is not None
    assert refusal.code is Code.VOLUME_LIMIT
    alone = volume_limits.check(WITH_DISK, NEEDS, Cluster(storage=disk_of("a")))
    assert alone is not None
    assert alone(at("a")) is None


def test_a_csinode_is_read_from_what_is_kept_of_it() -> None:
    kept = kinds.CSINODES.keep(
        {
            "metadata": {
                "name": "n",
                "annotations": {
                    "storage.alpha.kubernetes.io/migrated-plugins": "kubernetes.io/aws-ebs,kubernetes.io/other",
                    "note": "x",
                },
            },
            "spec": {"drivers": [{"name": "d", "nodeID": "i", "allocatable": {"count": 3}}, {"name": "e"}]},
        }
    )
    assert objects.read_csi_node(kept) == CsiNode({"d": 3}, frozenset({"kubernetes.io/aws-ebs"}))


# -- claims and volumes outside the generated clusters ------------------------------------------------------------

MADE_FOR_IT = PodVolume("p-scratch", ephemeral=True)
NAMED_BY_IT = PodVolume("p-scratch")
FITS = Volume("v", storage_class="local", size=10, available=True)
NO_VOLUME_THERE = "because of a claim for which no volume can be bound there"


def volume_claim(**fields: Any) -> VolumeClaim:
    return VolumeClaim("team", "p-scratch", storage_class="local", size=5, **fields)


VOLUMES: dict[str, tuple[PodVolume, VolumeClaim, Volume, str]] = {
    "a claim that is made for it": (MADE_FOR_IT, volume_claim(controller="me"), FITS, ""),
    "a claim that is made for another pod": (
        MADE_FOR_IT,
        volume_claim(controller="other"),
        FITS,
        "because of a PersistentVolumeClaim that belongs to another pod",
    ),
    "a claim that it names": (NAMED_BY_IT, volume_claim(controller="other"), FITS, ""),
    "a volume of another mode": (NAMED_BY_IT, volume_claim(volume_mode="Block"), FITS, NO_VOLUME_THERE),
    "a volume with other attributes": (NAMED_BY_IT, volume_claim(attributes_class="gold"), FITS, NO_VOLUME_THERE),
    "a volume that is being deleted": (NAMED_BY_IT, volume_claim(), replace(FITS, deleting=True), NO_VOLUME_THERE),
}


@pytest.mark.parametrize(("named", "found", "volume", "want"), VOLUMES.values(), ids=VOLUMES.keys())
def test_what_a_pod_gets_of_a_volume(named: PodVolume, found: VolumeClaim, volume: Volume, want: str) -> None:
    local = StorageClass("local", "kubernetes.io/no-provisioner", delayed=True)
    storage = StorageObjects({("team", "p-scratch"): found}, {"v": volume}, {"local": local})
    check = volume_binding.check(PodRules("team", volumes=(named,), uid="me"), NEEDS, Cluster(storage=storage))
    assert check is not None
    reason = check(at("a"))
    assert (of_one(reason) if reason is not None else "") == want


# -- what is left open --------------------------------------------------------------------------------------------

BOUND = VolumeClaim("team", "disk", volume="v", bound=True)
LATER = VolumeClaim("team", "disk", storage_class="later")
ALONE = VolumeClaim("team", "disk", volume="v", bound=True, modes=frozenset({"ReadWriteOncePod"}))
DISK = Volume("v", driver="d", handle="h")
LIMITED = {"n": CsiNode({"d": 5})}
TERM = PodTerm(ZONE, LabelSelector(), frozenset({"team"}), LabelSelector(absent=True))


def with_claim(found: VolumeClaim, nodes: Mapping[str, CsiNode] = {}) -> Cluster:
    classes = {"later": StorageClass("later", "d", delayed=True)}
    return Cluster(storage=StorageObjects({("team", "disk"): found}, {"v": DISK}, classes, nodes))


def repelled(namespace: str) -> Cluster:
    """A pod on the node allows no pod of `namespace` next to it."""
    term = PodTerm(ZONE, LabelSelector(), frozenset({namespace}), LabelSelector(absent=True))
    kind = PodKind("other", FrozenLabels(), anti_affinity=(term,))
    return Cluster(nodes={"n": at("a")}, pods={"other": {kind: {"n": 1}}}, repelling={kind: {"n": 1}})


PLAIN = PodRules("team")
CHANGING, BINDING = LeftOpen(changing=True), LeftOpen(binding=True)
LEFT: dict[str, tuple[PodRules, Cluster, LeftOpen]] = {
    "nothing about a plain pod": (PLAIN, Cluster(), NOTHING),
    "nothing about a volume that is bound": (WITH_DISK, with_claim(BOUND), NOTHING),
    "a volume is to be bound": (WITH_DISK, with_claim(LATER), BINDING),
    "one pod alone may use the claim": (WITH_DISK, with_claim(ALONE), CHANGING),
    "volumes are counted on the node": (WITH_DISK, with_claim(BOUND, LIMITED), CHANGING),
    "affinity to pods": (PodRules("team", affinity=(TERM,)), Cluster(), CHANGING),
    "anti-affinity to pods": (PodRules("team", anti_affinity=(TERM,)), Cluster(), CHANGING),
    "another pod's anti-affinity means it": (PLAIN, repelled("team"), CHANGING),
    "another pod's anti-affinity means others": (PLAIN, repelled("elsewhere"), NOTHING),
    "devices are to be allocated": (
        PodRules("team", claims=(NAMED,)),
        of_claims(FREE),
        LeftOpen(frozenset({OpenRule.CLAIM}), binding=True),
    ),
    "devices are allocated": (PodRules("team", claims=(NAMED,)), of_claims(claim(allocated=True)), NOTHING),
}


@pytest.mark.parametrize(("rules", "cluster", "want"), LEFT.values(), ids=LEFT.keys())
def test_what_is_left_to_kube_scheduler(rules: PodRules, cluster: Cluster, want: LeftOpen) -> None:
    assert left_open.left_open(rules, NEEDS, cluster, at("a")) == want


def test_an_extended_resource_of_devices_is_left_to_kube_scheduler() -> None:
    needs = PodNeeds(Compute(pods=1, scalars=(("example.com/card", 1),)))
    for amount, want in ((BY_CLAIM, frozenset({OpenRule.EXTENDED_RESOURCE})), (2, frozenset[OpenRule]())):
        node = NodeState("n", allocatable=Compute(pods=9, scalars=(("example.com/card", amount),)))
        assert left_open.left_open(PLAIN, needs, Cluster(), node).unevaluated == want
    devices = DeviceObjects(classes={"card": "example.com/card", "plain": ""})
    assert objects.extended_resources(devices) == {
        "example.com/card",
        "deviceclass.resource.kubernetes.io/card",
        "deviceclass.resource.kubernetes.io/plain",
    }


def with_affinity(**term: Any) -> JSON:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return {
        "metadata": {"namespace": "team", "labels": {"app": "a"}},
        "spec": {"affinity": {"podAffinity": required}},
    }


def test_label_keys_of_affinity_count_from_1_31() -> None:
    pod = with_affinity(topologyKey=ZONE, labelSelector={}, matchLabelKeys=["app"])
    for gates, want in ((NEWEST, (("app", "In", ("a",)),)), (NEWEST - {Gate.MATCH_LABEL_KEYS_IN_POD_AFFINITY}, ())):
        (found,) = read_rules(pod, gates).affinity
        assert found.selector.expressions == want


def test_a_label_that_changes_after_its_key_was_merged_changes_no_term() -> None:
    merged = {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a"]}]}
    pod = with_affinity(topologyKey=ZONE, labelSelector=merged, matchLabelKeys=["app"])
    pod["metadata"]["labels"]["app"] = "b"
    (found,) = read_rules(pod).affinity
    assert found.selector.expressions == (("app", "In", ("a",)),)


def test_a_key_whose_labels_must_differ_counts_beside_the_selectors_own() -> None:
    selector = {"matchExpressions": [{"key": "app", "operator": "Exists"}]}
    (found,) = read_rules(with_affinity(topologyKey=ZONE, labelSelector=selector, mismatchLabelKeys=["app"])).affinity
    assert found.selector.expressions == (("app", "Exists", ()), ("app", "NotIn", ("a",)))


def test_beside_devices_a_node_must_list_the_other_extended_resources() -> None:
    devices = DeviceObjects(classes={"card": "example.com/card"})
    needs = PodNeeds(Compute(pods=1, scalars=(("example.com/card", 1), ("example.com/nic", 2))))
    check = resource_claims.check(PLAIN, needs, Cluster(devices=devices))
    assert check is not None
    for listed, want in (((("example.com/nic", 0),), ""), ((), "short of example.com/nic (most free 0, wanted 2)")):
        reason = check(NodeState("n", allocatable=Compute(scalars=listed)))
        assert (of_one(reason) if reason is not None else "") == want


def test_a_snapshot_keeps_the_claims_of_its_pods_and_survives_a_file() -> None:
    waiting = PodRules("team", claims=(NAMED,))
    other = DeviceClaim("team", "other")
    whole = NeighbourSnapshot(
        storage=disk_of("a"),
        devices=DeviceObjects({("team", "c"): FREE, ("team", "other"): other}, {"plain": ""}),
        gates=of_version((1, 34)),
    )
    kept, _ = trimmed(whole, [waiting])
    assert kept == NeighbourSnapshot(
        devices=DeviceObjects({("team", "c"): FREE}, {"plain": ""}), gates=of_version((1, 34))
    )
    schema = typed(NeighbourSnapshot)
    assert schema.from_json(json.loads(json.dumps(schema.to_json(whole)))) == whole
