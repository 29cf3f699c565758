"""
The webhook's way to its clients: one thread looks after all connections, and no client can hold a thread that answers.

It shakes hands, reads requests and writes answers without ever waiting for one client; whole requests go to threads,
which run the application and touch no socket. Connections, the bytes that all of them hold, and the time that each step
may take are bounded. Where there are too many connections, the one that has shown least gives way: first those that
have not shaken hands, then those that have not asked anything, then the one that has been silent for longest; among
those of one source where that source has more than its part. Where too many bytes are held, the largest gives way.

Why not the threads that read: docs/decisions/0094-no-client-holds-a-thread.md.
"""

from __future__ import annotations

import contextlib
import enum
import io
import ipaddress
import logging
import os
import queue
import selectors
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_to_bytes

from webhook.serving import http1
from webhook.serving.http1 import RefusedRequest, RequestParser, WholeRequest
from webhook.serving.turns import Turns

log = logging.getLogger(__name__)

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Admitted = Callable[[ssl.SSLSocket], bool]

LATE_HANDSHAKE, LATE_REQUEST, LATE_READER, QUEUED = "handshake", "request", "answer", "queue"
FULL, BYTES, MALFORMED, TOO_LARGE, STRANGER = "connections", "bytes", "malformed", "size", "certificate"
_REASON_OF = {413: TOO_LARGE, 431: TOO_LARGE}
_UNCERTIFIED = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED")

