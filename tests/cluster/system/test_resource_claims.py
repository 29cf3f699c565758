"""Pods that request their share by ResourceClaims of the DeviceClass share.gpufraction.io."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from contract import names, pods
from contract.encoding import resourceclaims
from playground import scenarios
from playground.api.kinds.values import User
from playground.cluster import Cluster
from playground.programs import installing
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeConflict, KubeForbidden, KubeInvalid, KubeNotFound
from tests.cluster.system import invariants
from tests.clusters import allow_claims, control_planes

JSON = dict[str, Any]
pytestmark = pytest.mark.system
NODES = (
    gpu_node("plain", "1 x Tesla T4 15109MiB", labels={"pool": "plain"}, address="10.0.0.11"),
    gpu_node("dra", "2 x Tesla T4 15109MiB", labels={"pool": "dra", names.DELIVERY: names.BY_DRA}, address="10.0.0.12"),
    gpu_node(
        "large", "1 x NVIDIA A10 23028MiB", labels={"pool": "a10", names.DELIVERY: names.BY_DRA}, address="10.0.0.13"
    ),
)
BOOKED = "gpufraction_gpu_memory_allocated_bytes"


@pytest.fixture(scope="module", params=control_planes(long=True, version="v1.36.2"))
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    directory = tmp_path_factory.mktemp("claims")
    with Cluster(
        directory=directory,
        nodes=NODES,
        components=("delivery-dra", "resourceclaims"),
        control_plane=request.param,
        namespaces=("default", "unlabelled"),
    ) as cluster:
        allow_claims(cluster.kube)
        for node in ("dra", "large"):
            wait_for(partial(by_claim, cluster, node), "the agent does not publish its delivery", 30)
        yield cluster


@pytest.fixture
def cluster(running: Cluster) -> Iterator[Cluster]:
    yield running
    invariants.check(running)
    scenarios.clear(running.kube)
    for each in claims(running):
        remove(running, paths.resourceclaims("default", each["metadata"]["name"]))
    for each in running.kube.list(paths.resourceclaimtemplates("default")).items:
        remove(running, paths.resourceclaimtemplates("default", each["metadata"]["name"]))
    wait_for(lambda: not claims(running), lambda: f"claims are left over: {claims(running)}", 60)


def remove(cluster: Cluster, path: str) -> None:
    with contextlib.suppress(KubeNotFound):
        cluster.kube.delete(path)


def by_claim(cluster: Cluster, node: str) -> bool:
    path = paths.path(names.GPUNODE_GROUP_VERSION, names.GPUNODE_PLURAL, name=node)
    return bool(((cluster.kube.get(path).get("status") or {}).get("delivery") or {}).get("byClaim"))


def claims(cluster: Cluster) -> list[JSON]:
    return list(cluster.kube.list(paths.resourceclaims("default")).items)


def asks(memory: str = "", cores: str = "", *, name: str = "gpu", count: int = 1, **more: Any) -> JSON:
    """One request of a claim."""
    amounts = {key: value for key, value in {"memory": memory, "cores": cores}.items() if value}
    capacity = {"capacity": {"requests": amounts}} if amounts else {}
    return {"name": name, "exactly": {"deviceClassName": "share.gpufraction.io", "count": count, **capacity, **more}}


def selecting(expression: str) -> JSON:
    """The selectors of a request."""
    return {"selectors": [{"cel": {"expression": expression}}]}


def first_available(**alternatives: str) -> JSON:
    """A request for 1 GiB of a card, by the names of its alternatives and their expressions."""
    listed = []
    for name, expression in alternatives.items():
        listed.append({"name": name, **asks("1Gi")["exactly"], **selecting(expression)})
    return {"name": "gpu", "firstAvailable": listed}


A10 = "device.attributes['gpufraction.io'].productName.contains('A10')"
T4 = "device.attributes['gpu.nvidia.com'].productName.lowerAscii().matches('^.*t4$')"
LARGE = "device.capacity['gpufraction.io'].memory.compareTo(quantity('20Gi')) >= 0"
GONE = "device.attributes['gpufraction.io'].productName == 'none'"


def template(
    cluster: Cluster, name: str, *requests: JSON, namespace: str = "default", constraints: tuple[JSON, ...] = ()
) -> JSON:
    more = {"constraints": list(constraints)} if constraints else {}
    body = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": list(requests), **more}}},
    }
    return cluster.kube.create(paths.resourceclaimtemplates(namespace), body)


def claim(cluster: Cluster, name: str, *requests: JSON) -> JSON:
    body = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaim",
        "metadata": {"name": name},
        "spec": {"devices": {"requests": list(requests)}},
    }
    return cluster.kube.create(paths.resourceclaims("default"), body)


def pod(name: str, *, pool: str = "", of: str = "", claim: str = "", uses: JSON | None = None) -> JSON:
    """A pod whose containers use a claim `gpu`; `uses`: the references of each container."""
    source = {"resourceClaimTemplateName": of} if of else {"resourceClaimName": claim}
    containers = [
        {"name": each, "image": "cuda", "resources": {"claims": references}}
        for each, references in (uses or {"main": [{"name": "gpu"}]}).items()
    ]
    spec: JSON = {"resourceClaims": [{"name": "gpu", **source}], "containers": containers}
    if pool:
        spec["nodeSelector"] = {"pool": pool}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def create(cluster: Cluster, body: JSON, namespace: str = "default") -> JSON:
    return cluster.kube.create(paths.pods(namespace), body)


def found(cluster: Cluster, name: str) -> JSON:
    return cluster.kube.get(paths.pods("default", name))


def run(cluster: Cluster, name: str) -> JSON:
    seen: list[JSON] = []

    def runs() -> bool:
        seen[:] = [found(cluster, name)]
        return scenarios.is_running(seen[0])

    wait_for(runs, lambda: f"{name} does not run: {seen[0]['status']}", 40)
    return seen[0]


def said(cluster: Cluster, name: str) -> str:
    """The message that a waiting pod got."""
    return str(scenarios.condition(found(cluster, name)).get("message", ""))


def claims_of(cluster: Cluster, name: str) -> list[JSON]:
    """The claims that were created for a pod."""
    uid = pods.uid(found(cluster, name))
    return [each for each in claims(cluster) if resourceclaims.owner_uid(each) == uid]


def test_a_pod_from_a_template_gets_its_share_by_its_own_claim(cluster: Cluster) -> None:
    template(cluster, "gpu-8gi", asks("8Gi", "30"))
    create(cluster, pod("one", pool="dra", of="gpu-8gi"))
    placed = run(cluster, "one")
    allocation = pods.carried_allocation(placed)
    assert allocation is not None
    (share,) = allocation.containers[0].shares
    assert (share.memory, share.cores) == (8 << 30, 30)
    assert placed["spec"]["containers"][0]["resources"]["limits"] == {
        "gpufraction.io/gpu-cores": "30",
        "gpufraction.io/gpu-memory": "8Gi",
    }
    (made,) = claims_of(cluster, "one")
    (result,) = made["status"]["allocation"]["devices"]["results"]
    assert (result["driver"], result["pool"], result["device"], result["consumedCapacity"]) == (
        names.GROUP,
        "dra",
        resourceclaims.device_name(share.uuid),
        {"memory": "8Gi", "cores": "30"},
    )
    assert made["status"]["reservedFor"] == [{"resource": "pods", "name": "one", "uid": pods.uid(placed)}]
    assert resourceclaims.FINALIZER in made["metadata"]["finalizers"]
    printed = scenarios.printed(cluster.kube, placed, "main")
    assert f"(UUID: {share.uuid})" in printed


def test_a_node_without_claims_gets_the_card_by_the_variable(cluster: Cluster) -> None:
    template(cluster, "gpu-1gi", asks("1Gi"))
    create(cluster, pod("one", pool="plain", of="gpu-1gi"))
    placed = run(cluster, "one")
    (made,) = claims_of(cluster, "one")
    assert not made["status"]["allocation"]["devices"].get("results")
    allocation = pods.carried_allocation(placed)
    assert allocation is not None
    uuid = allocation.containers[0].shares[0].uuid
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}\n" in scenarios.printed(cluster.kube, placed, "main")


def test_each_container_has_the_cards_of_its_own_requests(cluster: Cluster) -> None:
    template(cluster, "both", asks("1Gi", name="one"), asks("2Gi", "20", name="two", count=2))
    uses = {"a": [{"name": "gpu", "request": "one"}], "b": [{"name": "gpu", "request": "two"}], "none": []}
    create(cluster, pod("many", pool="dra", of="both", uses=uses))
    placed = run(cluster, "many")
    seen = {each: scenarios.printed(cluster.kube, placed, each).count("(UUID: ") for each in ("a", "b", "none")}
    assert seen == {"a": 1, "b": 2, "none": 0}
    (made,) = claims_of(cluster, "many")
    results = made["status"]["allocation"]["devices"]["results"]
    assert [(each["request"], each["consumedCapacity"]) for each in results] == [
        ("one", {"memory": "1Gi", "cores": "0"}),
        ("two", {"memory": "2Gi", "cores": "20"}),
        ("two", {"memory": "2Gi", "cores": "20"}),
    ]
    assert len({each["shareID"] for each in results}) == 3
    assert len({each["device"] for each in results[1:]}) == 2


def test_a_claim_without_capacity_has_whole_cards(cluster: Cluster) -> None:
    template(cluster, "whole", asks(count=2))
    template(cluster, "small", asks("1Gi"))
    create(cluster, pod("all", pool="dra", of="whole"))
    run(cluster, "all")
    create(cluster, pod("waits", pool="dra", of="small"))
    wait_for(lambda: bool(scenarios.waits(found(cluster, "waits"))), "it does not wait", 30)
    cluster.kube.delete(paths.pods("default", "all"))
    run(cluster, "waits")


def test_a_claim_that_stands_alone_serves_one_pod_after_another(cluster: Cluster) -> None:
    claim(cluster, "alone", asks("4Gi"))
    create(cluster, pod("first", pool="dra", claim="alone"))
    run(cluster, "first")
    create(cluster, pod("second", pool="plain", claim="alone"))
    wait_for(
        lambda: "whose devices are on other nodes" in said(cluster, "second"),
        lambda: f"it does not wait for the claim: {found(cluster, 'second')['status']}",
        30,
    )
    cluster.kube.delete(paths.pods("default", "first"))
    run(cluster, "second")
    allocated = cluster.kube.get(paths.resourceclaims("default", "alone"))["status"]
    assert [each["name"] for each in allocated["reservedFor"]] == ["second"]
    cluster.kube.delete(paths.pods("default", "second"))

    def released() -> bool:
        return not (cluster.kube.get(paths.resourceclaims("default", "alone")).get("status") or {}).get("allocation")

    wait_for(released, "the claim stays allocated", 30)


@pytest.mark.parametrize("pool", ["dra", "plain"])
def test_several_pods_use_one_claim_at_the_same_time(cluster: Cluster, pool: str) -> None:
    """14 GiB of a card with 15: no card has room for a second such share, and Kubernetes counts none on `plain`."""
    claim(cluster, "together", asks("14Gi", "30"))
    for name in ("one", "two", "three"):
        create(cluster, pod(name, pool=pool, claim="together"))
    placed = [run(cluster, name) for name in ("one", "two", "three")]
    shares = {pods.carried_allocation(each).containers[0].shares for each in placed}  # type: ignore[union-attr]
    assert len(shares) == 1
    path = paths.resourceclaims("default", "together")
    status = cluster.kube.get(path)["status"]
    assert sorted(each["name"] for each in status["reservedFor"]) == ["one", "three", "two"]
    assert len(status["allocation"]["devices"].get("results", ())) == (1 if pool == "dra" else 0)
    (uuid,) = {share.uuid for listed in shares for share in listed}
    for each in placed:
        printed = scenarios.printed(cluster.kube, each, "main")
        assert f"(UUID: {uuid})" in printed
    invariants.check(cluster)
    assert booked(cluster, uuid) == 14 << 30
    cluster.kube.delete(paths.pods("default", "one"))
    create(cluster, pod("four", pool=pool, claim="together"))
    run(cluster, "four")
    assert booked(cluster, uuid) == 14 << 30
    for name in ("two", "three", "four"):
        cluster.kube.delete(paths.pods("default", name))
    wait_for(lambda: booked(cluster, uuid) == 0, "the share does not come back", 30)

    def released() -> bool:
        return not (cluster.kube.get(path).get("status") or {}).get("allocation")

    wait_for(released, "the claim stays allocated", 30)


def test_a_leader_that_is_killed_counts_a_shared_claim_once(cluster: Cluster) -> None:
    claim(cluster, "together", asks("14Gi"))
    for number in range(5):
        create(cluster, pod(f"s{number}", claim="together"))
        if number % 2:
            cluster.programs["allocator"].kill()
            cluster.programs["allocator"].wait()
            cluster.programs["allocator"].start()
            cluster.await_up()
    placed = [run(cluster, f"s{number}") for number in range(5)]
    (allocation,) = {pods.carried_allocation(each).containers[0].shares for each in placed}  # type: ignore[union-attr]
    invariants.check(cluster)
    assert booked(cluster, allocation[0].uuid) == 14 << 30


def booked(cluster: Cluster, uuid: str) -> int:
    """Bytes that the allocator has allocated on a card."""
    figures = invariants.figures(cluster).items()
    return int(sum(value for name, value in figures if name.startswith(BOOKED) and uuid in name))


def test_a_claim_without_its_finalizer_serves_the_next_pod_too(cluster: Cluster) -> None:
    """kube-controller-manager keeps its allocation then."""
    claim(cluster, "alone", asks("4Gi"))
    create(cluster, pod("first", pool="dra", claim="alone"))
    run(cluster, "first")
    path = paths.resourceclaims("default", "alone")
    cluster.kube.patch_merge(path, {"metadata": {"finalizers": None}})
    cluster.kube.delete(paths.pods("default", "first"))
    wait_for(lambda: not scenarios.all_pods(cluster.kube), "the pod does not end", 30)
    invariants.check(cluster)
    create(cluster, pod("second", pool="plain", claim="alone"))
    run(cluster, "second")


def test_a_quota_of_gpu_memory_counts_claims(cluster: Cluster) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus"},
        "spec": {"hard": {f"requests.{names.GPU_MEMORY}": "10Gi"}},
    }
    cluster.kube.create(paths.resourcequotas("default"), quota)
    try:
        template(cluster, "gpu-8gi", asks("8Gi"))
        wait_for(lambda: "used" in str(cluster.kube.get(paths.resourcequotas("default", "gpus"))), "no quota", 30)
        create(cluster, pod("one", of="gpu-8gi"))
        with pytest.raises(KubeForbidden, match=r"exceeded quota: gpus.*gpu-memory=8Gi"):
            create(cluster, pod("two", of="gpu-8gi"))
    finally:
        cluster.kube.delete(paths.resourcequotas("default", "gpus"))


def node_of(cluster: Cluster, name: str) -> str:
    allocation = pods.carried_allocation(run(cluster, name))
    assert allocation is not None
    return allocation.node


def test_selectors_choose_the_card(cluster: Cluster) -> None:
    template(cluster, "a10", asks("1Gi", **selecting(f"{A10} && {LARGE}")))
    template(cluster, "t4", asks("1Gi", **selecting(T4)))
    for number in range(3):
        create(cluster, pod(f"large-{number}", of="a10"))
    create(cluster, pod("small", of="t4"))
    assert {node_of(cluster, f"large-{number}") for number in range(3)} == {"large"}
    assert node_of(cluster, "small") in ("dra", "plain")
    (made,) = claims_of(cluster, "large-0")
    (result,) = made["status"]["allocation"]["devices"]["results"]
    assert (result["request"], result["pool"]) == ("gpu", "large")


def test_selectors_that_no_card_satisfies_refuse_the_pod(cluster: Cluster) -> None:
    template(cluster, "none", asks("1Gi", **selecting(GONE)))
    with pytest.raises((KubeForbidden, KubeInvalid), match="3 without enough GPUs that the selectors of the pod's"):
        create(cluster, pod("one", of="none"))


def test_a_pod_waits_for_the_cards_that_its_selectors_accept(cluster: Cluster) -> None:
    template(cluster, "whole", asks(**selecting(A10)))
    template(cluster, "part", asks("1Gi", **selecting(LARGE)))
    create(cluster, pod("all", of="whole"))
    run(cluster, "all")
    create(cluster, pod("waits", of="part"))
    wait_for(
        lambda: "2 without enough GPUs that the selectors" in said(cluster, "waits"),
        lambda: f"it is told something else: {said(cluster, 'waits')}",
        30,
    )
    cluster.kube.delete(paths.pods("default", "all"))
    assert node_of(cluster, "waits") == "large"


def test_the_first_alternative_with_room_is_allocated_and_named(cluster: Cluster) -> None:
    template(cluster, "some", first_available(best=GONE, large=A10, any=T4))
    template(cluster, "whole", asks(**selecting(A10)))
    create(cluster, pod("first", of="some"))
    assert node_of(cluster, "first") == "large"
    (made,) = claims_of(cluster, "first")
    assert [each["request"] for each in made["status"]["allocation"]["devices"]["results"]] == ["gpu/large"]
    printed = scenarios.printed(cluster.kube, found(cluster, "first"), "main")
    assert printed.count("(UUID: ") == 1
    cluster.kube.delete(paths.pods("default", "first"))
    wait_for(lambda: not scenarios.all_pods(cluster.kube), "the pod does not end", 30)
    create(cluster, pod("all", of="whole"))
    run(cluster, "all")
    create(cluster, pod("second", pool="dra", of="some", uses={"main": [{"name": "gpu", "request": "gpu"}]}))
    assert node_of(cluster, "second") == "dra"
    (made,) = claims_of(cluster, "second")
    assert [each["request"] for each in made["status"]["allocation"]["devices"]["results"]] == ["gpu/any"]
    assert scenarios.printed(cluster.kube, found(cluster, "second"), "main").count("(UUID: ") == 1


def test_constraints_keep_containers_on_different_cards(cluster: Cluster) -> None:
    """Without the constraint both containers would be on one card, and the node with one card would be enough."""
    apart = {"distinctAttribute": "gpufraction.io/uuid"}
    template(cluster, "apart", asks("1Gi", name="one"), asks("1Gi", name="two"), constraints=(apart,))
    uses = {name: [{"name": "gpu", "request": name}] for name in ("one", "two")}
    for number in range(3):
        create(cluster, pod(f"p{number}", of="apart", uses=uses))
    for number in range(3):
        allocation = pods.carried_allocation(run(cluster, f"p{number}"))
        assert allocation is not None
        assert allocation.node == "dra"
        assert len({share.uuid for each in allocation.containers for share in each.shares}) == 2
    create(cluster, pod("waits", pool="a10", of="apart", uses=uses))
    wait_for(
        lambda: "1 with too few GPUs (most 1, wanted 2)" in said(cluster, "waits"),
        lambda: f"it is told something else: {said(cluster, 'waits')}",
        30,
    )


def test_cards_of_one_model_are_of_one_node_with_enough_of_them(cluster: Cluster) -> None:
    alike = ({"matchAttribute": "gpufraction.io/productName"}, {"matchAttribute": "gpufraction.io/numa"})
    template(cluster, "alike", asks("1Gi", count=2), constraints=alike)
    create(cluster, pod("one", of="alike"))
    assert node_of(cluster, "one") == "dra"


REFUSED = {
    "a constraint that does not map": (
        asks("1Gi"),
        "constraints\\[0\\].matchAttribute: found 'resource.kubernetes.io/pcieRoot'; give gpufraction.io/numa",
    ),
    "an alternative of another size": (
        {
            "name": "gpu",
            "firstAvailable": [
                {"name": "a", "deviceClassName": "share.gpufraction.io"},
                {"name": "b", "deviceClassName": "share.gpufraction.io", "count": 2},
            ],
        },
        "requests\\[0\\].firstAvailable\\[1\\]: found another count or capacity than in the first alternative",
    ),
    "all devices": (
        {"name": "gpu", "exactly": {"deviceClassName": "share.gpufraction.io", "allocationMode": "All"}},
        "exactly.allocationMode: found 'All'; give ExactCount and a count",
    ),
    "another capacity": (
        {
            "name": "gpu",
            "exactly": {"deviceClassName": "share.gpufraction.io", "capacity": {"requests": {"compute": "5"}}},
        },
        "capacity.requests\\[compute\\]: found '5'; give memory, and cores",
    ),
    "a selector with a function that is not known": (
        asks("1Gi", **selecting("device.driver.replace('a', 'b') == ''")),
        r"exactly.selectors\[0\].cel.expression: found the function 'replace'; use only",
    ),
    "a selector with a wrong quantity": (
        asks("1Gi", **selecting("quantity('many') == quantity('1')")),
        r"selectors\[0\].cel.expression: found .*, of which CEL says: 'many' is not",
    ),
    "a toleration": (
        asks("1Gi", tolerations=[{"operator": "Exists"}]),
        "exactly.tolerations: found .*; leave it out",
    ),
}


@pytest.mark.parametrize(("request_", "words"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_read_is_refused_by_its_field(cluster: Cluster, request_: JSON, words: str) -> None:
    constraints = ({"matchAttribute": "resource.kubernetes.io/pcieRoot"},) if "constraints" in words else ()
    template(cluster, "t", request_, constraints=constraints)
    with pytest.raises((KubeForbidden, KubeInvalid), match=words):
        create(cluster, pod("one", of="t"))


def test_a_template_that_is_not_there_is_named(cluster: Cluster) -> None:
    with pytest.raises((KubeForbidden, KubeInvalid), match="ResourceClaimTemplate none, which does not exist"):
        create(cluster, pod("one", of="none"))


def test_two_ways_to_ask_are_refused(cluster: Cluster) -> None:
    template(cluster, "t", asks("1Gi"))
    body = pod("one", of="t")
    body["spec"]["containers"][0]["resources"]["limits"] = {str(names.GPU_MEMORY): "1Gi"}
    with pytest.raises((KubeForbidden, KubeInvalid), match="use only one dialect"):
        create(cluster, body)


def test_a_pod_with_claims_of_another_driver_is_left_alone(cluster: Cluster) -> None:
    request = {"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}
    template(cluster, "nic", request)
    stored = create(cluster, pod("other", of="nic"))
    assert "schedulingGates" not in stored["spec"]
    assert not stored["metadata"].get("annotations")
    assert "limits" not in stored["spec"]["containers"][0]["resources"]


def test_the_class_is_refused_where_the_namespace_has_no_label(cluster: Cluster) -> None:
    with pytest.raises((KubeForbidden, KubeInvalid), match="is served only in namespaces with the"):
        template(cluster, "t", asks("1Gi"), namespace="unlabelled")


@pytest.mark.long
def test_a_claim_that_somebody_deallocates_is_allocated_again(cluster: Cluster) -> None:
    template(cluster, "t", asks("1Gi"))
    create(cluster, pod("one", pool="dra", of="t"))
    run(cluster, "one")
    (before,) = claims_of(cluster, "one")
    path = paths.resourceclaims("default", before["metadata"]["name"], "status")
    cluster.kube.patch_merge(path, {"status": {"allocation": None, "reservedFor": None}})

    def restored() -> bool:
        return bool((claims_of(cluster, "one")[0].get("status") or {}).get("allocation"))

    wait_for(restored, "the claim stays without its allocation", 90)
    (after,) = claims_of(cluster, "one")
    share = pods.carried_allocation(found(cluster, "one"))
    decided = [(resourceclaims.version(each) or ("", 0))[0] for each in (before, after)]
    assert share is not None
    assert decided == [share.id, share.id]
    results = [each["status"]["allocation"]["devices"]["results"] for each in (before, after)]
    assert results[0] == results[1]


# -- tenants with every right to claims -----------------------------------------------------------------------------


@pytest.fixture
def tenant(cluster: Cluster) -> Kube:
    """A tenant who may do anything with claims and pods of the namespace, status and allocation included."""
    group = "rbac.authorization.k8s.io"
    about = {"apiVersion": f"{group}/v1", "metadata": {"name": "any-share-claims"}}
    rules = [
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": [
                "resourceclaims",
                "resourceclaims/status",
                "resourceclaims/binding",
                "resourceclaimtemplates",
                "resourceslices",
            ],
            "verbs": ["get", "list", "create", "update", "patch", "delete"],
        },
        {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "create", "delete", "patch"]},
    ]
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "any-share-claims"}
    subjects = [{"apiGroup": group, "kind": "User", "name": "mallory"}]
    installing.apply(cluster.kube, {**about, "kind": "ClusterRole", "rules": rules})
    installing.apply(cluster.kube, {**about, "kind": "ClusterRoleBinding", "roleRef": role, "subjects": subjects})
    kubeconfig = cluster.directory / "kubeconfig-mallory"
    kubeconfig.write_text(cluster.control_plane.kubeconfig(User("mallory", ("system:authenticated",))))
    return Kube.connect(kubeconfig=str(kubeconfig), user_agent="mallory")


def test_a_tenant_changes_nothing_of_a_claim_in_use(cluster: Cluster, tenant: Kube) -> None:
    template(cluster, "t", asks("1Gi"))
    create(cluster, pod("victim", pool="dra", of="t"))
    run(cluster, "victim")
    (before,) = claims_of(cluster, "victim")
    name = before["metadata"]["name"]
    own, status = paths.resourceclaims("default", name), paths.resourceclaims("default", name, "status")
    other = {"resource": "pods", "name": "thief", "uid": "11111111-2222-3333-4444-555555555555"}
    owner = before["metadata"]["ownerReferences"][0]
    for path, patch in (
        (status, {"status": {"reservedFor": [*before["status"]["reservedFor"], other]}}),
        (status, {"status": {"reservedFor": [other]}}),
        (status, {"status": {"reservedFor": None}}),
        (status, {"status": {"reservedFor": None, "allocation": None}}),
        (own, {"metadata": {"ownerReferences": None}}),
        (own, {"metadata": {"ownerReferences": [{**owner, "uid": other["uid"]}]}}),
        (own, {"metadata": {"finalizers": None}}),
        (own, {"metadata": {"finalizers": ["example.com/stays"]}}),
    ):
        with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction"):
            tenant.patch_merge(path, patch)
    with pytest.raises((KubeForbidden, KubeInvalid), match="is used by pod victim"):
        tenant.delete(own)
    (after,) = claims_of(cluster, "victim")
    assert (after["status"], after["metadata"]["finalizers"]) == (before["status"], before["metadata"]["finalizers"])


def test_a_tenant_allocates_no_claim(cluster: Cluster, tenant: Kube) -> None:
    claim(cluster, "mine", asks("1Gi"))
    result = {"request": "gpu", "driver": names.GROUP, "pool": "dra", "device": "gpu-0"}
    for driver in (names.GROUP, "example.com"):
        allocation = {"devices": {"results": [{**result, "driver": driver}]}}
        with pytest.raises((KubeForbidden, KubeInvalid), match="only gpufraction's allocator allocates"):
            tenant.patch_merge(
                paths.resourceclaims("default", "mine", "status"), {"status": {"allocation": allocation}}
            )


def test_nobody_publishes_our_devices(cluster: Cluster, tenant: Kube) -> None:
    try:
        cluster.kube.list(paths.path(resourceclaims.API, "resourceslices"))
    except KubeNotFound:
        pytest.skip("the embedded API server has no ResourceSlices; it needs KUBEBUILDER_ASSETS")
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    body = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceSlice",
        "metadata": {"name": "ours"},
        "spec": {"driver": names.GROUP, "allNodes": True, "pool": pool, "devices": [{"name": "gpu-0"}]},
    }
    with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction has no ResourceSlices"):
        tenant.create(paths.path(resourceclaims.API, "resourceslices"), body)


def test_our_class_stands_for_no_extended_resource(cluster: Cluster) -> None:
    path = paths.path(resourceclaims.API, "deviceclasses", name=str(names.SHARE_CLASS))
    with pytest.raises((KubeForbidden, KubeInvalid), match="found example"):
        cluster.kube.patch_merge(path, {"spec": {"extendedResourceName": "example.com/gpu"}})


def test_a_claim_that_a_tenant_slips_in_gets_no_more_than_was_counted(cluster: Cluster, tenant: Kube) -> None:
    """kube-controller-manager accepts a claim as the pod's own if it is marked and owned like one."""
    template(cluster, "t", asks("1Gi"))
    stored = create(cluster, pod("sly", pool="nowhere", of="t"))
    wait_for(lambda: bool(claims_of(cluster, "sly")), "no claim is made", 30)
    (made,) = claims_of(cluster, "sly")
    large = {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaim",
        "metadata": {
            "name": "large",
            "ownerReferences": made["metadata"]["ownerReferences"],
            "annotations": made["metadata"]["annotations"],
        },
        "spec": {"devices": {"requests": [asks("14Gi")]}},
    }
    tenant.create(paths.resourceclaims("default"), large)
    statuses = [{"name": "gpu", "resourceClaimName": "large"}]
    cluster.kube.patch_merge(paths.pods("default", "sly", "status"), {"status": {"resourceClaimStatuses": statuses}})
    cluster.kube.patch_merge(paths.nodes("plain"), {"metadata": {"labels": {"pool": "nowhere"}}})
    try:
        wait_for(
            lambda: "request something other than what was counted" in said(cluster, "sly"),
            lambda: f"it is not refused: {found(cluster, 'sly')['status']}",
            40,
        )
        assert not (cluster.kube.get(paths.resourceclaims("default", "large")).get("status") or {}).get("allocation")
    finally:
        cluster.kube.patch_merge(paths.nodes("plain"), {"metadata": {"labels": {"pool": "plain"}}})
    assert pods.uid(stored)


