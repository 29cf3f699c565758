"""Wrong manifests, quotas, dry runs and killed processes: no message is wrong, and nothing leaks."""

from __future__ import annotations

from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeError
from tests.builders import PodBuilder, pod
from tests.cluster.system import invariants

pytestmark = pytest.mark.system
JSON = dict[str, Any]


def create(cluster: Cluster, builder: PodBuilder, *, dry_run: bool = False) -> JSON:
    manifest = builder.manifest()
    return cluster.kube.create(paths.pods("default"), manifest, {"dryRun": "All"} if dry_run else None)


def t4(name: str, mib: int = 10_000) -> PodBuilder:
    """A pod that goes to the T4 node and takes more than half of a card."""
    return pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi").spec(nodeSelector={"gpushare": "true"})


WRONG = {
    "a word for an amount": ("gpufraction.io/gpu-memory", "lots", "quantit"),
    "more percent than a card has": (
        "nano-gpu/gpu-percent",
        "120",
        "spec.containers[0].resources.limits[nano-gpu/gpu-percent]: found '120'; "
        "give a whole number from 1 to 100, which is one whole card",
    ),
    "bytes where a unit was meant": (
        "gpufraction.io/gpu-memory",
        "8",
        "spec.containers[0].resources.limits[gpufraction.io/gpu-memory]: found '8'; "
        "give the memory of each GPU with its unit, at least 1Mi, such as 8Gi",
    ),
    "a resource that there is not": (
        "gpufraction.io/gpu-mem",
        "8Gi",
        "spec.containers[0].resources.limits[gpufraction.io/gpu-mem]: found an unknown resource; "
        "did you mean gpufraction.io/gpu-memory?",
    ),
    "more memory than any card has": (
        "gpufraction.io/gpu-memory",
        "80Gi",
        "no GPU of this cluster can ever serve it, even when free: 0 of 3 GPU nodes fit: "
        "3 short of memory (largest 32768 MiB, wanted 81920)",
    ),
}


@pytest.mark.parametrize("case", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_manifest_is_refused_with_what_would_work(cluster: Cluster, case: tuple[str, str, str]) -> None:
    resource, amount, message = case
    with pytest.raises(KubeError) as refused:
        create(cluster, pod("wrong").asks(resource, amount))
    assert message[:150] in str(refused.value)
    assert scenarios.all_pods(cluster.kube) == []


def test_two_dialects_in_one_pod_are_refused(cluster: Cluster) -> None:
    with pytest.raises(KubeError, match="use only one dialect"):
        create(cluster, pod("both").asks("aliyun.com/gpu-mem", 5).asks("nvidia.com/gpu", 1))


def test_a_pod_that_asks_for_nothing_passes_untouched(cluster: Cluster) -> None:
    made = create(cluster, pod("plain").container("main", image="registry.example/app:1"))
    assert not any(key.startswith(names.GROUP) for key in made["metadata"].get("annotations", {}))
    assert "env" not in made["spec"]["containers"][0]


def test_a_dry_run_reserves_nothing(cluster: Cluster) -> None:
    for number in range(5):
        made = create(cluster, t4(f"dry-{number}"), dry_run=True)
        assert made["spec"]["nodeName"] == "t4"
    assert scenarios.all_pods(cluster.kube) == []


def test_what_a_tenant_wrote_into_our_names_is_replaced(cluster: Cluster) -> None:
    forged = (
        t4("forger", 1024)
        .annotated(f"{names.DEVICES_PREFIX}main", "all")
        .annotated(names.ALLOCATION, '{"v":1}')
        .env("NVIDIA_VISIBLE_DEVICES", "all")
        .env("CUDA_DEVICE_MEMORY_LIMIT", "999g")
    )
    create(cluster, forged)
    (found,) = scenarios.settled(cluster.kube, 1)
    (uuid,) = scenarios.held(found)
    text = scenarios.printed(cluster.kube, found)
    assert f"NVIDIA_VISIBLE_DEVICES={uuid}" in text.splitlines()
    assert "CUDA_DEVICE_MEMORY_LIMIT=1024m" in text.splitlines()


def test_a_quota_that_refuses_after_us_leaves_nothing_reserved(cluster: Cluster) -> None:
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "gpus", "namespace": "default"},
        "spec": {"hard": {f"requests.{names.GPU_MEMORY}": "12Gi"}},
    }
    path = paths.path("v1", "resourcequotas", "default")
    cluster.kube.create(path, quota)
    try:
        wait_for(lambda: bool(cluster.kube.get(f"{path}/gpus").get("status", {}).get("hard")), "quota has no status")
        create(cluster, t4("within"))
        with pytest.raises(KubeError, match="exceeded quota"):
            create(cluster, t4("beyond"))
        scenarios.settled(cluster.kube, 1)
        invariants.check(cluster)
    finally:
        cluster.kube.delete(f"{path}/gpus")


