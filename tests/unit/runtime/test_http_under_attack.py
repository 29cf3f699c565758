"""Attacks on our own small server over TCP: the cost of slow and large clients is bounded, and probes are answered."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from runtime.httpserver import PROBED, HttpServer, Reply, Request, Routes, ServerLimits, cached, serve_http

MUCH = b"x" * (8 << 20)
DEADLINE = 10.0


def much(request: Request) -> Reply:
    return Reply(200, MUCH)


def length(request: Request) -> Reply:
    return Reply(200, str(len(request.body)).encode())


ROUTES: Routes = {("GET", "/much"): much, ("POST", "/length"): length, ("GET", "/healthz"): lambda _: Reply(200, b"ok")}


@pytest.fixture
def server() -> Iterator[HttpServer]:
    limits = ServerLimits(timeout=1.0, idle=5.0, max_body=1 << 20, max_held=20 << 20, max_connections=8)
    made = serve_http(ROUTES, ("127.0.0.1", 0), name="test", limits=limits)
    yield made
    made.close()


def connected(server: HttpServer, sent: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", server.port), DEADLINE)
    made.sendall(sent)
    return made


def received(made: socket.socket) -> bytes:
    """Everything that arrives until the end."""
    found = b""
    with made, contextlib.suppress(ConnectionError):
        while piece := made.recv(1 << 16):
            found += piece
    return found


def is_healthy(server: HttpServer) -> bool:
    """Whether a probe like kubelet's is answered, within kubelet's timeout."""
    started = time.monotonic()
    answer = received(connected(server, b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"))
    return answer.endswith(b"ok") and time.monotonic() - started < 2


BOMBS = {
    "a header without an end": b"GET /healthz HTTP/1.1\r\nX: " + b"x" * 100_000,
    "headers without an end": b"GET /healthz HTTP/1.1\r\n" + b"X: y\r\n" * 4_000,
    "a path without an end": b"GET /" + b"x" * 100_000,
    "many large headers": b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X%d: %s\r\n" % (n, b"x" * 9000) for n in range(9)),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS.keys())
def test_headers_are_bounded_together(server: HttpServer, bomb: bytes) -> None:
    made = connected(server)
    with contextlib.suppress(OSError):
        made.sendall(bomb)
    answer = received(made)
    assert not answer or int(answer.split(b" ")[1]) in (400, 414, 431)
    assert is_healthy(server)


def test_whoever_asks_whether_to_send_a_body_is_answered(server: HttpServer) -> None:
    asks = b"POST /length HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n"
    made = connected(server, asks % 3)
    assert made.recv(1 << 10) == b"HTTP/1.1 100 Continue\r\n\r\n"
    made.sendall(b"abc")
    assert received(made).endswith(b"\r\n\r\n3")
    assert received(connected(server, asks % (2 << 20))).startswith(b"HTTP/1.1 413 ")


def test_who_asks_on_before_the_answer_is_there_gets_one_answer(server: HttpServer) -> None:
    answer = received(connected(server, b"GET /healthz HTTP/1.1\r\n\r\n" * 1000))
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"Connection: close" in answer
    made = connected(server)
    for _ in range(3):
        made.sendall(b"GET /healthz HTTP/1.1\r\n\r\n")
        assert made.recv(1 << 10).endswith(b"ok")
    made.close()


def test_a_port_for_probes_takes_no_body() -> None:
    made = serve_http(ROUTES, ("127.0.0.1", 0), name="test", limits=PROBED)
    assert received(connected(made, b"POST /length HTTP/1.1\r\nContent-Length: 1\r\n\r\na")).startswith(
        b"HTTP/1.1 413 "
    )
    assert is_healthy(made)
    made.close()


def test_clients_that_take_no_answer_are_given_up_and_hold_bounded_memory(server: HttpServer) -> None:
    with contextlib.ExitStack() as lazy:
        clients = [lazy.enter_context(connected(server, b"GET /much HTTP/1.1\r\n\r\n")) for _ in range(7)]
        assert is_healthy(server)
        time.sleep(1.5)  # longer than an answer may take
        answers = [received(client) for client in clients]
    assert [answer for answer in answers if answer.endswith(MUCH)] == []
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429 ")]
    assert len(refused) == 5  # two answers are as many bytes as may be in transit
    assert is_healthy(server)


def test_a_client_that_takes_no_answer_makes_room(server: HttpServer) -> None:
    with contextlib.ExitStack() as lazy:
        for _ in range(30):
            lazy.enter_context(connected(server, b"GET /much HTTP/1.1\r\n\r\n"))
        assert is_healthy(server)


def test_bodies_that_do_not_come_hold_bounded_memory() -> None:
    """This holds whichever of the three begins last."""
    limits = ServerLimits(timeout=2 * DEADLINE, max_body=4 << 20, max_held=8 << 20)
    made = serve_http(ROUTES, ("127.0.0.1", 0), name="test", limits=limits)
    with contextlib.ExitStack() as lazy:
        part = b"POST /length HTTP/1.1\r\nContent-Length: 4194304\r\n\r\n" + b"x" * 1000
        clients = [lazy.enter_context(connected(made, part)) for _ in range(3)]
        answered, _, _ = select.select(clients, (), (), DEADLINE)
        (answer,) = (received(each) for each in answered)
        assert answer.startswith(b"HTTP/1.1 429 ")
        assert is_healthy(made)
        others = [each for each in clients if each not in answered]
        assert select.select(others, (), (), 0.0)[0] == [], "the others have time to go on"
    made.close()


# -- figures ------------------------------------------------------------------------------------------------------

ASKED = Request("GET", "/metrics", "", {}, b"")


class Costly:
    """Takes the configured time, by its own clock."""

    def __init__(self) -> None:
        self.now, self.cost, self.made = 100.0, 0.0, 0

    def __call__(self, request: Request) -> Reply:
        self.now += self.cost
        self.made += 1
        return Reply(200, str(self.made).encode())


def test_an_answer_serves_for_nine_times_as_long_as_it_took() -> None:
    costly = Costly()
    handler = cached(costly, clock=lambda: costly.now)
    costly.cost = 0.2
    assert handler(ASKED).body == b"1"
    costly.now += 1.7
    assert handler(ASKED).body == b"1"
    costly.now += 0.2
    assert handler(ASKED).body == b"2"


def test_but_not_for_longer_than_a_scraper_waits() -> None:
    costly = Costly()
    handler = cached(costly, clock=lambda: costly.now)
    costly.cost = 3.0
    assert handler(ASKED).body == b"1"
    costly.now += 5.1
    assert handler(ASKED).body == b"2"


def test_what_costs_nothing_is_always_made_new() -> None:
    costly = Costly()
    handler = cached(costly, clock=lambda: costly.now)
    assert [handler(ASKED).body for _ in range(3)] == [b"1", b"2", b"3"]


def test_many_that_ask_at_once_cost_one_answer_and_one_copy() -> None:
    begun, go_on, found = threading.Semaphore(0), threading.Event(), []

    def slow(request: Request) -> Reply:
        begun.release()
        assert go_on.wait(DEADLINE)
        return Reply(200, b"x" * 1000)

    handler = cached(slow)
    threads = [threading.Thread(target=lambda: found.append(handler(ASKED))) for _ in range(10)]
    for thread in threads:
        thread.start()
    assert begun.acquire(timeout=DEADLINE)
    time.sleep(0.05)  # the answer takes that long
    go_on.set()
    for thread in threads:
        thread.join(DEADLINE)
    assert len({id(reply) for reply in found}) == 1
    assert len(found) == 10
