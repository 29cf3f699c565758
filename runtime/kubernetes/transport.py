"""
The only module that speaks HTTP to the API server.

`runtime.kubernetes.client` uses a `Transport`: `PooledTransport` in production, others in the embedded cluster and in
tests. The `kubernetes` package's Configuration gives credentials, CA, proxies and token refresh, and its urllib3 pool
the connections. Its models are never used: they cost about 850 us a pod, and plain JSON costs 12.

A transport raises only KubeUnavailable (the request was not processed), KubeTimeout (it may have been) and
KubeConfigError. It never retries: `runtime.kubernetes.client` decides whether that is safe.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit
from urllib.request import getproxies

from runtime.kubernetes.errors import KubeConfigError, KubeConnectionLost, KubeTimeout, KubeUnavailable, cut

USER_AGENT = "gpufraction"
CONNECT_TIMEOUT = 5.0  # seconds; a live API server on a sane network accepts well within
ANSWER_TIMEOUT = 10.0  # seconds until a stream's head has arrived; an API server sends it before the first event
_CHUNK = 1 << 16
_TOKEN_NAMES = ("BearerToken", "authorization")
"""The token's key in the package's configuration: in its newer releases, and in the plain-Python ones, of which the
single-file plugin has one."""
_USERS = "~/.kube/config"
_ELSE = ", KUBECONFIG is not set, and this is not a pod with a service account"


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """
    One request. `timeout`: seconds for the whole answer. With `stream` the answer must begin as soon as any other, and
    `timeout` is how long its body may be silent before the connection counts as broken.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes | None
    timeout: float
    stream: bool = False

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Response(Protocol):
    """An answer. Its status and headers have arrived; its body may still be on its way."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Header names in lower case."""
        ...

    def read(self, most: int | None = None) -> bytes:
        """
        The whole body, within the request's timeout; the connection goes back to the pool.

        Raises `TooLong` for a body of more than `most` bytes, which is not read to its end.
        """
        ...

    def chunks(self) -> Iterator[bytes]:
        """Pieces of the body as they arrive; ends when the server or `close` ends it."""
        ...

    def close(self) -> None:
        """Give the connection up. From another thread: `chunks` ends promptly. Idempotent."""
        ...


class TooLong(Exception):
    """The body has more bytes than the caller wants to hold."""


class Transport(Protocol):
    """Sends one request and returns the answer."""

    def request(self, request: HttpRequest) -> Response: ...


