"""GPUs by Dynamic Resource Allocation: one pool that delivers by ResourceClaims, and one that does not."""

from __future__ import annotations

import collections
import re
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.features.elasticgpuclaims import objects
from contract import names, pods
from contract.encoding import resourceclaims
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.programs import installing
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeInvalid, KubeNotFound
from tests.builders import pod
from tests.cluster.system import invariants
from tests.clusters import control_planes

JSON = dict[str, Any]
pytestmark = pytest.mark.system
NODES = (
    gpu_node("plain", "1 x Tesla T4 15109MiB", labels={"pool": "plain"}, address="10.0.0.11"),
    gpu_node("dra", "2 x Tesla T4 15109MiB", labels={"pool": "dra", names.DELIVERY: names.BY_DRA}, address="10.0.0.12"),
)


@pytest.fixture(scope="module", params=control_planes(long=True))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    directory = tmp_path_factory.mktemp("dra")
    with Cluster(
        directory=directory, nodes=NODES, components=("claims", "delivery-dra"), control_plane=request.param
    ) as cluster:
        wait_for(lambda: by_claim(cluster, "dra"), "the agent does not publish its delivery", 30)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    invariants.check(running)
    scenarios.clear(running.kube)
    wait_for(lambda: not claims(running), "claims are left over", 60)


def by_claim(cluster: Cluster, node: str) -> bool:
    path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=node)
    return bool(((cluster.kube.get(path).get("status") or {}).get("delivery") or {}).get("byClaim"))


def claims(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.resourceclaims()).items)


def uids(cluster: Cluster) -> dict[str, str]:
    """The claims' uids by their names."""
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in claims(cluster)}


def created(cluster: Cluster, name: str, pool: str, *, memory: str = "4Gi") -> JSON:
    body = pod(name).asks(names.GPU_MEMORY, memory).json()
    body["spec"]["nodeSelector"] = {"pool": pool}
    return cluster.kube.create(paths.pods("default"), body)


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def run(cluster: Cluster, name: str) -> JSON:
    seen: list[JSON] = []

    def runs() -> bool:
        seen[:] = [found(cluster, name)]
        return scenarios.is_running(seen[0])

    wait_for(runs, lambda: f"{name} does not run: {seen[0]['status']}", 30)
    return seen[0]


def test_a_container_gets_the_card_of_its_share_by_its_claim(cluster: Cluster) -> None:
    created(cluster, "one", "dra")
    placed = run(cluster, "one")
    allocation = pods.carried_allocation(placed)
    assert allocation is not None
    (share,) = allocation.containers[0].shares
    printed = scenarios.printed(cluster.kube, placed, "main")
    assert "NVIDIA_VISIBLE_DEVICES=void\n" in printed
    assert f"(UUID: {share.uuid})" in printed
    (claim,) = claims(cluster)
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"]) == (
        names.GROUP,
        "dra",
        resourceclaims.device_name(share.uuid),
    )
    assert claim["metadata"]["name"] == resourceclaims.named_by(placed["spec"])


def test_a_pod_that_waited_may_land_on_a_node_without_claims(cluster: Cluster) -> None:
    """Its claim is fixed then: it is allocated without a device, and the variable delivers the card."""
    for name in ("full", "waits"):
        created(cluster, name, "plain", memory="14Gi")
    run(cluster, "full")
    wait_for(lambda: bool(scenarios.waits(found(cluster, "waits"))), "it does not wait", 30)
    cluster.kube.delete(paths.pods("default", "full"))
    placed = run(cluster, "waits")
    (claim,) = claims(cluster)
    assert resourceclaims.named_by(placed["spec"]) == claim["metadata"]["name"]
    assert not claim["status"]["allocation"]["devices"].get("results")
    allocation = pods.carried_allocation(placed)
    assert allocation is not None
    uuid = allocation.containers[0].shares[0].uuid
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}\n" in scenarios.printed(cluster.kube, placed, "main")


def test_a_pool_that_changes_its_way_and_back_leaves_running_pods_alone(cluster: Cluster) -> None:
    def labelled(value: str | None) -> None:
        cluster.kube.patch_merge(paths.nodes("plain"), {"metadata": {"labels": {str(names.DELIVERY): value}}})
        wait_for(lambda: by_claim(cluster, "plain") == bool(value), "the agent does not see the label", 30)

    created(cluster, "before", "plain")
    before = run(cluster, "before")
    labelled(names.BY_DRA)
    try:
        created(cluster, "by-claim", "plain")
        by = pods.carried_allocation(run(cluster, "by-claim"))
        assert by is not None
        assert by.by_claim
        invariants.check(cluster)
    finally:
        labelled(None)
    created(cluster, "after", "plain")
    assert not resourceclaims.named_by(run(cluster, "after")["spec"])
    invariants.check(cluster)
    for name in ("before", "by-claim"):
        assert scenarios.is_running(found(cluster, name))
    assert pods.uid(found(cluster, "before")) == pods.uid(before)


