"""The page for many people: each viewer is reviewed and has separate routes, and no viewer gets another one's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kubectl_gpufraction.ui.viewers import REVIEWED, Tokens, Viewer, Viewers, by_proxy, by_token
from runtime.httpserver import HttpError, Reply, Request, Routes
from runtime.kubernetes.client import Kube
from tests.wires import Answer, Script, status_body

KEY = "GET", "/api/gpus"


def asks(token: str = "", **headers: str) -> Request:
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    if token:
        named["authorization"] = f"Bearer {token}"
    return Request("GET", "/api/gpus", "", named, b"")


def reviewed(name: str, *groups: str) -> Answer:
    status = {"authenticated": bool(name), "user": {"username": name, "groups": list(groups)}}
    return Answer(201, {"kind": "TokenReview", "status": status if name else {}})


def tokens(*answers: Answer, clock: Callable[[], float] = lambda: 0.0) -> tuple[Tokens, Script]:
    script = Script(*answers)
    return Tokens(Kube(script), clock=clock), script


def refused(call: Callable[[], Any]) -> int:
    with pytest.raises(HttpError) as found:
        call()
    return found.value.status


def test_a_token_is_reviewed_once_a_minute_and_its_owner_reads_with_it() -> None:
    now = [0.0]
    known, script = tokens(reviewed("alice", "team-a"), reviewed("alice", "team-a"), clock=lambda: now[0])
    identify = by_token(known)
    assert identify(asks("t1")) == Viewer("alice", ("team-a",), "t1")
    assert identify(asks("t1")).name == "alice"
    assert len(script.sent) == 1
    now[0] = REVIEWED + 1
    assert identify(asks("t1")).name == "alice"
    assert len(script.sent) == 2


@pytest.mark.parametrize(
    "request_",
    {
        "no token": asks(),
        "a password": asks(authorization="Basic YTpi"),
        "an empty token": asks(authorization="Bearer  "),
        "a token of megabytes": asks("x" * 20_000),
        "a token with other letters": asks("tökén"),
        "a name alone": asks(x_forwarded_user="alice"),
    }.values(),
)
def test_without_a_token_nobody_is_asked(request_: Request) -> None:
    known, script = tokens()
    assert refused(lambda: by_token(known)(request_)) == 401
    assert script.sent == []


def test_a_token_that_is_nobodys_or_cannot_be_reviewed_gets_nothing() -> None:
    known, _ = tokens(reviewed(""), Answer(500, status_body(500, "InternalError", "no")))
    assert refused(lambda: by_token(known)(asks("bad"))) == 401
    assert refused(lambda: by_token(known)(asks("bad"))) == 503


PROXY = "system:serviceaccount:auth:proxy"


def test_the_proxy_says_who_asks_and_nobody_else_does() -> None:
    known, _ = tokens(reviewed(PROXY), reviewed("system:serviceaccount:auth:other"))
    identify = by_proxy(known, "auth/proxy")
    found = identify(asks("p", x_forwarded_user="alice", x_forwarded_groups="team-a, team-b,team-a"))
    assert found == Viewer("alice", ("team-a", "team-b", "system:authenticated"))
    assert refused(lambda: identify(asks("other", x_forwarded_user="alice"))) == 403


@pytest.mark.parametrize(
    ("user", "groups", "status"),
    [
        ("", "team-a", 401),
        ("system:admin", "", 403),
        ("alice", "system:masters", 403),
        ("alice", "team-a,system:nodes", 403),
        ("a" * 300, "", 401),
        ("al\tice", "", 401),
        ("alice", ",".join(map(str, range(100))), 401),
    ],
)
def test_no_name_of_the_system_is_impersonated(user: str, groups: str, status: int) -> None:
    known, _ = tokens(reviewed(PROXY))
    request = asks("p", x_forwarded_user=user, x_forwarded_groups=groups)
    assert refused(lambda: by_proxy(known, "auth/proxy")(request)) == status


class Made:
    """Routes that say whose they are."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.closed: list[str] = []

    def __call__(self, viewer: Viewer) -> tuple[Routes, Callable[[], None]]:
        self.made.append(viewer.name)
        return {KEY: lambda _: Reply(200, viewer.name.encode())}, lambda: self.closed.append(viewer.name)


def by_name(request: Request) -> Viewer:
    return Viewer(request.headers["authorization"].removeprefix("Bearer "))


def test_each_viewer_has_routes_of_their_own() -> None:
    made = Made()
    answer = Viewers(by_name, made).answering(KEY)
    assert [answer(asks(name)).body for name in ("alice", "bob", "alice")] == [b"alice", b"bob", b"alice"]
    assert made.made == ["alice", "bob"]
    assert answer(asks("bob")).headers["Vary"] == "Authorization"


def test_viewers_are_bounded_and_the_longest_unused_goes_first() -> None:
    made, now = Made(), [0.0]
    viewers = Viewers(by_name, made, most=2, clock=lambda: now[0])
    answer = viewers.answering(KEY)
    for name in ("a", "b", "a", "c"):
        answer(asks(name))
    assert made.closed == ["b"]
    now[0] = 301
    answer(asks("d"))
    assert sorted(made.closed) == ["a", "b", "c"]
    viewers.close()
    assert sorted(made.closed) == ["a", "b", "c", "d"]


def test_a_viewer_shows_no_token() -> None:
    assert "secret" not in repr(Viewer("alice", (), "secret"))
