"""A storm on nodes of which some deliver by ResourceClaims: no claim is left over and none is missing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from contract import names, pods
from contract.encoding import resourceclaims
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.system import invariants
from tests.clusters import only_real
from tests.stress.storm.conftest import FAST_ELECTION
from tests.stress.storm.storm import Storm

pytestmark = pytest.mark.storm
DRA = {str(names.DELIVERY): names.BY_DRA}
NODES = tuple(gpu_node(f"n{i}", "4 x NVIDIA A10 23028MiB", labels=DRA if i % 2 else {}) for i in range(4))


@pytest.fixture(params=only_real())
def mixed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas, and four nodes of which two deliver by claims."""
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    with Cluster(
        nodes=NODES,
        directory=tmp_path_factory.mktemp("claims"),
        settings={"allocator": (*FAST_ELECTION, "--assume-ttl", "3s")},
        replicas=2,
        components=(*DEFAULT_COMPONENTS, "delivery-dra"),
        control_plane=request.param,
    ) as cluster:
        wait_for(lambda: delivering(cluster) == 2, "the agents do not publish their delivery", 60)
        yield cluster


def delivering(cluster: Cluster) -> int:
    """Nodes that deliver by claims."""
    path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL)
    found = ((item.get("status") or {}).get("delivery") or {} for item in cluster.kube.list(path).items)
    return sum(bool(each.get("byClaim")) for each in found)


def amiss(cluster: Cluster) -> tuple[set[str], set[str]]:
    """Claims without their pod, and pods with a share that name a claim which does not exist for them."""
    found = [pod for pod in scenarios.all_pods(cluster.kube) if not pods.finished(pod)]
    alive = {pods.uid(pod) for pod in found}
    claims = {item["metadata"]["name"]: item for item in cluster.kube.list(paths.resourceclaims()).items}
    over = {name for name, claim in claims.items() if resourceclaims.owner_uid(claim) not in alive}
    missing = set()
    for pod in found:
        name = resourceclaims.named_by(pod["spec"])
        if not name or names.GATE in pods.gates(pod):
            continue
        status = claims.get(name, {}).get("status") or {}
        reserved = [each["uid"] for each in status.get("reservedFor") or ()]
        allocation = pods.carried_allocation(pod)
        given = len(((status.get("allocation") or {}).get("devices") or {}).get("results") or ())
        wanted = sum(share.dra for each in allocation.containers for share in each.shares) if allocation else -1
        if reserved != [pods.uid(pod)] or given != wanted:
            missing.add(pods.key(pod))
    return over, missing


def check(cluster: Cluster, storm: Storm) -> None:
    storm.settle(timeout=240)
    invariants.check(cluster)
    wait_for(lambda: amiss(cluster) == (set(), set()), lambda: f"left over, missing: {amiss(cluster)}", 90, every=1.0)
    assert (storm.refused, storm.strikes > 0) == ([], True)


@pytest.mark.timeout(600)
def test_a_storm_of_120_pods(mixed: Cluster) -> None:
    storm = Storm(mixed, pods=120, deleted=0.4, seed=11)
    storm.blow()
    check(mixed, storm)
    running = [pod for pod in scenarios.all_pods(mixed.kube) if scenarios.is_running(pod)]
    by_claim = [pod for pod in running if (found := pods.carried_allocation(pod)) and found.by_claim]
    assert 0 < len(by_claim) < len(running), "both ways were used"
    scenarios.clear(mixed.kube)
    wait_for(lambda: not mixed.kube.list(paths.resourceclaims()).items, "claims are left over", 90)


@pytest.mark.timeout(600)
def test_an_administrator_who_removes_claims_while_pods_start(mixed: Cluster) -> None:
    """Each claim is removed whenever it exists, before its pod starts and afterwards. Leaders are killed as well."""
    ended = threading.Event()
    removed: list[str] = []

    def remove() -> None:
        while not ended.wait(0.05):
            for claim in mixed.kube.list(paths.resourceclaims()).items:
                about = claim["metadata"]
                with contextlib.suppress(KubeNotFound):
                    mixed.kube.delete(paths.resourceclaims(about["namespace"], about["name"]))
                    removed.append(about["uid"])

    remover = threading.Thread(target=remove, daemon=True)
    storm = Storm(mixed, pods=60, deleted=0.2, seed=13)
    remover.start()
    try:
        storm.blow()
        wait_for(lambda: len(removed) > 10, lambda: f"only {len(removed)} were there to remove", 120)
    finally:
        ended.set()
        remover.join()
    check(mixed, storm)
    scenarios.clear(mixed.kube)
    wait_for(lambda: not mixed.kube.list(paths.resourceclaims()).items, "claims are left over", 90)


@pytest.mark.timeout(1800)
def test_a_storm_of_1000_pods_in_four_gusts_by_claims(mixed: Cluster) -> None:
    storm = Storm(mixed, pods=250, deleted=0.4, seed=12)
    for _ in range(4):
        storm.blow()
        check(mixed, storm)
