"""HTTP over a unix socket: what the server accepts, and how the client handles every failure."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from runtime.httpserver import HttpError, Reply, Request, Routes, ServerLimits, SocketInUse, json_reply, serve_http
from runtime.unixhttp import Answer, BadAnswer, TimedOut, Unanswered, UnixClient, Unreachable


def echo(request: Request) -> Reply:
    return json_reply({"got": request.json(), "path": request.path, "query": request.query})


def refuse(request: Request) -> Reply:
    raise HttpError(422, "spec.x: expected a number")


def fail(request: Request) -> Reply:
    raise RuntimeError("the secret is hunter2")


ROUTES: Routes = {("POST", "/echo"): echo, ("POST", "/refuse"): refuse, ("GET", "/fail"): fail}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.sock"


@pytest.fixture
def client(path: Path) -> Iterator[UnixClient]:
    server = serve_http(ROUTES, path, name="test", limits=ServerLimits(timeout=1.0, max_body=1000, max_connections=2))
    made = UnixClient(path)
    yield made
    made.close()
    server.close()


def test_a_document_goes_there_and_back(client: UnixClient) -> None:
    for number in range(3):
        answer = client.post("/echo?a=b", {"n": number}, timeout=5)
        assert (answer.status, answer.json()) == (200, {"got": {"n": number}, "path": "/echo", "query": "a=b"})


STATUSES = {
    "a handler's refusal": ("POST", "/refuse", b"{}", 422, "spec.x: expected a number"),
    "a handler's fault, without its text": ("GET", "/fail", b"", 500, "internal error"),
    "an unknown path": ("POST", "/nowhere", b"", 404, "no such path"),
    "a known path with another method": ("GET", "/echo", b"", 405, "method not allowed"),
    "a body that is too large": (
        "POST",
        "/echo",
        b" " * 1001,
        413,
        "body of 1001 bytes, at most 1000 are accepted",
    ),
    "a body that is not JSON": (
        "POST",
        "/echo",
        b"{",
        400,
        "body: expected JSON, Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
}


@pytest.mark.parametrize(("method", "target", "body", "status", "text"), STATUSES.values(), ids=STATUSES.keys())
def test_is_answered(client: UnixClient, method: str, target: str, body: bytes, status: int, text: str) -> None:
    answer = client.request(method, target, body, timeout=5)
    assert (answer.status, answer.json()) == (status, {"error": text})
    assert client.post("/echo", 1, timeout=5).status == 200


def raw(path: Path, *pieces: bytes) -> bytes:
    """What a client receives that sends exactly these bytes and then waits for the end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as made:
        made.settimeout(5)
        made.connect(str(path))
        for piece in pieces:
            made.sendall(piece)
        received = b""
        while piece := made.recv(4096):
            received += piece
        return received


