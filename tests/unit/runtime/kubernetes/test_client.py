"""What the client sends, and how it reads the answers."""

from __future__ import annotations

import json

import pytest

from runtime.kubernetes.client import (
    Kube,
    KubeConflict,
    KubeError,
    KubeForbidden,
    KubeInvalid,
    KubeMalformed,
    KubeNotFound,
    KubeTimeout,
    KubeTooManyRequests,
    KubeUnavailable,
    Listing,
)
from runtime.kubernetes.errors import KubeConnectionLost, KubeGone, KubeUnauthorized
from runtime.kubernetes.paths import gpunodes, leases, nodes, path, pods, secrets
from tests.unit.runtime.scripted import line
from tests.wires import Answer, Script, Sent, status_body

PATHS = {
    "all pods": (pods(), "/api/v1/pods"),
    "a namespace's pods": (pods("ns"), "/api/v1/namespaces/ns/pods"),
    "a pod's eviction": (pods("ns", "p", "eviction"), "/api/v1/namespaces/ns/pods/p/eviction"),
    "a node's status": (nodes("n", "status"), "/api/v1/nodes/n/status"),
    "our own kind": (gpunodes("n"), "/apis/gpufraction.io/v1alpha1/gpunodes/n"),
    "a lease": (leases("ns", "l"), "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"),
}


@pytest.mark.parametrize(("got", "want"), PATHS.values(), ids=PATHS.keys())
def test_path(got: str, want: str) -> None:
    assert got == want


def test_a_subresource_needs_a_name() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        path("v1", "pods", "ns", sub="status")


CALLS = {
    "get": (lambda kube: kube.get("/x", {"a": True}), Sent("GET", "/x", {"a": "true"}, None, None, 3, False)),
    "create": (
        lambda kube: kube.create("/x", {"k": 1}, {"dryRun": "All"}),
        Sent("POST", "/x", {"dryRun": "All"}, "application/json", {"k": 1}, 3, False),
    ),
    "replace": (
        lambda kube: kube.replace("/x", {"k": 1}),
        Sent("PUT", "/x", {}, "application/json", {"k": 1}, 3, False),
    ),
    "delete without options": (
        lambda kube: kube.delete("/x"),
        Sent("DELETE", "/x", {}, None, None, 3, False),
    ),
    "delete with options": (
        lambda kube: kube.delete("/x", {"gracePeriodSeconds": 0}, timeout=1),
        Sent("DELETE", "/x", {}, "application/json", {"gracePeriodSeconds": 0}, 1, False),
    ),
    "JSON patch": (
        lambda kube: kube.patch_json("/x", [{"op": "remove", "path": "/a"}]),
        Sent("PATCH", "/x", {}, "application/json-patch+json", [{"op": "remove", "path": "/a"}], 3, False),
    ),
    "merge patch": (
        lambda kube: kube.patch_merge("/x", {"a": None}),
        Sent("PATCH", "/x", {}, "application/merge-patch+json", {"a": None}, 3, False),
    ),
    "strategic patch": (
        lambda kube: kube.patch_strategic("/x", {"a": 1}, {"fieldManager": "m"}),
        Sent("PATCH", "/x", {"fieldManager": "m"}, "application/strategic-merge-patch+json", {"a": 1}, 3, False),
    ),
}


@pytest.mark.parametrize(("call", "want"), CALLS.values(), ids=CALLS.keys())
def test_request(call, want: Sent) -> None:  # type: ignore[no-untyped-def]  # a lambda of the table
    script = Script(Answer(body={"kind": "Pod"}))
    assert call(Kube(script, timeout=3)) == {"kind": "Pod"}
    assert script.sent == [want]


REFUSALS = {
    400: KubeInvalid,
    401: KubeUnauthorized,
    403: KubeForbidden,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeGone,
    422: KubeInvalid,
    429: KubeTooManyRequests,
    500: KubeUnavailable,
    503: KubeUnavailable,
    504: KubeTimeout,
    302: KubeMalformed,
}


@pytest.mark.parametrize(("code", "kind"), REFUSALS.items())
def test_each_status_has_its_type(code: int, kind: type[KubeError]) -> None:
    with pytest.raises(KubeError) as caught:
        Kube(Script(Answer(code, status_body(code, "Because", "the text")))).create("/x", {})
    assert (type(caught.value), caught.value.status, caught.value.reason) == (kind, code, "Because")
    assert str(caught.value) == f"POST /x: {code} Because: the text"


@pytest.mark.parametrize(("code", "unknown"), [(409, False), (500, True), (502, True), (503, False), (504, True)])
def test_an_error_says_whether_a_write_may_have_happened(code: int, unknown: bool) -> None:
    with pytest.raises(KubeError) as caught:
        Kube(Script(Answer(code, b"<html>proxy</html>"))).create("/x", {})
    assert caught.value.outcome_unknown is unknown


def test_a_body_that_is_no_status_is_not_quoted() -> None:
    with pytest.raises(KubeUnavailable) as caught:
        Kube(Script(Answer(502, b"<html>token=abc</html>"))).get("/x")
    assert str(caught.value) == "GET /x: 502"


