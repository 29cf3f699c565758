"""Watches: order, resumption, views, bookmarks, the end of history."""

import itertools
import threading

import pytest

from playground.api.api import Api, ApiError, Watch
from tests.unit.playground.api.manifests import EVERY_POD, MERGE, PODS, create_pod, names, ok, pod


def take(watch: Watch, count: int) -> list[tuple[str, str]]:
    """Type and name of the next events."""
    return [(event["type"], event["object"]["metadata"]["name"]) for event in itertools.islice(watch, count)]


def label(api: Api, name: str, **labels: str | None) -> None:
    ok(api.call("PATCH", f"{PODS}/{name}", body={"metadata": {"labels": labels}}, content_type=MERGE))


def test_a_watch_from_a_version_tells_all_that_came_after(api: Api) -> None:
    create_pod(api, name="before")
    version = ok(api.call("GET", EVERY_POD))["metadata"]["resourceVersion"]
    create_pod(api, name="a")
    watch = api.watch(EVERY_POD, query={"resourceVersion": version})
    label(api, "a", app="web")
    ok(api.call("DELETE", f"{PODS}/a"))
    assert take(watch, 4) == [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


def test_a_watch_without_a_version_begins_with_what_is_there(api: Api) -> None:
    create_pod(api, name="b")
    create_pod(api, name="a")
    assert take(api.watch(EVERY_POD), 2) == [("ADDED", "a"), ("ADDED", "b")]


def test_a_deleted_event_carries_the_version_of_the_deletion(api: Api) -> None:
    made = create_pod(api)
    watch = api.watch(PODS, query={"resourceVersion": made["metadata"]["resourceVersion"]})
    ok(api.call("DELETE", f"{PODS}/web"))
    marked, deleted = itertools.islice(watch, 2)
    versions = [int(each["metadata"]["resourceVersion"]) for each in (made, marked["object"], deleted["object"])]
    assert (marked["type"], deleted["type"]) == ("MODIFIED", "DELETED")
    assert versions == sorted(set(versions))


def test_objects_move_in_and_out_of_a_selectors_view(api: Api) -> None:
    watch = api.watch(EVERY_POD, query={"labelSelector": "app=web"})
    create_pod(api, name="other", labels={"app": "db"})
    create_pod(api, name="a")
    label(api, "a", app="web")
    label(api, "a", tier="front")
    label(api, "a", app=None)
    create_pod(api, name="z", labels={"app": "web"})
    assert take(watch, 4) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "z")]


def test_a_namespace_sees_only_its_own(api: Api) -> None:
    watch = api.watch("/api/v1/namespaces/kube-system/pods")
    create_pod(api)
    ok(api.call("POST", "/api/v1/namespaces/kube-system/pods", body=pod("dns")))
    assert take(watch, 1) == [("ADDED", "dns")]


def test_a_version_that_history_forgot_is_an_error_event(api: Api) -> None:
    create_pod(api)
    version = api.store.revision - 1
    oldest = api.store.compact()
    (event,) = list(api.watch(EVERY_POD, query={"resourceVersion": str(version)}))
    assert (event["type"], event["object"]["code"], event["object"]["reason"]) == ("ERROR", 410, "Expired")
    assert event["object"]["message"] == f"too old resource version: {version} ({oldest})"


def test_a_watch_from_the_compacted_version_itself_goes_on(api: Api) -> None:
    version = str(api.store.compact())
    watch = api.watch(EVERY_POD, query={"resourceVersion": version})
    create_pod(api)
    assert take(watch, 1) == [("ADDED", "web")]


def test_a_version_that_is_no_number_is_refused(api: Api) -> None:
    with pytest.raises(ApiError) as refused:
        api.watch(EVERY_POD, query={"resourceVersion": "x"})
    assert refused.value.code == 400


