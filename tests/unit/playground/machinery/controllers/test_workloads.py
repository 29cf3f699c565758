"""Deployments and Jobs on the real API server."""

from __future__ import annotations

from playground.api.kinds.values import JSON
from playground.machinery.objects import conditions
from tests.unit.playground.machinery.driving import DEPLOYMENTS, JOBS, PODS, Cluster, container, deployment, job

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"


def counts(cluster: Cluster, name: str) -> JSON:
    status = cluster.do("GET", f"{DEPLOYMENTS}/{name}")["status"]
    fields = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "unavailableReplicas")
    return {field: status.get(field) for field in fields}


def all_are(count: int) -> JSON:
    fields = ("replicas", "readyReplicas", "availableReplicas", "updatedReplicas")
    return {**dict.fromkeys(fields, count), "unavailableReplicas": 0}


def test_a_deployment_scales_and_replaces_what_is_deleted(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.do("POST", DEPLOYMENTS, deployment("d", 4))
    pods = cluster.running(4)
    cluster.wait(lambda: counts(cluster, "d") == all_are(4))
    (owner,) = cluster.do("GET", REPLICA_SETS)["items"]
    assert {p["metadata"]["ownerReferences"][0]["uid"] for p in pods} == {owner["metadata"]["uid"]}
    assert all(p["metadata"]["name"].startswith(owner["metadata"]["name"] + "-") for p in pods)

    first = pods[0]["metadata"]["name"]
    cluster.do("DELETE", f"{PODS}/{first}")
    cluster.wait(lambda: cluster.get(f"{PODS}/{first}") is None)
    cluster.running(4)
    cluster.merge(f"{DEPLOYMENTS}/d", {"spec": {"replicas": 1}})
    cluster.running(1)
    cluster.wait(lambda: counts(cluster, "d") == all_are(1))
    observed = cluster.do("GET", f"{DEPLOYMENTS}/d")
    assert observed["status"]["observedGeneration"] == observed["metadata"]["generation"]
    assert {c["type"]: (c["status"], c["reason"]) for c in observed["status"]["conditions"]} == {
        "Available": ("True", "MinimumReplicasAvailable"),
        "Progressing": ("True", "NewReplicaSetAvailable"),
    }
    cluster.do("DELETE", f"{DEPLOYMENTS}/d")
    cluster.running(0)


def test_a_new_image_rolls_out_and_back(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.do("POST", DEPLOYMENTS, deployment("d", 4))
    cluster.running(4)
    cluster.merge(f"{DEPLOYMENTS}/d", {"spec": {"template": {"spec": {"containers": [container("redis")]}}}})

    def images(image: str, revision: str) -> bool:
        now = {p["spec"]["containers"][0]["image"] for p in cluster.pods()}
        value = cluster.do("GET", f"{DEPLOYMENTS}/d")
        annotations = value["metadata"].get("annotations") or {}
        mine = annotations.get("deployment.kubernetes.io/revision")
        return now == {image} and mine == revision and counts(cluster, "d") == all_are(4)

    cluster.wait(lambda: images("redis", "2"))
    assert sorted(rs["spec"]["replicas"] for rs in cluster.do("GET", REPLICA_SETS)["items"]) == [0, 4]
    cluster.merge(f"{DEPLOYMENTS}/d", {"spec": {"template": {"spec": {"containers": [container()]}}}})
    cluster.wait(lambda: images("busybox", "3"))
    assert len(cluster.do("GET", REPLICA_SETS)["items"]) == 2


def test_recreate_has_no_old_and_new_pod_at_once(cluster: Cluster) -> None:
    cluster.nodes("n1", cpu="2")
    cluster.do("POST", DEPLOYMENTS, deployment("d", 2, limits={"cpu": "1"}, strategy={"type": "Recreate"}))
    cluster.running(2)
    template = {"spec": {"containers": [container("redis", cpu="1")]}}
    cluster.merge(f"{DEPLOYMENTS}/d", {"spec": {"template": template}})
    cluster.wait(lambda: {p["spec"]["containers"][0]["image"] for p in cluster.pods()} == {"redis"})
    cluster.running(2)
    cluster.wait(lambda: counts(cluster, "d") == all_are(2))


def test_a_refused_create_is_reported_and_retried(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", QUOTAS, {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "2"}}})
    cluster.do("POST", DEPLOYMENTS, deployment("d", 3))
    failure = cluster.condition(f"{DEPLOYMENTS}/d", "ReplicaFailure")
    assert failure["reason"] == "FailedCreate"
    assert "exceeded quota: few" in failure["message"]
    assert any(text == f"Error creating: {failure['message']}" for text in cluster.events("FailedCreate"))
    cluster.running(2)
    cluster.merge(f"{QUOTAS}/few", {"spec": {"hard": {"pods": "9"}}})
    cluster.running(3)

    def recovered() -> bool:
        return conditions.find(cluster.do("GET", f"{DEPLOYMENTS}/d"), "ReplicaFailure") is None

    cluster.wait(recovered, "ReplicaFailure gone")


def test_a_restart_of_every_component_changes_nothing(cluster: Cluster) -> None:
    cluster.nodes("n1", "n2")
    cluster.do("POST", DEPLOYMENTS, deployment("d", 5))
    before = {p["metadata"]["uid"] for p in cluster.running(5)}
    cluster.restart()
    cluster.do("POST", PODS, {"metadata": {"name": "last"}, "spec": {"containers": [container()]}})
    after = {p["metadata"]["uid"] for p in cluster.running(6)}
    assert before < after
    assert cluster.overcommitted() == []


def test_a_stateful_set_counts_up_updates_down_and_shrinks_from_the_top(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", STATEFUL_SETS, {**deployment("s", 3), "kind": "StatefulSet"})
    pods = cluster.running(3)
    created = sorted(pods, key=lambda p: int(p["metadata"]["resourceVersion"]))
    assert [p["metadata"]["name"] for p in created] == ["s-0", "s-1", "s-2"]

    cluster.merge(f"{STATEFUL_SETS}/s", {"spec": {"template": {"spec": {"containers": [container("redis")]}}}})
    cluster.wait(lambda: {p["spec"]["containers"][0]["image"] for p in cluster.pods()} == {"redis"})
    updated = sorted(cluster.running(3), key=lambda p: int(p["metadata"]["resourceVersion"]))
    assert [p["metadata"]["name"] for p in updated] == ["s-2", "s-1", "s-0"]

    cluster.merge(f"{STATEFUL_SETS}/s", {"spec": {"replicas": 1}})
    assert [p["metadata"]["name"] for p in cluster.running(1)] == ["s-0"]
    cluster.wait(lambda: cluster.do("GET", f"{STATEFUL_SETS}/s")["status"].get("readyReplicas") == 1)


def test_a_job_runs_to_completion(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", JOBS, job("j", seconds="0.01", completions=5, parallelism=2))
    cluster.condition(f"{JOBS}/j", "Complete")
    status = cluster.do("GET", f"{JOBS}/j")["status"]
    assert (status["succeeded"], status["failed"], status["active"]) == (5, 0, 0)
    assert status["startTime"] <= status["completionTime"]
    assert [p["status"]["phase"] for p in cluster.pods()] == ["Succeeded"] * 5
    assert {p["metadata"]["labels"]["job-name"] for p in cluster.pods()} == {"j"}


def test_a_job_whose_pods_fail_gives_up(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", JOBS, job("j", seconds="0", exit_code="3", backoffLimit=1))
    failed = cluster.condition(f"{JOBS}/j", "Failed")
    assert failed["reason"] == "BackoffLimitExceeded"
    assert cluster.do("GET", f"{JOBS}/j")["status"]["failed"] == 2
    assert [p["status"]["phase"] for p in cluster.pods()] == ["Failed"] * 2


def test_a_finished_job_goes_after_its_time(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", JOBS, job("j", seconds="0", ttlSecondsAfterFinished=0))
    cluster.wait(lambda: cluster.get(f"{JOBS}/j") is None and cluster.pods() == [])


def test_a_pod_that_ends_by_itself_is_restarted_where_its_policy_says_so(cluster: Cluster) -> None:
    cluster.nodes("n1")
    value = job("unused", seconds="0.01")["spec"]["template"]
    value["metadata"]["name"] = "p"
    value["spec"]["restartPolicy"] = "Always"
    cluster.do("POST", PODS, value)
    cluster.wait(lambda: cluster.pod("p")["status"].get("containerStatuses", [{}])[0].get("restartCount", 0) >= 2)
    assert cluster.pod("p")["status"]["phase"] == "Running"
