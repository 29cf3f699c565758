"""
A client for HTTP/1.1 over a unix socket, for a caller that has a deadline.

Each thread keeps its own connection open. The deadline covers connecting, sending, waiting and reading. The type of
the exception says whether a failed request may have been carried out:

    SocketError
      Unreachable   no server listens, or the connection ended before it read the request: not carried out
      Unanswered    the request was sent, and no complete answer came back: it may have been carried out
        TimedOut    ... within the deadline
        BadAnswer   ... that could be read

A request is repeated once, on a new connection, if the server had closed the old one. On a unix socket this is certain:
sending to a closed peer fails with EPIPE, and a peer that closes before it reads our request resets the connection,
while one that has read it ends the stream properly.

Must not: be shared across a fork while connected, follow redirects, or speak to anything but our server.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEAD_LIMIT = 1 << 16


class SocketError(Exception):
    """A request over the unix socket got no answer."""


class Unreachable(SocketError):
    """The request was not processed."""


class Unanswered(SocketError):
    """The request may have been processed."""


class TimedOut(Unanswered):
    """The deadline passed."""


class BadAnswer(Unanswered):
    """The answer is not HTTP, or too long."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer, whatever its status."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON. Raises BadAnswer."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise BadAnswer(f"{self.status}: body is not JSON") from error


class _Held:
    """A connection between two requests; closed when its thread or the client ends."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class _PerThread(threading.local):
    held: _Held | None = None


class UnixClient:
    """HTTP to one unix socket. Safe to share between threads; make it (or first use it) after a fork."""

    def __init__(self, path: Path, *, max_answer: int = 4 << 20) -> None:
        """max_answer: bytes of body that are accepted."""
        self._path = path
        self._max_answer = max_answer
        self._mine = _PerThread()

    def get(self, target: str, *, timeout: float) -> Answer:
        """GET, done or failed within `timeout` seconds."""
        return self.request("GET", target, b"", timeout=timeout)

    def post(self, target: str, document: Any, *, timeout: float) -> Answer:
        """POST a JSON document, done or failed within `timeout` seconds."""
        return self.request("POST", target, json.dumps(document, separators=(",", ":")).encode(), timeout=timeout)

    def request(self, method: str, target: str, body: bytes, *, timeout: float) -> Answer:
        """One request with a JSON body; answered or failed within `timeout` seconds. Raises SocketError."""
        until = time.monotonic() + timeout
        message = (
            f"{method} {target} HTTP/1.1\r\nHost: localhost\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode("latin-1") + body
        held, self._mine.held = self._mine.held, None
        if held is not None:
            answer = self._attempt(held, message, until, kept_alive=True)
            if answer is not None:
                return answer
        answer = self._attempt(self._connect(until), message, until, kept_alive=False)
        assert answer is not None  # None comes from an old connection only
        return answer

    def close(self) -> None:
        """Drop the calling thread's connection."""
        self._mine.held = None

    def _connect(self, until: float) -> _Held:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(self._left(until))
            made.connect(str(self._path))
        except OSError as error:
            made.close()
            raise Unreachable(f"{self._path}: {error.strerror or 'no connection in time'}") from error
        except BaseException:
            made.close()
            raise
        return _Held(made)

    def _attempt(self, held: _Held, message: bytes, until: float, *, kept_alive: bool) -> Answer | None:
        """The answer, or None if the server had closed a kept-alive connection."""
        keep = False
        connection = held.connection
        try:
            received = bytearray()
            try:
                connection.settimeout(self._left(until))
                connection.sendall(message)
                answer, keep = self._receive(connection, received, until)
            except (BrokenPipeError, ConnectionResetError) as error:
                if received:
                    raise Unanswered(f"{self._path}: the connection broke within the answer") from error
                if kept_alive:
                    return None
                raise Unreachable(f"{self._path}: closed before it read the request") from error
            except TimeoutError as error:
                raise TimedOut(f"{self._path}: no answer in time") from error
            except OSError as error:
                raise Unanswered(f"{self._path}: {error.strerror}") from error
            return answer
        finally:
            if keep:
                self._mine.held = held
            else:
                connection.close()

    def _receive(self, connection: socket.socket, received: bytearray, until: float) -> tuple[Answer, bool]:
        while (end := received.find(b"\r\n\r\n")) < 0:
            if len(received) > _HEAD_LIMIT:
                raise BadAnswer(f"{self._path}: header over {_HEAD_LIMIT} bytes")
            self._more(connection, received, until)
        status, length, keep = self._head(bytes(received[:end]))
        whole = end + 4 + length
        while len(received) < whole:
            self._more(connection, received, until)
        # More bytes would be read as the head of the next answer, so such a connection is not used again.
        return Answer(status, bytes(received[end + 4 : whole])), keep and len(received) == whole

    def _more(self, connection: socket.socket, received: bytearray, until: float) -> None:
        connection.settimeout(self._left(until))
        piece = connection.recv(1 << 16)
        if not piece:
            raise Unanswered(f"{self._path}: closed after {len(received)} bytes of the answer")
        received += piece

    def _head(self, head: bytes) -> tuple[int, int, bool]:
        try:
            first, *lines = head.decode("latin-1").split("\r\n")
            version, code, *_ = first.split(" ", 2)
            fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            status, length = int(code), int(fields["content-length"])
        except (ValueError, KeyError) as error:
            raise BadAnswer(f"{self._path}: not an HTTP answer with a Content-Length") from error
        if not 0 <= length <= self._max_answer:
            raise BadAnswer(f"{self._path}: body of {length} bytes, at most {self._max_answer} are accepted")
        return status, length, version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"

    @staticmethod
    def _left(until: float) -> float:
        left = until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left
