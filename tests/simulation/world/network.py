"""
The connection from a program to the API server: delays and faults.

`Way` is a `Transport` of `runtime.kubernetes.client`, one for each client. A task of the server carries out the
request, so it continues if its client gives up or dies. `Rule`s decide what goes wrong. Faults add and remove them;
without a rule every request is answered after a short delay.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from playground.api.api import Api, ApiError
from playground.api.kinds import requests
from playground.api.kinds.values import User
from playground.api.store.watching import BOOKMARK_SECONDS, Watch, WatchEvent
from runtime.kubernetes.errors import KubeConnectionLost, KubeTimeout, KubeUnavailable
from runtime.kubernetes.transport import HttpRequest, TooLong
from tests.simulation.kernel.primitives import Event, nanoseconds
from tests.simulation.kernel.scheduler import SECOND, Host, Kernel, stream

JSON = dict[str, Any]
Fate = Literal["answered", "refused", "unsent", "dropped", "silent", "unanswered", "late", "twice", "slow"]
"""
What happens to a request: it is answered; refused with a status; not sent because there is no connection; lost in
transit (dropped), which half of the clients learn at once and half when their patience ends; never answered (silent);
carried out with the answer lost (unanswered); carried out after its client gave up (late); carried out twice, as by a
proxy that repeats it; or answered slowly.
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """
    A fate and its figures. `status`: of a refusal; `retry_after`: the whole seconds that it asks to wait; 0 if it does
    not say. `seconds`: of a delay; for a late request, counted from when its client gave up.
    """

    fate: Fate = "answered"
    status: int = 0
    seconds: float = 0.0
    retry_after: int = 0


WELL = Verdict()


@dataclass(frozen=True, slots=True)
class Call:
    """A request as rules see it. `number` counts the requests of the host; `body` is its JSON as sent."""

    host: str
    method: str
    path: str
    query: Mapping[str, str]
    number: int
    body: bytes | None = None

    @property
    def is_write(self) -> bool:
        return self.method != "GET"

    @property
    def is_watch(self) -> bool:
        return "watch" in self.query

    @property
    def program(self) -> str:
        """The program of the host, regardless of how often it was started."""
        return program_of(self.host)


def program_of(host: str) -> str:
    """The program on the host of that name: `allocator-0` for `allocator-0.3`."""
    return host.rpartition(".")[0] or host


Rule = Callable[[Call], Verdict | None]
"""The verdict on a request; None if the rule does not apply to it."""


@dataclass
class Stream:
    """
    An open watch. Faults freeze it, cut it, or make it lag.

    host: of the program that reads. kind: the plural of its resource.
    """

    host: Host
    kind: str
    watch: Watch
    frozen: bool = False
    lag: float = 0.0
    """Seconds after its commit before an event is delivered."""
    bookmarks_only: bool = False
    cut: bool = False
    closed: bool = False
    moved: Event = field(default_factory=Event)
    """Set when a waiting reader must look again."""

    @property
    def program(self) -> str:
        """The program that reads."""
        return program_of(self.host.name)

    def freeze(self) -> None:
        """Deliver nothing until `thaw`."""
        self.frozen = True

    def thaw(self) -> None:
        """Deliver again, starting with what was held back."""
        self.frozen = False
        self.moved.set()

    def mute(self, muted: bool) -> None:
        """Deliver only bookmarks; or deliver again, starting with what was held back."""
        self.bookmarks_only = muted
        self.moved.set()

    def delay(self, seconds: float) -> None:
        """Deliver each event this long after its commit. This applies again to an event that already waits."""
        self.lag = seconds
        self.moved.set()

    def sever(self) -> None:
        """Break the connection."""
        self.cut = True
        self.watch.close()
        self.moved.set()


class Effects(Protocol):
    """Receives each answered request, for the hash of effects."""

    def answered(self, call: Call, status: int, digest: int) -> None: ...