_CHUNK = 64 << 10
_STEPS = 16
"""Reads or writes on one connection before the others have their turn; a record of TLS has 16 KiB."""
_ACCEPTS = 32
_LOOK_EVERY = 0.25
_COMPLAIN_EVERY = 60.0
_NO_FILES = 0.1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What clients may use up. Seconds, bytes and counts."""

    silence: float = 5.0
    """For a handshake, for a request from first to last byte, for taking an answer, and for waiting for a thread."""
    idle: float = 120.0
    """Between requests."""
    linger: float = 2.0
    """At a stop: for a request that is on its way on a connection that was idle."""
    drain: float = 3.0
    """For a client to read a refusal while it is still sending."""
    newness: float = 1.0
    """In which a step that a client has just begun is not ended for others."""
    connections: int = 512
    of_one_source: int = 384
    """API servers come from few addresses and open a connection for each review at a time, 200 by default."""
    held: int = 32 << 20
    max_body: int = 3 << 20
    socket_buffer: int = 128 << 10
    """Of the kernel's memory for each direction of a connection, which counts as the container's."""


class _State(enum.IntEnum):
    """Ordered by what a client has shown: the smallest gives way first. From QUEUED on there is somebody to answer."""

    SHAKING = 0
    SILENT = 1  # has never asked
    READING = 2  # the first request
    IDLE = 3  # has been answered
    READING_MORE = 4
    DRAINING = 5  # refused, and perhaps still sending
    WRITING = 6
    QUEUED = 7
    WORKING = 8


class _Connection:
    __slots__ = (
        "asked",
        "counted",
        "deadline",
        "keep",
        "mask",
        "out",
        "reader",
        "request",
        "since",
        "sock",
        "source",
        "state",
        "stranger",
    )

    def __init__(self, sock: ssl.SSLSocket, source: str, reader: RequestParser, now: float, patience: float) -> None:
        self.sock, self.source, self.reader = sock, source, reader
        self.state = _State.SHAKING
        self.since, self.deadline = now, now + patience
        self.mask = 0
        self.out = memoryview(b"")
        self.counted = 0
        self.request: WholeRequest | None = None
        self.keep = True
        self.asked = False
        self.stranger = False

    @property
    def held(self) -> int:
        """Bytes that are kept for the client."""
        return self.reader.held + len(self.out) + (len(self.request.body) if self.request is not None else 0)


class Front:
    """
    Serves `app` on the listeners until `run` returns.

    `context` gives the TLS of a new connection; `admitted` tells whether who has shaken hands may ask; `turned_away`
    is told each reason of the constants above when a client is given up or refused; `beat` is called at each look.
    """

    def __init__(
        self,
        listeners: Sequence[Any],
        app: Wsgi,
        *,
        context: Callable[[], ssl.SSLContext],
        threads: int,
        bounds: Bounds | None = None,
        admitted: Admitted = lambda _: True,
        turned_away: Callable[[str], None] = lambda _: None,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listeners, self._app, self._context = list(listeners), app, context
        self._bounds, self._clock, self._beat = bounds or Bounds(), clock, beat
        self._admitted, self._turned_away = admitted, turned_away
        self._selector = selectors.DefaultSelector()
        self._connections: set[_Connection] = set()
        self._sources: dict[str, int] = {}
        self._held = 0
        self._again: set[_Connection] = set()
        """Those with more to read or write than their turn allowed, of which the selector may not know."""
        self._turns: Turns[_Connection] = Turns(threads)
        self._work: queue.SimpleQueue[_Connection] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[_Connection, bytes, int]] = queue.SimpleQueue()
        self._woken, self._wake = os.pipe()
        self._stopping: float | None = None
        self._next_look = 0.0
        self._accepts_again = 0.0
        self._complained: dict[str, tuple[float, int]] = {}
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        # One more for the large request that goes beside the others.
        for number in range(threads + 1):
            threading.Thread(target=self._answer_requests, name=f"review-{number}", daemon=True).start()

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, goes_on: Callable[[], bool], *, grace: float) -> None:
        """
        Serve while `goes_on`, which is asked each second at least; then let begun requests finish for `grace` seconds.
        """
        self._selector.register(self._woken, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ, listener)
        while True:
            now = self._clock()
            if self._stopping is None and not goes_on():
                self._begin_to_stop(now, grace)
            if self._stopping is not None and (not self._connections or now >= self._stopping):
                break
            self._turn()
        for connection in list(self._connections):
            self._close(connection)
        self._selector.close()

    def wake(self) -> None:
        """Have the loop look around now. From any thread or signal handler."""
        with contextlib.suppress(OSError):  # as full as it is it wakes
            os.write(self._wake, b"\0")

    @property
    def wakes(self) -> int:
        """A file descriptor; what is written to it wakes the loop."""
        return self._wake

    @property
    def open(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    @property
    def held(self) -> int:
        """Bytes of requests and answers that are kept for all connections."""
        return self._held

    def _turn(self) -> None:
        ready = self._selector.select(0 if self._again else _LOOK_EVERY if self._connections else 1.0)
        again, self._again = self._again, set()
        found: list[Any] = []
        for key, _ in ready:
            if isinstance(key.data, _Connection):
                again.add(key.data)
            elif key.data is not None:
                found.append(key.data)
            else:
                self._hear()
        for connection in again:
            self._guarded(connection, self._advance)
        self._take_answers()
        for listener in found:
            self._accept(listener)
        self._look()

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _guarded(self, connection: _Connection, step: Callable[[_Connection], None]) -> None:
        """One connection's trouble is that connection's."""
        if connection not in self._connections:
            return
        try:
            step(connection)
        except ssl.SSLError as error:
            if error.reason in _UNCERTIFIED:
                self._count(STRANGER, connection.source)
            log.debug("connection ended", extra={"source": connection.source, "reason": str(error)})
            self._close(connection)
        except OSError as error:  # the client left
            log.debug("connection ended", extra={"source": connection.source, "reason": str(error)})
            self._close(connection)
        except Exception:
            log.exception("connection given up")
            self._close(connection)

    def _look(self) -> None:
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + _LOOK_EVERY
        self._beat()
        for connection in [each for each in self._connections if each.deadline <= now]:
            self._guarded(connection, self._late)
        if self._accepts_again and now >= self._accepts_again:
            self._accepts_again = 0.0
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)

    def _late(self, connection: _Connection) -> None:
        state = connection.state
        if state is _State.QUEUED:
            self._refuse(connection, RefusedRequest(503, "too many reviews wait here; try again"), QUEUED)
        elif state in (_State.READING, _State.READING_MORE):
            self._refuse(connection, RefusedRequest(408, "the request did not arrive in time"), LATE_REQUEST)
        else:
            if state in (_State.SHAKING, _State.WRITING):
                self._count(LATE_HANDSHAKE if state is _State.SHAKING else LATE_READER, connection.source)
            self._close(connection)

    def _begin_to_stop(self, now: float, grace: float) -> None:
        for listener in self._listeners:
            # Who has connected already is served; to others the address is closed.
            self._accept(listener, until_empty=True)
            if not self._accepts_again:
                self._selector.unregister(listener)
        self._accepts_again, self._listeners = 0.0, []
        self._stopping = now + grace
        for connection in self._connections:
            if connection.state in (_State.SILENT, _State.IDLE):
                connection.deadline = min(connection.deadline, now + self._bounds.linger)

    # -- connections ----------------------------------------------------------------------------------------------

    def _accept(self, listener: Any, *, until_empty: bool = False) -> None:
        for _ in range(self._bounds.connections if until_empty else _ACCEPTS):
            try:
                plain, address = listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue
            except OSError as error:
                self._cannot_accept(error)
                return
            try:
                self._take(plain, source_of(address))
            except OSError as error:
                plain.close()
                log.debug("connection ended", extra={"reason": str(error)})
            except Exception:
                plain.close()
                log.exception("connection given up")

    def _cannot_accept(self, error: OSError) -> None:
        """No more files, most likely: make room, and do not turn in circles meanwhile."""
        log.error("cannot accept connections", extra={"reason": str(error), "open": len(self._connections)})
        self._make_room(None)
        if self._stopping is None and not self._accepts_again:
            for listener in self._listeners:
                self._selector.unregister(listener)
            self._accepts_again = self._clock() + _NO_FILES

    def _take(self, plain: socket.socket, source: str) -> None:
        bounds = self._bounds
        crowded = self._sources.get(source, 0) >= bounds.of_one_source
        if crowded or len(self._connections) >= bounds.connections:
            self._count(FULL, source)
            if not self._make_room(source if crowded else None):
                plain.close()
                return
        plain.setblocking(False)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, bounds.socket_buffer)
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bounds.socket_buffer)
        if plain.family != socket.AF_UNIX:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        secured = self._context().wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        connection = _Connection(secured, source, RequestParser(bounds.max_body), self._clock(), bounds.silence)
        self._connections.add(connection)
        self._sources[source] = self._sources.get(source, 0) + 1
        self._await(connection, selectors.EVENT_READ)

    def _make_room(self, source: str | None) -> bool:
        """Close the connection that has shown least, of that source where one is given; False if all are at work."""
        new = self._clock() - self._bounds.newness
        able = (each for each in self._connections if each.state < _State.WRITING and source in (None, each.source))
        # Those that have just begun are left alone while there are others, or a flood of connections would have each
        # other's handshakes ended, an API server's too.
        least = min(
            able, key=lambda each: (each.since > new, each.since <= new and each.state, each.since), default=None
        )
        if least is None:
            return False
        self._close(least)
        return True

    def _await(self, connection: _Connection, mask: int) -> None:
        """Have the selector tell when the connection can be read or written; 0: not at all."""
        if mask == connection.mask:
            return
        if not connection.mask:
            self._selector.register(connection.sock, mask, connection)
        elif not mask:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, mask, connection)
        connection.mask = mask

    def _enter(self, connection: _Connection, state: _State, patience: float) -> None:
        connection.state = state
        connection.since = self._clock()
        connection.deadline = connection.since + patience

    def _close(self, connection: _Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._again.discard(connection)
        self._drop(connection)
        left = self._sources[connection.source] - 1
        if left:
            self._sources[connection.source] = left
        else:
            del self._sources[connection.source]
        self._await(connection, 0)
        connection.reader.forget()
        connection.out = memoryview(b"")
        if connection.state is not _State.WORKING:
            connection.request = None
        self._held -= connection.counted
        connection.counted = 0
        if connection.state > _State.SHAKING:
            with contextlib.suppress(OSError, ValueError):
                connection.sock.unwrap()  # says that this is the end; nobody waits for the other to say so
        with contextlib.suppress(OSError):
            connection.sock.close()

    def _drop(self, connection: _Connection) -> None:
        """Out of the queue, if it is in it."""
        if connection.state is _State.QUEUED and connection.request is not None:
            self._turns.drop(connection, source=connection.source, size=len(connection.request.body))

    def _account(self, connection: _Connection) -> None:
        """What is held has changed; the largest gives way while it is too much."""
        held = connection.held
        self._held += held - connection.counted
        connection.counted = held
        while self._held > self._bounds.held:
            able = (each for each in self._connections if each.state is not _State.WORKING and each.counted)
            largest = max(able, key=lambda each: each.counted, default=None)
            if largest is None:
                return
            if largest.state is _State.WRITING:
                self._count(BYTES, largest.source)
                self._close(largest)
            else:
                self._refuse(largest, RefusedRequest(503, "too many bytes are on their way here; try again"), BYTES)

    def _count(self, reason: str, source: str) -> None:
        """In a metric, and in the log once a minute."""
        self._turned_away(reason)
        now = self._clock()
        last, number = self._complained.get(reason, (float("-inf"), 0))
        if now - last < _COMPLAIN_EVERY:
            self._complained[reason] = last, number + 1
            return
        self._complained[reason] = now, 0
        log.warning("client turned away", extra={"reason": reason, "source": source, "suppressed": number})

    # -- one connection's steps -----------------------------------------------------------------------------------

    def _advance(self, connection: _Connection) -> None:
        state = connection.state
        if state is _State.SHAKING:
            self._shake(connection)
        elif state is _State.WRITING:
            self._write(connection)
        elif state is _State.DRAINING:
            self._drain(connection)
        elif state < _State.WRITING:
            self._read(connection)

    def _shake(self, connection: _Connection) -> None:
        try:
            connection.sock.do_handshake()
        except ssl.SSLWantReadError:
            self._await(connection, selectors.EVENT_READ)
            return
        except ssl.SSLWantWriteError:
            self._await(connection, selectors.EVENT_WRITE)
            return
        connection.stranger = not self._admitted(connection.sock)
        self._enter(connection, _State.SILENT, self._idle())
        self._await(connection, selectors.EVENT_READ)
        self._read(connection)

    def _idle(self) -> float:
        return self._bounds.idle if self._stopping is None else self._bounds.linger

    def _received(self, connection: _Connection) -> bytes | None:
        """What came; None where nothing did. Empty at the end."""
        try:
            return connection.sock.recv(_CHUNK)
        except ssl.SSLWantReadError:
            self._await(connection, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._await(connection, selectors.EVENT_WRITE)
        return None

    def _read(self, connection: _Connection) -> None:
        for _ in range(_STEPS):
            data = self._received(connection)
            if data is None:
                return
            if not data:
                self._close(connection)
                return
            connection.reader.feed(data)
            if self._understand(connection):
                return
        self._again.add(connection)

    def _understand(self, connection: _Connection) -> bool:
        """Go by what has come so far; whether nothing more is to be read for now."""
        if connection.state in (_State.SILENT, _State.IDLE) and connection.reader.begun:
            state = _State.READING_MORE if connection.asked else _State.READING
            self._enter(connection, state, self._bounds.silence)
        found = connection.reader.take()
        if isinstance(found, RefusedRequest):
            self._refuse(connection, found, _REASON_OF.get(found.status, MALFORMED))
            return True
        if found is None:
            if connection.reader.told_to_go_on():
                connection.sock.send(http1.CONTINUE)  # there is room for so little
            self._account(connection)
            return connection.state is _State.DRAINING or connection not in self._connections
        if connection.stranger:
            self._refuse(connection, RefusedRequest(403, _NOT_ADMITTED), STRANGER)
            return True
        connection.request, connection.keep, connection.asked = found, found.head.keep, True
        self._await(connection, 0)
        self._enter(connection, _State.QUEUED, self._bounds.silence)
        self._turns.put(connection, source=connection.source, size=len(found.body))
        self._account(connection)
        self._dispatch()
        return True

    def _refuse(self, connection: _Connection, refused: RefusedRequest, reason: str) -> None:
        """Answer that much, and read on for a moment without keeping it: a client that still sends would not see it."""
        self._count(reason, connection.source)
        self._drop(connection)
        connection.request, connection.keep = None, False
        connection.reader.forget()
        self._enter(connection, _State.DRAINING, self._bounds.drain)
        self._account(connection)
        try:
            connection.sock.send(http1.refusal(refused))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError, OSError):
            self._close(connection)
            return
        self._await(connection, selectors.EVENT_READ)
        self._again.add(connection)

    def _drain(self, connection: _Connection) -> None:
        for _ in range(_STEPS):
            data = self._received(connection)
            if data is None:
                return
            if not data:
                self._close(connection)
                return
        self._again.add(connection)

    def _write(self, connection: _Connection) -> None:
        for _ in range(_STEPS):
            try:
                sent = connection.sock.send(connection.out[:_CHUNK])
            except ssl.SSLWantReadError:
                self._await(connection, selectors.EVENT_READ)
                return
            except ssl.SSLWantWriteError:
                self._await(connection, selectors.EVENT_WRITE)
                return
            connection.out = connection.out[sent:]
            if not connection.out:
                self._written(connection)
                return
        self._account(connection)
        self._again.add(connection)

    def _written(self, connection: _Connection) -> None:
        connection.out = memoryview(b"")
        self._account(connection)
        if not connection.keep:
            self._close(connection)
            return
        self._enter(connection, _State.IDLE, self._idle())
        # What came meanwhile, here or in a record that was read already, is nothing that a selector would tell.
        if not self._understand(connection):
            self._await(connection, selectors.EVENT_READ)
            if connection.sock.pending():
                self._again.add(connection)

    # -- answers --------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (connection := self._turns.take()) is not None:
            self._enter(connection, _State.WORKING, float("inf"))
            self._work.put(connection)

    def _take_answers(self) -> None:
        while True:
            try:
                connection, answer, size = self._answers.get_nowait()
            except queue.Empty:
                break
            self._turns.done(size)
            connection.request = None
            if connection not in self._connections:
                continue
            connection.out = memoryview(answer)
            self._enter(connection, _State.WRITING, self._bounds.silence)
            self._account(connection)
            self._guarded(connection, self._advance)
        self._dispatch()

    def _answer_requests(self) -> None:
        """On each of the threads."""
        while True:
            connection = self._work.get()
            request = connection.request
            assert request is not None
            connection.keep = connection.keep and self._stopping is None
            try:
                answer = answered(self._app, request, keep=connection.keep, source=connection.source)
            except BaseException as error:  # a thread that ended would be missed by everybody
                log.exception("request failed", extra={"kind": type(error).__name__})
                answer = http1.refusal(RefusedRequest(500, "internal error"))
                connection.keep = False
            self._answers.put((connection, answer, len(request.body)))
            del request, answer, connection
            self.wake()


_NOT_ADMITTED = "the client's certificate has none of the names that may ask here"


def answered(app: Wsgi, request: WholeRequest, *, keep: bool, source: str) -> bytes:
    """The application's answer (PEP 3333) as it goes to the client."""
    head = request.head
    started: list[tuple[str, Sequence[tuple[str, str]]]] = []

    def start_response(
        status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        started.append((status, headers))
        return written.append

    written: list[bytes] = []
    result = app(environment(request, source), start_response)
    try:
        written.extend(result)
    finally:
        close = getattr(result, "close", None)
        if close is not None:
            close()
    status, headers = started[-1]
    return http1.answer(status, headers, b"".join(written), keep=keep, bodiless=head.method == "HEAD")


def environment(request: WholeRequest, source: str) -> dict[str, Any]:
    """The request as PEP 3333 has it."""
    head = request.head
    named = {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in _others(head.headers)}
    return {
        **named,
        "REQUEST_METHOD": head.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(head.path).decode("latin-1"),
        "QUERY_STRING": head.query,
        "CONTENT_TYPE": head.headers.get("content-type", ""),
        "CONTENT_LENGTH": str(len(request.body)),
        "SERVER_NAME": "webhook",
        "SERVER_PORT": "443",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": source,
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "https",
        "wsgi.input": io.BytesIO(request.body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }


def _others(headers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """All but those that have a place of their own; a name with an underscore could pose as another one."""
    return (
        (name, value)
        for name, value in headers.items()
        if name not in ("content-type", "content-length") and "_" not in name
    )


def source_of(address: Any) -> str:
    """Who connects, as far as that can be told from an address: of IPv6 the network, in which one host may have any."""
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
