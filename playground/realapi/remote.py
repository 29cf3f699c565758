"""
A client of a real API server with the interface that the machinery uses: paths, verbs, refusals as values, watches.

The machinery was written for a server in its own process, which is always reachable. A real server can be unreachable.
In that case, reads wait for it, and so does a write that certainly was not processed. A write with an unknown outcome
is a 504, and its sender gets the result from the watch.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from playground.api.kinds.values import ADMIN, JSON, User
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeError, KubeGone, KubeUnavailable
from runtime.kubernetes.transport import HttpRequest, Transport

_TIMEOUT = 35.0
"""Seconds for an answer: longer than the longest admission webhook may take (30 s)."""
_PATIENCE = 30.0
_PAUSE = 0.2
_WATCH_SECONDS = 300
_BUSY = (429, 503)


class RemoteApi:
    """`connect` gives a user's transport; each user's is requested once."""

    def __init__(self, connect: Callable[[User], Transport]) -> None:
        self._connect = connect
        self._transports: dict[tuple[str, tuple[str, ...]], Transport] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()

    def close(self) -> None:
        """Stop waiting."""
        self._closed.set()

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        user: User = ADMIN,
    ) -> tuple[int, JSON]:
        """Make one request. Returns the status code, and the object or Status of the response."""
        headers = {"Accept": "application/json", **({"Content-Type": content_type} if body is not None else {})}
        content = json.dumps(body).encode() if body is not None else None
        deadline = time.monotonic() + _PATIENCE
        while True:
            code, answer, again = self._once(method, path, query or {}, headers, content, user)
            if not again or time.monotonic() > deadline or self._closed.wait(_PAUSE):
                return code, answer

    def _once(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        user: User,
    ) -> tuple[int, JSON, bool]:
        """The response, and whether a retry is safe and may help."""
        try:
            response = self._transport(user).request(HttpRequest(method, path, query, headers, body, _TIMEOUT))
            code, text = response.status, response.read()
        except KubeUnavailable as error:
            code = 504 if error.outcome_unknown else 503
            return code, _status(code, str(error)), method == "GET" or not error.outcome_unknown
        return code, _decoded(code, text), code in _BUSY

    def watch(self, path: str, *, query: Mapping[str, str] | None = None, user: User = ADMIN) -> RemoteWatch:
        """Every change after the query's resourceVersion, until the server or `close` ends the watch."""
        return RemoteWatch(self._transport(user), path, query or {})

    def _transport(self, user: User) -> Transport:
        key = (user.name, user.groups)
        with self._lock:
            if key not in self._transports:
                self._transports[key] = self._connect(user)
            return self._transports[key]


class RemoteWatch:
    """One watch. A version that the server no longer has gives an ERROR event. A lost connection ends the watch."""

    def __init__(self, transport: Transport, path: str, query: Mapping[str, str]) -> None:
        self._kube = Kube(transport)
        self._path = path
        self._query = query
        self._closed = threading.Event()
        self._end: Callable[[], None] | None = None
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[JSON]:
        if self._closed.is_set():
            return
        events = self._kube.watch(
            self._path,
            resource_version=self._query.get("resourceVersion", ""),
            query={key: value for key, value in self._query.items() if key == "labelSelector"},
            timeout_seconds=_WATCH_SECONDS,
            on_open=self._opened,
        )
        try:
            yield from events
        except KubeGone as error:
            yield {"type": "ERROR", "object": _status(410, str(error))}
        except KubeError:
            self._closed.wait(_PAUSE)

    def close(self) -> None:
        """End the iteration, from any thread."""
        with self._lock:
            self._closed.set()
            if self._end is not None:
                self._end()

    def _opened(self, end: Callable[[], None]) -> None:
        with self._lock:
            self._end = end
            if self._closed.is_set():
                end()


def _decoded(code: int, text: bytes) -> JSON:
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    return answer if isinstance(answer, dict) else _status(code, text.decode(errors="replace").strip())


def _status(code: int, message: str) -> JSON:
    return {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message}