def test_a_killed_allocator_lets_pods_wait_and_places_them_when_it_is_back(cluster: Cluster) -> None:
    create(cluster, t4("before"))
    scenarios.settled(cluster.kube, 1)
    allocator = cluster.programs["allocator"]
    allocator.kill()
    for number in range(2):
        made = create(cluster, t4(f"meanwhile-{number}"))
        assert [gate["name"] for gate in made["spec"]["schedulingGates"]] == [names.GATE]
    allocator.start()
    found = scenarios.settled(cluster.kube, 3, running=2)
    assert scenarios.outcome(found) == scenarios.Outcome(running=2, waiting=1, nodes=("t4",), gpus=2, waits=("Memory",))


def test_a_killed_webhook_stops_only_pods_that_ask_for_a_share(cluster: Cluster) -> None:
    webhook = cluster.programs["webhook"]
    webhook.kill()
    try:
        create(cluster, pod("plain"))
        with pytest.raises(KubeError, match=r"failed calling webhook .*pods\.gpufraction\.io"):
            create(cluster, t4("asks"))
    finally:
        webhook.start()
        wait_for(cluster.webhook_answers, "the webhook is not back")
    create(cluster, t4("asks"))
    scenarios.settled(cluster.kube, 2)


def test_a_killed_agent_changes_nothing_for_those_who_run(cluster: Cluster) -> None:
    agent = cluster.programs["nodeagent-t4"]
    agent.kill()
    create(cluster, t4("undisturbed"))
    scenarios.settled(cluster.kube, 1)
    agent.start()


def test_a_cordoned_node_takes_no_new_pod_and_the_pod_starts_when_it_is_back(cluster: Cluster) -> None:
    node = paths.path("v1", "nodes", name="t4")
    cluster.kube.patch_merge(node, {"spec": {"unschedulable": True}})
    try:
        wait_for(lambda: _gated(create(cluster, t4("late"), dry_run=True)), "still placed there")
        create(cluster, t4("late"))
        (found,) = scenarios.settled(cluster.kube, 1)
        assert scenarios.condition(found)["message"].startswith("waiting: 0 of 3 GPU nodes fit: ")
        assert "1 cordoned" in scenarios.condition(found)["message"]
    finally:
        cluster.kube.patch_merge(node, {"spec": {"unschedulable": None}})
    wait_for(lambda: scenarios.is_running(scenarios.all_pods(cluster.kube)[0]), "the pod did not start")


def _gated(pod: JSON) -> bool:
    return bool(pod["spec"].get("schedulingGates"))


def test_the_policy_in_a_pod_and_affinity_pinning_work_through_kube_scheduler(cluster: Cluster) -> None:
    create(cluster, t4("pinned", 1024).annotated(names.PLACEMENT, "affinity"))
    (found,) = scenarios.settled(cluster.kube, 1)
    fields = found["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert fields == {
        "nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["t4"]}]},
        ]
    }
    assert found["spec"]["nodeName"] == "t4"