class Network:
    """
    All connections of all hosts.

    server: the host whose tasks carry requests out. latency: seconds for one direction, minimum and maximum.
    """

    def __init__(self, kernel: Kernel, api: Callable[[], Api], server: Host, *, latency: tuple[float, float]) -> None:
        self.kernel = kernel
        self.api = api
        self.server = server
        self.latency = latency
        self.rules: list[Rule] = []
        self.streams: list[Stream] = []
        self.opened: list[Callable[[Stream], None]] = []
        """Called with each watch that opens, before its first event."""
        self.committed: dict[int, int] = {}
        """When each revision was committed, in nanoseconds."""
        self.effects = 0
        """The hash of all requests and answers."""
        self.counts: dict[str, int] = {}
        """Requests by fate."""
        self.seen: list[Callable[[Call, int], None]] = []
        """Called with each request that was carried out, and its status."""
        self._numbers: dict[str, int] = {}

    def call(self, host: Host, request: HttpRequest) -> Call:
        number = self._numbers[host.name] = self._numbers.get(host.name, 0) + 1
        return Call(host.name, request.method, request.path, request.query, number, request.body)

    def verdict(self, call: Call) -> Verdict:
        """The verdict of the first rule that applies to the request."""
        found = next(filter(None, (rule(call) for rule in self.rules)), WELL)
        self.counts[found.fate] = self.counts.get(found.fate, 0) + 1
        return found

    def delay(self, host: Host) -> int:
        """Nanoseconds for one direction."""
        low, high = self.latency
        return int((low + (high - low) * host.rng.random() ** 3) * SECOND)

    def record(self, call: Call, status: int, body: bytes) -> None:
        """Add the answer to the hash of effects."""
        text = f"{self.kernel.now} {call.host} {call.method} {call.path} {status}".encode()
        self.effects = zlib.crc32(body, zlib.crc32(text, self.effects))
        for each in self.seen:
            each(call, status)

    def strike(self, chosen: Callable[[Stream], bool], change: Callable[[Stream], None]) -> Callable[[], None]:
        """Change each watch of that choice, including those that open later, until the returned function is called."""

        def opened(stream: Stream) -> None:
            if chosen(stream):
                change(stream)

        for each in list(self.streams):
            opened(each)
        self.opened.append(opened)
        return lambda: self.opened.remove(opened)

    def hang_up(self) -> None:
        """End the watches of killed hosts, as an API server does when the peer's machine resets connections."""
        gone = [stream for stream in self.streams if not stream.host.alive]
        self.streams = [stream for stream in self.streams if stream.host.alive]
        for each in gone:
            each.watch.close()

    def cut(self, chosen: Callable[[Stream], bool]) -> int:
        """Break the watches of that choice. Returns how many there were."""
        found = [stream for stream in self.streams if chosen(stream)]
        for each in found:
            each.sever()
        return len(found)


class Way:
    """A `Transport`: one client on a host, with that user."""

    def __init__(self, network: Network, host: Host, user: User) -> None:
        self._network = network
        self._host = host
        self._user = user

    def __repr__(self) -> str:
        return f"Way({self._host.name})"

    def request(self, request: HttpRequest) -> _Answer | _Open:
        """See `Transport`."""
        network = self._network
        call = network.call(self._host, request)
        verdict = network.verdict(call)
        if verdict.fate == "unsent":
            network.kernel.block(network.delay(self._host))
            raise KubeUnavailable(f"{request}: cannot connect: Connection refused")
        exchange = _Exchange(network, self._host, self._user, request, call, verdict)
        network.kernel.spawn(network.server, exchange.carry_out, "request")
        return exchange.wait()


class _Exchange:
    """One request in progress."""

    def __init__(
        self, network: Network, host: Host, user: User, request: HttpRequest, call: Call, verdict: Verdict
    ) -> None:
        self._network, self._host, self._user = network, host, user
        self._request, self._call, self._verdict = request, call, verdict
        self._came = Event()
        self._answer: _Answer | _Open | None = None
        self._lost = False
        self._gave_up = False

    @property
    def _patience(self) -> float:
        """Seconds of its own clock for which the client waits for the first byte."""
        return min(self._request.timeout, 10.0) if self._request.stream else self._request.timeout

    def wait(self) -> _Answer | _Open:
        request = self._request
        if not self._came.wait(self._patience):
            self._gave_up = True
            raise KubeTimeout(f"{request}: no answer in time")
        if self._lost or self._answer is None:
            raise KubeConnectionLost(f"{request}: connection lost: ProtocolError")
        return self._answer

    def carry_out(self) -> None:
        """Runs on a task of the server."""
        network, verdict = self._network, self._verdict
        kernel = network.kernel
        held = int(verdict.seconds * SECOND)
        if verdict.fate == "late":
            held += nanoseconds(self._patience, self._host)
        kernel.block(network.delay(self._host) + held)
        if verdict.fate == "silent" or (verdict.fate == "late" and self._request.stream):
            return
        if verdict.fate == "dropped":
            self._lost = self._call.number % 2 == 0  # the other half learns it only when its patience ends
            if self._lost:
                self._came.set()
            return
        if verdict.fate == "refused":
            answer: _Answer | _Open = _refusal(verdict)
        elif self._request.stream:
            answer = self._open()
        else:
            answer = self._serve()
            if verdict.fate == "twice":
                self._serve()
        kernel.block(network.delay(self._host))
        if verdict.fate == "late":
            return
        if verdict.fate == "unanswered":
            if isinstance(answer, _Open):
                answer.close()
            self._lost = self._call.number % 2 == 0
            if not self._lost:
                return
        self._arrive(answer)

    def _arrive(self, answer: _Answer | _Open) -> None:
        """Deliver the answer to the client. Nothing reads a watch whose client has given up."""
        if self._gave_up and isinstance(answer, _Open):
            answer.close()
        self._answer = answer
        self._came.set()

    def _serve(self) -> _Answer:
        request = self._request
        body = json.loads(request.body) if request.body else None
        answer = self._network.api().handle(
            request.method,
            request.path,
            query=dict(request.query),
            body=body,
            content_type=request.headers.get("Content-Type", "application/json"),
            user=self._user,
        )
        content = answer.body.encode() if isinstance(answer.body, str) else json.dumps(answer.body).encode()
        self._network.record(self._call, answer.code, content)
        return _Answer(answer.code, content)

    def _open(self) -> _Answer | _Open:
        api, request = self._network.api(), self._request
        query = dict(request.query)
        try:
            parsed = requests.parse(api.kinds, "GET", request.path, query=query, user=self._user.authenticated())
            watch = api.open_watch(parsed)
        except ApiError as refused:
            return _Answer(refused.code, json.dumps(refused.status()).encode())
        self._network.record(self._call, 200, b"watch")
        stream = Stream(self._host, parsed.kind.plural, watch)
        self._network.hang_up()
        self._network.streams.append(stream)
        for each in list(self._network.opened):
            each(stream)
        return _Open(self._network, stream, request)