def test_a_bookmark_names_a_version_to_resume_from(api: Api) -> None:
    watch = api.watch(EVERY_POD, query={"allowWatchBookmarks": "true"})
    ok(api.call("POST", "/api/v1/namespaces/default/configmaps", body={"metadata": {"name": "m"}}))
    api.store.nudge()
    event = next(iter(watch))
    bookmark = event["object"]
    assert (event["type"], bookmark["kind"], bookmark["metadata"]["resourceVersion"]) == (
        "BOOKMARK",
        "Pod",
        str(api.store.revision),
    )


def test_bookmarks_come_only_to_those_that_allow_them(api: Api) -> None:
    watch = api.watch(EVERY_POD)
    api.store.nudge()
    create_pod(api)
    assert take(watch, 1) == [("ADDED", "web")]


def test_the_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    create_pod(api)
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    events = iter(api.watch(EVERY_POD, query=query))
    first, second = next(events), next(events)
    assert (first["type"], second["type"]) == ("ADDED", "BOOKMARK")
    assert second["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_closing_from_another_thread_ends_the_iteration(api: Api) -> None:
    watch = api.watch(EVERY_POD)
    seen: list[str] = []
    reader = threading.Thread(target=lambda: seen.extend(event["type"] for event in watch), daemon=True)
    reader.start()
    create_pod(api)
    watch.close()
    reader.join(timeout=5)
    assert (reader.is_alive(), seen) == (False, ["ADDED"])


def test_the_server_ends_a_watch_at_its_time_limit(api: Api) -> None:
    create_pod(api)
    assert [event["type"] for event in api.watch(EVERY_POD, query={"timeoutSeconds": "0.01"})] == ["ADDED"]


def test_a_list_and_its_watch_leave_no_gap_under_concurrent_writers(api: Api) -> None:
    def write(prefix: str) -> None:
        for i in range(50):
            create_pod(api, name=f"{prefix}{i}")

    writers = [threading.Thread(target=write, args=(prefix,), daemon=True) for prefix in ("a", "b", "c")]
    for writer in writers:
        writer.start()
    listed = ok(api.call("GET", EVERY_POD))
    watch = api.watch(EVERY_POD, query={"resourceVersion": listed["metadata"]["resourceVersion"]})
    for writer in writers:
        writer.join(timeout=30)
    rest = take(watch, 150 - len(listed["items"])) if len(listed["items"]) < 150 else []
    assert sorted([*names(listed), *(name for _, name in rest)]) == sorted(f"{p}{i}" for p in "abc" for i in range(50))


def test_a_watch_ends_by_the_clock_it_is_given() -> None:
    now = itertools.count(start=0, step=10)
    api = Api(monotonic=lambda: float(next(now)))
    assert list(api.watch(EVERY_POD, query={"timeoutSeconds": "5"})) == []


def test_an_idle_watch_gets_a_bookmark_each_minute_of_that_clock() -> None:
    moments = iter([0.0, 0.0, 59.99, 61.0, 300.0])
    api = Api(monotonic=lambda: next(moments))
    query = {"timeoutSeconds": "61.01", "allowWatchBookmarks": "true"}
    assert [event["type"] for event in api.watch(EVERY_POD, query=query)] == ["BOOKMARK", "BOOKMARK"]


def test_initial_events_are_not_older_than_the_version_that_the_client_names(api: Api) -> None:
    future = api.store.revision + 7
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "resourceVersion": str(future)}
    (event,) = list(api.watch(EVERY_POD, query=query))
    status = event["object"]
    assert (event["type"], status["code"], status["reason"]) == ("ERROR", 504, "Timeout")
    assert status["message"] == f"Timeout: Too large resource version: {future}, current: {api.store.revision}"


def test_a_watch_from_a_version_to_come_is_silent_until_then(api: Api) -> None:
    """As on a real API server, which filters by version and refuses nothing."""
    query = {"resourceVersion": str(api.store.revision + 1), "allowWatchBookmarks": "true"}
    watch = api.watch(EVERY_POD, query=query)
    api.store.nudge()
    create_pod(api, name="missed")
    create_pod(api, name="seen")
    assert take(watch, 1) == [("ADDED", "seen")]