def test_a_long_message_is_cut_to_one_line() -> None:
    with pytest.raises(KubeForbidden) as caught:
        Kube(Script(Answer(403, status_body(403, "", "a\n" * 1000)))).get("/x")
    assert len(str(caught.value)) == len("GET /x: 403: ") + 256
    assert "\n" not in str(caught.value)


def test_a_secrets_message_is_withheld() -> None:
    refusal = Answer(422, status_body(422, "Invalid", 'data[k]: Invalid value: "hunter2"'))
    with pytest.raises(KubeInvalid) as caught:
        Kube(Script(refusal)).replace(secrets("ns", "s"), {})
    assert str(caught.value) == "PUT /api/v1/namespaces/ns/secrets/s: 422 Invalid: message withheld"


def test_a_taken_name_differs_from_a_moved_version() -> None:
    for reason, taken in (("AlreadyExists", True), ("Conflict", False)):
        with pytest.raises(KubeConflict) as caught:
            Kube(Script(Answer(409, status_body(409, reason)))).create("/x", {})
        assert caught.value.already_exists is taken


PATIENCE = {
    "the header": Answer(429, status_body(429), {"retry-after": "3"}),
    "the Status": Answer(429, status_body(429, details={"retryAfterSeconds": 3})),
}


@pytest.mark.parametrize("answer", PATIENCE.values(), ids=PATIENCE.keys())
def test_retry_after_comes_from(answer: Answer) -> None:
    with pytest.raises(KubeTooManyRequests) as caught:
        Kube(Script(answer)).get("/x")
    assert caught.value.retry_after == 3.0


def answer(seconds: object) -> Answer:
    return Answer(429, status_body(429, details={"retryAfterSeconds": seconds}))


