"""
Transports for tests, without sockets: one answers from a list, the other connects to an API in this process.

They replace `runtime.kubernetes.transport`, so the real client and the real writers run on top of them. The test sets
in advance what goes wrong, one `Fate` for each request. Nothing here is random.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from runtime.kubernetes.errors import KubeError, KubeTimeout, KubeUnavailable
from runtime.kubernetes.transport import HttpRequest, TooLong

JSON = dict[str, Any]
Fate = Literal["answered", "refused", "unreachable", "dropped", "lost", "lost-and-done"]
"""
What happens to a request: it is answered; refused by a policy; not sent because there is no connection; or left without
an answer. An unanswered request never arrived (dropped), may still be carried out (lost), or was carried out
(lost-and-done).
"""


@dataclass
class Answer:
    """A canned HTTP answer; `breaks` is raised after the last piece of the body."""

    status: int = 200
    body: JSON | list[bytes] | bytes = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    breaks: KubeError | None = None
    closed: bool = False

    def read(self, most: int | None = None) -> bytes:
        body = b"".join(self.chunks())
        if most is not None and len(body) > most:
            raise TooLong
        return body

    def chunks(self) -> Iterator[bytes]:
        if isinstance(self.body, list):
            yield from self.body
        else:
            yield self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        if self.breaks is not None:
            raise self.breaks

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Sent:
    """A request as it was sent, with its body decoded."""

    method: str
    path: str
    query: Mapping[str, str]
    content_type: str | None
    body: Any
    timeout: float
    stream: bool


class Transport:
    """Decodes each request and passes it to `answer`."""

    def request(self, request: HttpRequest) -> Answer:
        decoded, kind = json.loads(request.body) if request.body else None, request.headers.get("Content-Type")
        method, path, query = request.method, request.path, dict(request.query)
        return self.answer(Sent(method, path, query, kind, decoded, request.timeout, request.stream))

    def answer(self, sent: Sent) -> Answer:
        """The answer; or raises a `KubeError` instead."""
        raise NotImplementedError


class Script(Transport):
    """
    Answers the n-th request with the n-th answer; an exception in the list is raised.

    holds: whether the last answer repeats forever; if not, an extra request is an error of the test. on_last: called
    with the last answer.
    """

    def __init__(
        self, *answers: Answer | KubeError, holds: bool = False, on_last: Callable[[], None] | None = None
    ) -> None:
        self.answers = list(answers)
        self.sent: list[Sent] = []
        self._holds, self._on_last = holds, on_last

    def answer(self, sent: Sent) -> Answer:
        self.sent.append(sent)
        last = len(self.answers) == 1
        answer = self.answers[0] if last and self._holds else self.answers.pop(0)
        if last and self._on_last is not None:
            self._on_last()
        if isinstance(answer, KubeError):
            raise answer
        return answer


class Api(Protocol):
    """An API in this process, such as the playground's."""

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> tuple[int, JSON]: ...


class Wire(Transport):
    """
    The connection to an API in this process.

    spares_reads: whether reads always succeed and use up none of the fates.
    """

    def __init__(self, api: Api, *, spares_reads: bool = False) -> None:
        self._api, self._spares_reads = api, spares_reads
        self.fates: list[Fate] = []
        """The fates of the next requests, one each. Later requests are answered."""
        self.down: Fate | None = None
        """The fate of every request, reads included, until this is None again. It uses up none of the others."""
        self.calls: list[tuple[str, str]] = []
        """Every request: its method and path."""
        self.requests: list[str] = []
        """The writes that were requested, such as `PATCH /api/v1/nodes/n1/status`."""
        self.writes: list[str] = []
        """The writes that were carried out, by the end of their path, such as `PATCH n1/status`."""
        self.reads = 0
        """The reads that arrived."""
        self.late: list[Sent] = []
        """Writes whose answer was lost and that can still be carried out."""

    def answer(self, sent: Sent) -> Answer:
        name, read = f"{sent.method} {sent.path}", sent.method == "GET"
        self.calls.append((sent.method, sent.path))
        if not read:
            self.requests.append(name)
        fate = self._fate(read)
        if fate == "unreachable":
            raise KubeUnavailable("connection refused")
        if fate == "refused":
            return Answer(403, status_body(403, "Forbidden"))
        if fate == "lost" and not read:
            self.late.append(sent)
        if fate in ("dropped", "lost"):
            raise KubeTimeout(f"{name}: no answer")
        status, document = self._carry_out(sent)
        self.reads += read
        if not read and status < 300:
            self.writes.append(f"{sent.method} {'/'.join(sent.path.rsplit('/', 2)[-2:])}")
        if fate == "lost-and-done":
            raise KubeTimeout(f"{name}: no answer")
        return Answer(status, document)

    def carry_out_late(self) -> None:
        """Carry out the writes whose answers were lost, where that is still possible."""
        late, self.late = self.late, []
        for each in late:
            self._carry_out(each)

    def _fate(self, read: bool) -> Fate:
        if self.down is not None:
            return self.down
        if not self.fates or (read and self._spares_reads):
            return "answered"
        return self.fates.pop(0)

    def _carry_out(self, sent: Sent) -> tuple[int, JSON]:
        kind = sent.content_type or "application/json"
        return self._api.call(sent.method, sent.path, query=sent.query, body=sent.body, content_type=kind)


class Events(Protocol):
    """An open watch: events until `close`, which any thread may call."""

    def __iter__(self) -> Iterator[JSON]: ...

    def close(self) -> None: ...


class WatchedApi(Api, Protocol):
    """An API in this process that supports watches, such as the playground's."""

    def watch(self, path: str, *, query: Mapping[str, str] | None = None) -> Events: ...


class Stream(Answer):
    """The answer to a watch."""

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    def chunks(self) -> Iterator[bytes]:
        for event in self._events:
            yield json.dumps(event).encode() + b"\n"

    def close(self) -> None:
        super().close()
        self._events.close()


class WatchedWire(Wire):
    """The connection to an API that supports watches, which stay open until they are closed, whatever the fates are."""

    def __init__(self, api: WatchedApi) -> None:
        super().__init__(api)
        self._watched = api

    def answer(self, sent: Sent) -> Answer:
        if not sent.stream:
            return super().answer(sent)
        return Stream(self._watched.watch(sent.path, query=sent.query))


def status_body(code: int, reason: str = "", message: str = "", **more: Any) -> JSON:
    """A Status as the API server returns it."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        **more,
    }