# -- processes that end ---------------------------------------------------------------------------------------------


def test_while_no_allocator_answers_pods_with_claims_are_refused(cluster: Cluster) -> None:
    template(cluster, "t", asks("1Gi"))
    cluster.programs["allocator"].kill()
    cluster.programs["allocator"].wait()
    try:
        with pytest.raises((KubeForbidden, KubeInvalid), match="gpufraction's allocator does not answer"):
            create(cluster, pod("one", of="t"))
    finally:
        cluster.programs["allocator"].start()
        cluster.await_up()
    create(cluster, pod("one", pool="dra", of="t"))
    run(cluster, "one")


@pytest.mark.long
def test_a_leader_that_is_killed_again_and_again_leaves_no_claim_undone(cluster: Cluster) -> None:
    template(cluster, "t", asks("2Gi", "10"))
    members = [f"k{number}" for number in range(8)]
    for number, name in enumerate(members):
        create(cluster, pod(name, of="t"))
        if number in (2, 5, 7):
            cluster.programs["allocator"].kill()
            cluster.programs["allocator"].wait()
            cluster.programs["allocator"].start()
            cluster.await_up()
    for name in members:
        run(cluster, name)
    for name in members:
        (made,) = claims_of(cluster, name)
        assert [each["name"] for each in made["status"]["reservedFor"]] == [name]
    invariants.check(cluster)


