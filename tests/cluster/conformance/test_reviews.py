"""The user of a token and what a user may do, as programs with metrics ask an API server."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.conformance.asking import JSON, Api, Ask

TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
METRICS = {"path": "/metrics", "verb": "get"}


def reviewed(api: Api, path: str, kind: str, spec: JSON) -> tuple[int, Any]:
    version = path.removeprefix("/apis/").rpartition("/")[0]
    answer = api.ask(Ask("POST", path, {"apiVersion": version, "kind": kind, "spec": spec}))
    return answer.code, answer.body


def test_a_token_of_nobody_is_not_authenticated(api: Api) -> None:
    code, review = reviewed(api, TOKENS, "TokenReview", {"token": "nobodys"})
    assert (code, review["kind"], review["status"].get("authenticated", False)) == (201, "TokenReview", False)
    assert "username" not in review["status"].get("user", {})


def test_a_review_of_no_token_is_refused(api: Api) -> None:
    code, status = reviewed(api, TOKENS, "TokenReview", {})
    assert (code, status["reason"]) == (400, "BadRequest")
    assert "token is required for TokenReview in authentication" in status["message"]


SUBJECTS: dict[str, tuple[JSON, bool]] = {
    "a user without a role": ({"user": "nobody", "nonResourceAttributes": METRICS}, False),
    "a group that may do everything": (
        {"user": "admin", "groups": ["system:masters"], "nonResourceAttributes": METRICS},
        True,
    ),
    "a path that everybody may get": (
        {"user": "x", "groups": ["system:authenticated"], "nonResourceAttributes": {"path": "/version", "verb": "get"}},
        True,
    ),
}


@pytest.mark.parametrize(("spec", "allowed"), SUBJECTS.values(), ids=SUBJECTS.keys())
def test_who_may_get_a_path(spec: JSON, allowed: bool, api: Api) -> None:
    code, review = reviewed(api, ACCESS, "SubjectAccessReview", spec)
    assert (code, review["status"]["allowed"]) == (201, allowed)


def test_a_review_of_nobody_or_of_nothing_is_refused(api: Api) -> None:
    found = [
        reviewed(api, ACCESS, "SubjectAccessReview", spec)[0]
        for spec in (
            {"nonResourceAttributes": METRICS},
            {"user": "x"},
            {"user": "x", "resourceAttributes": {}, "nonResourceAttributes": METRICS},
        )
    ]
    assert found == [422, 422, 422]


REQUEST = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}


def requested(api: Api, seconds: int, account: str = "default") -> tuple[int, JSON]:
    answer = api.ask(
        Ask("POST", f"serviceaccounts/{account}/token", {**REQUEST, "spec": {"expirationSeconds": seconds}})
    )
    return answer.code, answer.body


def test_a_requested_token_is_the_service_accounts(api: Api) -> None:
    code, found = requested(api, 900)
    assert (code, found["kind"], found["spec"]["expirationSeconds"]) == (201, "TokenRequest", 900)
    _, review = reviewed(api, TOKENS, "TokenReview", {"token": found["status"]["token"]})
    user = review["status"]["user"]
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{api.namespace}"]
    assert (user["username"], sorted(user["groups"])) == (f"system:serviceaccount:{api.namespace}:default", groups)


def test_a_token_that_is_too_short_lived_or_nobodys_is_refused(api: Api) -> None:
    code, status = requested(api, 60)
    assert (code, status["message"]) == (
        422,
        'TokenRequest.authentication.k8s.io "" is invalid: '
        "spec.expirationSeconds: Invalid value: 60: may not specify a duration less than 10 minutes",
    )
    assert requested(api, 900, "ghost")[0] == 404