def test_several_containers_get_their_own_cards_and_the_others_none(cluster: Cluster) -> None:
    body = pod("many").container("both").asks(names.GPU_MEMORY, "1Gi").asks(names.GPU_COUNT, 2)
    body = body.container("one").asks(names.GPU_MEMORY, "2Gi").container("none")
    made = body.json()
    made["spec"]["nodeSelector"] = {"pool": "dra"}
    cluster.kube.create(paths.pods("default"), made)
    placed = run(cluster, "many")
    seen = {each: scenarios.printed(cluster.kube, placed, each).count("(UUID: ") for each in ("both", "one", "none")}
    assert seen == {"both": 2, "one": 1, "none": 0}


def test_the_other_pool_needs_no_claim(cluster: Cluster) -> None:
    created(cluster, "two", "plain")
    placed = run(cluster, "two")
    assert not resourceclaims.named_by(placed["spec"])
    assert claims(cluster) == []


# -- ElasticGPUClaims -----------------------------------------------------------------------------------------------


def elastic(cluster: Cluster, name: str, **amounts: int) -> None:
    requests = {f"gpushare.provisioner.elasticgpu.io/{kind.replace('_', '-')}": n for kind, n in amounts.items()}
    about = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPUClaim", "metadata": {"name": name}}
    path = paths.path(scenarios.ELASTIC, "elasticgpuclaims", "default")
    cluster.kube.create(path, {**about, "spec": {"resources": {"requests": requests}}})


def bound(cluster: Cluster, name: str) -> objects.ElasticShare:
    """The share of an ElasticGPUClaim, once it is bound."""

    def status() -> JSON:
        return next((c for c in scenarios.all_claims(cluster.kube) if c["metadata"]["name"] == name), {})

    wait_for(lambda: (status().get("status") or {}).get("phase") == objects.BOUND, lambda: f"{name}: {status()}", 30)
    own = objects.claim(status()).own_share
    return objects.share(cluster.kube.get(paths.path(scenarios.ELASTIC, "elasticgpus", name=own)))


def uses(cluster: Cluster, name: str, claim: str, pool: str, *containers: str) -> JSON:
    """A pod that names an ElasticGPUClaim."""
    body = pod(name)
    for each in containers or ("main",):
        body = body.container(each)
    made = body.annotated("egpuc.elasticgpu.io/any", claim).manifest()
    made["spec"]["nodeSelector"] = {"pool": pool}
    return cluster.kube.create(paths.pods("default"), made)


def sees(cluster: Cluster, running: JSON, container: str = "main") -> set[str]:
    """The cards whose device the container has."""
    return set(re.findall(r"\(UUID: (\S+)\)", scenarios.printed(cluster.kube, running, container)))


def devices(cluster: Cluster, running: JSON) -> list[tuple[str, str]]:
    """The containers and cards for which the pod's ResourceClaim, which the pod owns, has results."""
    claim = cluster.kube.get(paths.resourceclaims("default", resourceclaims.named_by(running["spec"])))
    assert resourceclaims.owner_uid(claim) == pods.uid(running)
    return [(each["request"], each["device"]) for each in claim["status"]["allocation"]["devices"].get("results", ())]


def test_pods_start_on_the_share_of_an_elastic_claim_that_was_bound_before_them(cluster: Cluster) -> None:
    created(cluster, "fills", "plain", memory="14Gi")
    run(cluster, "fills")
    elastic(cluster, "mine", gpu_memory=2, gpu_core=10)
    share = bound(cluster, "mine")
    assert share.allocation is not None
    assert share.allocation.node == "dra"
    (card,) = share.allocation.containers[0].shares
    for name in ("one", "two"):
        uses(cluster, name, "mine", "dra", "main", "side")
        placed = run(cluster, name)
        device = resourceclaims.device_name(card.uuid)
        assert devices(cluster, placed) == [("main", device), ("side", device)]
        assert sees(cluster, placed, "main") == sees(cluster, placed, "side") == {card.uuid}
    invariants.check(cluster)
    cluster.kube.delete(paths.pods("default", "one"))
    wait_for(lambda: len(claims(cluster)) == 1, "its claim does not go with the pod", 60)
    assert bound(cluster, "mine").allocation == share.allocation


