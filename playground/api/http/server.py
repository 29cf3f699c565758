"""
The API on a TLS port of the loopback address: threads, HTTP/1.1 with keep-alive, chunked watches.

Authentication happens here (a bearer token or a client certificate becomes a `User`); everything else is `Api`.
"""

import base64
import contextlib
import math
import os
import secrets
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from playground.api.api import Api
from playground.api.http.certificates import Authority
from playground.api.http.handler import Handler
from playground.api.kinds.values import ADMIN, User

_HANDSHAKE_SECONDS = 10.0
_STOP_POLL_SECONDS = 0.05
_UserKey: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, tuple[str, ...]], ...]]


class _Listener(ThreadingHTTPServer):
    """Accepts connections. The TLS handshake happens in the connection's own thread: a slow client hurts nobody."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], context: ssl.SSLContext, owner: "HttpsServer") -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.context = context
        self.backend = owner
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        request.settimeout(_HANDSHAKE_SECONDS)
        with contextlib.suppress(OSError), self.context.wrap_socket(request, server_side=True) as wrapped:
            wrapped.settimeout(None)
            with self._open_lock:
                self._open.add(wrapped)
            try:
                Handler(wrapped, client_address, self)
            finally:
                with self._open_lock:
                    self._open.discard(wrapped)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a broken connection. It ends only its own thread, and the client is gone."""

    def drop_connections(self) -> None:
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class HttpsServer:
    """Serves an `Api`. Users authenticate with a token from `token()` or a certificate from `client_certificate()`."""

    def __init__(self, api: Api, *, port: int = 0, host: str = "127.0.0.1") -> None:
        self.api = api
        self.recorded: dict[str, bytes] = {}
        """By path and query: fixed answers to GET requests, the same for every client."""
        self.authority = Authority()
        self._users: dict[str, User] = {}
        self._tokens: dict[_UserKey, str] = {}
        self._lock = threading.Lock()
        self._ends: dict[str, float] = {}
        api.authenticate = self.user_of
        api.issue_tokens(self.issue)
        names = ("localhost", host, "kubernetes", "kubernetes.default", "kubernetes.default.svc")
        self._host = f"[{host}]" if ":" in host else host
        self._listener = _Listener((host, port), self._context(names), self)
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        return int(self._listener.server_address[1])

    @property
    def url(self) -> str:
        return f"https://{self._host}:{self.port}"

    def __enter__(self) -> "HttpsServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        serve, poll = self._listener.serve_forever, (_STOP_POLL_SECONDS,)
        self._thread = threading.Thread(target=serve, args=poll, name="api-listener", daemon=True)
        self._thread.start()

    def interrupt(self) -> None:
        """Cut every connection, as a crash does. Requests in progress may still be processed, but get no response."""
        self._listener.drop_connections()

    def stop(self) -> None:
        """Stop accepting, end the watches and drop every connection."""
        if self._thread is not None:
            self._listener.shutdown()
            self._thread.join(timeout=5)
            self._thread = None
        self._listener.server_close()
        self.api.store.close()
        self._listener.drop_connections()

    def token(self, user: User) -> str:
        """The bearer token of a user. Every call returns the same one."""
        key = (user.name, tuple(user.groups), tuple(sorted(user.extra.items())))
        with self._lock:
            if key not in self._tokens:
                self._tokens[key] = secrets.token_urlsafe(24)
                self._users[self._tokens[key]] = user
            return self._tokens[key]

    def issue(self, user: User, until: float) -> str:
        """A new bearer token of a user, which expires."""
        token = secrets.token_urlsafe(24)
        self._ends[token] = until
        self._users[token] = user
        return token

    def user_of(self, token: str) -> User | None:
        """The token's user; None if it has none, or has expired."""
        ended = self._ends.get(token, math.inf) <= self.api.clock()
        return None if ended else self._users.get(token)

    def client_certificate(self, user: User) -> tuple[bytes, bytes]:
        """Certificate and key, PEM. A certificate cannot carry the user's `extra`."""
        return self.authority.client(user)

    def kubeconfig(self, user: User = ADMIN, *, namespace: str = "default") -> str:
        """A kubeconfig as YAML: the CA inline, the user's token."""
        ca = base64.b64encode(self.authority.pem).decode()
        name = "playground"
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": name, "cluster": {"server": self.url, "certificate-authority-data": ca}}],
                "users": [{"name": user.name, "user": {"token": self.token(user)}}],
                "contexts": [{"name": name, "context": {"cluster": name, "user": user.name, "namespace": namespace}}],
                "current-context": name,
            },
            sort_keys=False,
        )

    def _context(self, names: tuple[str, ...]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(cadata=self.authority.pem.decode())
        context.set_alpn_protocols(["http/1.1"])
        with _as_file(b"".join(self.authority.server(names))) as path:
            context.load_cert_chain(path)
        return context


@contextlib.contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """`ssl` reads certificates from files only."""
    handle, name = tempfile.mkstemp()
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        yield Path(name)
    finally:
        os.unlink(name)
