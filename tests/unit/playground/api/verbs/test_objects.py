"""Create, read, update: the life of an object before it is deleted."""

from playground.api.api import Api
from tests.unit.playground.api.conftest import Clock
from tests.unit.playground.api.manifests import MERGE, PODS, create_pod, deployment, names, ok, pod, refusal

MAPS = "/api/v1/namespaces/default/configmaps"


def test_a_created_object_has_identity_and_time(api: Api, clock: Clock) -> None:
    made = create_pod(api)
    meta = made["metadata"]
    assert (meta["name"], meta["namespace"], meta["creationTimestamp"]) == ("web", "default", "2023-11-14T22:13:20Z")
    assert len(meta["uid"]) == 36
    assert ok(api.call("GET", f"{PODS}/web")) == made


def test_what_the_caller_does_with_its_copies_changes_nothing(api: Api) -> None:
    body = pod()
    made = ok(api.call("POST", PODS, body=body))
    body["spec"]["containers"][0]["image"] = made["spec"]["containers"][0]["image"] = "other"
    assert ok(api.call("GET", f"{PODS}/web"))["spec"]["containers"][0]["image"] == "example.com/app:1"


def test_a_pod_gets_its_defaults_and_its_first_status(api: Api) -> None:
    made = create_pod(api, resources={"limits": {"cpu": "1", "example.com/gpu": 2}})
    spec, container = made["spec"], made["spec"]["containers"][0]
    assert {key: spec[key] for key in ("restartPolicy", "dnsPolicy", "schedulerName", "serviceAccountName")} == {
        "restartPolicy": "Always",
        "dnsPolicy": "ClusterFirst",
        "schedulerName": "default-scheduler",
        "serviceAccountName": "default",
    }
    assert container["resources"] == {
        "limits": {"cpu": "1", "example.com/gpu": "2"},
        "requests": {"cpu": "1", "example.com/gpu": "2"},
    }
    assert made["status"] == {"phase": "Pending", "qosClass": "Burstable"}


def test_a_name_is_generated_where_only_a_prefix_is_given(api: Api) -> None:
    body = pod()
    body["metadata"] = {"generateName": "job-"}
    first, second = (ok(api.call("POST", PODS, body=body))["metadata"]["name"] for _ in range(2))
    assert first.startswith("job-")
    assert len(first) == len("job-") + 5
    assert first != second


def test_a_name_is_taken_once(api: Api) -> None:
    create_pod(api)
    answer = refusal(api.call("POST", PODS, body=pod()))
    assert answer == (409, "AlreadyExists", 'pods "web" already exists')


def test_a_missing_object_and_a_missing_namespace_are_404(api: Api) -> None:
    assert refusal(api.call("GET", f"{PODS}/none")) == (404, "NotFound", 'pods "none" not found')
    answer = refusal(api.call("POST", "/api/v1/namespaces/none/pods", body=pod()))
    assert answer == (404, "NotFound", 'namespaces "none" not found')
    gone = refusal(api.call("GET", "/apis/apps/v1/namespaces/default/deployments/none"))
    assert gone == (404, "NotFound", 'deployments.apps "none" not found')


def test_an_unknown_path_and_a_method_that_is_not_served(api: Api) -> None:
    assert refusal(api.call("GET", "/apis/none.example.com/v1/things"))[0] == 404
    assert refusal(api.call("PUT", PODS, body=pod()))[0] == 405