def test_a_pod_that_waits_for_its_elastic_claim_starts_there(cluster: Cluster) -> None:
    uses(cluster, "waits", "later", "dra")

    def reported() -> object:
        return scenarios.condition(found(cluster, "waits")).get("reason")

    wait_for(lambda: reported() == "ClaimMissing", lambda: f"it is told {reported()}", 30)
    elastic(cluster, "later", gpu_core=200)
    placed = run(cluster, "waits")
    share = bound(cluster, "later")
    assert share.allocation is not None
    cards = {each.uuid for each in share.allocation.containers[0].shares}
    assert len(cards) == 2
    assert set(devices(cluster, placed)) == {("main", resourceclaims.device_name(card)) for card in cards}
    assert sees(cluster, placed) == cards


def test_an_unused_elastic_share_moves_to_the_pool_of_its_first_pod_and_back(cluster: Cluster) -> None:
    elastic(cluster, "mine", gpu_memory=2, gpu_core=10)
    bound(cluster, "mine")
    for name, pool, by_claim in (("here", "dra", True), ("there", "plain", False)):
        uses(cluster, name, "mine", pool)
        placed = run(cluster, name)
        assert placed["spec"]["nodeName"] == pool
        assert bool(devices(cluster, placed)) == by_claim
        assert len(sees(cluster, placed)) == 1
        invariants.check(cluster)
        cluster.kube.delete(paths.pods("default", name))
        wait_for(lambda: not scenarios.all_pods(cluster.kube), "the pod does not end", 30)


# -- tenants with every right to ResourceClaims ---------------------------------------------------------------------


@pytest.fixture
def tenant(cluster: Cluster) -> Kube:
    """A tenant who may do anything with claims and pods of the namespace, status and allocation included."""
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceclaims/status", "resourceclaims/binding"],
            "verbs": ["get", "list", "create", "update", "patch", "delete", "deletecollection"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "create", "delete"]},
    ]
    group = "rbac.authorization.k8s.io"
    about = {"apiVersion": f"{group}/v1", "metadata": {"name": "any-claims"}}
    for document in (
        {**about, "kind": "ClusterRole", "rules": rules},
        {
            **about,
            "kind": "ClusterRoleBinding",
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "any-claims"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "mallory"}],
        },
    ):
        installing.apply(cluster.kube, document)
    user = User("mallory", ("system:authenticated",))
    kubeconfig = cluster.directory / "kubeconfig-mallory"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(user))
    return Kube.connect(kubeconfig=str(kubeconfig), user_agent="mallory")


