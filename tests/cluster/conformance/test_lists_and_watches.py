"""Paged lists, watches and how they end, and the tables that kubectl prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeGone
from runtime.kubernetes.transport import HttpRequest, Transport
from tests.cluster.conformance.asking import JSON, STRATEGIC, Api, Ask, Case, check, create, gated, get, merge, pod
from tests.cluster.conformance.conftest import Server
from tests.clusters import forget_history

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
LISTS = {
    "a field that cannot be selected by": Case(
        Ask("GET", "pods", query={"fieldSelector": "spec.image=x"}),
        400,
        "BadRequest",
        ("field label not supported: spec.image",),
    ),
    "a label selector that is none": Case(
        Ask("GET", "pods", query={"labelSelector": "a===b,("}), 400, "BadRequest", ("unable to parse requirement",)
    ),
    "a token that is none": Case(
        Ask("GET", "pods", query={"limit": "2", "continue": "zz"}), 400, "BadRequest", ("continue key is not valid",)
    ),
    "a version that is still to come": Case(
        Ask("GET", "pods", query={"resourceVersion": "999999999"}),
        504,
        "Timeout",
        ("Too large resource version: 999999999, current: ",),
    ),
    "a namespace that is not there": Case(
        Ask("GET", "/api/v1/namespaces/nowhere/pods"), 200, shows={"kind": "PodList", "items": []}
    ),
    "a resource that is not there": Case(
        Ask("GET", "/api/v1/nothing"), 404, "NotFound", ("the server could not find the requested resource",)
    ),
    "a method that is not there": Case(
        Ask("PATCH", "pods", {}, STRATEGIC), 405, "MethodNotAllowed", ("does not allow this method",)
    ),
    "an eviction": Case(
        Ask("POST", "pods/p/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}),
        201,
        given=(create(gated("p")),),
        shows={"status": "Success"},
    ),
}


def test_an_eviction_that_is_a_dry_run_leaves_the_pod(api: Api) -> None:
    api.done(create(gated("p")))
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    assert api.done(Ask("POST", "pods/p/eviction", body, query={"dryRun": "All"}))["status"] == "Success"
    assert "deletionTimestamp" not in api.done(Ask("GET", "pods/p"))["metadata"]


@pytest.mark.parametrize("case", LISTS.values(), ids=LISTS.keys())
def test_the_answer(api: Api, case: Case) -> None:
    check(api, case)


def test_pages_are_of_one_version(api: Api) -> None:
    for number in range(5):
        api.done(create(gated(f"p{number}")))
    first = api.done(Ask("GET", "pods", query={"limit": "2"}))
    api.done(create(gated("p9")))
    token = first["metadata"]["continue"]
    second = api.done(Ask("GET", "pods", query={"limit": "9", "continue": token}))
    names = [item["metadata"]["name"] for page in (first, second) for item in page["items"]]
    assert (names, first["metadata"]["remainingItemCount"]) == ([f"p{n}" for n in range(5)], 3)
    assert first["metadata"]["resourceVersion"] == second["metadata"]["resourceVersion"]


def watched(admin: Transport, api: Api, since: str, until: Callable[[JSON], bool], **query: str) -> list[JSON]:
    """The events after `since`, up to the one that is the last of interest."""
    seen = []
    path = f"/api/v1/namespaces/{api.namespace}/pods"
    for event in Kube(admin).watch(path, resource_version=since, query=query, timeout_seconds=15):
        seen.append(event)
        if until(event):
            break
    return seen


def summary(events: list[JSON]) -> list[tuple[str, Any]]:
    return [(event["type"], event["object"]["metadata"].get("name")) for event in events if event["type"] != "BOOKMARK"]


def test_a_watch_tells_what_happened_since(admin: Transport, api: Api) -> None:
    since = api.done(Ask("GET", "pods"))["metadata"]["resourceVersion"]
    made = api.done(create(gated("p")))
    changed = api.done(merge("p", {"metadata": {"labels": {"a": "b"}}}))
    api.done(Ask("DELETE", "pods/p", query={"gracePeriodSeconds": "0"}))
    events = watched(admin, api, since, lambda event: event["type"] == "DELETED")
    # The deletion itself is two changes: the request, and the removal.
    assert summary(events) == [("ADDED", "p"), ("MODIFIED", "p"), ("MODIFIED", "p"), ("DELETED", "p")]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
    assert versions[:2] == [int(each["metadata"]["resourceVersion"]) for each in (made, changed)]
    assert versions == sorted(set(versions))
    assert events[3]["object"]["metadata"]["labels"] == {"a": "b"}


def test_an_object_that_stops_matching_is_deleted_for_the_watcher(admin: Transport, api: Api) -> None:
    body = gated("p")
    body["metadata"]["labels"] = {"k": "v"}
    since = api.done(Ask("GET", "pods"))["metadata"]["resourceVersion"]
    api.done(create(gated("other")))
    api.done(create(body))
    api.done(merge("p", {"metadata": {"labels": {"k": "w"}}}))
    events = watched(admin, api, since, lambda event: event["type"] == "DELETED", labelSelector="k=v")
    assert summary(events) == [("ADDED", "p"), ("DELETED", "p")]
    assert api.ask(get("p")).code == 200


def test_a_watch_from_nowhere_begins_with_what_is_there(admin: Transport, api: Api) -> None:
    api.done(create(gated("p")))
    api.done(create(gated("q")))
    events = watched(admin, api, "", lambda event: event["object"]["metadata"].get("name") == "q")
    assert summary(events) == [("ADDED", "p"), ("ADDED", "q")]


def test_a_table_has_kubectls_columns(api: Api, admin: Transport) -> None:
    api.done(create(gated("p")))
    path = f"/api/v1/namespaces/{api.namespace}/pods"
    response = admin.request(HttpRequest("GET", path, {}, {"Accept": TABLE}, None, 10.0))
    table = json.loads(response.read())
    columns = [(column["name"], column["type"], column["priority"]) for column in table["columnDefinitions"]]
    (row,) = table["rows"]
    wide = ("IP", "Node", "Nominated Node", "Readiness Gates")
    narrow = ("Name", "Ready", "Status", "Restarts", "Age")
    assert columns == [(n, "string", 0) for n in narrow] + [(n, "string", 1) for n in wide]
    cells = [cell for n, cell in enumerate(row["cells"]) if n != 4]
    assert cells == ["p", "0/1", "SchedulingGated", "0", *["<none>"] * 4]
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "p")


STATUSES = {
    "bound": ({"nodeName": "ghost"}, {}, "Pending"),
    "refused by its node": (
        {"nodeName": "ghost"},
        {"phase": "Failed", "reason": "OutOfgpufraction.io/gpu-memory"},
        "OutOfgpufraction.io/gpu-memory",
    ),
    "running": (
        {"nodeName": "ghost"},
        {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [
                {"name": "c", "ready": True, "restartCount": 0, "image": "x", "imageID": "", "state": {"running": {}}}
            ],
        },
        "Running",
    ),
}


@pytest.mark.parametrize("case", STATUSES.values(), ids=STATUSES.keys())
def test_a_tables_status(api: Api, admin: Transport, case: tuple[JSON, JSON, str]) -> None:
    spec, status, shown = case
    api.done(create(pod("p", **spec)))
    if status:
        api.done(Ask("PATCH", "pods/p/status", {"status": status}, STRATEGIC))
    path = f"/api/v1/namespaces/{api.namespace}/pods"
    response = admin.request(HttpRequest("GET", path, {}, {"Accept": TABLE}, None, 10.0))
    (row,) = json.loads(response.read())["rows"]
    assert row["cells"][2] == shown


def refused(admin: Transport, api: Api, since: str) -> tuple[int, str]:
    """Why a watch cannot start there. The error comes at once or as the first event; clients must handle both."""
    try:
        (event,) = watched(admin, api, since, lambda event: event["type"] == "ERROR")
    except KubeGone as gone:
        return gone.status, gone.reason
    return event["object"]["code"], event["object"]["reason"]


def test_a_watch_from_before_the_history_has_expired(server: Server, admin: Transport, api: Api) -> None:
    since = api.done(Ask("GET", "pods"))["metadata"]["resourceVersion"]
    api.done(create(gated("p")))
    forget_history(server.plane)
    assert refused(admin, api, since) == (410, "Expired")
    assert api.ask(get("p")).code == 200
