"""
A small HTTP/1.1 server for our own endpoints: health and metrics over TCP, decisions over a unix socket.

Standard library only, one thread per connection, because its clients are few and long-lived: a webhook's worker
threads, a kubelet, a scraper. Figures: docs/decisions/0002-socket-server.md.

Must not: serve tenants or the open network (the webhook's TLS front does), or let clients block others. A request must
arrive, and its answer be read, within `timeout`. Headers and bodies are bounded, each and in total. Connections are
counted; beyond the limit the server closes the one that has waited longest for its client. Otherwise any pod could
block a kubelet's probes with idle connections, and the kubelet would kill the program.
"""

from __future__ import annotations

import contextlib
import errno
import io
import ipaddress
import json
import logging
import os
import socket
import socketserver
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Protocol

log = logging.getLogger(__name__)

Address = tuple[str, int] | Path | socket.socket
JSON_TYPE = "application/json"
ANYWHERE = "::"
"""The host of every address of the machine, of both IPv4 and IPv6."""


class HttpError(Exception):
    """A refusal that a handler raises: the status and a text for the client."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class SocketInUse(OSError):
    """The address has a live server, or something there is not a socket."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. path without the query; header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes
    client: str = ""
    """The client's address, of IPv6 its network of 64 bits; empty on a unix socket."""
    secure: bool = False
    """Whether it came by TLS."""

    def json(self) -> Any:
        """The body as JSON. Raises HttpError 400."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"body: expected JSON, {error}") from error


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def json_reply(document: Any, status: int = 200) -> Reply:
    """An answer in JSON."""
    return Reply(status, json.dumps(document, separators=(",", ":")).encode(), JSON_TYPE)


Handler = Callable[[Request], Reply]
TlsOf = Callable[[], ssl.SSLContext]
Routes = Mapping[tuple[str, str], Handler]


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """What one client may use. Seconds and bytes."""

    timeout: float = 5.0  # from a request's first byte to its last, and for reading the answer
    idle: float = 120.0  # a connection without a request; clients should give up sooner
    max_head: int = 16 << 10
    max_body: int = 4 << 20
    max_held: int = 32 << 20  # all request bodies and answers that are held in memory
    max_connections: int = 128


_HANDSHAKE = b"\x16"
"""The first byte of a TLS connection (RFC 8446, section 5.1); no HTTP request begins with it."""
_LITTLE = 16 << 10
"""Bytes; `max_held` never refuses so short an answer, such as a probe's."""

PROBED = ServerLimits(max_body=0, max_connections=64)
"""For probes and metrics, on a port that strangers reach: no client needs to send a body."""


class Server(Protocol):
    """What answers clients until it is closed."""

    def close(self, grace: float = 5.0) -> None:
        """Accept nothing new, and let requests in progress finish for `grace` seconds."""


class Serve(Protocol):
    """`serve_http`, or its replacement if clients do not come by a socket."""

    def __call__(
        self,
        routes: Routes,
        address: Address,
        *,
        name: str,
        mode: int = 0o600,
        limits: ServerLimits | None = None,
        tls: TlsOf | None = None,
    ) -> Server: ...


def answered(routes: Routes, request: Request) -> Reply:
    """The answer to one request; 404 or 405 without a handler, and 500 where that fails. Never raises."""
    handler = routes.get((request.method, request.path))
    try:
        if handler is not None:
            return handler(request)
        known = any(path == request.path for _, path in routes)
        return _refusal(HttpError(405, "method not allowed") if known else HttpError(404, "no such path"))
    except HttpError as refusal:
        return _refusal(refusal)
    except Exception:
        log.exception("request failed", extra={"method": request.method, "path": request.path})
        return _refusal(HttpError(500, "internal error"))


class HttpServer:
    """A running server; `close` ends it. Made by `serve_http`."""

    def __init__(self, server: _Server, thread: threading.Thread, path: Path | None) -> None:
        self._server = server
        self._thread = thread
        self._path = path
        self._inode = path.lstat().st_ino if path is not None else 0

    @property
    def port(self) -> int:
        """The TCP port that was chosen; 0 for a unix socket."""
        address = self._server.server_address
        return int(address[1]) if isinstance(address, tuple) else 0

    def close(self, grace: float = 5.0) -> None:
        """Accept nothing new, let requests in progress finish for `grace` seconds, free the address."""
        self._server.shutdown()
        self._thread.join(grace)
        self._server.drain(grace)
        self._server.server_close()
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                # Another server may have replaced the file meanwhile, which must stay.
                if self._path.lstat().st_ino == self._inode:
                    self._path.unlink()