def claim_body(name: str, *, device_class: str = "example.com", config: list[JSON] | None = None) -> JSON:
    request = {"name": "r", "exactly": {"deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1}}
    devices: JSON = {"requests": [request], **({"config": config} if config else {})}
    about = {"apiVersion": resourceclaims.API, "kind": "ResourceClaim", "metadata": {"name": name}}
    return {**about, "spec": {"devices": devices}}


OPAQUE = [{"opaque": {"driver": names.GROUP, "parameters": {"kind": "Share"}}}]
FORGED = {
    "our name": claim_body(f"{names.CLAIM_PREFIX}{32 * 'a'}"),
    "our device class": claim_body("mine", device_class=names.GROUP),
    "our configuration": claim_body("mine", config=OPAQUE),
}


@pytest.mark.parametrize("body", FORGED.values(), ids=FORGED)
def test_a_tenant_makes_no_claim_of_ours(cluster: Cluster, tenant: Kube, body: JSON) -> None:
    with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction"):
        tenant.create(paths.resourceclaims("default"), body)


def test_a_tenants_own_claim_is_no_business_of_ours_until_it_has_our_driver(cluster: Cluster, tenant: Kube) -> None:
    tenant.create(paths.resourceclaims("default"), claim_body("mine"))
    path = paths.resourceclaims("default", "mine", "status")
    result = {"request": "r", "driver": "example.com", "pool": "p", "device": "d"}
    tenant.patch_merge(path, {"status": {"allocation": {"devices": {"results": [result]}}}})
    tenant.patch_merge(path, {"status": {"allocation": None}})
    stolen = {**result, "driver": names.GROUP, "pool": "dra", "device": "gpu-0"}
    with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction"):
        tenant.patch_merge(path, {"status": {"allocation": {"devices": {"results": [stolen]}}}})
    tenant.delete(paths.resourceclaims("default", "mine"))


def test_a_tenant_changes_nothing_of_a_claim_of_ours(cluster: Cluster, tenant: Kube) -> None:
    created(cluster, "victim", "dra")
    placed = run(cluster, "victim")
    name = resourceclaims.named_by(placed["spec"])
    status, own = paths.resourceclaims("default", name, "status"), paths.resourceclaims("default", name)
    other = {"resource": "pods", "name": "thief", "uid": "11111111-2222-3333-4444-555555555555"}
    before = cluster.kube.get(own)
    reserved = before["status"]["reservedFor"]
    for path, patch in (
        (status, {"status": {"reservedFor": [*reserved, other]}}),
        (status, {"status": {"reservedFor": [other]}}),
        (status, {"status": {"reservedFor": None, "allocation": None}}),
        (own, {"metadata": {"ownerReferences": None}}),
        (status, {"status": {"reservedFor": None}}),
        (own, {"metadata": {"finalizers": ["example.com/stays"]}}),
        (own, {"metadata": {"finalizers": None, "labels": None}}),
        (own, {"metadata": {"labels": {"app.kubernetes.io/managed-by": "mallory"}}}),
        (own, {"metadata": {"labels": {"more": "x"}}}),
        (own, {"metadata": {"annotations": {"more": "x" * 1000}}}),
        (own, {"metadata": {"ownerReferences": [{**before["metadata"]["ownerReferences"][0], "uid": other["uid"]}]}}),
    ):
        with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction"):
            tenant.patch_merge(path, patch)
    with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction-resource-claims-kept"):
        tenant.delete(own)
    after = cluster.kube.get(own)
    assert (after["status"], metadata_of(after)) == (before["status"], metadata_of(before))


def metadata_of(claim: JSON) -> JSON:
    return {key: claim["metadata"].get(key) for key in ("labels", "annotations", "finalizers", "ownerReferences")}


class Removers:
    """Tenants who try from several threads to remove every claim that they see, in each way that the API offers."""

    WAYS: tuple[JSON, ...] = ({}, {"gracePeriodSeconds": 0}, {"propagationPolicy": "Foreground"})

    def __init__(self, tenant: Kube, threads: int = 3) -> None:
        self._tenant = tenant
        self.refused: collections.Counter[str] = collections.Counter()
        """How often, by the claim's name."""
        self.removed: list[str] = []
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Removers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.001):
            names_there = [
                each["metadata"]["name"] for each in self._tenant.list(paths.resourceclaims("default")).items
            ]
            for name in names_there:
                for options in self.WAYS:
                    self._try(name, paths.resourceclaims("default", name), options)
            if names_there:
                self._try("", paths.resourceclaims("default"), {})

    def _try(self, name: str, path: str, options: JSON) -> None:
        try:
            self._tenant.delete(path, options)
        except (KubeForbidden, KubeInvalid):
            self.refused[name] += 1
        except KubeNotFound:
            return  # its pod was deleted
        else:
            # If the collection was removed, the garbage collector may have been quicker with each of its claims.
            self.removed += [name] if name else []


def test_tenants_who_remove_claims_while_pods_start_are_refused_each_time(cluster: Cluster, tenant: Kube) -> None:
    with Removers(tenant) as removers:
        for wave in range(3):
            members = [f"w{wave}-{number}" for number in range(6)]
            for name in members:
                created(cluster, name, "dra")
            for name in members:
                run(cluster, name)
            made = uids(cluster)
            wait_for(lambda: set(uids(cluster)) <= set(removers.refused), "nobody tried")
            invariants.check(cluster)
            assert len(made) == len(members)
            assert uids(cluster) == made, "a claim was made again"
            scenarios.clear(cluster.kube)
            wait_for(lambda: not claims(cluster), "claims are left over", 60)
    assert (removers.removed, removers.refused[""] > 0) == ([], True)


def test_no_pod_names_the_claim_of_another_one(cluster: Cluster, tenant: Kube) -> None:
    created(cluster, "victim", "dra")
    name = resourceclaims.named_by(run(cluster, "victim")["spec"])
    entry = {"name": "forged", "resourceClaimName": name}
    plain = pod("thief").container("main").json()
    plain["spec"]["resourceClaims"] = [entry]
    plain["spec"]["containers"][0]["resources"] = {"claims": [{"name": "forged"}]}
    with pytest.raises((KubeForbidden, KubeInvalid), match="ResourceClaim"):
        tenant.create(paths.pods("default"), plain)
    asking = pod("asks").asks(names.GPU_MEMORY, "1Gi").json()
    asking["spec"].update(resourceClaims=[entry], nodeSelector={"pool": "dra"})
    asking["spec"]["containers"][0]["resources"]["claims"] = [{"name": "forged"}]
    stored = tenant.create(paths.pods("default"), asking)
    assert resourceclaims.named_by(stored["spec"]) not in ("", name)
    assert [each["name"] for each in stored["spec"]["resourceClaims"]] == [names.POD_CLAIM]
    run(cluster, "asks")


def test_a_claim_that_an_administrator_removes_leaves_its_running_pod_alone(cluster: Cluster) -> None:
    created(cluster, "one", "dra")
    name = resourceclaims.named_by(run(cluster, "one")["spec"])
    cluster.kube.delete(paths.resourceclaims("default", name))
    run(cluster, "one")
    cluster.kube.delete(paths.pods("default", "one"))
    wait_for(lambda: not scenarios.all_pods(cluster.kube), "the pod does not end", 30)