ODD_PATIENCE = {
    "a day is a minute": (Answer(429, status_body(429), {"retry-after": "86400"}), 60.0),
    "for ever is a minute": (Answer(429, status_body(429), {"retry-after": "inf"}), 60.0),
    "a date": (Answer(429, status_body(429), {"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}), None),
    "no number": (answer("soon"), None),
    "not a number": (answer("nan"), None),
    "less than nothing": (answer(-5), None),
    "a list": (answer([3]), None),
    "beyond a float": (answer(10**400), None),
}


@pytest.mark.parametrize(("answer", "want"), ODD_PATIENCE.values(), ids=ODD_PATIENCE.keys())
def test_nobody_makes_us_wait_for_ever(answer: Answer, want: float | None) -> None:
    with pytest.raises(KubeTooManyRequests) as caught:
        Kube(Script(answer)).get("/x")
    assert caught.value.retry_after == want


def test_a_read_is_sent_again_once_when_the_connection_broke() -> None:
    script = Script(KubeConnectionLost("reset"), Answer(body={"a": 1}))
    assert Kube(script).get("/x") == {"a": 1}


def test_a_read_that_timed_out_is_not_sent_again() -> None:
    with pytest.raises(KubeTimeout):
        Kube(Script(KubeTimeout("no answer"))).get("/x")


def test_a_write_is_never_sent_again() -> None:
    script = Script(KubeConnectionLost("reset"))
    with pytest.raises(KubeConnectionLost):
        Kube(script).create("/x", {})
    assert len(script.sent) == 1


TOO_DEEP = b"[" * 200_000


@pytest.mark.parametrize("body", [b"", b"{", b"[]", TOO_DEEP], ids=["none", "cut off", "a list", "too deep"])
def test_an_answer_that_is_no_object_is_malformed(body: bytes) -> None:
    with pytest.raises(KubeMalformed):
        Kube(Script(Answer(body=body))).get("/x")


def page(names: list[str], version: str, token: str = "") -> Answer:
    return Answer(
        body={"metadata": {"resourceVersion": version, "continue": token}, "items": [{"n": n} for n in names]}
    )


def test_a_list_follows_its_pages() -> None:
    script = Script(page(["a", "b"], "7", "t1"), page(["c"], "7"))
    listing = Kube(script).list("/x", {"labelSelector": "k=v"}, page=2)
    assert listing == Listing([{"n": "a"}, {"n": "b"}, {"n": "c"}], "7")
    assert [sent.query for sent in script.sent] == [
        {"labelSelector": "k=v", "limit": "2"},
        {"labelSelector": "k=v", "limit": "2", "continue": "t1"},
    ]


def test_a_page_too_large_is_read_with_fewer_objects_and_then_with_more() -> None:
    large = "x" * (9 << 20)
    script = Script(
        page([large], "7", "t1"),
        page(["a"], "7", "t1"),
        page(["b"], "7", "t2"),
        page([large], "7", "t3"),
        page([large], "7"),
        page([large], "7"),
    )
    listing = Kube(script).list("/x", page=8, trim=lambda item: {"n": item["n"][:1]})
    assert [item["n"] for item in listing.items] == ["a", "b", "x"]
    assert [(sent.query["limit"], sent.query.get("continue", "")) for sent in script.sent] == [
        ("8", ""),
        ("2", ""),
        ("4", "t1"),
        ("8", "t2"),
        ("2", "t2"),
        ("1", "t2"),
    ]


def test_an_expired_page_restarts_the_list_and_no_page_grows() -> None:
    expired = Answer(410, status_body(410, "Expired"))
    script = Script(page(["a"], "7", "t1"), expired, page(["a"], "9", "t2"), page(["b"], "9"))
    assert Kube(script).list("/x", page=1) == Listing([{"n": "a"}, {"n": "b"}], "9")
    assert [sent.query for sent in script.sent[-2:]] == [{"limit": "1"}, {"limit": "1", "continue": "t2"}]


def test_a_list_whose_pages_always_expire_is_given_up() -> None:
    expired = Answer(410, status_body(410, "Expired"))
    with pytest.raises(KubeGone):
        Kube(Script(*(each for _ in range(4) for each in (page(["a"], "7", "t1"), expired)))).list("/x", page=1)


def test_a_collection_is_not_read_as_an_object() -> None:
    with pytest.raises(KubeMalformed, match="got a collection"):
        Kube(Script(page(["a"], "7"))).get("/x")


def test_a_list_that_expires_at_its_start_is_an_error() -> None:
    with pytest.raises(KubeGone):
        Kube(Script(Answer(410, status_body(410)))).list("/x")


def test_an_empty_list_may_be_null() -> None:
    answer = Answer(body={"kind": "PodList", "metadata": {"resourceVersion": "4"}, "items": None})
    assert Kube(Script(answer)).list("/x") == Listing([], "4")


def test_an_object_where_a_list_was_expected_is_malformed() -> None:
    with pytest.raises(KubeMalformed, match="'Pod'"):
        Kube(Script(Answer(body={"kind": "Pod", "metadata": {}}))).list("/x")


def test_a_watch_asks_for_bookmarks_and_yields_whole_lines() -> None:
    stream = line("ADDED", {"a": "ü"}) + b"\n" + line("DELETED", {"a": 2})
    answer = Answer(body=[stream[:11], stream[11:25], stream[25:] + b'{"type":"ADD'])
    script = Script(answer)
    events = list(Kube(script, timeout=3).watch("/x", resource_version="5", timeout_seconds=60))
    assert events == [{"type": "ADDED", "object": {"a": "ü"}}, {"type": "DELETED", "object": {"a": 2}}]
    query = {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "5", "timeoutSeconds": "60"}
    assert script.sent == [Sent("GET", "/x", query, None, None, 63, True)]
    assert answer.closed


def test_leaving_a_watch_closes_it() -> None:
    answer = Answer(body=[line("ADDED", {"a": 1}), line("ADDED", {"a": 2})])
    for _ in Kube(Script(answer)).watch("/x", resource_version="5", timeout_seconds=60):
        break
    assert answer.closed


def test_a_refused_watch_is_typed_and_never_opened() -> None:
    opened: list[object] = []
    stream = Kube(Script(Answer(410, status_body(410, "Expired")))).watch(
        "/x", resource_version="5", timeout_seconds=60, on_open=opened.append
    )
    with pytest.raises(KubeGone):
        next(stream)
    assert opened == []


NO_EVENTS = {
    "a brace": b"}\n",
    "a list": b"[]\n",
    "without an object": b'{"type":"ADDED"}\n',
    "without a type": b'{"object":{}}\n',
    "a type that is no text": b'{"type":["ADDED"],"object":{}}\n',
    "metadata that are no object": b'{"type":"ADDED","object":{"metadata":[]}}\n',
    "too deep": TOO_DEEP + b"\n",
}


@pytest.mark.parametrize("text", NO_EVENTS.values(), ids=NO_EVENTS.keys())
def test_a_watch_line_that_is_no_event_is_malformed(text: bytes) -> None:
    with pytest.raises(KubeMalformed):
        list(Kube(Script(Answer(body=[text]))).watch("/x", resource_version="5", timeout_seconds=60))


@pytest.mark.parametrize(("minor", "want"), [("30", (1, 30)), ("31+", (1, 31))])
def test_version(minor: str, want: tuple[int, int]) -> None:
    assert Kube(Script(Answer(body={"major": "1", "minor": minor}))).version() == want


def test_a_server_built_without_a_version_is_the_release_that_it_behaves_as() -> None:
    unset = {"major": "", "minor": "", "emulationMajor": "1", "emulationMinor": "36", "gitVersion": "v0.0.0-master"}
    assert Kube(Script(Answer(body=unset))).version() == (1, 36)


def test_a_version_without_numbers_is_malformed() -> None:
    with pytest.raises(KubeMalformed) as caught:
        Kube(Script(Answer(body=json.loads('{"major": "1", "gitVersion": "v0.0.0-master"}')))).version()
    document = "{'major': '1', 'minor': None, 'gitVersion': 'v0.0.0-master'}"
    assert str(caught.value) == f"GET /version: expected numbers as major and minor, found {document}"
