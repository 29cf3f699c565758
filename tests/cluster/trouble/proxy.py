"""
A proxy to the API server on which requests go wrong as a test requires: refused, lost, delayed, cut off.

It runs on loopback between one program and either control plane, uses TLS on both sides, and passes on every request
without a fault, including credentials. It counts what a fault did, so that a test waits for the count and never for a
time. It decides nothing at random and knows no kinds.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import yaml

from playground.api.http.certificates import Authority

JSON = dict[str, Any]
_UPSTREAM_SECONDS = 60.0
_HOP_BY_HOP = ("connection", "host", "content-length", "transfer-encoding", "accept-encoding")


@dataclass(frozen=True)
class Request:
    """A request in transit."""

    method: str
    path: str
    query: Mapping[str, str]
    body: bytes

    @property
    def watches(self) -> bool:
        """Whether it asks for a stream of changes."""
        return self.query.get("watch") == "true"

    def json(self) -> JSON:
        """Its body."""
        found: JSON = json.loads(self.body)
        return found


Wanted = Callable[[Request], bool]


@dataclass(frozen=True)
class Refuse:
    """The proxy answers, like an API server that refuses the request; it is not carried out."""

    code: int
    reason: str
    retry_after: int | None = None


@dataclass(frozen=True)
class Drop:
    """Not carried out; the connection ends without an answer."""


@dataclass(frozen=True)
class Lose:
    """Carried out; the connection ends without the answer."""


@dataclass(frozen=True)
class Hold:
    """Delayed until `released`, and then carried out, even if the program ended long ago."""

    released: threading.Event


@dataclass(frozen=True)
class Late:
    """Carried out, and answered this many seconds later; the program may have ended by then."""

    seconds: float


@dataclass(frozen=True)
class Alter:
    """Carried out with another body."""

    change: Callable[[JSON], JSON]


@dataclass(frozen=True)
class Mute:
    """A watch that opens and delivers nothing."""


Action = Refuse | Drop | Lose | Hold | Late | Alter | Mute


@dataclass
class Fault:
    """What happens to the requests that are `wanted`; to this many of them if `times` is given."""

    wanted: Wanted
    action: Action
    times: int | None = None
    hits: int = 0
    carried_out: list[int] = field(default_factory=list)
    """The API server's status codes for lost and delayed requests, once they were carried out."""
    _lock: threading.Lock = field(default_factory=threading.Lock)  # guards hits: a fault may be on several proxies

    def meets(self, request: Request) -> bool:
        """Whether the fault happens to this request; counts it."""
        with self._lock:
            if (self.times is not None and self.hits >= self.times) or not self.wanted(request):
                return False
            self.hits += 1
            return True


class Proxy:
    """Starts at once, on its own port. `kubeconfig` is the file whose user goes through this proxy."""

    def __init__(self) -> None:
        self.passed: list[tuple[Request, int]] = []
        """The requests to the API server and its codes, in the order of its answers, without watches."""
        self._faults: list[Fault] = []
        self._lock = threading.Lock()  # guards the lists and the streams
        self._streams: set[socket.socket] = set()
        self._authority = Authority("proxy-ca")
        self._upstream = ("", 0)
        self._trust = ssl.create_default_context()
        self._server = _server(self, self._authority)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="proxy", daemon=True).start()

    def close(self) -> None:
        """Accept no more connections, and cut the open ones."""
        self._server.shutdown()
        self._server.server_close()
        self.cut()

    def kubeconfig(self, text: str) -> str:
        """The kubeconfig with the address of this proxy instead of the API server's."""
        document = yaml.safe_load(text)
        (entry,) = document["clusters"]
        there = urlsplit(entry["cluster"]["server"])
        assert there.hostname
        assert there.port
        self._upstream = (there.hostname, there.port)
        trusted = base64.b64decode(entry["cluster"]["certificate-authority-data"]).decode()
        self._trust = ssl.create_default_context(cadata=trusted)
        entry["cluster"] = {
            "server": f"https://127.0.0.1:{self._server.server_address[1]}",
            "certificate-authority-data": base64.b64encode(self._authority.pem).decode(),
        }
        return json.dumps(document)

    @contextlib.contextmanager
    def suffering(self, fault: Fault) -> Iterator[None]:
        """The fault happens here in this context. If several faults want a request, the oldest one gets it."""
        with self._lock:
            self._faults.append(fault)
        try:
            yield
        finally:
            with self._lock:
                self._faults.remove(fault)

    def cut(self) -> int:
        """Cut the open watches. Returns how many."""
        with self._lock:
            streams, self._streams = self._streams, set()
        for each in streams:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        return len(streams)

    # -- for the connections' threads ------------------------------------------------------------------------------

    def meeting(self, request: Request) -> Fault | None:
        """The fault that happens to the request, if any."""
        with self._lock:
            return next((fault for fault in self._faults if fault.meets(request)), None)

    @contextlib.contextmanager
    def request(self, request: Request, target: str, headers: Mapping[str, str]) -> Iterator[http.client.HTTPResponse]:
        """
        The API server's answer, unread. Each request has its own connection, so that no stale connection loses one.
        """
        patience = None if request.watches else _UPSTREAM_SECONDS
        connection = http.client.HTTPSConnection(*self._upstream, timeout=patience, context=self._trust)
        with contextlib.closing(connection):
            connection.request(request.method, target, request.body or None, dict(headers))
            with contextlib.closing(connection.getresponse()) as answer:
                yield answer

    def note(self, request: Request, code: int) -> None:
        """Note that the API server has answered."""
        with self._lock:
            self.passed.append((request, code))

    @contextlib.contextmanager
    def streaming(self, connection: socket.socket) -> Iterator[None]:
        """Treat the connection as a watch in this context, so that it can be cut."""
        with self._lock:
            self._streams.add(connection)
        try:
            yield
        finally:
            with self._lock:
                self._streams.discard(connection)


