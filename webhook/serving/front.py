"""
The webhook's server towards its clients: one thread serves all connections, and no client can block a worker thread.

The thread does the handshakes, reads requests and writes answers, and never waits for one client; whole requests go to
`webhook.serving.workers`. Connections, their bytes, and the time for each step are bounded. When there are too many
connections, the one with the least progress gives way: one without a handshake, then one without a request, then the
one that has been silent longest; only connections of one source, if that source has too many. When there are too many
bytes, the connection with the most gives way.

Why reading is not done by the worker threads: docs/decisions/0094-no-client-holds-a-thread.md.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from typing import Any

from runtime.httpserver import source_of
from webhook.serving import http1
from webhook.serving.connections import Bounds, Connection, Connections, State
from webhook.serving.http1 import RefusedRequest, RequestParser
from webhook.serving.turns import Turns
from webhook.serving.workers import RequestWorkers, Wsgi

log = logging.getLogger(__name__)

LATE_HANDSHAKE, LATE_REQUEST, LATE_READER, QUEUED = "handshake", "request", "answer", "queue"
FULL, BYTES, MALFORMED, TOO_LARGE, STRANGER = "connections", "bytes", "malformed", "size", "certificate"
_REASON_OF = {413: TOO_LARGE, 431: TOO_LARGE}
_UNCERTIFIED = ("PEER_DID_NOT_RETURN_A_CERTIFICATE", "CERTIFICATE_VERIFY_FAILED")
_NOT_ADMITTED = "the client's certificate has none of the allowed names"

_STEPS = 16
"""Reads or writes on one connection before the others have their turn; a TLS record has 16 KiB."""
_ACCEPTS = 32
_CHECK_EVERY = 0.25
_COMPLAIN_EVERY = 60.0
_NO_FILES = 0.1


class Front:
    """
    Serves `app` on the listeners until `run` returns.

    `context` returns the TLS context of a new connection. `admitted` says whether a client may ask, after its
    handshake. `turned_away` is called with one of the reasons above for each client that is refused or given up. `beat`
    is called at each check of the deadlines.
    """

    def __init__(
        self,
        listeners: Sequence[Any],
        app: Wsgi,
        *,
        context: Callable[[], ssl.SSLContext],
        threads: int,
        bounds: Bounds | None = None,
        admitted: Callable[[ssl.SSLSocket], bool] = lambda _: True,
        turned_away: Callable[[str], None] = lambda _: None,
        beat: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listeners = list(listeners)
        self._context = context
        self._bounds = bounds or Bounds()
        self._clock = clock
        self._beat = beat
        self._admitted = admitted
        self._turned_away = turned_away
        self._selector = selectors.DefaultSelector()
        self._connections = Connections()
        self._again: set[Connection] = set()
        """Connections that can continue at once, which the selector may not report."""
        self._woken, self._wake = os.pipe()
        self._stopping: float | None = None
        """The end of the grace period; None before the stop."""
        self._next_check = 0.0
        self._accepts_again = 0.0
        self._complained: dict[str, tuple[float, int]] = {}
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)
        self._turns: Turns[Connection] = Turns(threads)
        # One thread more, for the large request that is answered alongside the others.
        self._workers: RequestWorkers[Connection] = RequestWorkers(app, threads + 1, self.wake)

    # -- the loop -------------------------------------------------------------------------------------------------

    def run(self, goes_on: Callable[[], bool], *, grace: float) -> None:
        """Serve while `goes_on()`, which is called at least each second; then finish requests for `grace` seconds."""
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
        for connection in self._connections:
            self._close(connection)
        self._selector.close()

    def wake(self) -> None:
        """End the loop's wait. From any thread or signal handler."""
        with contextlib.suppress(OSError):  # a full pipe wakes it too
            os.write(self._wake, b"\0")

    @property
    def wakes(self) -> int:
        """A file descriptor; a byte written to it ends the loop's wait."""
        return self._wake

    @property
    def open(self) -> int:
        return len(self._connections)

    @property
    def queued(self) -> int:
        """Requests that wait for a thread."""
        return sum(connection.state is State.QUEUED for connection in self._connections)

    @property
    def held(self) -> int:
        """Bytes of requests and answers that are stored for all connections."""
        return self._connections.held

    def _turn(self) -> None:
        ready = self._selector.select(0 if self._again else _CHECK_EVERY if self._connections else 1.0)
        again, self._again = self._again, set()
        connecting: list[Any] = []
        for key, _ in ready:
            if isinstance(key.data, Connection):
                again.add(key.data)
            elif key.data is not None:
                connecting.append(key.data)
            else:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
        for connection in again:
            self._guarded(connection, self._advance)
        self._take_answers()
        for listener in connecting:
            self._accept(listener)
        self._check()

    def _guarded(self, connection: Connection, step: Callable[[Connection], None]) -> None:
        """Do a step; an error ends this connection and no other."""
        if connection not in self._connections:
            return
        try:
            step(connection)
        except OSError as error:  # the client left, or broke the rules of TLS
            if isinstance(error, ssl.SSLError) and error.reason in _UNCERTIFIED:
                self._count(STRANGER, connection.source)
            log.debug("connection ended", extra={"source": connection.source, "reason": str(error)})
            self._close(connection)
        except Exception:
            log.exception("connection given up")
            self._close(connection)

    def _check(self) -> None:
        now = self._clock()
        if now < self._next_check:
            return
        self._next_check = now + _CHECK_EVERY
        self._beat()
        for connection in self._connections:
            if connection.deadline <= now:
                self._guarded(connection, self._late)
        if self._accepts_again and now >= self._accepts_again:
            self._accepts_again = 0.0
            for listener in self._listeners:
                self._selector.register(listener, selectors.EVENT_READ, listener)

    def _late(self, connection: Connection) -> None:
        state = connection.state
        if state is State.QUEUED:
            self._overdue(connection)
        elif state in (State.READING, State.READING_MORE):
            self._refuse(connection, RefusedRequest(408, "the request did not arrive in time"), LATE_REQUEST)
        else:
            if state in (State.SHAKING, State.WRITING):
                self._count(LATE_HANDSHAKE if state is State.SHAKING else LATE_READER, connection.source)
            self._close(connection)

    def _overdue(self, connection: Connection) -> None:
        self._refuse(connection, RefusedRequest(503, "too many reviews are waiting; try again"), QUEUED)

    def _begin_to_stop(self, now: float, grace: float) -> None:
        for listener in self._listeners:
            # Connected clients are served; for others the address is closed.
            self._accept(listener, until_empty=True)
            if not self._accepts_again:
                self._selector.unregister(listener)
        self._accepts_again = 0.0
        self._listeners = []
        self._stopping = now + grace
        self._workers.stopping = True
        for connection in self._connections:
            if connection.state in (State.SILENT, State.IDLE):
                connection.deadline = min(connection.deadline, now + self._bounds.linger)

    # -- new and ended connections --------------------------------------------------------------------------------

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
        """Most likely the process has too many open files: make room, and pause so that the loop does not spin."""
        log.error("cannot accept connections", extra={"reason": str(error), "open": self.open})
        self._make_room(None)
        if self._stopping is None and not self._accepts_again:
            for listener in self._listeners:
                self._selector.unregister(listener)
            self._accepts_again = self._clock() + _NO_FILES

    def _take(self, plain: socket.socket, source: str) -> None:
        bounds = self._bounds
        crowded = self._connections.of(source) >= bounds.of_one_source
        if crowded or self.open >= bounds.connections:
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
        connection = Connection(secured, source, RequestParser(bounds.max_body))
        self._enter(connection, State.SHAKING, bounds.silence)
        self._connections.add(connection)
        self._watch(connection, selectors.EVENT_READ)

    def _make_room(self, source: str | None) -> bool:
        """Close the connection with the least progress, of that source where one is given; False if all are at work."""
        least = self._connections.least(source, self._clock() - self._bounds.newness)
        if least is not None:
            self._close(least)
        return least is not None

    def _watch(self, connection: Connection, mask: int) -> None:
        """Have the selector report when the connection can be read or written; 0: not at all."""
        if mask == connection.mask:
            return
        if not connection.mask:
            self._selector.register(connection.sock, mask, connection)
        elif not mask:
            self._selector.unregister(connection.sock)
        else:
            self._selector.modify(connection.sock, mask, connection)
        connection.mask = mask

    def _enter(self, connection: Connection, state: State, patience: float) -> None:
        connection.enter(state, self._clock(), patience)

    def _close(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._again.discard(connection)
        self._leave_queue(connection)
        self._connections.remove(connection)
        self._watch(connection, 0)
        connection.close()

    def _leave_queue(self, connection: Connection) -> None:
        if connection.state is State.QUEUED and connection.request is not None:
            self._turns.drop(connection, source=connection.source, size=len(connection.request.body))

    def _account(self, connection: Connection) -> None:
        """Count the connection's bytes again; while all together are too many, the largest connection gives way."""
        self._connections.account(connection)
        while self.held > self._bounds.held:
            largest = self._connections.largest()
            if largest is None:
                return
            if largest.state is State.WRITING:
                self._count(BYTES, largest.source)
                self._close(largest)
            else:
                self._refuse(largest, RefusedRequest(503, "too many bytes are being received; try again"), BYTES)

    def _count(self, reason: str, source: str) -> None:
        """Count a client that was turned away, and log one a minute for each reason."""
        self._turned_away(reason)
        now = self._clock()
        last, number = self._complained.get(reason, (float("-inf"), 0))
        if now - last < _COMPLAIN_EVERY:
            self._complained[reason] = last, number + 1
            return
        self._complained[reason] = now, 0
        log.warning("client turned away", extra={"reason": reason, "source": source, "suppressed": number})

    # -- one connection's steps -----------------------------------------------------------------------------------

    def _advance(self, connection: Connection) -> None:
        """Do what is possible on the connection now."""
        state = connection.state
        if state is State.SHAKING:
            self._shake(connection)
        elif state is State.WRITING:
            self._write(connection)
        elif state < State.WRITING:
            self._read(connection)

    def _shake(self, connection: Connection) -> None:
        if connection.shake() is None:
            self._watch(connection, connection.waits_for)
            return
        connection.stranger = not self._admitted(connection.sock)
        self._enter(connection, State.SILENT, self._idle())
        self._watch(connection, selectors.EVENT_READ)
        self._read(connection)

    def _idle(self) -> float:
        return self._bounds.idle if self._stopping is None else self._bounds.linger

    def _read(self, connection: Connection) -> None:
        """Read, and parse what was read; after a refusal what was read is dropped."""
        for _ in range(_STEPS):
            data = connection.receive()
            if data is None:
                self._watch(connection, connection.waits_for)
                return
            if not data:
                self._close(connection)
                return
            if connection.state is not State.DRAINING:
                connection.parser.feed(data)
                if self._parse(connection):
                    return
        self._again.add(connection)

    def _parse(self, connection: Connection) -> bool:
        """Continue with what has arrived; returns whether to stop reading for now."""
        if connection.state in (State.SILENT, State.IDLE) and connection.parser.begun:
            state = State.READING_MORE if connection.had_request else State.READING
            self._enter(connection, state, self._bounds.silence)
        found = connection.parser.take()
        if isinstance(found, RefusedRequest):
            self._refuse(connection, found, _REASON_OF.get(found.status, MALFORMED))
            return True
        if found is None:
            if connection.parser.must_continue():
                connection.sock.send(http1.CONTINUE)  # so few bytes always fit into the socket's buffer
            self._account(connection)
            return connection.state is State.DRAINING or connection not in self._connections
        if connection.stranger:
            self._refuse(connection, RefusedRequest(403, _NOT_ADMITTED), STRANGER)
            return True
        # The client's own clock began before its first byte came.
        waits = http1.patience(found.head.query)
        connection.answer_by = connection.since + min(
            self._bounds.silence if waits is None else waits, self._bounds.silence
        )
        connection.request = found
        connection.keep = found.head.keep
        connection.had_request = True
        self._watch(connection, 0)
        self._enter(connection, State.QUEUED, connection.answer_by - self._clock())
        self._turns.put(connection, source=connection.source, size=len(found.body))
        self._account(connection)
        self._dispatch()
        return True

    def _refuse(self, connection: Connection, refused: RefusedRequest, reason: str) -> None:
        """Answer with the refusal, and drop what still comes for a moment: a client that is sending reads no answer."""
        self._count(reason, connection.source)
        self._leave_queue(connection)
        connection.request = None
        connection.keep = False
        connection.parser.forget()
        self._enter(connection, State.DRAINING, self._bounds.drain)
        self._account(connection)
        try:
            connection.sock.send(http1.refusal(refused))
        except OSError:
            self._close(connection)
            return
        self._watch(connection, selectors.EVENT_READ)
        self._again.add(connection)

    def _write(self, connection: Connection) -> None:
        for _ in range(_STEPS):
            finished = connection.send()
            if finished is None:
                self._watch(connection, connection.waits_for)
                return
            if finished:
                self._written(connection)
                return
        self._account(connection)
        self._again.add(connection)

    def _written(self, connection: Connection) -> None:
        self._account(connection)
        if not connection.keep:
            self._close(connection)
            return
        self._enter(connection, State.IDLE, self._idle())
        # Bytes of the next request may be in the parser or in TLS's buffer already; the selector does not report those.
        if not self._parse(connection):
            self._watch(connection, selectors.EVENT_READ)
            if connection.sock.pending():
                self._again.add(connection)

    # -- answers --------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        while (connection := self._turns.take()) is not None:
            request = connection.request
            assert request is not None
            self._enter(connection, State.WORKING, float("inf"))
            if connection.answer_by <= self._clock():
                self._turns.done(len(request.body))
                self._guarded(connection, self._overdue)
            elif connection.left:
                self._turns.done(len(request.body))
                self._close(connection)  # there is no mistake that an administrator could repair
            else:
                self._workers.put(
                    connection, request, connection.source, keep=connection.keep, answer_by=connection.answer_by
                )

    def _take_answers(self) -> None:
        for answered in self._workers.answers():
            connection = answered.key
            self._turns.done(answered.size)
            connection.request = None
            if connection in self._connections:
                connection.out = memoryview(answered.answer)
                connection.keep = answered.keep
                self._enter(connection, State.WRITING, self._bounds.silence)
                self._account(connection)
                self._guarded(connection, self._advance)
        self._dispatch()
