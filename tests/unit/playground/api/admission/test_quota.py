"""ResourceQuota on extended resources and on what is counted."""

import threading
from typing import Any

from playground.api.api import Api
from tests.unit.playground.api.manifests import MERGE, PODS, create_pod, names, ok, pod, refusal

QUOTAS = "/api/v1/namespaces/default/resourcequotas"
MEMORY = "example.com/gpu-memory"


def limit(api: Api, **hard: str) -> None:
    named = {name.replace("gpu", f"requests.{MEMORY}"): amount for name, amount in hard.items()}
    ok(api.call("POST", QUOTAS, body={"metadata": {"name": "q"}, "spec": {"hard": named}}))


def used(api: Api) -> dict[str, str]:
    status: dict[str, dict[str, str]] = ok(api.call("GET", f"{QUOTAS}/q"))["status"]
    return status["used"]


def asking(name: str, amount: str, **spec: Any) -> dict[str, Any]:
    return pod(name, resources={"limits": {MEMORY: amount}}, **spec)


def test_usage_is_counted_and_given_back(api: Api) -> None:
    ok(api.call("POST", PODS, body=asking("early", "1Gi")))
    limit(api, gpu="8Gi", pods="5")
    assert used(api) == {f"requests.{MEMORY}": "1Gi", "pods": "1"}
    ok(api.call("POST", PODS, body=asking("a", "2Gi")))
    assert used(api) == {f"requests.{MEMORY}": "3Gi", "pods": "2"}
    ok(api.call("DELETE", f"{PODS}/early"))
    assert used(api) == {f"requests.{MEMORY}": "2Gi", "pods": "1"}
    ok(api.call("PATCH", f"{PODS}/a/status", body={"status": {"phase": "Succeeded"}}, content_type=MERGE))
    assert used(api) == {f"requests.{MEMORY}": "0", "pods": "0"}


def test_what_exceeds_a_quota_is_refused(api: Api) -> None:
    limit(api, gpu="8Gi")
    ok(api.call("POST", PODS, body=asking("a", "6Gi")))
    assert refusal(api.call("POST", PODS, body=asking("b", "3Gi"))) == (
        403,
        "Forbidden",
        f'pods "b" is forbidden: exceeded quota: q, requested: requests.{MEMORY}=3Gi, '
        f"used: requests.{MEMORY}=6Gi, limited: requests.{MEMORY}=8Gi",
    )
    assert used(api) == {f"requests.{MEMORY}": "6Gi"}


def test_a_quota_on_cpu_requires_a_cpu_request(api: Api) -> None:
    ok(api.call("POST", QUOTAS, body={"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "1"}}}))
    answer = refusal(api.call("POST", PODS, body=pod()))
    assert answer == (403, "Forbidden", 'pods "web" is forbidden: failed quota: q: must specify requests.cpu')
    create_pod(api, resources={"requests": {"cpu": "250m"}})
    assert used(api) == {"requests.cpu": "250m"}


def test_init_containers_count_as_the_largest_and_sidecars_as_containers(api: Api) -> None:
    limit(api, gpu="64Gi")

    def share(name: str, amount: str, **more: str) -> dict[str, Any]:
        return {"name": name, "image": "i", "resources": {"limits": {MEMORY: amount}}, **more}

    init = [share("side", "1Gi", restartPolicy="Always"), share("first", "2Gi"), share("second", "9Gi")]
    ok(api.call("POST", PODS, body=pod(initContainers=init, containers=[share("a", "3Gi"), share("b", "4Gi")])))
    assert used(api) == {f"requests.{MEMORY}": "10Gi"}


def test_a_dry_run_is_judged_and_not_counted(api: Api) -> None:
    limit(api, gpu="8Gi")
    ok(api.call("POST", PODS, query={"dryRun": "All"}, body=asking("a", "6Gi")))
    assert used(api) == {f"requests.{MEMORY}": "0"}
    assert refusal(api.call("POST", PODS, query={"dryRun": "All"}, body=asking("a", "9Gi")))[0] == 403


def test_concurrent_creators_never_exceed_a_quota(api: Api) -> None:
    limit(api, gpu="10Gi")

    def create(prefix: str) -> None:
        for i in range(10):
            api.call("POST", PODS, body=asking(f"{prefix}{i}", "1Gi"))

    threads = [threading.Thread(target=create, args=(prefix,), daemon=True) for prefix in ("a", "b", "c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(names(ok(api.call("GET", PODS)))) == 10
    assert used(api) == {f"requests.{MEMORY}": "10Gi"}


def test_objects_are_counted_by_kind(api: Api) -> None:
    ok(api.call("POST", QUOTAS, body={"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "1"}}}))
    maps = "/api/v1/namespaces/default/configmaps"
    ok(api.call("POST", maps, body={"metadata": {"name": "a"}}))
    assert used(api) == {"configmaps": "1"}
    assert refusal(api.call("POST", maps, body={"metadata": {"name": "b"}}))[0] == 403
