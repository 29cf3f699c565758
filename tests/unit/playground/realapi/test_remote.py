"""A server that is away: what waits for it, and what is answered as unknown."""

from __future__ import annotations

from playground.api.kinds.values import ADMIN
from playground.realapi.remote import RemoteApi
from runtime.kubernetes.errors import KubeTimeout, KubeUnavailable
from tests.wires import Answer, Script

POD = {"kind": "Pod"}
OK = Answer(200, POD)
AWAY = KubeUnavailable("cannot connect")
LOST = KubeTimeout("no answer in time")
PODS = "/api/v1/pods"


def methods(script: Script) -> list[str]:
    return [each.method for each in script.sent]


def test_a_read_waits_until_the_server_is_back() -> None:
    transport = Script(AWAY, LOST, Answer(503, {"kind": "Status"}), OK)
    assert RemoteApi(lambda _: transport).call("GET", PODS) == (200, POD)
    assert methods(transport) == ["GET"] * 4


def test_a_write_that_was_not_taken_in_is_sent_again() -> None:
    transport = Script(AWAY, Answer(429, {"kind": "Status"}), OK)
    assert RemoteApi(lambda _: transport).call("POST", PODS, body={}) == (200, POD)
    assert methods(transport) == ["POST"] * 3


def test_a_write_of_unknown_outcome_is_sent_once() -> None:
    transport = Script(LOST, OK)
    code, status = RemoteApi(lambda _: transport).call("POST", PODS, body={})
    assert (code, status["kind"], status["message"]) == (504, "Status", "no answer in time")
    assert methods(transport) == ["POST"]


def test_a_closed_one_waits_for_nothing() -> None:
    transport = Script(AWAY, OK)
    remote = RemoteApi(lambda _: transport)
    remote.close()
    assert remote.call("GET", PODS)[0] == 503


def test_an_answer_that_is_no_json_is_a_status() -> None:
    code, status = RemoteApi(lambda _: Script(Answer(404, b"404 page not found\n"))).call("GET", PODS)
    assert (code, status["message"]) == (404, "404 page not found")


def test_each_user_connects_once() -> None:
    users = []

    def connect(user: object) -> Script:
        users.append(user)
        return Script(OK, OK)

    remote = RemoteApi(connect)
    remote.call("GET", PODS)
    remote.call("GET", PODS)
    assert users == [ADMIN]


def test_a_watch_from_a_forgotten_version_is_an_error_event() -> None:
    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    (event,) = RemoteApi(lambda _: Script(Answer(410, gone))).watch(PODS, query={"resourceVersion": "1"})
    assert (event["type"], event["object"]["code"]) == ("ERROR", 410)


def test_a_closed_watch_has_no_events() -> None:
    watch = RemoteApi(lambda _: Script()).watch(PODS)
    watch.close()
    assert list(watch) == []