def test_an_update_needs_the_version_it_was_made_from(api: Api) -> None:
    made = ok(api.call("POST", MAPS, body={"metadata": {"name": "m"}, "data": {"a": "1"}}))
    changed = ok(api.call("PUT", f"{MAPS}/m", body={**made, "data": {"a": "2"}}))
    assert changed["data"] == {"a": "2"}
    code, reason, message = refusal(api.call("PUT", f"{MAPS}/m", body={**made, "data": {"a": "3"}}))
    assert (code, reason) == (409, "Conflict")
    assert message == (
        'Operation cannot be fulfilled on configmaps "m": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


def test_an_update_without_a_version_overwrites(api: Api) -> None:
    ok(api.call("POST", MAPS, body={"metadata": {"name": "m"}, "data": {"a": "1"}}))
    assert ok(api.call("PUT", f"{MAPS}/m", body={"metadata": {"name": "m"}, "data": {"b": "2"}}))["data"] == {"b": "2"}


def test_an_update_that_changes_nothing_makes_no_new_version(api: Api) -> None:
    made = ok(api.call("POST", MAPS, body={"metadata": {"name": "m"}, "data": {"a": "1"}}))
    assert ok(api.call("PUT", f"{MAPS}/m", body=made)) == made


def test_a_patch_may_carry_a_version_precondition(api: Api) -> None:
    made = create_pod(api)
    old = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"], "labels": {"a": "b"}}}
    ok(api.call("PATCH", f"{PODS}/web", body=old, content_type=MERGE))
    assert refusal(api.call("PATCH", f"{PODS}/web", body=old, content_type=MERGE))[:2] == (409, "Conflict")


def test_status_and_spec_are_written_through_their_own_paths(api: Api) -> None:
    root = "/apis/apps/v1/namespaces/default/deployments"
    made = ok(api.call("POST", root, body={**deployment(), "status": {"replicas": 7}}))
    assert (made["status"], made["metadata"]["generation"]) == ({}, 1)
    body = {**made, "status": {"replicas": 1}, "spec": {**made["spec"], "replicas": 5}}
    by_status = ok(api.call("PUT", f"{root}/web/status", body=body))
    assert (by_status["status"], by_status["spec"]["replicas"]) == ({"replicas": 1}, 2)
    assert by_status["metadata"]["generation"] == 1
    patch = {"spec": {"replicas": 3}, "status": {"replicas": 9}}
    by_main = ok(api.call("PATCH", f"{root}/web", body=patch, content_type=MERGE))
    assert (by_main["status"], by_main["spec"]["replicas"]) == ({"replicas": 1}, 3)
    assert by_main["metadata"]["generation"] == 2


def test_a_dry_run_shows_the_result_and_stores_nothing(api: Api) -> None:
    shown = ok(api.call("POST", PODS, query={"dryRun": "All"}, body=pod()))
    assert (shown["metadata"]["name"], "resourceVersion" in shown["metadata"]) == ("web", False)
    assert refusal(api.call("GET", f"{PODS}/web"))[0] == 404
    create_pod(api)
    query = {"dryRun": "All"}
    patch = {"metadata": {"labels": {"a": "b"}}}
    assert ok(api.call("PATCH", f"{PODS}/web", query=query, body=patch, content_type=MERGE))["metadata"]["labels"]
    ok(api.call("DELETE", f"{PODS}/web", query=query))
    assert "labels" not in ok(api.call("GET", f"{PODS}/web"))["metadata"]


def test_a_body_that_disagrees_with_its_path_is_400(api: Api) -> None:
    elsewhere = pod()
    elsewhere["metadata"]["namespace"] = "kube-system"
    assert refusal(api.call("POST", PODS, body=elsewhere))[0] == 400
    assert refusal(api.call("POST", PODS, body={**pod(), "kind": "Node"}))[0] == 400
    assert refusal(api.call("POST", PODS, body=[1]))[0] == 400


def test_secret_text_is_stored_encoded(api: Api) -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"key": "value"}}
    made = ok(api.call("POST", "/api/v1/namespaces/default/secrets", body=body))
    assert (made["data"], made["type"], "stringData" in made) == ({"key": "dmFsdWU="}, "Opaque", False)


def test_every_namespace_has_its_default_service_account(api: Api) -> None:
    made = ok(api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": "team"}}))
    assert made["status"] == {"phase": "Active"}
    assert made["metadata"]["labels"] == {"kubernetes.io/metadata.name": "team"}
    assert names(ok(api.call("GET", "/api/v1/namespaces/team/serviceaccounts"))) == ["default"]
