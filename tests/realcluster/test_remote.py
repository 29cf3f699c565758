"""A server that is away: what waits for it, and what is told that nobody knows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from playground.api.values import ADMIN
from playground.realapi.remote import RemoteApi
from runtime.kubeerrors import KubeTimeout, KubeUnavailable

OK = (200, {"kind": "Pod"})
AWAY = KubeUnavailable("cannot connect")
LOST = KubeTimeout("no answer in time")
PODS = "/api/v1/pods"


class Scripted:
    """A transport that gives one prepared answer after the other."""

    def __init__(self, *answers: tuple[int, object] | Exception) -> None:
        self._answers = list(answers)
        self.sent: list[str] = []

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        stream: bool,
    ) -> Prepared:
        self.sent.append(method)
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Prepared(*answer)


class Prepared:
    """An answer."""

    def __init__(self, status: int, value: object) -> None:
        self.status = status
        self.headers: Mapping[str, str] = {}
        self._content = value if isinstance(value, bytes) else json.dumps(value).encode()

    def read(self) -> bytes:
        return self._content

    def chunks(self) -> Iterator[bytes]:
        yield self._content

    def close(self) -> None:
        """Nothing is open."""


def test_a_read_waits_until_the_server_is_back() -> None:
    transport = Scripted(AWAY, LOST, (503, {"kind": "Status"}), OK)
    assert RemoteApi(lambda _: transport).call("GET", PODS) == OK
    assert transport.sent == ["GET"] * 4


def test_a_write_that_was_not_taken_in_is_sent_again() -> None:
    transport = Scripted(AWAY, (429, {"kind": "Status"}), OK)
    assert RemoteApi(lambda _: transport).call("POST", PODS, body={}) == OK
    assert transport.sent == ["POST"] * 3


def test_a_write_of_unknown_outcome_is_sent_once() -> None:
    transport = Scripted(LOST, OK)
    code, status = RemoteApi(lambda _: transport).call("POST", PODS, body={})
    assert (code, status["kind"], status["message"]) == (504, "Status", "no answer in time")
    assert transport.sent == ["POST"]


def test_a_closed_one_waits_for_nothing() -> None:
    transport = Scripted(AWAY, OK)
    remote = RemoteApi(lambda _: transport)
    remote.close()
    assert remote.call("GET", PODS)[0] == 503


def test_an_answer_that_is_no_json_is_a_status() -> None:
    code, status = RemoteApi(lambda _: Scripted((404, b"404 page not found\n"))).call("GET", PODS)
    assert (code, status["message"]) == (404, "404 page not found")


def test_each_user_connects_once() -> None:
    users = []

    def connect(user: object) -> Scripted:
        users.append(user)
        return Scripted(OK, OK)

    remote = RemoteApi(connect)
    remote.call("GET", PODS)
    remote.call("GET", PODS)
    assert users == [ADMIN]


def test_a_watch_from_a_forgotten_version_is_an_error_event() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    (event,) = RemoteApi(lambda _: Scripted((410, gone))).watch(PODS, query={"resourceVersion": "1"})
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_closed_watch_has_no_events() -> None:
    watch = RemoteApi(lambda _: Scripted()).watch(PODS)
    watch.close()
    assert list(watch) == []
