"""A GPUNode in both of its versions: what one program writes in one version, another reads in the other."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground.programs import installing
from playground.waiting import wait_for
from runtime.kubernetes.transport import HttpRequest, Response, Transport
from tests.cluster.conformance.asking import JSON, MERGE, Answer, Api, Ask
from tests.unit.nodeagent.publishing.test_gpunode_definition import STATUS

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{DEFINITIONS}/gpunodes.gpufraction.io"
FIRST, SECOND = names.VERSION, names.NEXT_VERSION
BOTH_WAYS = pytest.mark.parametrize(("written", "read"), [(FIRST, SECOND), (SECOND, FIRST)])


def shipped() -> JSON:
    """The definition of this release."""
    found = [each for each in installing.shipped() if each["kind"] == "CustomResourceDefinition"]
    return copy.deepcopy(next(each for each in found if each["spec"]["names"]["kind"] == names.GPUNODE_KIND))


def former() -> JSON:
    """The definition of the previous release, which knows only the first version."""
    definition = shipped()
    definition["spec"]["versions"] = definition["spec"]["versions"][:1]
    return definition


def later() -> JSON:
    """The definition of a later release, which stores the second version."""
    definition = shipped()
    for version in definition["spec"]["versions"]:
        version["storage"] = version["name"] == SECOND
    return definition


def replace(api: Api, definition: JSON) -> Answer:
    """Replace the existing definition with this one, as `kubectl replace` does."""
    present = api.done(Ask("GET", DEFINITION))
    about = {**definition["metadata"], "resourceVersion": present["metadata"]["resourceVersion"]}
    return api.ask(Ask("PUT", DEFINITION, {**definition, "metadata": about}))


def define(api: Api, definition: JSON) -> None:
    """Replace the definition, and wait until exactly its versions are served."""
    answer = api.ask(Ask("POST", DEFINITIONS, definition))
    if answer.code == 409:
        answer = replace(api, definition)
    assert answer.code < 300, answer.message
    named = {version["name"] for version in definition["spec"]["versions"]}
    wait_for(
        lambda: {v for v in (FIRST, SECOND) if api.ask(Ask("GET", path(v))).code == 200} == named,
        f"not exactly {named} are served",
    )


def path(version: str, name: str = "", sub: str = "") -> str:
    return "/".join(filter(None, ("/apis/gpufraction.io", version, "gpunodes", name, sub)))


@pytest.fixture
def gpunodes(api: Api) -> Iterator[Api]:
    """The API server with our definition, which is restored for the next test."""
    define(api, shipped())
    yield api
    put_back(api)


def put_back(api: Api) -> None:
    define(api, shipped())
    api.done(Ask("PATCH", f"{DEFINITION}/status", {"status": {"storedVersions": [FIRST]}}, MERGE))


def made(api: Api, version: str, name: str) -> JSON:
    """A GPUNode with every field that the agent writes."""
    body = {"apiVersion": f"gpufraction.io/{version}", "kind": "GPUNode", "metadata": {"name": name}}
    api.done(Ask("POST", path(version), body))
    return api.done(Ask("PATCH", path(version, name, "status"), {"status": STATUS}, MERGE))


def without_version(found: JSON) -> JSON:
    return {key: value for key, value in found.items() if key != "apiVersion"}


def content(found: JSON) -> Any:
    """The content of an object without the API server's records about its writers."""
    return {k: v for k, v in found["metadata"].items() if k != "managedFields"}, found["status"]


def first_lines(response: Response, count: int) -> list[bytes]:
    """The first lines of a body that is still arriving."""
    text = b""
    for chunk in response.chunks():
        text += chunk
        if text.count(b"\n") >= count:
            break
    return text.splitlines()[:count]


@BOTH_WAYS
def test_what_one_version_writes_the_other_reads(gpunodes: Api, written: str, read: str) -> None:
    name = f"v-{written}"
    wrote = made(gpunodes, written, name)
    seen = gpunodes.done(Ask("GET", path(read, name)))
    assert (wrote["apiVersion"], seen["apiVersion"]) == (f"gpufraction.io/{written}", f"gpufraction.io/{read}")
    assert content(seen) == content(wrote)
    assert {key: seen["status"].get(key) for key in STATUS} == STATUS
    change = {"metadata": {"annotations": {names.BEYOND: "{}"}}}
    answered = gpunodes.done(Ask("PATCH", path(read, name), change, MERGE))
    answered = gpunodes.done(Ask("PATCH", path(read, name, "status"), {"status": {"driverVersion": "9"}}, MERGE))
    back = gpunodes.done(Ask("GET", path(written, name)))
    assert content(back) == content(answered)
    assert back["status"] == {**wrote["status"], "driverVersion": "9"}
    assert back["metadata"]["uid"] == wrote["metadata"]["uid"]
    gpunodes.done(Ask("DELETE", path(read, name)))
    assert gpunodes.ask(Ask("GET", path(written, name))).code == 404


