"""AdmissionReview in and out."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.webhook.builders import container, pod, review
from webhook.admission import review as reviews
from webhook.admission.review import BadReview, Review

JSON = dict[str, Any]
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


def body(**request: Any) -> bytes:
    return json.dumps(review(pod(container()), **request)).encode()


def test_a_creation_is_read() -> None:
    made = pod(container())
    got = reviews.decode(json.dumps(review(made, dryRun=True)).encode())
    assert got == Review(UID, "CREATE", "team-a", True, made, {}, "Pod")
    assert got.creates_pod


OTHERS = {
    "an update": {"operation": "UPDATE"},
    "a deletion, which has no object": {"operation": "DELETE", "object": None},
    "a subresource": {"subResource": "binding"},
    "another kind": {"kind": {"group": "apps", "version": "v1", "kind": "Deployment"}},
    "a kind of that name in another group": {"kind": {"group": "example.com", "version": "v1", "kind": "Pod"}},
}


@pytest.mark.parametrize("request_", OTHERS.values(), ids=OTHERS.keys())
def test_only_creations_of_pods_are_ours(request_: JSON) -> None:
    assert not reviews.decode(body(**request_)).creates_pod


BAD = {
    "no JSON": (b"\xff{", "the body is not JSON"),
    "nested without end": (b"[" * 100_000, "the body is not JSON"),
    "a list": (b"[]", "the body is not a JSON object"),
    "another kind": (b'{"kind":"Pod"}', "the body is not an AdmissionReview of admission.k8s.io/v1"),
    "an older version": (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1"}',
        "the body is not an AdmissionReview of admission.k8s.io/v1",
    ),
    "no request": (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request is missing"),
    "a request that is text": (
        b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":"x"}',
        "request is not an object",
    ),
    "no uid": (body(uid=""), "request.uid, request.operation and request.kind.kind must not be empty"),
    "a uid that is a number": (body(uid=5), "uid is not text"),
    "no object": (body(object=None), "request.object is missing"),
    "an object that is a list": (body(object=[]), "object is not an object"),
    "no namespace": (
        body(namespace=None),
        "request.namespace: found ''; give the name of a namespace, at most 63 of a-z, 0-9 and -",
    ),
    "a namespace that is a path": (
        body(namespace=".."),
        "request.namespace: found '..'; give the name of a namespace, at most 63 of a-z, 0-9 and -",
    ),
    "a namespace with a line break": (
        body(namespace="team-a\n"),
        "request.namespace: found 'team-a\\n'; give the name of a namespace, at most 63 of a-z, 0-9 and -",
    ),
    "a namespace without end": (
        body(namespace="n" * 1_200_000),
        f"request.namespace: found '{'n' * 37}...{'n' * 37}'; give the name of a namespace, at most 63 of a-z, 0-9 "
        "and -",
    ),
    "another namespace in the pod": (
        body(namespace="team-b"),
        "request.object.metadata.namespace: found 'team-a'; give request.namespace or nothing",
    ),
    "a uid without end": (
        body(uid="u" * 1_200_000),
        f"request.uid: found '{'u' * 37}...{'u' * 37}'; give 1 to 128 printable characters",
    ),
    "a uid with a line break": (body(uid="a\nb"), r"request.uid: found 'a\nb'; give 1 to 128 printable characters"),
    "an operation of nobody's": (
        body(operation="create"),
        "request.operation: found 'create'; give one of CREATE, UPDATE, DELETE, CONNECT",
    ),
    "a kind without end": (
        body(kind={"kind": "K" * 300}),
        "request.kind or request.subResource has more than 253 characters",
    ),
    "what Python takes for a number": (
        body().replace(b'"dryRun": false', b'"dryRun": NaN'),
        "the body is not JSON",
    ),
    "a number that Python does not read": (
        body().replace(b'"dryRun": false', b'"dryRun": ' + b"9" * 10_000),
        "the body is not JSON",
    ),
}


@pytest.mark.parametrize(("raw", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_no_review_is_refused(raw: bytes, message: str) -> None:
    with pytest.raises(BadReview) as caught:
        reviews.decode(raw)
    assert str(caught.value) == message


def test_allowed_and_denied_whole() -> None:
    top = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    assert json.loads(reviews.allowed("u")) == {**top, "response": {"uid": "u", "allowed": True}}
    assert json.loads(reviews.allowed("u", before={"a": 1}, after={"a": 1})) == {
        **top,
        "response": {"uid": "u", "allowed": True},
    }
    assert json.loads(reviews.allowed("u", before={"a": 1}, after={"a": 2}, warnings=["careful"])) == {
        **top,
        "response": {
            "uid": "u",
            "allowed": True,
            "patchType": "JSONPatch",
            "patch": base64.b64encode(b'[{"op":"replace","path":"/a","value":2}]').decode(),
            "warnings": ["careful"],
        },
    }
    assert json.loads(reviews.denied("u", "no", code=403)) == {
        **top,
        "response": {
            "uid": "u",
            "allowed": False,
            "status": {"status": "Failure", "code": 403, "reason": "Forbidden", "message": "no"},
        },
    }


WARNINGS = {
    "short ones stay": (["one", "two"], ["one", "two"]),
    "none": ([""], []),
    "long ones are cut at a space": (["a" * 100 + " " + "b" * 100], ["a" * 100, "b" * 100]),
    "a word without spaces is cut where it must be": (["a" * 150], ["a" * 120, "a" * 30]),
    "line breaks do not get through": (["one\ntwo"], ["one two"]),
    "what is too much for all is left out": (["a" * 120] * 50, ["a" * 120] * 34),
}


@pytest.mark.parametrize(("given_", "want"), WARNINGS.values(), ids=WARNINGS.keys())
def test_warnings_are_cut_to_what_kubernetes_keeps(given_: list[str], want: list[str]) -> None:
    assert reviews.split_warnings(given_) == want


scalars = st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["a", "b", ""])
documents = st.dictionaries(
    st.sampled_from(["a", "b/c", "d~e", "f"]),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["x", "y/z"]), inner)
    ),
    max_size=4,
)


@given(documents, documents)
def test_a_patch_makes_the_one_of_the_other(before: JSON, after: JSON) -> None:
    assert jsonpatch.apply_patch(before, reviews.patch(before, after)) == after


def test_a_list_in_which_very_much_changes_is_replaced_as_a_whole() -> None:
    before = {"list": [{"n": number} for number in range(1000)], "kept": 1}
    after = {"list": [{"n": number + 1} for number in range(1000)], "kept": 1}
    assert reviews.patch(before, after) == [{"op": "replace", "path": "/list", "value": after["list"]}]