def serve_http(
    routes: Routes,
    address: Address,
    *,
    name: str,
    mode: int = 0o600,
    limits: ServerLimits | None = None,
    tls: TlsOf | None = None,
) -> HttpServer:
    """Serve `routes`, keyed by (method, path), on a thread; returns once connections are accepted.

    address: (host, port), port 0 for any; or the path of a unix socket, whose file gets `mode` before a client can
    connect; or a socket made by `listening`. A socket file without a server is replaced. Raises SocketInUse or OSError.

    tls: gives the context for a new connection. A client that begins with a TLS handshake is then served by TLS, and
    any other without it: a kubelet's probes and a scraper have one port. A handler sees which it was.
    """
    if isinstance(address, socket.socket):
        bound = address
    else:
        bound = _bind_unix(address, mode) if isinstance(address, Path) else listening(address)
    server = _Server(bound, routes, limits or ServerLimits(), tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.2,), name=f"http-{name}", daemon=True)
    thread.start()
    return HttpServer(server, thread, address if isinstance(address, Path) else None)


def source_of(address: Any) -> str:
    """The source that a client's address counts for: for IPv6 the network of 64 bits, in which a host is free."""
    if not isinstance(address, tuple):
        return ""
    try:
        found = ipaddress.ip_address(str(address[0]).partition("%")[0])
    except ValueError:
        return str(address[0])
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def has_ipv6() -> bool:
    """Whether this machine, or this pod, can listen on addresses of IPv6."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind((ANYWHERE, 0))
    except OSError:
        return False
    return True


def local_host(host: str) -> str:
    """The host to listen on for `host`: `::` is every address, of IPv4 alone where there is no IPv6."""
    return "0.0.0.0" if host == ANYWHERE and not has_ipv6() else host


def listening(address: tuple[str, int]) -> socket.socket:
    """
    A TCP socket that listens there, for `serve_http` in this process or in a child of it. Raises OSError.

    On `::` it takes connections of IPv4 and IPv6.
    """
    host = local_host(address[0])
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # The kernel's default is a setting of the machine (net.ipv6.bindv6only).
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, host != ANYWHERE)
        made.bind((host, address[1]))
        made.listen(128)
    except OSError:
        made.close()
        raise
    return made


def _bind_unix(path: Path, mode: int) -> socket.socket:
    _refuse_live(path)
    # Bind under another name first: no client can connect before the mode is right, and the rename replaces the file
    # of a dead server in one step.
    own = path.with_name(f".{path.name}.{os.getpid()}")
    own.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        made.bind(str(own))
        own.chmod(mode)
        made.listen(128)
        own.rename(path)
    except OSError:
        made.close()
        own.unlink(missing_ok=True)
        raise
    return made


def _refuse_live(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketInUse(errno.EADDRINUSE, f"{path}: exists and is not a socket; choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except OSError as error:
            raise SocketInUse(errno.EADDRINUSE, f"{path}: cannot tell whether it is served: {error}") from error
    raise SocketInUse(errno.EADDRINUSE, f"{path}: another process is serving it")


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Threads per connection over a socket that was bound by us."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, bound: socket.socket, routes: Routes, limits: ServerLimits, tls: TlsOf | None = None) -> None:
        super().__init__(("", 0), _Connection, bind_and_activate=False)
        self.socket.close()
        self.socket = bound
        self.address_family = bound.family
        self.server_address = bound.getsockname()
        self.routes = routes
        self.limits = limits
        self.tls = tls
        self.closing = False
        self._lock = threading.Condition()
        self._open: dict[Any, float | None] = {}
        """Connections, and since when each waits for its client; None while a request is answered."""
        self._held = 0

    def verify_request(self, request: Any, client_address: Any) -> bool:
        with self._lock:
            if len(self._open) >= self.limits.max_connections and not self._make_room():
                log.warning("connection refused", extra={"reason": "TooManyConnections"})
                return False
            self._open[request] = time.monotonic()
        return True

    def _make_room(self) -> bool:
        """Close the connection that has waited longest for its client; False if all are being answered."""
        waiting = [(since, request) for request, since in self._open.items() if since is not None]
        if not waiting:
            return False
        _, longest = min(waiting, key=lambda entry: entry[0])
        del self._open[longest]
        with contextlib.suppress(OSError):
            longest.shutdown(socket.SHUT_RDWR)
        return True

    def awaits(self, request: Any) -> None:
        """The connection waits for its client."""
        with self._lock:
            if request in self._open:
                self._open[request] = time.monotonic()

    def answers(self, request: Any) -> None:
        """A request has arrived. Raises ConnectionResetError if its connection was closed to make room."""
        with self._lock:
            if request not in self._open:
                raise ConnectionResetError(errno.ECONNRESET, "closed to make room")
            self._open[request] = None

    @contextlib.contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Hold that many bytes in memory for a client. Raises HttpError 429 if too many are held already."""
        with self._lock:
            if size > _LITTLE and self._held and self._held + size > self.limits.max_held:
                raise HttpError(429, f"the server holds {self._held} bytes; the limit is {self.limits.max_held}")
            self._held += size
        try:
            yield
        finally:
            with self._lock:
                self._held -= size

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._lock.notify_all()
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("connection ended with an error", exc_info=True)

    def drain(self, grace: float) -> None:
        """End idle connections, wait for the busy ones, then close those too."""
        self.closing = True
        with self._lock:
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RD)
            self._lock.wait_for(lambda: not self._open, grace)
            for request in self._open:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)