@BOTH_WAYS
def test_a_list_and_a_watch_show_all_in_the_version_asked(
    gpunodes: Api, admin: Transport, written: str, read: str
) -> None:
    name = f"w-{written}"
    listed = gpunodes.done(Ask("GET", path(read)))
    since = listed["metadata"]["resourceVersion"]
    made(gpunodes, written, name)
    query = {"watch": "1", "resourceVersion": since, "fieldSelector": f"metadata.name={name}", "timeoutSeconds": "30"}
    response = admin.request(HttpRequest("GET", path(read), query, {"Accept": "application/json"}, None, 40.0))
    try:
        events = [json.loads(line) for line in first_lines(response, 2)]
    finally:
        response.close()
    assert [(each["type"], each["object"]["apiVersion"]) for each in events] == [
        ("ADDED", f"gpufraction.io/{read}"),
        ("MODIFIED", f"gpufraction.io/{read}"),
    ]
    assert {key: events[1]["object"]["status"].get(key) for key in STATUS} == STATUS
    items = gpunodes.done(Ask("GET", path(read)))["items"]
    assert {item["apiVersion"] for item in items} == {f"gpufraction.io/{read}"}


@BOTH_WAYS
def test_a_wrong_value_is_refused_in_each(gpunodes: Api, written: str, read: str) -> None:
    name = f"x-{written}"
    made(gpunodes, written, name)
    answer = gpunodes.ask(Ask("PATCH", path(read, name, "status"), {"status": {"cgroupMode": "v3"}}, MERGE))
    assert (answer.code, answer.body["reason"]) == (422, "Invalid")


def test_a_write_of_an_outdated_object_conflicts_across_versions(gpunodes: Api) -> None:
    stale = made(gpunodes, FIRST, "stale")
    gpunodes.done(Ask("PATCH", path(SECOND, "stale", "status"), {"status": {"driverVersion": "9"}}, MERGE))
    assert gpunodes.ask(Ask("PUT", path(FIRST, "stale", "status"), stale)).code == 409


def test_clients_that_choose_no_version_get_the_next(gpunodes: Api) -> None:
    group = gpunodes.done(Ask("GET", "/apis/gpufraction.io"))
    assert group["preferredVersion"]["version"] == SECOND


def test_a_rollback_to_the_first_version_keeps_every_object(gpunodes: Api) -> None:
    """What a program of the previous release finds, and what the next upgrade finds of what that program wrote."""
    before = made(gpunodes, SECOND, "rollback")
    define(gpunodes, former())
    assert content(gpunodes.done(Ask("GET", path(FIRST, "rollback")))) == content(before)
    wrote = gpunodes.done(Ask("PATCH", path(FIRST, "rollback", "status"), {"status": {"driverVersion": "8"}}, MERGE))
    define(gpunodes, shipped())
    assert content(gpunodes.done(Ask("GET", path(SECOND, "rollback")))) == content(wrote)


def test_the_stored_version_changes_and_goes_back(gpunodes: Api) -> None:
    """A later release stores the second version: a return to this release works, but not to the one before."""
    made(gpunodes, FIRST, "stored")
    define(gpunodes, later())
    wrote = gpunodes.done(Ask("PATCH", path(FIRST, "stored", "status"), {"status": {"driverVersion": "7"}}, MERGE))
    define(gpunodes, shipped())
    assert content(gpunodes.done(Ask("GET", path(FIRST, "stored")))) == content(wrote)
    status = gpunodes.done(Ask("GET", DEFINITION))["status"]
    assert sorted(status["storedVersions"]) == [FIRST, SECOND]
    answer = replace(gpunodes, former())
    assert answer.code == 422
    assert f"missing from spec.versions; {SECOND} was previously a storage version" in answer.message
    # Every GPUNode is written again within its heartbeat, and then in the version that is stored now.
    for item in gpunodes.done(Ask("GET", path(FIRST)))["items"]:
        name = item["metadata"]["name"]
        change = {"status": {"observedAt": "2026-01-01T00:00:00Z"}}
        gpunodes.done(Ask("PATCH", path(FIRST, name, "status"), change, MERGE))
    gpunodes.done(Ask("PATCH", f"{DEFINITION}/status", {"status": {"storedVersions": [FIRST]}}, MERGE))
    define(gpunodes, former())
    found = gpunodes.done(Ask("GET", path(FIRST, "stored")))
    assert found["status"] == {**wrote["status"], "observedAt": "2026-01-01T00:00:00Z"}