WIRE = {
    "a chunked body": (b"POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"HTTP/1.1 501 "),
    "two lengths": (b"POST /echo HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", b"HTTP/1.1 400 "),
    "a negative length": (b"POST /echo HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"HTTP/1.1 400 "),
    "no HTTP at all": (b"hello\r\n\r\n", b"HTTP/1.1 400 "),
    "an unfinished request, after its time": (b"POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\n1", b""),
}


@pytest.mark.parametrize(("sent", "start"), WIRE.values(), ids=WIRE.keys())
def test_on_the_wire(client: UnixClient, path: Path, sent: bytes, start: bytes) -> None:
    got = raw(path, sent)
    assert got.startswith(start) if start else got == b""


def connected(path: Path, sent: bytes = b"") -> socket.socket:
    """A client that has sent this much and nothing more."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(5)
    made.connect(str(path))
    made.sendall(sent)
    return made


ASKS = b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"


@pytest.mark.parametrize("sent", [b"", b"POST /echo HTTP/1.1\r\nContent-Length: 2\r\n\r\n{"], ids=["nothing", "a part"])
def test_beyond_the_limit_the_connection_that_is_silent_longest_is_closed(
    client: UnixClient, path: Path, sent: bytes
) -> None:
    with connected(path, sent) as longest, connected(path, ASKS) as other:
        assert other.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert client.post("/echo", {}, timeout=5).status == 200
        assert longest.recv(1) == b""
        other.sendall(ASKS)
        assert other.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_beyond_the_limit_nobody_makes_room_who_is_being_answered(path: Path) -> None:
    answering, go_on = threading.Semaphore(0), threading.Event()

    def slow(request: Request) -> Reply:
        answering.release()
        assert go_on.wait(10)
        return Reply(200, b"done")

    server = serve_http({("POST", "/echo"): slow}, path, name="test", limits=ServerLimits(max_connections=2))
    with connected(path, ASKS) as first, connected(path, ASKS) as second:
        for _ in range(2):
            assert answering.acquire(timeout=10)
        assert raw(path) == b""
        go_on.set()
        for each in (first, second):
            assert each.recv(4096).endswith(b"done")
    server.close()


def test_the_socket_file_has_its_mode_and_goes_away(path: Path) -> None:
    server = serve_http(ROUTES, path, name="test", mode=0o660)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    server.close()
    assert list(path.parent.iterdir()) == []


def test_a_dead_servers_file_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    server = serve_http(ROUTES, path, name="test")
    assert UnixClient(path).post("/echo", 1, timeout=5).status == 200
    server.close()


def test_a_live_servers_file_is_left_alone(path: Path) -> None:
    server = serve_http(ROUTES, path, name="test")
    with pytest.raises(SocketInUse, match="another process is serving it"):
        serve_http(ROUTES, path, name="second")
    client = UnixClient(path)
    assert client.post("/echo", 1, timeout=5).status == 200
    client.close()
    server.close()


def test_a_file_that_is_no_socket_is_left_alone(path: Path) -> None:
    path.write_text("precious")
    with pytest.raises(SocketInUse, match="not a socket"):
        serve_http(ROUTES, path, name="test")
    assert path.read_text() == "precious"


def test_closing_lets_a_request_finish(path: Path) -> None:
    begun, release = threading.Event(), threading.Event()

    def slow(request: Request) -> Reply:
        begun.set()
        release.wait(5)
        return json_reply("done")

    server = serve_http({("GET", "/slow"): slow}, path, name="test")
    answers: list[Answer] = []
    caller = threading.Thread(target=lambda: answers.append(UnixClient(path).get("/slow", timeout=5)))
    caller.start()
    assert begun.wait(5)
    closer = threading.Thread(target=server.close)
    closer.start()
    release.set()
    caller.join(5)
    closer.join(5)
    assert [answer.json() for answer in answers] == ["done"]


def test_nobody_there_is_unreachable(path: Path) -> None:
    with pytest.raises(Unreachable, match="No such file"):
        UnixClient(path).get("/", timeout=1)


class Peer:
    """A handwritten server: runs one function for each accepted connection, in turn."""

    def __init__(self, path: Path, *turns: Callable[[socket.socket], None]) -> None:
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen()
        self.listener.settimeout(5)
        self.turns = turns
        self.accepted = 0
        self.done = [threading.Event() for _ in turns]
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        for turn, done in zip(self.turns, self.done, strict=True):
            connection, _ = self.listener.accept()
            self.accepted += 1
            connection.settimeout(5)
            with connection:
                turn(connection)
            done.set()

    def close(self) -> None:
        self.thread.join(5)
        self.listener.close()


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


def answer_once(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(OK)


def read_and_leave(connection: socket.socket) -> None:
    connection.recv(65536)


def answer_then_read_and_leave(connection: socket.socket) -> None:
    answer_once(connection)
    connection.recv(65536)


def leave_unread(connection: socket.socket) -> None:
    connection.recv(1)


def half(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(OK[:-1])


def nonsense(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"hello\r\n\r\n")


def huge(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n")


FIRST = {
    "left before reading the request": (leave_unread, Unreachable),
    "left after reading the request": (read_and_leave, Unanswered),
    "left within the answer": (half, Unanswered),
    "speaks something else": (nonsense, BadAnswer),
    "sends more than is accepted": (huge, BadAnswer),
}


@pytest.mark.parametrize(("turn", "kind"), FIRST.values(), ids=FIRST.keys())
def test_a_server_that(path: Path, turn: Callable[[socket.socket], None], kind: type[Exception]) -> None:
    peer = Peer(path, turn)
    with pytest.raises(Exception, match=r"s\.sock") as caught:
        UnixClient(path).get("/x", timeout=5)
    assert type(caught.value) is kind
    peer.close()


def test_a_kept_connection_that_was_closed_is_replaced(path: Path) -> None:
    peer = Peer(path, answer_once, answer_once)
    client = UnixClient(path)
    assert client.get("/x", timeout=5).status == 200
    assert peer.done[0].wait(5)
    assert client.get("/x", timeout=5).status == 200
    client.close()
    peer.close()


def test_a_request_that_was_read_is_not_sent_again(path: Path) -> None:
    peer = Peer(path, answer_then_read_and_leave)
    client = UnixClient(path)
    client.get("/x", timeout=5)
    with pytest.raises(Unanswered):
        client.get("/x", timeout=5)
    peer.close()
    assert peer.accepted == 1


def drip(connection: socket.socket) -> None:
    connection.recv(65536)
    for byte in OK * 1000:
        try:
            connection.sendall(bytes([byte]))
        except OSError:
            return
        time.sleep(0.02)  # the slowness under test, not a wait for something


def test_the_deadline_covers_the_whole_answer(path: Path) -> None:
    peer = Peer(path, drip)
    client = UnixClient(path)
    started = time.monotonic()
    with pytest.raises(TimedOut):
        client.get("/x", timeout=0.2)
    assert time.monotonic() - started < 2
    peer.close()


def test_each_thread_has_its_own_connection(path: Path) -> None:
    names: list[int] = []

    def who(request: Request) -> Reply:
        names.append(threading.get_ident())
        return json_reply({})

    server = serve_http({("GET", "/who"): who}, path, name="test")
    client = UnixClient(path)
    gate = threading.Barrier(3)

    def call() -> None:
        gate.wait(5)
        for _ in range(3):
            client.get("/who", timeout=5)
        gate.wait(5)
        client.close()

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    server.close()
    assert sorted(names.count(name) for name in set(names)) == [3, 3, 3]


def test_over_tcp_it_serves_http_clients(tmp_path: Path) -> None:
    import http.client

    server = serve_http(ROUTES, ("127.0.0.1", 0), name="test")
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    for _ in range(2):
        connection.request("POST", "/echo", b"[1]")
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (200, b'{"got":[1],"path":"/echo","query":""}')
    connection.close()
    server.close()
    assert os.listdir(tmp_path) == []


def test_requests_of_a_thread_share_one_connection(path: Path) -> None:
    def twice(connection: socket.socket) -> None:
        answer_once(connection)
        answer_once(connection)

    peer = Peer(path, twice)
    client = UnixClient(path)
    assert [client.get("/x", timeout=5).status for _ in range(2)] == [200, 200]
    peer.close()
    assert peer.accepted == 1
