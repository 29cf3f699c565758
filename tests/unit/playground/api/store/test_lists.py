"""Lists: selectors, order, pages."""

import pytest

from playground.api.api import Api
from tests.unit.playground.api.manifests import EVERY_POD, PODS, create_pod, names, ok, pod, refusal

LABELS = {
    "an equality": ("app=web", ["a", "b"]),
    "a double equals sign": ("app==web", ["a", "b"]),
    "an inequality, which absence satisfies": ("app!=web", ["c", "d"]),
    "one of a set": ("app in (web, db)", ["a", "b", "c"]),
    "none of a set, which absence satisfies": ("app notin (web)", ["c", "d"]),
    "presence": ("app", ["a", "b", "c"]),
    "absence": ("!app", ["d"]),
    "two requirements": ("app=web,tier notin (front)", ["b"]),
    "more than a number": ("rank>5", ["b"]),
    "less than a number": ("rank<5", ["a"]),
    "everything": ("", ["a", "b", "c", "d"]),
}
FIELDS = {
    "a name": ("metadata.name=b", ["b"]),
    "not a name": ("metadata.name!=b", ["a", "c", "d"]),
    "a node": ("spec.nodeName=n1", ["d"]),
    "no node": ("spec.nodeName=", ["a", "b", "c"]),
    "a phase and a namespace": ("status.phase=Pending,metadata.namespace=default", ["a", "b", "c", "d"]),
}


@pytest.fixture
def pods(api: Api) -> Api:
    create_pod(api, name="c", labels={"app": "db"})
    create_pod(api, name="a", labels={"app": "web", "tier": "front", "rank": "3"})
    create_pod(api, name="b", labels={"app": "web", "rank": "7"})
    create_pod(api, name="d", nodeName="n1")
    return api


@pytest.mark.parametrize(("selector", "expected"), LABELS.values(), ids=LABELS.keys())
def test_label_selectors(pods: Api, selector: str, expected: list[str]) -> None:
    assert names(ok(pods.call("GET", PODS, query={"labelSelector": selector}))) == expected


@pytest.mark.parametrize(("selector", "expected"), FIELDS.values(), ids=FIELDS.keys())
def test_field_selectors(pods: Api, selector: str, expected: list[str]) -> None:
    assert names(ok(pods.call("GET", PODS, query={"fieldSelector": selector}))) == expected


@pytest.mark.parametrize("query", [{"labelSelector": "a in ("}, {"fieldSelector": "spec.priority=1"}])
def test_a_selector_that_means_nothing_is_400(pods: Api, query: dict[str, str]) -> None:
    assert refusal(pods.call("GET", PODS, query=query))[:2] == (400, "BadRequest")


def test_a_list_names_its_kind_and_its_version(pods: Api) -> None:
    listed = ok(pods.call("GET", EVERY_POD))
    assert (listed["kind"], listed["apiVersion"]) == ("PodList", "v1")
    newest = max(int(item["metadata"]["resourceVersion"]) for item in listed["items"])
    assert int(listed["metadata"]["resourceVersion"]) >= newest


def test_pages_add_up_to_the_list(pods: Api) -> None:
    seen, token = [], ""
    while True:
        page = ok(pods.call("GET", PODS, query={"limit": "3", "continue": token}))
        seen.append(names(page))
        token = page["metadata"].get("continue", "")
        if not token:
            break
    assert seen == [["a", "b", "c"], ["d"]]


def test_a_page_token_expires_with_the_history(pods: Api) -> None:
    page = ok(pods.call("GET", PODS, query={"limit": "1"}))
    assert page["metadata"]["remainingItemCount"] == 3
    create_pod(pods, name="e")
    pods.store.compact()
    token = page["metadata"]["continue"]
    assert refusal(pods.call("GET", PODS, query={"limit": "1", "continue": token}))[:2] == (410, "Expired")


def test_events_are_found_by_what_they_are_about(api: Api) -> None:
    path = "/api/v1/namespaces/default/events"
    for name in ("a", "b"):
        about = {"kind": "Pod", "namespace": "default", "name": name, "uid": f"uid-{name}"}
        ok(api.call("POST", path, body={"metadata": {"name": f"{name}.1"}, "involvedObject": about, "reason": "R"}))
    query = {"fieldSelector": "involvedObject.name=b,involvedObject.uid=uid-b"}
    assert names(ok(api.call("GET", path, query=query))) == ["b.1"]


def test_a_collection_is_deleted_by_selector(pods: Api) -> None:
    ok(pods.call("DELETE", PODS, query={"labelSelector": "app=web"}))
    assert names(ok(pods.call("GET", PODS))) == ["c", "d"]


def test_many_namespaces_in_one_list(pods: Api) -> None:
    ok(pods.call("POST", "/api/v1/namespaces/kube-system/pods", body=pod("z")))
    assert names(ok(pods.call("GET", EVERY_POD))) == ["a", "b", "c", "d", "z"]
    assert names(ok(pods.call("GET", PODS))) == ["a", "b", "c", "d"]