class _Timed(io.RawIOBase):
    """Reads at most `left` bytes from a socket until `deadline`, even if they come slowly."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline = 0.0
        self.left = 0
        self.paused = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        if self.paused:
            return None  # as if there was nothing yet
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if self.left <= 0:
            raise HttpError(431, "the request line and its headers are too long")
        self.connection.settimeout(left)
        got = self.connection.recv_into(buffer, min(len(buffer), self.left))
        self.left -= got
        return got


class _Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        self.connection = self.request
        self._timed = _Timed(self.connection)
        self._reader = io.BufferedReader(self._timed, 1 << 16)
        self.rfile = self._reader
        self._secure: ssl.SSLSocket | None = None
        self._undecided = self.server.tls is not None
        if self.connection.family != socket.AF_UNIX:
            self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        self.rfile.close()
        if self._secure is not None:
            with contextlib.suppress(OSError):
                self._secure.close()

    def _shake_hands(self) -> None:
        """Speak TLS from here on if the client begins with it. Raises OSError, also for a handshake that fails."""
        self._undecided = False
        limits, tls = self.server.limits, self.server.tls
        self.connection.settimeout(limits.idle)
        if tls is None or self.connection.recv(1, socket.MSG_PEEK) != _HANDSHAKE:
            return
        # Over a second descriptor: the first one is what the server closes to make room.
        twin = self.connection.dup()
        try:
            twin.settimeout(limits.timeout)  # for all of the handshake
            self._secure = tls().wrap_socket(twin, server_side=True)
        except OSError:
            twin.close()
            raise
        self.connection = self._timed.connection = self._secure

    def handle_one_request(self) -> None:
        limits = self.server.limits
        self.close_connection = True
        try:
            self.server.awaits(self.request)
            if self._undecided:
                self._shake_hands()
            self._timed.deadline = time.monotonic() + limits.idle
            self._timed.left = limits.max_head
            if not self._reader.peek(1):
                return
            self._timed.deadline = time.monotonic() + limits.timeout
            self.raw_requestline = self.rfile.readline(8192)
            if not self.parse_request():  # it has answered with its own error
                return
            self._exchange()
        except (TimeoutError, ConnectionError, ssl.SSLError):
            self.close_connection = True
            return
        except HttpError as refusal:
            # The rest of the request is unread, so the connection cannot be used again.
            self.close_connection = True
            self._send(_refusal(refusal))

    def _exchange(self) -> None:
        """Read the body, run the handler, send its answer. Raises HttpError only while nothing was sent."""
        length = self._length()
        with self.server.holding(length):
            body = self._body(length)
            self.server.answers(self.request)
            reply = self._answer(body)
            del body
        with self.server.holding(len(reply.body)):
            if self._has_more():
                # Our clients never send a request before they have the last answer. Thousands of requests at once
                # would make this thread compete with those of the probes.
                self.close_connection = True
            # A client that does not read its answer must make room for others, too.
            self.server.awaits(self.request)
            self._send(reply)

    def _has_more(self) -> bool:
        """Whether the client sent bytes after the request."""
        self._timed.paused = True
        found = self._reader.peek(1)
        self._timed.paused = False
        return bool(found)

    def _answer(self, body: bytes) -> Reply:
        path, _, query = self.path.partition("?")
        headers = {key.lower(): value for key, value in self.headers.items()}
        secure = self._secure is not None
        return answered(self.server.routes, Request(self.command, path, query, headers, body, self._client(), secure))

    def _client(self) -> str:
        return source_of(self.client_address)

    def _length(self) -> int:
        if "Transfer-Encoding" in self.headers:
            raise HttpError(501, "Transfer-Encoding: not supported, send Content-Length")
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if len(lengths) != 1 or not (lengths[0].isascii() and lengths[0].isdigit()):
            raise HttpError(400, f"Content-Length: expected one number, got {lengths}")
        length = int(lengths[0])
        if length > self.server.limits.max_body:
            raise HttpError(413, f"body of {length} bytes, at most {self.server.limits.max_body} are accepted")
        return length

    def _body(self, length: int) -> bytes:
        self._timed.left = length
        body = self.rfile.read(length)
        if len(body) < length:
            raise ConnectionResetError(errno.ECONNRESET, "the client left within its body")
        return body

    def _send(self, reply: Reply) -> None:
        if self.server.closing:
            self.close_connection = True
        lines = [
            f"HTTP/1.1 {reply.status} {_PHRASES.get(reply.status, '')}",
            f"Content-Type: {reply.content_type}",
            f"Content-Length: {len(reply.body)}",
            *(f"{key}: {value}" for key, value in reply.headers.items()),
        ]
        if self.close_connection:
            lines.append("Connection: close")
        head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
        self.connection.settimeout(self.server.limits.timeout)
        try:
            # One send: two would cost a delayed acknowledgement on TCP.
            self.connection.sendall(head if self.command == "HEAD" else head + reply.body)
        except OSError:
            self.close_connection = True

    def handle_expect_100(self) -> bool:
        """Ask the client for its body, unless `_exchange` will refuse the length."""
        with contextlib.suppress(HttpError):
            if self._length() > 0:
                self.connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in our form a request that the standard library's parser refuses."""
        self.close_connection = True
        self._send(_refusal(HttpError(int(code), message or "bad request")))

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the handlers count requests."""


_PHRASES = {int(status): status.phrase for status in HTTPStatus}


def _refusal(error: HttpError) -> Reply:
    return json_reply({"error": error.message}, error.status)


# -- probes and metrics -------------------------------------------------------------------------------------------

_CACHED_TIMES, _CACHED_MOST = 9.0, 5.0
"""
An answer serves all clients for this many times as long as it took to make, and for at most this many seconds. So at
most a tenth of the time goes into answers, even if a client asks often.
"""
METRICS = ("GET", "/metrics")


def serve_probes(
    routes: Routes,
    address: Address,
    *,
    name: str,
    guard: Callable[[Handler], Handler] = lambda handler: handler,
    tls: TlsOf | None = None,
    serve: Serve = serve_http,
) -> Server:
    """
    As `serve_http`, for probes and `/metrics`, whose answers are cached. `guard`: which clients get metrics. `serve`
    opens the address.
    """
    served = {**routes, METRICS: guard(cached(routes[METRICS]))}
    return serve(served, address, name=name, limits=PROBED, tls=tls)


def cached(handler: Handler, *, clock: Callable[[], float] = time.monotonic) -> Handler:
    """The handler for equal requests: it runs once at a time, and later clients get the same answer."""
    one_at_a_time = threading.Lock()
    cache: Reply | None = None
    until = 0.0

    def answer(request: Request) -> Reply:
        nonlocal cache, until
        with one_at_a_time:
            started = clock()
            if cache is None or started >= until:
                cache = handler(request)
                now = clock()
                until = now + min(_CACHED_TIMES * (now - started), _CACHED_MOST)
            return cache

    return answer
