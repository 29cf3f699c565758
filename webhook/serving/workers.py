"""
Threads that answer requests with the WSGI application (PEP 3333). They get whole requests, return whole answers, and
touch no socket.
"""

from __future__ import annotations

import io
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote_to_bytes

from webhook.serving import http1
from webhook.serving.http1 import RefusedRequest, WholeRequest

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_BY = "gpufraction.answer_by"
"""The key of WSGI's environment under which the application finds when the client stops waiting."""
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """The result of a request: `answer` as it goes to the client. `size`: bytes of the request's body."""

    key: T
    answer: bytes
    keep: bool
    size: int


class RequestWorkers(Generic[T]):
    """`threads` threads that answer with `app`. `wake` is called from them for each answer."""

    def __init__(self, app: Wsgi, threads: int, wake: Callable[[], None]) -> None:
        self._app = app
        self._wake = wake
        self._work: queue.SimpleQueue[tuple[T, WholeRequest, str, bool, float]] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Answered[T]] = queue.SimpleQueue()
        self.stopping = False
        """From now on no connection stays open after its answer."""
        for number in range(threads):
            threading.Thread(target=self._answer_requests, name=f"review-{number}", daemon=True).start()

    def put(self, key: T, request: WholeRequest, source: str, *, keep: bool, answer_by: float = float("inf")) -> None:
        """
        Answer a request. `key` returns with the answer; `keep`: whether the connection stays open after it.

        `answer_by`: when the client stops waiting, by the server's clock.
        """
        self._work.put((key, request, source, keep, answer_by))

    def answers(self) -> Iterator[Answered[T]]:
        """The answers that are ready."""
        while True:
            try:
                yield self._answers.get_nowait()
            except queue.Empty:
                return

    def _answer_requests(self) -> None:
        while True:
            key, request, source, keep, answer_by = self._work.get()
            keep = keep and not self.stopping
            try:
                answer = answered(self._app, request, keep=keep, source=source, answer_by=answer_by)
            except BaseException as error:  # a thread that ends is not replaced
                log.exception("request failed", extra={"kind": type(error).__name__})
                answer, keep = http1.refusal(RefusedRequest(500, "internal error")), False
            self._answers.put(Answered(key, answer, keep, len(request.body)))
            del request, answer, key  # an idle thread keeps nothing in memory
            self._wake()


def answered(app: Wsgi, request: WholeRequest, *, keep: bool, source: str, answer_by: float = float("inf")) -> bytes:
    """The application's answer as it goes to the client."""
    started: list[tuple[str, Sequence[tuple[str, str]]]] = []
    written: list[bytes] = []

    def start_response(
        status: str, headers: Sequence[tuple[str, str]], exc_info: Any = None
    ) -> Callable[[bytes], None]:
        started.append((status, headers))
        return written.append

    result = app({**environment(request, source), ANSWER_BY: answer_by}, start_response)
    try:
        written.extend(result)
    finally:
        close = getattr(result, "close", None)
        if close is not None:
            close()
    status, headers = started[-1]
    return http1.answer(status, headers, b"".join(written), keep=keep, bodiless=request.head.method == "HEAD")


def environment(request: WholeRequest, source: str) -> dict[str, Any]:
    """The request as WSGI's environment."""
    head = request.head
    return {
        **_named(head.headers),
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


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers without a key of their own. A name with an underscore is left out: it could pose as another name."""
    return {
        f"HTTP_{name.upper().replace('-', '_')}": value
        for name, value in headers.items()
        if name not in ("content-type", "content-length") and "_" not in name
    }