@dataclass
class _Answer:
    """A complete answer."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self, most: int | None = None) -> bytes:
        if most is not None and len(self.body) > most:
            raise TooLong
        return self.body

    def chunks(self) -> Iterator[bytes]:
        yield self.body

    def close(self) -> None:
        """Does nothing: nothing is held."""


def _refusal(verdict: Verdict) -> _Answer:
    status = verdict.status
    reasons = {429: "TooManyRequests", 409: "Conflict", 500: "InternalError", 503: "ServiceUnavailable"}
    reasons |= {403: "Forbidden", 401: "Unauthorized", 504: "Timeout", 410: "Expired"}
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "reason": reasons[status]}
    body["message"] = "by a fault of the simulation"
    headers = {}
    if verdict.retry_after:
        body["details"] = {"retryAfterSeconds": verdict.retry_after}
        headers["Retry-After"] = str(verdict.retry_after)
    return _Answer(status, json.dumps(body).encode(), headers)


class _Open:
    """An answer whose body is a watch; the client's task reads it."""

    status = 200
    headers: Mapping[str, str] = {}

    def __init__(self, network: Network, stream: Stream, request: HttpRequest) -> None:
        self._network = network
        self._stream = stream
        self._request = request

    def read(self, most: int | None = None) -> bytes:
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        stream = self._stream
        try:
            for event in stream.watch.events():
                yield from self._bookmarks_before(event)
                self._held_back(event)
                if stream.closed:
                    return
                if stream.cut:
                    break
                yield _line(event)
            if stream.cut and not stream.closed:
                raise KubeConnectionLost(f"{self._request}: connection lost: ProtocolError")
        finally:
            self._end()

    def _bookmarks_before(self, event: WatchEvent) -> Iterator[bytes]:
        """What a connection without events delivers: a bookmark each minute, until the event."""
        stream = self._stream
        while stream.bookmarks_only and event.change is not None and not stream.cut and not stream.closed:
            stream.moved.clear()
            if not stream.moved.wait(BOOKMARK_SECONDS):
                metadata = {"resourceVersion": str(event.change.revision - 1), "creationTimestamp": None}
                about = {key: event.object[key] for key in ("kind", "apiVersion")}
                yield json.dumps({"type": "BOOKMARK", "object": {**about, "metadata": metadata}}).encode() + b"\n"

    def _held_back(self, event: WatchEvent) -> None:
        """Wait for as long as faults hold the event back. Raises `KubeTimeout` when the client's patience ends."""
        stream, kernel = self._stream, self._network.kernel
        if event.change is not None:
            kernel.block(self._network.delay(stream.host))
        end = kernel.now + nanoseconds(self._request.timeout, stream.host)
        while not stream.cut and not stream.closed:
            due = end if stream.frozen else min(self._due(event), end)
            if due <= kernel.now < end:
                return
            stream.moved.clear()
            if not stream.moved.wait((due - kernel.now) / SECOND * stream.host.rate) and kernel.now >= end:
                raise KubeTimeout(f"{self._request}: no answer in time")

    def _due(self, event: WatchEvent) -> int:
        """When a lagging watch delivers the event."""
        if event.change is None:
            return 0
        return self._network.committed.get(event.change.revision, 0) + int(self._stream.lag * SECOND)

    def close(self) -> None:
        self._stream.closed = True
        self._stream.watch.close()
        self._stream.moved.set()
        self._end()

    def _end(self) -> None:
        self._stream.watch.close()
        if self._stream in self._network.streams:
            self._network.streams.remove(self._stream)


def _line(event: WatchEvent) -> bytes:
    if event.change is None:
        return json.dumps({"type": event.type, "object": event.object}).encode() + b"\n"
    key = f"{event.type} {event.object['apiVersion']}"
    if (line := event.change.wire.get(key)) is None:
        line = json.dumps({"type": event.type, "object": event.object}).encode() + b"\n"
        event.change.wire[key] = line
    return line


def drawn(seed: int | str, name: str, probability: float) -> Callable[[Call], bool]:
    """Whether a fault strikes a request, drawn for each from its host and number alone."""

    def strikes(call: Call) -> bool:
        return stream(seed, f"{name}/{call.host}/{call.number}").random() < probability

    return strikes
