"""
A2: a stranger who reaches the allocator's socket, through the webhook or directly, ends no program and leaves nothing
behind.

These tests use the allocator's own socket, without a cluster, and send what a stranger can make the webhook send.
"""

from __future__ import annotations

import copy
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allocator.server import http
from contract.encoding import protocol
from contract.metrics import metrics_of
from runtime.httpserver import serve_http
from runtime.metrics import Metrics
from runtime.unixhttp import UnixClient
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import ONE_GPU, worker
from tests.unit.allocator.poison import Picky

JSON = dict[str, Any]
pytestmark = pytest.mark.hostile
ODD = 777 << 20


class Endpoint:
    """The socket of an allocator that leads."""

    def __init__(self, folder: Path) -> None:
        self.faults: list[tuple[str, str]] = []
        self.harness = SchedulerHarness([ONE_GPU], engine=Picky(ODD), options=chosen(assume_ttl=40.0))
        self.path = folder / "a.sock"
        routes = http.socket_routes(self.harness.controller, Metrics(metrics_of("allocator")), faulted=self._faulted)
        self.server = serve_http(routes, self.path, name="socket", limits=http.SOCKET_LIMITS)
        self.client = UnixClient(self.path)

    def _faulted(self, place: str, about: str) -> str:
        self.faults.append((place, about))
        return "fault-1"

    def ask(self, document: Any) -> tuple[int, JSON]:
        answer = self.client.post(protocol.RESERVE_PATH, document, timeout=10)
        return answer.status, answer.json()


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    made = Endpoint(tmp_path)
    yield made
    assert made.ask(wire_question())[1]["verdict"] == "placed", "everybody else is served"
    assert made.harness.controller.look().assumed == 1
    made.client.close()
    made.server.close()


def wire_question(**changes: Any) -> JSON:
    """A question as the webhook sends it, with other parts."""
    return {**protocol.question_to_json(question(worker("p", mib=1000))), **changes}


def with_pod(**changes: Any) -> JSON:
    document = copy.deepcopy(wire_question())
    for part, values in changes.items():
        document["pod"][part] = {**document["pod"][part], **values} if isinstance(values, dict) else values
    return document


LONG = "n" * 1_200
NAMED = "give at most 253 of a-z, 0-9, - and ., or nothing"
CURE = "give at most 63 of a-z, 0-9 and -"
REFUSED: dict[str, tuple[JSON, str]] = {
    "no namespace": (wire_question(namespace=""), f"namespace: found ''; {CURE}"),
    "a way up": (wire_question(namespace=".."), f"namespace: found '..'; {CURE}"),
    "a path": (wire_question(namespace="a/../../secrets"), f"namespace: found 'a/../../secrets'; {CURE}"),
    "a long namespace": (wire_question(namespace=LONG), f"namespace: found '{'n' * 37}...{'n' * 37}'; {CURE}"),
    "a line break": (wire_question(namespace="a\nb"), f"namespace: found 'a\\nb'; {CURE}"),
    "a namespace that is a list": (wire_question(namespace=["a"]), f"namespace: found ['a']; {CURE}"),
    "no uid": (wire_question(uid=""), "uid: found ''; give 1 to 128 printable characters"),
    "a long id": (
        wire_question(held=LONG),
        f"held: found '{'n' * 37}...{'n' * 37}'; give 1 to 128 printable characters, or nothing",
    ),
    "a pod's name that is a path": (
        with_pod(metadata={"name": "../x"}),
        f"pod.metadata.name: found '../x'; {NAMED}",
    ),
    "a long beginning of a name": (
        with_pod(metadata={"generateName": LONG}),
        f"pod.metadata.generateName: found '{'n' * 37}...{'n' * 37}'; {NAMED}",
    ),
    "another namespace in the pod": (
        with_pod(metadata={"namespace": "kube-system"}),
        "pod.metadata.namespace: found 'kube-system'; give 'default', or nothing",
    ),
    "a spec that is a list": (with_pod(spec=[1]), "pod.spec: found [1]; give an object"),
    "containers that are numbers": (
        with_pod(spec={"containers": [1]}),
        "pod.spec.containers[0]: found 1; give an object",
    ),
    "containers that are one": (with_pod(spec={"containers": 7}), "pod.spec.containers: found 7; give a list"),
    "annotations of numbers": (
        with_pod(metadata={"annotations": {"a": 1}}),
        "pod.metadata.annotations['a']: found 1; give text",
    ),
    "no pod": (wire_question(pod=None), "pod: found None; give an object"),
}


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_question_is_refused_in_words(endpoint: Endpoint, case: tuple[JSON, str]) -> None:
    document, message = case
    assert endpoint.ask(document) == (400, {"error": message})
    assert (endpoint.harness.controller.look().assumed, endpoint.faults) == (0, [])


def raw(endpoint: Endpoint, length: int, body: bytes) -> bytes:
    """The answer to a body whose declared length is this."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.settimeout(10)
        made.connect(str(endpoint.path))
        made.sendall(b"POST /v1/reserve HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%s" % (length, body))
        return made.recv(4096)


def test_a_question_of_megabytes_is_not_read(endpoint: Endpoint) -> None:
    answer = raw(endpoint, 1_200_000, b"")
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b'{"error":"body of 1200000 bytes, at most 1048576 are accepted"}')


def test_a_question_nested_beyond_reading_is_refused(endpoint: Endpoint) -> None:
    assert raw(endpoint, 500_000, b"[" * 500_000).startswith(b"HTTP/1.1 400 ")


def test_an_error_of_ours_is_answered_and_ends_nothing(endpoint: Endpoint) -> None:
    document = protocol.question_to_json(question(worker("odd", mib=777)))
    message = {"error": "an error of gpufraction; the allocator's log has it as fault fault-1"}
    assert [endpoint.ask(document) for _ in range(3)] == [(500, message)] * 3
    assert endpoint.faults == [("admission", "default/odd")] * 3
    assert endpoint.harness.controller.look().assumed == 0
