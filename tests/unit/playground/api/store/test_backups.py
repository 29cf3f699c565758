"""A store's observer, and the return of a store to an earlier state."""

import itertools
import queue

import pytest

from playground.api.api import Api
from playground.api.kinds.values import JSON
from playground.api.store.store import Change, Store
from tests.unit.playground.api.manifests import EVERY_POD, MERGE, PODS, create_pod, names, ok, pod, refusal

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
THINGS = "/apis/example.com/v1/things"


def definition_of(plural: str) -> JSON:
    schema = {"openAPIV3Schema": {"type": "object"}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    spec = {"group": "example.com", "scope": "Cluster", "versions": [version]}
    named = {"plural": plural, "kind": "Thing", "singular": "thing"}
    return {"metadata": {"name": f"{plural}.example.com"}, "spec": {**spec, "names": named}}


def test_the_observer_gets_every_change_in_order() -> None:
    seen: list[Change] = []
    api = Api(observer=seen.append)
    assert [change.revision for change in seen] == list(range(1, api.store.revision + 1))
    seen.clear()
    create_pod(api)
    ok(api.call("PATCH", f"{PODS}/web", body={"metadata": {"labels": {"a": "b"}}}, content_type=MERGE))
    ok(api.call("DELETE", f"{PODS}/web"))
    assert [(change.type, change.object["metadata"]["name"]) for change in seen] == [
        ("ADDED", "web"),
        ("MODIFIED", "web"),
        ("MODIFIED", "web"),
        ("DELETED", "web"),
    ]


def test_the_observer_is_told_before_the_watchers() -> None:
    def check(_: Change) -> None:
        with pytest.raises(queue.Empty):
            subscription.get(0)

    store = Store(committed=check)
    subscription, _, _ = store.subscribe("things", None)
    store.create("things", ("", "a"), {"metadata": {"name": "a"}})
    assert subscription.get(0) is not None


def test_a_restored_store_has_what_it_had(api: Api) -> None:
    made = create_pod(api, name="kept")
    state = api.store.snapshot()
    create_pod(api, name="later")
    ok(api.call("PATCH", f"{PODS}/kept", body={"metadata": {"labels": {"a": "b"}}}, content_type=MERGE))
    for _ in range(2):  # a backup can be used again
        api.store.restore(state)
        assert (api.store.revision, ok(api.call("GET", f"{PODS}/kept"))) == (state.revision, made)
        assert names(ok(api.call("GET", PODS))) == ["kept"]
        ok(api.call("DELETE", f"{PODS}/kept"))


def test_restoring_gives_versions_out_again(api: Api) -> None:
    state = api.store.snapshot()
    before = create_pod(api)["metadata"]["resourceVersion"]
    api.store.restore(state)
    assert create_pod(api)["metadata"]["resourceVersion"] == before


def test_restoring_finds_owners_and_uids_again(api: Api) -> None:
    owner = create_pod(api, name="owner")["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": owner}
    path = "/api/v1/namespaces/default/configmaps"
    ok(api.call("POST", path, body={"metadata": {"name": "owned", "ownerReferences": [reference]}}))
    state = api.store.snapshot()
    ok(api.call("DELETE", f"{path}/owned"))
    newer = create_pod(api, name="newer")["metadata"]["uid"]
    api.store.restore(state)
    assert api.store.dependents(owner) == [("configmaps", ("default", "owned"))]
    assert (api.store.has_uid(owner), api.store.has_uid(newer)) == (True, False)


def test_restoring_ends_every_watch(api: Api) -> None:
    watches = [api.watch(EVERY_POD), api.watch("/api/v1/configmaps")]
    api.store.restore(api.store.snapshot())
    assert [list(watch) for watch in watches] == [[], []]


def test_a_restored_store_knows_no_history(api: Api) -> None:
    create_pod(api)
    api.store.restore(api.store.snapshot())
    (event,) = list(api.watch(EVERY_POD, query={"resourceVersion": str(api.store.revision - 1)}))
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_watch_that_knows_more_than_the_backup_misses_what_is_done_again(api: Api) -> None:
    """This is why a backup is restored with a higher revision."""
    state = api.store.snapshot()
    create_pod(api, name="before")
    newest = str(api.store.revision)
    api.store.restore(state)
    watch = api.watch(EVERY_POD, query={"resourceVersion": newest})
    create_pod(api, name="missed")
    create_pod(api, name="seen")
    assert [event["object"]["metadata"]["name"] for event in itertools.islice(watch, 1)] == ["seen"]


def test_a_restored_store_with_a_higher_revision_ends_what_clients_know(api: Api) -> None:
    state = api.store.snapshot()
    create_pod(api)
    newest = api.store.revision
    api.store.restore(state, bump=1000)
    (event,) = list(api.watch(EVERY_POD, query={"resourceVersion": str(newest)}))
    assert (event["object"]["code"], api.store.revision) == (410, state.revision + 1000)


def test_a_restored_cluster_serves_what_it_served(api: Api) -> None:
    before = api.store.snapshot()
    definition = ok(api.call("POST", DEFINITIONS, body=definition_of("things")))
    ok(api.call("POST", THINGS, body={"metadata": {"name": "a"}}))
    after = api.store.snapshot()
    api.restore(before)
    assert api.call("GET", THINGS)[0] == 404
    api.restore(after)
    assert names(ok(api.call("GET", THINGS))) == ["a"]
    assert ok(api.call("GET", f"{DEFINITIONS}/things.example.com"))["metadata"]["uid"] == definition["metadata"]["uid"]


def test_a_restored_cluster_counts_what_it_has(api: Api) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    ok(api.call("POST", "/api/v1/namespaces/default/resourcequotas", body=quota))
    empty = api.store.snapshot()
    create_pod(api, name="a")
    full = api.store.snapshot()
    api.restore(empty)
    create_pod(api, name="b")
    api.restore(full)
    assert refusal(api.call("POST", PODS, body=pod("c")))[0] == 403
    assert api.store.revision == full.revision  # no write is needed to count again


@pytest.mark.parametrize("path", [EVERY_POD, f"{PODS}/web"])
def test_a_read_that_names_a_version_to_come_is_504(api: Api, path: str) -> None:
    create_pod(api)
    future = str(api.store.revision + 1)
    code, reason, message = refusal(api.call("GET", path, query={"resourceVersion": future}))
    assert (code, reason) == (504, "Timeout")
    assert message == f"Timeout: Too large resource version: {future}, current: {api.store.revision}"
    assert refusal(api.call("GET", path, query={"resourceVersion": "x"}))[:2] == (400, "BadRequest")
    assert api.call("GET", path, query={"resourceVersion": str(api.store.revision)})[0] == 200