# -- moving to claims, and back -----------------------------------------------------------------------------------


def deployment(of: str = "") -> JSON:
    """Two pods of 8 GiB on the node with two cards: in an older dialect, or with a template of claims (`of`)."""
    container: JSON = {"name": "main", "image": "cuda"}
    more: JSON = {}
    if of:
        container["resources"] = {"claims": [{"name": "gpu"}]}
        more["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": of}]
    else:
        container["resources"] = {"limits": {"aliyun.com/gpu-mem": "8"}}
    spec = {"nodeSelector": {"pool": "dra"}, "containers": [container], "terminationGracePeriodSeconds": 0, **more}
    labels = {"app": "moving"}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "moving", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


def asked_by(cluster: Cluster) -> list[str]:
    """The dialects of the running pods, each once."""
    there = [each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]
    requests = [pods.admitted(each) for each in there]
    return sorted(each.dialect for each in requests if each is not None)


def of_tenants(cluster: Cluster) -> list[str]:
    """The claims that request shares; other claims deliver them."""
    asking = (each for each in claims(cluster) if names.SHARE_CLASS in str(each["spec"]))
    return [each["metadata"]["name"] for each in asking]


def replaced(cluster: Cluster, path: str, changed: JSON) -> bool:
    """Replace an object; false if its controller has written to it meanwhile."""
    changed["metadata"]["resourceVersion"] = cluster.kube.get(path)["metadata"]["resourceVersion"]
    try:
        cluster.kube.replace(path, changed)
    except KubeConflict:
        return False
    return True


def test_a_deployment_moves_to_claims_and_back_pod_by_pod(cluster: Cluster) -> None:
    """Each card has room for only one of the pods, so a pod that counts in both dialects, or in none, would show."""
    path = paths.path("apps/v1", "deployments", "default", "moving")
    template(cluster, "gpu-8gi", asks("8Gi"))
    cluster.kube.create(paths.path("apps/v1", "deployments", "default"), deployment())
    wait_for(lambda: asked_by(cluster) == ["aliyun"] * 2, lambda: f"{asked_by(cluster)}")
    for of, dialect in (("gpu-8gi", "resourceclaims"), ("", "aliyun")):
        wait_for(partial(replaced, cluster, path, deployment(of)), "others write to the Deployment all the time")
        wait_for(lambda d=dialect: asked_by(cluster) == [d] * 2, lambda: f"{asked_by(cluster)}", 90)  # type: ignore[misc]
        invariants.check(cluster)
    wait_for(lambda: not of_tenants(cluster), lambda: f"claims are left over: {of_tenants(cluster)}")
