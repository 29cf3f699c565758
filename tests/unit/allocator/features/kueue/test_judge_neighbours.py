"""Volumes and the rules between pods, including those among the Workload's own pods, are part of the check."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.cache import FrozenCluster
from allocator.engine.reference import DEFAULT_POLICY
from allocator.features.kueue import judge, workloads
from allocator.features.kueue.judge import FallsShort, Fits, Gang, GangTrial, NotSeen, TemplateReading
from contract.model import NodeState
from contract.scheduling.clusterfilters.neighbourhood import NeighbourSnapshot, PodsOfKind
from contract.scheduling.clusterfilters.objects import (
    DEFAULT_SCHEDULER,
    NO_STORAGE,
    PodKind,
    Profile,
    StorageObjects,
    read_claim,
    read_rules,
    read_volume,
)
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import Requirement
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.features.kueue.objects import pod_set, workload

JSON = dict[str, Any]
HOST, ZONE = "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NAMES = {"a": "1", "b": "1", "c": "2"}
NODES = tuple(node(n).labelled(HOST, n).labelled(ZONE, z).gpu(mib=16384).state() for n, z in NAMES.items())
"""Two nodes in zone 1 and one in zone 2, each with a card of 16 GiB."""
TO_COME = node("new").labelled(ZONE, "2").gpu(mib=16384).state()


def worker(app: str = "w", size: str = "1Gi") -> PodBuilder:
    return pod("w").asks("gpufraction.io/gpu-memory", size).labelled("app", app)


def rule(kind: str, app: str, key: str) -> JSON:
    terms = [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


def apart(app: str, key: str = HOST) -> PodBuilder:
    return worker().spec(affinity=rule("podAntiAffinity", app, key))


def spread(key: str) -> PodBuilder:
    constraint = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}
    return worker().spec(topologySpreadConstraints=[{**constraint, "labelSelector": {"matchLabels": {"app": "w"}}}])


def with_volume(**claim: Any) -> PodBuilder:
    return worker().spec(volumes=[{"name": "v", **(claim or {"persistentVolumeClaim": {"claimName": "data"}})}])


def there(builder: PodBuilder, on: str) -> PodsOfKind:
    document = builder.json()
    document["metadata"]["namespace"] = "default"
    return PodsOfKind(read_rules(document).placed(), ((on, 1),))


def storage(mode: str = "ReadWriteOnce", zone: str = "2") -> StorageObjects:
    in_zone = {"key": ZONE, "operator": "In", "values": [zone]}
    claim = {
        "metadata": {"namespace": "default", "name": "data", "annotations": {"pv.kubernetes.io/bind-completed": "yes"}},
        "spec": {"volumeName": "v", "accessModes": [mode]},
    }
    volume = {
        "metadata": {"name": "v"},
        "spec": {"nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [in_zone]}]}}},
    }
    return StorageObjects({("default", "data"): read_claim(claim)}, {"v": read_volume(volume)})


def gang(*sets: JSON) -> Gang:
    read = workloads.workload(workloads.trim(workload("w", *sets)))
    assert read is not None
    found = judge.gang_of(read, {}, {}, TemplateReading())
    assert isinstance(found, Gang)
    return found


def trial(*pods: PodsOfKind, stored: StorageObjects | None = NO_STORAGE, come: int = 0) -> GangTrial:
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(
        FrozenCluster(NODES, to_come=(TO_COME,), neighbours=NeighbourSnapshot((), pods, {}, stored)), {"new": come}
    )
    return made


BESIDE_DB = worker().spec(affinity=rule("podAffinity", "db", ZONE))
FIT: dict[str, tuple[PodBuilder, tuple[PodsOfKind, ...], StorageObjects, int, int]] = {
    "no rules": (worker(), (), NO_STORAGE, 0, 48),
    "anti-affinity to each other": (apart("w"), (), NO_STORAGE, 0, 3),
    "anti-affinity to each other by zone": (apart("w", ZONE), (), NO_STORAGE, 0, 2),
    "anti-affinity to each other, and nodes that may come": (apart("w"), (), NO_STORAGE, 2, 5),
    "by zone, and nodes that may come": (apart("w", ZONE), (), NO_STORAGE, 2, 2),
    "anti-affinity to a pod that runs": (apart("db"), (there(worker("db"), "a"),), NO_STORAGE, 0, 32),
    "a pod that runs excludes them": (worker(), (there(apart("w"), "a"),), NO_STORAGE, 0, 32),
    "affinity to a pod that runs": (BESIDE_DB, (there(worker("db"), "c"),), NO_STORAGE, 0, 16),
    "affinity to one that runs, and nodes of another zone": (
        BESIDE_DB,
        (there(worker("db"), "a"),),
        NO_STORAGE,
        9,
        32,
    ),
    "affinity to a pod that does not run": (BESIDE_DB, (), NO_STORAGE, 0, 0),
    "spread by zone": (spread(ZONE), (), NO_STORAGE, 0, 33),
    "a volume of zone 2": (with_volume(), (), storage(), 0, 16),
    "a volume that one pod may use": (with_volume(), (), storage("ReadWriteOncePod"), 0, 1),
    "a claim that does not exist": (with_volume(), (), NO_STORAGE, 0, 0),
    "a claim that is made for each pod": (
        with_volume(ephemeral={"volumeClaimTemplate": {}}),
        (),
        NO_STORAGE,
        0,
        48,
    ),
}


@pytest.mark.parametrize("case", FIT.values(), ids=FIT.keys())
def test_so_many_pods_fit_together_with(case: tuple[Any, ...]) -> None:
    builder, running, stored, come, most = case
    made = trial(*running, stored=stored, come=come)
    short = made.judge(gang(pod_set("main", most + 1, builder)))
    assert isinstance(short, FallsShort)
    assert short.placed == most
    found = made.judge(gang(pod_set("main", most, builder)))
    assert isinstance(found, Fits), "what fell short took nothing"


def test_the_affinity_that_a_profile_adds_counts_for_its_pods() -> None:
    in_zone_1 = Profile(added_affinity=((Requirement(ZONE, "In", ("1",)),),))
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(NODES, neighbours=NeighbourSnapshot(profiles={DEFAULT_SCHEDULER: in_zone_1})))
    short = made.judge(gang(pod_set("main", 33, worker())))
    assert isinstance(short, FallsShort)
    assert short.placed == 32


def test_pod_sets_count_for_each_other() -> None:
    found = trial().judge(gang(pod_set("main", 3, worker("db")), pod_set("rest", 1, apart("db"))))
    assert found == Fits(4), "the first pods share a node"
    found = trial().judge(gang(pod_set("main", 3, worker("db", "16Gi")), pod_set("rest", 1, apart("db"))))
    assert isinstance(found, FallsShort)


def test_an_assumed_gang_counts_for_the_next_one_within_a_trial_only() -> None:
    made, two = trial(), gang(pod_set("main", 2, apart("w")))
    assert [type(made.judge(two)) for _ in range(2)] == [Fits, FallsShort]
    made.begin(FrozenCluster(NODES))
    made.assume(two)
    assert isinstance(made.judge(two), FallsShort)
    made.begin(FrozenCluster(NODES))
    assert isinstance(made.judge(two), Fits)


def test_a_gang_with_claims_waits_until_claims_and_volumes_were_read() -> None:
    made = trial(stored=None)
    with pytest.raises(NotSeen, match="claims and volumes"):
        made.judge(gang(pod_set("main", 1, with_volume())))
    assert isinstance(made.judge(gang(pod_set("main", 1, worker()))), Fits)


def test_the_kinds_of_nodes_without_gpus_count() -> None:
    seen = NeighbourSnapshot((NodeState("cpu", labels={ZONE: "2"}),), (PodsOfKind(_db(), (("cpu", 1),)),))
    made = GangTrial(DEFAULT_LIMITS, DEFAULT_POLICY)
    made.begin(FrozenCluster(NODES, neighbours=seen))
    short = made.judge(gang(pod_set("main", 17, BESIDE_DB)))
    assert isinstance(short, FallsShort)
    assert short.placed == 16


def _db() -> PodKind:
    return there(worker("db"), "cpu").kind
