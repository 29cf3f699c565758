"""
Attacks on the webhook's front on loopback: whatever one client does or leaves out, the next client is answered.

Each test serves a small application with time limits that a test can wait for.
"""

from __future__ import annotations

import contextlib
import errno
import io
import logging
import random
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from playground.waiting import wait_for
from runtime.httpserver import source_of
from tests.unit.webhook.serving.test_server import NAMES, places_in, utcnow
from webhook.certificates.authority import renewed
from webhook.serving import front
from webhook.serving.connections import Bounds
from webhook.serving.front import Front
from webhook.serving.http1 import MAX_HEAD, Head, WholeRequest
from webhook.serving.tls import ServingContext
from webhook.serving.workers import answered

DEADLINE = 10.0
SMALL = Bounds(silence=0.5, idle=3.0, linger=0.3, drain=0.5, newness=0.1, held=400 << 20, max_body=1 << 20)
HELLO = b"\x16\x03\x01\x02\x00\x01"
"""The start of a ClientHello that never continues."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    places = places_in(tmp_path_factory.mktemp("certs"))
    places.write(renewed(None, utcnow(), NAMES))
    return places.serving


class Served:
    """A front, the application behind it, and clients."""

    def __init__(self, certificates: Path, bounds: Bounds, threads: int) -> None:
        self.turned_away: Counter[str] = Counter()
        self.release = threading.Event()
        self.requests: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._goes_on = True
        self._heard = threading.Event()
        self.front = Front(
            [self._listener],
            self.application,
            context=ServingContext(certificates).current,
            threads=threads,
            bounds=bounds,
            turned_away=lambda reason: self.turned_away.update([reason]),
        )
        self._thread = threading.Thread(target=self._run, name="front", daemon=True)
        self._thread.start()
        self.context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))

    def _run(self) -> None:
        with self._listener:
            self.front.run(self._may_go_on, grace=5.0)

    def _may_go_on(self) -> bool:
        if not self._goes_on:
            self._heard.set()
        return self._goes_on

    def application(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        body = environ["wsgi.input"].read()
        self.requests.append(environ["PATH_INFO"])
        match environ["PATH_INFO"]:
            case "/wait":
                assert self.release.wait(DEADLINE)
            case "/fail":
                raise ValueError("a fault")
            case "/much":
                body = b"x" * (8 << 20)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [body]

    def stop(self) -> None:
        """Stop. The loop knows about it when this returns, so it does not go on reading."""
        self._goes_on = False
        self.front.wake()
        assert self._heard.wait(DEADLINE)

    def ended(self) -> bool:
        self._thread.join(DEADLINE)
        return not self._thread.is_alive()

    def plain(self, source: str = "127.0.0.1") -> socket.socket:
        """A TCP connection, from any address of the loopback network."""
        made = socket.create_connection(("127.0.0.1", self.port), DEADLINE, source_address=(source, 0))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return made

    def client(self, source: str = "127.0.0.1") -> Client:
        return Client(self.context.wrap_socket(self.plain(source), server_hostname=NAMES[2]))

    def serves(self, source: str = "127.0.0.1", within: float = DEADLINE) -> bool:
        """Whether a well-behaved client is answered in time."""
        started = time.monotonic()
        with contextlib.closing(self.client(source)) as client:
            answer = client.post(b"hello")
        return answer == (200, b"hello") and time.monotonic() - started < within


class Client:
    """One TLS connection."""

    def __init__(self, sock: ssl.SSLSocket) -> None:
        self.sock = sock
        self._received = b""

    def close(self) -> None:
        self.sock.close()

    def send(self, raw: bytes) -> None:
        self.sock.sendall(raw)

    def post(self, body: bytes, path: str = "/") -> tuple[int, bytes]:
        self.send(b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body))
        return self.answer()

    def answer(self) -> tuple[int, bytes]:
        """The next answer: its status and its body. Status 0 if the connection has ended."""
        while b"\r\n\r\n" not in self._received:
            if not self._more():
                return 0, self._received
        head, _, rest = self._received.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        self.headers = dict(line.split(": ", 1) for line in lines[1:])
        length = int(self.headers.get("Content-Length", "0"))
        self._received = rest
        while len(self._received) < length:
            assert self._more(), "the answer was cut"
        body, self._received = self._received[:length], self._received[length:]
        return int(lines[0].split(" ")[1]), body

    def _more(self) -> bool:
        try:
            data = self.sock.recv(1 << 16)
        except ConnectionError:
            return False
        self._received += data
        return bool(data)

    def is_ended(self) -> bool:
        """Whether the server ends the connection, without an answer."""
        return self.answer() == (0, b"")


@contextlib.contextmanager
def serving(certificates: Path, bounds: Bounds = SMALL, threads: int = 2) -> Iterator[Served]:
    served = Served(certificates, bounds, threads)
    try:
        yield served
    finally:
        served.release.set()
        served.stop()
        assert served.ended()


@pytest.fixture
def served(certificates: Path) -> Iterator[Served]:
    with serving(certificates) as running:
        yield running


# -- what it serves -----------------------------------------------------------------------------------------------


def test_a_connection_is_kept_and_requests_may_come_all_at_once(served: Served) -> None:
    client = served.client()
    assert [client.post(body) for body in (b"a", b"", b"c" * 100_000)] == [
        (200, b"a"),
        (200, b""),
        (200, b"c" * 100_000),
    ]
    client.send(b"POST /1 HTTP/1.1\r\nContent-Length: 1\r\n\r\naPOST /2 HTTP/1.1\r\nContent-Length: 1\r\n\r\nb" * 20)
    assert [client.answer() for _ in range(40)] == [(200, b"a"), (200, b"b")] * 20
    assert served.requests[3:] == ["/1", "/2"] * 20
    client.close()


def test_a_client_that_closes_gets_connection_close(served: Served) -> None:
    client = served.client()
    client.send(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
    assert client.answer() == (200, b"")
    assert client.headers["Connection"] == "close"
    assert client.is_ended()
    client.close()


def test_a_client_that_expects_100_continue_gets_it(served: Served) -> None:
    client = served.client()
    client.send(b"POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
    assert client.answer() == (100, b"")
    client.send(b"abc")
    assert client.answer() == (200, b"abc")
    client.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\nExpect: 100-continue\r\n\r\n")
    assert client.answer()[0] == 413
    client.close()


def test_a_fault_of_the_application_is_that_requests_and_its_thread_goes_on(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(4):
        client = served.client()
        assert client.post(b"", "/fail") == (500, b'{"message": "internal error"}\n')
        client.close()
    assert served.serves()
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == ["request failed"] * 4


REFUSED = {
    "no HTTP": (b"hello\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "in parts": (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 411),
    "two lengths": (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "a header without an end": (b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_HEAD, 431),
    "headers without an end": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, 431),
    "a body over the limit": (b"POST / HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n", 413),
    "and one that comes all the same": (b"POST / HTTP/1.1\r\nContent-Length: 4000000\r\n\r\n" + b"x" * 4_000_000, 413),
}


@pytest.mark.parametrize(("raw", "status"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_read_is_refused_and_the_connection_ends(served: Served, raw: bytes, status: int) -> None:
    client = served.client()
    client.send(raw)
    assert client.answer()[0] == status
    assert client.headers["Connection"] == "close"
    assert client.is_ended()
    client.close()
    assert served.requests == []
    assert served.serves()


# -- slow clients -------------------------------------------------------------------------------------------------


def silent(served: Served) -> Any:
    return served.plain()


def half_a_handshake(served: Served) -> Any:
    made = served.plain()
    made.sendall(HELLO)
    return made


def after_the_handshake(served: Served) -> Any:
    return served.client()


def within_the_headers(served: Served) -> Any:
    made = served.client()
    made.send(b"POST / HTTP/1.1\r\nX: y")
    return made


def within_the_body(served: Served) -> Any:
    made = served.client()
    made.send(b"POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n" + b"x" * 50_000)
    return made


def idle(served: Served) -> Any:
    made = served.client()
    assert made.post(b"") == (200, b"")
    return made


def asking(served: Served) -> Any:
    made = served.client()
    made.send(b"POST /wait HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    return made


def not_reading(served: Served) -> Any:
    made = served.client()
    made.send(b"POST /much HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
    return made


def refused(served: Served) -> Any:
    made = served.client()
    made.send(b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n" + b"x" * 1000)
    return made


STATES = (
    silent,
    half_a_handshake,
    after_the_handshake,
    within_the_headers,
    within_the_body,
    idle,
    asking,
    not_reading,
    refused,
)


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("state", STATES)
def test_a_connection_that_ends_in_any_state_is_nothing_to_tell(
    served: Served, state: Callable[[Served], Any], reset: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """C12: nothing went wrong that an administrator could repair."""
    for _ in range(3):
        made = state(served)
        sock = made if isinstance(made, socket.socket) else made.sock
        time.sleep(0.05)  # let the server see the connections
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        made.close()
    served.release.set()
    assert served.serves()
    until(lambda: served.front.open == 0)
    logged = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert logged == ["client turned away"] * (state is refused)


def until(holds: Callable[[], bool]) -> None:
    wait_for(holds, f"{holds} does not hold", DEADLINE, every=0.01)


def good(served: Served) -> Any:
    made = served.client()
    assert made.post(b"x" * 90_000) == (200, b"x" * 90_000)
    return made


LATE = {
    half_a_handshake: front.LATE_HANDSHAKE,
    silent: front.LATE_HANDSHAKE,
    within_the_headers: front.LATE_REQUEST,
    within_the_body: front.LATE_REQUEST,
    not_reading: front.LATE_READER,
}


@pytest.mark.parametrize(("state", "reason"), LATE.items(), ids=[state.__name__ for state in LATE])
def test_forty_clients_that_stop_there_keep_nobody_waiting_and_are_given_up(
    served: Served, state: Callable[[Served], Any], reason: str
) -> None:
    with contextlib.ExitStack() as open_:
        for _ in range(40):
            open_.enter_context(contextlib.closing(state(served)))
        assert served.serves(within=2.0)
        until(lambda: served.front.open == 0)
    assert served.turned_away == {reason: 40}


def test_a_late_request_is_answered_so(served: Served) -> None:
    client = within_the_body(served)
    assert client.answer()[0] == 408
    client.close()


def test_a_client_that_drips_is_given_up_however_steadily_it_does(served: Served) -> None:
    client = within_the_headers(served)
    started = time.monotonic()
    with contextlib.suppress(OSError):
        while time.monotonic() - started < DEADLINE and not served.turned_away:
            client.send(b"x")
            time.sleep(0.05)  # the attack
    assert served.turned_away == {front.LATE_REQUEST: 1}
    client.close()


def test_requests_that_wait_too_long_for_a_thread_are_refused(served: Served) -> None:
    waiting = [asking(served) for _ in range(2)]
    until(lambda: served.requests == ["/wait", "/wait"])
    late = served.client()
    assert late.post(b"")[0] == 503
    served.release.set()
    assert [client.answer() for client in waiting] == [(200, b"")] * 2
    for client in (late, *waiting):
        client.close()
    assert served.serves()


PATIENT = Bounds(silence=30.0, idle=30.0, linger=0.3, max_body=1 << 20)


def test_a_review_is_dropped_unread_once_its_api_server_waits_no_more(certificates: Path) -> None:
    with serving(certificates, PATIENT) as served:
        waiting = [asking(served) for _ in range(2)]
        until(lambda: served.requests == ["/wait", "/wait"])
        late = served.client()
        assert late.post(b"", "/late?timeout=100ms")[0] == 503
        served.release.set()
        assert [client.answer() for client in waiting] == [(200, b"")] * 2
        assert served.serves()
        assert (served.requests, served.turned_away) == (["/wait", "/wait", "/"], {front.QUEUED: 1})
        for client in (late, *waiting):
            client.close()


def test_nothing_is_done_for_a_client_that_has_left(certificates: Path) -> None:
    with serving(certificates, PATIENT) as served:
        waiting = [asking(served) for _ in range(2)]
        until(lambda: served.requests == ["/wait", "/wait"])
        left = served.client()
        left.send(b"POST /left HTTP/1.1\r\nContent-Length: 0\r\n\r\n")
        until(lambda: served.front.queued == 1)
        left.close()
        served.release.set()
        assert [client.answer() for client in waiting] == [(200, b"")] * 2
        assert served.serves()
        assert (served.requests, served.turned_away) == (["/wait", "/wait", "/"], {})
        for client in waiting:
            client.close()


# -- too many connections -----------------------------------------------------------------------------------------

FEW = Bounds(silence=5.0, idle=10.0, linger=0.3, newness=0.1, connections=20, of_one_source=16, max_body=1 << 20)


@pytest.mark.parametrize("state", [silent, half_a_handshake, after_the_handshake, within_the_body, idle])
def test_beyond_the_bound_those_that_have_shown_least_give_way(
    certificates: Path, state: Callable[[Served], Any]
) -> None:
    with serving(certificates, FEW) as served, contextlib.ExitStack() as open_:
        kept = served.client("127.0.0.9")
        assert kept.post(b"a") == (200, b"a")
        for _ in range(40):
            open_.enter_context(contextlib.closing(state(served)))
            assert served.front.open <= FEW.connections
        time.sleep(2 * FEW.newness)  # or they are new, and not ended because no other client needs their place
        assert served.serves(within=4.0)
        assert served.serves("127.0.0.9", within=4.0)
        assert kept.post(b"b") == (200, b"b")
        assert set(served.turned_away) == {front.FULL}
        kept.close()


def test_one_source_cannot_have_all_connections(certificates: Path) -> None:
    with serving(certificates, FEW) as served, contextlib.ExitStack() as open_:
        others = [served.client(f"127.0.0.{number}") for number in range(2, 6)]
        for _ in range(40):
            open_.enter_context(contextlib.closing(served.client("127.0.0.20")))
        assert [client.post(b"a") for client in others] == [(200, b"a")] * 4
        for client in others:
            client.close()


def test_a_request_that_is_answered_is_never_ended_for_others(certificates: Path) -> None:
    with serving(certificates, FEW, threads=20) as served, contextlib.ExitStack() as open_:
        working = [asking(served) for _ in range(15)]
        until(lambda: len(served.requests) == 15)
        for _ in range(30):
            open_.enter_context(contextlib.closing(silent(served)))
        served.release.set()
        assert [client.answer() for client in working] == [(200, b"")] * 15
        for client in working:
            client.close()


def test_beyond_the_bytes_the_largest_gives_way_and_the_small_are_served(certificates: Path) -> None:
    bounds = Bounds(silence=5.0, drain=5.0, linger=1.0, held=4 << 20, max_body=1 << 20)
    with serving(certificates, bounds) as served, contextlib.ExitStack() as open_:
        head = b"POST / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n"
        large = [open_.enter_context(contextlib.closing(served.client(f"127.0.0.{n}"))) for n in range(2, 12)]
        for client in large:
            client.send(head + b"x" * 800_000)
            until(lambda: served.front.held <= bounds.held)
            assert served.serves(within=4.0)
        until(lambda: served.turned_away[front.BYTES] == 5)
        until(lambda: served.front.held == 5 * 800_000)  # else the last one may grow while another takes its answer
        large[-1].send(b"x" * 200_000)
        finished = [client for client in large[:-1] if _finishes(client)]
        assert len(finished) >= 3
    assert set(served.turned_away) == {front.BYTES}


def _finishes(client: Client) -> bool:
    try:
        client.send(b"x" * 200_000)
        return client.answer()[0] == 200
    except OSError:
        return False


def test_answers_that_nobody_takes_are_bytes_too(certificates: Path) -> None:
    bounds = Bounds(silence=5.0, linger=0.3, held=20 << 20)
    with serving(certificates, bounds) as served, contextlib.ExitStack() as open_:
        for _ in range(8):
            open_.enter_context(contextlib.closing(not_reading(served)))
        until(lambda: served.turned_away[front.BYTES] >= 6)
        until(lambda: served.front.held <= bounds.held)
        assert served.serves(within=4.0)


@pytest.mark.parametrize("seed", range(3))
def test_after_any_crowd_nothing_is_kept_for_anybody(certificates: Path, seed: int) -> None:
    """Clients of all kinds at the same time, beyond all limits, of which some leave in the middle."""
    bounds = Bounds(silence=0.5, idle=1.0, linger=0.3, drain=0.3, newness=0.05, connections=30, held=3 << 20)
    kinds = (*(kind for kind in STATES if kind is not asking), good, good, good)
    with serving(certificates, bounds, threads=3) as served:

        def crowd(chance: random.Random) -> None:
            there: list[Any] = []
            for _ in range(40):
                with contextlib.suppress(OSError, AssertionError):  # ended to make room for others
                    there.append(chance.choice(kinds)(served))
                if len(there) > chance.randrange(12):
                    there.pop(chance.randrange(len(there))).close()
            for each in there:
                each.close()

        threads = [threading.Thread(target=crowd, args=(random.Random(f"{seed} {n}"),)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(3 * DEADLINE)
        until(lambda: served.front.open == 0)
        assert served.front.held == 0
        assert served.serves(within=2.0)


class Exhausted:
    """A listener that has no file descriptor for a connection at first, like a process at its limit."""

    def __init__(self, times: int) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=16)
        self._left = times

    def accept(self) -> tuple[socket.socket, Any]:
        if self._left:
            self._left -= 1
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listener.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listener, name)


def _ok(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    start_response("200 OK", [])
    return [b"ok"]


def test_without_a_file_for_a_connection_it_is_taken_a_moment_later(certificates: Path) -> None:
    listeners = [Exhausted(3), Exhausted(3)]
    goes_on = True
    made = Front(
        listeners,
        _ok,
        context=ServingContext(certificates).current,
        threads=1,
        bounds=SMALL,
    )
    thread = threading.Thread(target=lambda: made.run(lambda: goes_on, grace=1.0), daemon=True)
    thread.start()
    context = ssl.create_default_context(cafile=str(certificates / "ca.crt"))
    for listener in listeners:
        plain = socket.create_connection(listener.getsockname(), DEADLINE)
        with contextlib.closing(Client(context.wrap_socket(plain, server_hostname=NAMES[2]))) as client:
            assert client.post(b"") == (200, b"ok")
    goes_on = False
    made.wake()
    thread.join(DEADLINE)
    assert not thread.is_alive()
    for listener in listeners:
        listener.close()


# -- the stop -----------------------------------------------------------------------------------------------------


def test_at_a_stop_open_requests_are_finished_and_idle_ones_may_send_one(served: Served) -> None:
    working, waiting = asking(served), idle(served)
    until(lambda: "/wait" in served.requests)
    served.stop()
    assert waiting.post(b"last") == (200, b"last")
    assert waiting.headers["Connection"] == "close"
    served.release.set()
    assert working.answer() == (200, b"")
    assert served.ended()
    for client in (working, waiting):
        client.close()


SOURCES = {
    ("10.0.0.1", 1): "10.0.0.1",
    ("::ffff:10.0.0.1", 1, 0, 0): "10.0.0.1",
    ("2001:db8:1:2:3:4:5:6", 1, 0, 0): "2001:db8:1:2::/64",
    ("fe80::1%eth0", 1, 0, 2): "fe80::/64",
    "": "",
    ("no address", 1): "no address",
}


@pytest.mark.parametrize(("address", "source"), SOURCES.items(), ids=str)
def test_who_a_client_is(address: Any, source: str) -> None:
    assert source_of(address) == source


def test_the_application_gets_what_wsgi_promises(served: Served) -> None:
    found: dict[str, Any] = {}

    def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        found.update(environ)
        start_response("204 No Content", [])
        return []

    request = WholeRequest(
        Head("PUT", "/a%20b", "c=d", {"x-y": "1", "x_y": "2", "content-type": "t"}, 2, True, False), b"ab"
    )
    answer = answered(application, request, keep=True, source="10.0.0.1")
    assert answer == b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"
    body = found.pop("wsgi.input")
    assert isinstance(body, io.BytesIO)
    assert body.read() == b"ab"
    shown = ("REQUEST_METHOD", "PATH_INFO", "QUERY_STRING", "CONTENT_TYPE", "CONTENT_LENGTH", "REMOTE_ADDR", "HTTP_X_Y")
    assert [found[key] for key in shown] == ["PUT", "/a b", "c=d", "t", "2", "10.0.0.1", "1"]
