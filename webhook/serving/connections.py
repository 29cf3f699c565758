"""
The clients' connections: the non-blocking steps of one connection, and what all of them use together.

`Connection` is one client's TLS connection. Each step does what is possible now; where it must wait, it returns None
and `waits_for` says for what. `Connections` counts connections by source and the bytes that are stored for them, and
names the one that gives way to others. No clock and no selector: `webhook.serving.front` brings both.
"""

from __future__ import annotations

import contextlib
import enum
import select
import selectors
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from webhook.serving.http1 import RequestParser, WholeRequest

T = TypeVar("T")
_CHUNK = 64 << 10
_ENDED = getattr(select, "POLLRDHUP", 0)
"""The event of a peer that will send no more (Linux, poll(2)); elsewhere only the resets of such peers are noticed."""
_NOTHING = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What clients may use up. Seconds, bytes and counts."""

    silence: float = 5.0
    """
    For a handshake, for a request from first to last byte, for taking an answer; and for an answer from the request's
    first byte on, unless the client waits less.
    """
    idle: float = 120.0
    """Between requests."""
    linger: float = 2.0
    """At a stop: for a request that is in transit on an idle connection."""
    drain: float = 3.0
    """For a client that is still sending to read a refusal."""
    newness: float = 1.0
    """For a step that has just begun: this long, a connection does not give way to others."""
    connections: int = 512
    of_one_source: int = 384
    """API servers have few addresses and open a connection for each review at a time, 200 by default."""
    held: int = 32 << 20
    max_body: int = 3 << 20
    socket_buffer: int = 128 << 10
    """Of the kernel's memory for each direction of a connection, which counts as the container's."""


class State(enum.IntEnum):
    """What a client does, in the order of its progress: the smallest gives way first. From WRITING on none does."""

    SHAKING = 0  # the TLS handshake
    SILENT = 1  # no request yet
    READING = 2  # the first request
    IDLE = 3  # between requests
    READING_MORE = 4  # a later request
    DRAINING = 5  # refused, and perhaps still sending
    WRITING = 6  # takes its answer
    QUEUED = 7  # waits for a thread
    WORKING = 8  # a thread answers it


@dataclass(slots=True, eq=False)
class Connection:
    """One client's TLS connection. `source` is the address that it counts for."""

    sock: ssl.SSLSocket
    source: str
    parser: RequestParser
    state: State = State.SHAKING
    since: float = 0.0
    """When the state began."""
    deadline: float = 0.0
    mask: int = 0
    """The events for which the selector watches the socket."""
    waits_for: int = selectors.EVENT_READ
    """The event that the last step needs before it can go on."""
    out: memoryview = _NOTHING
    """What is left to send."""
    counted: int = 0
    """The bytes that `Connections` has counted for it."""
    request: WholeRequest | None = None
    answer_by: float = 0.0
    """When the client stops waiting for the answer to its request."""
    keep: bool = True
    """Whether the connection stays open after the answer."""
    had_request: bool = False
    """Whether it has had a request."""
    stranger: bool = False
    """Whether its certificate has none of the permitted names."""

    @property
    def held(self) -> int:
        """Bytes that are stored for the client."""
        return self.parser.held + len(self.out) + (len(self.request.body) if self.request is not None else 0)

    def enter(self, state: State, now: float, patience: float) -> None:
        """Begin a step, which may take `patience` seconds."""
        self.state = state
        self.since = now
        self.deadline = now + patience

    @property
    def left(self) -> bool:
        """Whether the client has closed its side of the connection, and so waits for no answer."""
        poll = select.poll()
        poll.register(self.sock.fileno(), _ENDED)
        return bool(poll.poll(0))

    def shake(self) -> bool | None:
        """Continue the handshake; True when it is done."""

        def step() -> bool:
            self.sock.do_handshake()
            return True

        return self._attempt(step)

    def receive(self) -> bytes | None:
        """The bytes that have come; empty at the end of the connection."""
        return self._attempt(lambda: self.sock.recv(_CHUNK))

    def send(self) -> bool | None:
        """Send a part of `out`; whether all of it is sent."""
        sent = self._attempt(lambda: self.sock.send(self.out[:_CHUNK]))
        if sent is None:
            return None
        self.out = self.out[sent:] or _NOTHING  # an empty slice would keep the whole answer in memory
        return not self.out

    def _attempt(self, step: Callable[[], T]) -> T | None:
        try:
            return step()
        except ssl.SSLWantReadError:
            self.waits_for = selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            self.waits_for = selectors.EVENT_WRITE
        return None

    def close(self) -> None:
        """Free what is stored, and end the connection."""
        self.parser.forget()
        self.out = _NOTHING
        self.request = None
        if self.state > State.SHAKING:
            with contextlib.suppress(OSError, ValueError):
                self.sock.unwrap()  # TLS's close notice; the client's is not awaited
        with contextlib.suppress(OSError):
            self.sock.close()


class Connections:
    """The open connections, and what they use up together."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._by_source: Counter[str] = Counter()
        self.held = 0
        """Bytes that are stored for all of them."""

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        """A copy is iterated, so connections can be removed meanwhile."""
        return iter(tuple(self._open))

    def __contains__(self, connection: Connection) -> bool:
        return connection in self._open

    def of(self, source: str) -> int:
        return self._by_source[source]

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        self._by_source[connection.source] += 1

    def remove(self, connection: Connection) -> None:
        """Stop counting a connection."""
        self._open.discard(connection)
        self._by_source[connection.source] -= 1
        if not self._by_source[connection.source]:
            del self._by_source[connection.source]
        self.held -= connection.counted
        connection.counted = 0

    def account(self, connection: Connection) -> None:
        """Count its bytes again, which have changed."""
        held = connection.held
        self.held += held - connection.counted
        connection.counted = held

    def least(self, source: str | None, begun_before: float) -> Connection | None:
        """
        The connection that gives way to a new one, of that source where one is given; None if all are being answered.

        It is the one with the least progress, and of those the one that has been silent longest. Connections whose step
        began after `begun_before` come last: otherwise a flood would also end the handshakes of API servers.
        """
        able = (each for each in self._open if each.state < State.WRITING and source in (None, each.source))
        return min(able, key=lambda each: _progress(each, begun_before), default=None)

    def largest(self) -> Connection | None:
        """The connection that holds the most bytes, none that a thread is answering."""
        able = (each for each in self._open if each.state is not State.WORKING and each.counted)
        return max(able, key=lambda each: each.counted, default=None)


def _progress(each: Connection, begun_before: float) -> tuple[bool, int, float]:
    new = each.since > begun_before
    return new, 0 if new else each.state, each.since