class PooledTransport:
    """HTTP over the `kubernetes` package's connection pool. Safe to share between threads."""

    def __init__(
        self,
        configuration: Any,
        *,
        user_agent: str = USER_AGENT,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        """
        configuration: a `kubernetes.client.Configuration`, credentials loaded. answer_timeout: seconds within which
        a stream's answer must begin.
        """
        from kubernetes.client.rest import RESTClientObject

        configuration.socket_options = _socket_options()
        self._configuration = configuration
        self._host = str(configuration.host).rstrip("/")
        try:
            self._pool: Any = RESTClientObject(configuration).pool_manager
        except Exception as error:
            raise KubeConfigError(f"{self._host}: cannot set up TLS: {type(error).__name__}") from error
        self._user_agent = user_agent
        self._answer_timeout = answer_timeout
        self._credentials_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"PooledTransport({self._host!r})"

    def request(self, request: HttpRequest) -> Response:
        import urllib3
        from urllib3.exceptions import HTTPError

        what, timeout = str(request), request.timeout
        query = f"?{urlencode(request.query)}" if request.query else ""
        sent = {"User-Agent": self._user_agent, **request.headers, **self._authorization(what)}
        deadline = time.monotonic() + timeout
        patience = min(timeout, self._answer_timeout) if request.stream else timeout
        try:
            raw = self._pool.request(
                request.method,
                self._host + request.path + query,
                body=request.body,
                headers=sent,
                timeout=urllib3.Timeout(connect=min(timeout, CONNECT_TIMEOUT), read=patience),
                preload_content=False,
                retries=False,
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise _typed(error, what) from error
        sock = _socket_of(raw) if request.stream else None
        if sock is not None:
            sock.settimeout(timeout)
        return _PooledResponse(raw, what=what, deadline=deadline)

    def _authorization(self, what: str) -> dict[str, str]:
        try:
            # The package's refresh hooks (rotated token file, exec plugin) are not thread-safe.
            with self._credentials_lock:
                found = map(self._configuration.get_api_key_with_prefix, _TOKEN_NAMES)
                token = next(filter(None, found), None)
        except Exception as error:
            raise KubeUnavailable(f"{what}: credentials: {type(error).__name__}") from error
        return {"Authorization": token} if token else {}


class _PooledResponse:
    def __init__(self, raw: Any, *, what: str, deadline: float) -> None:
        self._raw = raw
        self._what = what
        self._deadline = deadline
        self._closed = False
        self._reading = False
        self.status: int = raw.status
        # A field such as Warning may come several times; `headers[key]` joins its values with commas.
        self.headers: Mapping[str, str] = {key.lower(): str(raw.headers[key]) for key in raw.headers}

    def read(self, most: int | None = None) -> bytes:
        pieces, length = [], 0
        for piece in self.chunks():
            pieces.append(piece)
            length += len(piece)
            if most is not None and length > most:
                self.close()
                raise TooLong
            # The socket's timeout limits each silence only, so a server that drips bytes would hold us forever.
            if time.monotonic() > self._deadline:
                self.close()
                raise KubeTimeout(f"{self._what}: the answer did not end in time")
        return b"".join(pieces)

    def chunks(self) -> Iterator[bytes]:
        raw = self._raw
        self._reading = True
        whole = False
        try:
            if raw.chunked and raw.supports_chunked_reads():
                yield from raw.read_chunked(_CHUNK)
            else:
                yield from iter(lambda: raw.read1(_CHUNK), b"")
            whole = True
        except Exception as error:
            # A read of a socket that `close` shut down fails in many ways; none of them matters.
            if not self._closed:
                raise _typed(error, self._what, answered=True) from error
        finally:
            # A connection can carry another request only after its answer was read to the end.
            (raw.release_conn if whole and not self._closed else raw.close)()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        sock = _socket_of(self._raw)
        if sock is not None:
            # Shutting down wakes a reader in another thread. Closing the socket would leave it blocked, and closing
            # the buffered reader would wait for its lock.
            with contextlib.suppress(OSError, ValueError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)
        if not self._reading:
            self._raw.close()


def _socket_of(raw: Any) -> socket.socket | None:
    """The socket under a urllib3 response, also after the connection gave it up (`Connection: close`)."""
    sock = getattr(getattr(raw, "connection", None), "sock", None)
    if sock is None:
        reader = getattr(getattr(raw, "_fp", None), "fp", None)  # http.client's buffered reader over a SocketIO
        sock = getattr(getattr(reader, "raw", None), "_sock", None)
    return sock if isinstance(sock, socket.socket) else None


def connect_transport(
    *,
    kubeconfig: str | None,
    context: str | None,
    user_agent: str,
    env: Mapping[str, str] | None = None,
    anonymous: bool = False,
) -> PooledTransport:
    """Load credentials: the given kubeconfig; else the pod's service account; else the user's kubeconfig.

    anonymous: no credentials are sent, and each request brings its own. Raises KubeConfigError.
    """
    from kubernetes import client, config

    settings = client.Configuration()
    environment = os.environ if env is None else env
    in_cluster = kubeconfig is None and bool(environment.get("KUBERNETES_SERVICE_HOST"))
    try:
        if in_cluster:
            load: Any = config.load_incluster_config
            load(client_configuration=settings)
        else:
            load = config.load_kube_config
            load(
                config_file=kubeconfig or environment.get("KUBECONFIG") or _USERS,
                context=context,
                client_configuration=settings,
                persist_config=False,
            )
    except Exception as error:
        files = kubeconfig or environment.get("KUBECONFIG") or _USERS
        if not in_cluster and not any(Path(file).expanduser().exists() for file in files.split(os.pathsep)):
            more = _ELSE if files == _USERS else ""
            raise KubeConfigError(f"kubeconfig {files}: no such file{more}") from error
        source = "service account" if in_cluster else f"kubeconfig {files}"
        why = str(error) if isinstance(error, (config.ConfigException, OSError)) else "this is not a kubeconfig"
        raise KubeConfigError(f"{source}: {cut(why)}") from error
    if anonymous:
        settings.api_key, settings.api_key_prefix, settings.refresh_api_key_hook = {}, {}, None
        settings.cert_file = settings.key_file = settings.username = settings.password = None
    # Like Go's programs, use no proxy of the environment to reach this machine. A proxy that is set stays: without that
    # the package looks it up in the environment before every request, for a pool that is made once.
    unwanted = _is_here(settings.host) and settings.proxy in getproxies().values()
    settings.proxy = None if unwanted else settings.proxy
    return PooledTransport(settings, user_agent=user_agent)


def _is_here(url: str) -> bool:
    """Whether the URL is of this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _typed(error: BaseException, what: str, *, answered: bool = False) -> KubeUnavailable:
    """Our error for a foreign one: KubeUnavailable if the request was not sent, else KubeTimeout."""
    from urllib3 import exceptions

    before_sending = (
        exceptions.NewConnectionError,
        exceptions.ConnectTimeoutError,
        exceptions.NameResolutionError,
        exceptions.ProxyError,
    )
    if not answered and (isinstance(error, before_sending) or _is_handshake(error)):
        return KubeUnavailable(f"{what}: cannot connect: {_why(error)}")
    if isinstance(error, exceptions.TimeoutError):
        return KubeTimeout(f"{what}: no answer in time")
    return KubeConnectionLost(f"{what}: connection lost: {type(error).__name__}")


def _is_handshake(error: BaseException) -> bool:
    """A certificate that is not trusted ends the connection before any request is sent."""
    import ssl

    return any(isinstance(seen, ssl.SSLCertVerificationError) for seen in _chain(error))


def _why(error: BaseException) -> str:
    """The operating system's message, such as "Connection refused"; else the name of the failure."""
    words = (seen.strerror for seen in _chain(error) if isinstance(seen, OSError))
    return next(filter(None, words), type(error).__name__)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes, which urllib3 passes as arguments or chains."""
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        nested = seen.args[-1] if seen.args and isinstance(seen.args[-1], BaseException) else None
        seen = nested or seen.__cause__


def _socket_options() -> list[tuple[int, int, int]]:
    """TCP keepalive: a quiet watch ends within a minute after its peer vanished."""
    options = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options