class _Connection(BaseHTTPRequestHandler):
    """One connection of the program."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer in two parts would wait for an acknowledgement between them
    proxy: Proxy

    def handle(self) -> None:
        # Either side may end at any time; the other learns it from the end of its connection.
        with contextlib.suppress(OSError, http.client.HTTPException):
            super().handle()

    def _serve(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, url.path, dict(parse_qsl(url.query)), body)
        fault = self.proxy.meeting(request)
        if fault is not None:
            match fault.action:
                case Refuse() as refusal:
                    self._refuse(refusal)
                    return
                case Alter(change):
                    content = json.dumps(change(request.json())).encode()
                    request = Request(request.method, request.path, request.query, content)
                case Drop():
                    self.close_connection = True
                    return
                case Hold(released):
                    released.wait(_UPSTREAM_SECONDS)
                    self._unheard(fault, request)
                    return
                case Lose():
                    self._unheard(fault, request)
                    return
                case Late(seconds):
                    time.sleep(seconds)
        self._pass(request, muted=fault is not None and isinstance(fault.action, Mute))

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _unheard(self, fault: Fault, request: Request) -> None:
        """Carry it out, and end without an answer."""
        self.close_connection = True
        with self._asked(request) as answer:
            if request.watches:  # it has no end
                return
            answer.read()
            self.proxy.note(request, answer.status)
            fault.carried_out.append(answer.status)

    def _asked(self, request: Request) -> contextlib.AbstractContextManager[http.client.HTTPResponse]:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        return self.proxy.request(request, self.path, headers)

    def _pass(self, request: Request, *, muted: bool) -> None:
        with self._asked(request) as answer:
            if request.watches and answer.status == http.HTTPStatus.OK:
                with self.proxy.streaming(self.connection):
                    self._stream(answer, muted=muted)
                return
            content = answer.read()
            self.proxy.note(request, answer.status)
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
            self._answer(answer.status, kept, content)

    def _stream(self, answer: http.client.HTTPResponse, *, muted: bool) -> None:
        self.close_connection = True
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.getheader("Content-Type", "application/json"))
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(1 << 16):
            if not muted:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _refuse(self, refusal: Refuse) -> None:
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "status": "Failure",
            "code": refusal.code,
            "reason": refusal.reason,
            "message": "refused on the way",
        }
        headers = [("Content-Type", "application/json")]
        if refusal.retry_after is not None:
            headers.append(("Retry-After", str(refusal.retry_after)))
        self._answer(refusal.code, headers, json.dumps(status).encode())

    def _answer(self, code: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(code)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: tests ask the proxy what passed."""


def _server(owner: Proxy, authority: Authority) -> ThreadingHTTPServer:
    class Connection(_Connection):
        proxy = owner

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 64

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore broken connections: they are what this proxy is for."""

    server = Server(("127.0.0.1", 0), Connection)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pair.pem"
        path.write_bytes(b"".join(authority.server(("127.0.0.1",))))
        context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    return server
