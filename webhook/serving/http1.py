"""
HTTP/1.1 as far as an API server needs it, without a socket: bytes in, requests out; answers in, bytes out.

Strict (RFC 9112): a request that two readers could read differently is refused, and so is what no API server sends.
Everything is bounded before it is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

MAX_HEAD = 16 << 10
"""Bytes of the request line and the headers together."""
MAX_HEADERS = 64
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[\x21-\x7e]*) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}")
_CONTROL = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:h|ms|m|s|us|ns))+")
_LONGEST_DURATION = 64
_PART = re.compile(r"([0-9.]+)([a-z]+)")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_PHRASES = {
    400: "Bad Request",
    403: "Forbidden",
    408: "Request Timeout",
    411: "Length Required",
    413: "Content Too Large",
    417: "Expectation Failed",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """Why a request is refused. Nothing after it on the connection can be read either."""

    status: int
    message: str


@dataclass(frozen=True, slots=True)
class Head:
    """The request line and the headers. Names are in lower case; the values of a repeated name are joined by commas."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    length: int
    """Bytes of the body."""
    keep: bool
    """Whether the client keeps the connection open after the answer."""
    waits: bool
    """Whether the client waits for `CONTINUE` before it sends the body (`Expect: 100-continue`)."""


@dataclass(frozen=True, slots=True)
class WholeRequest:
    """A request that has arrived completely."""

    head: Head
    body: bytes


class RequestParser:
    """Parses the requests of one connection. `max_body` in bytes."""

    def __init__(self, max_body: int) -> None:
        self._max_body = max_body
        self._buffer = bytearray()
        self._searched = 0
        self._head: Head | None = None
        self._continued = False

    @property
    def held(self) -> int:
        return len(self._buffer)

    @property
    def begun(self) -> bool:
        """Whether a part of a request has arrived."""
        return bool(self._buffer) or self._head is not None

    def feed(self, data: bytes) -> None:
        """Add bytes that the client sent."""
        self._buffer += data

    def forget(self) -> None:
        self._buffer = bytearray()

    def must_continue(self) -> bool:
        """Whether the client waits for `CONTINUE` now; True at most once for each request."""
        waits = self._head is not None and self._head.waits and not self._continued and not self._buffer
        self._continued = self._continued or waits
        return waits

    def take(self) -> WholeRequest | RefusedRequest | None:
        """The next request, its refusal, or None while more bytes are needed."""
        if self._head is None:
            found = self._take_head()
            if not isinstance(found, Head):
                return found
            self._head = found
            self._continued = False
        head = self._head
        if len(self._buffer) < head.length:
            return None
        with memoryview(self._buffer) as view:
            body = bytes(view[: head.length])
        del self._buffer[: head.length]
        self._head = None
        return WholeRequest(head, body)

    def _take_head(self) -> Head | RefusedRequest | None:
        end = self._buffer.find(b"\r\n\r\n", max(0, self._searched - 3), MAX_HEAD)
        if end < 0:
            self._searched = len(self._buffer)
            if len(self._buffer) >= MAX_HEAD:
                return RefusedRequest(431, f"the request line and its headers may have {MAX_HEAD} bytes together")
            return None
        raw = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        self._searched = 0
        head = read_head(raw)
        if isinstance(head, Head) and head.length > self._max_body:
            return RefusedRequest(413, f"the body has {head.length} bytes, at most {self._max_body} are read")
        return head


def read_head(raw: bytes) -> Head | RefusedRequest:
    """Parse the request line and the headers, without the empty line after them."""
    first, *lines = raw.split(b"\r\n")
    line = _REQUEST_LINE.fullmatch(first)
    if line is None:
        return RefusedRequest(400, "the request line is not valid HTTP/1.1")
    if len(lines) > MAX_HEADERS:
        return RefusedRequest(431, f"at most {MAX_HEADERS} headers are read")
    headers: dict[str, str] = {}
    for each in lines:
        before, colon, after = each.partition(b":")
        if not colon or _NAME.fullmatch(before) is None or _CONTROL.search(after):
            return RefusedRequest(400, "a header is not valid HTTP/1.1")
        name, value = before.decode("ascii").lower(), after.strip(b" \t").decode("latin-1")
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    return _understood(line, headers)


def _understood(line: re.Match[bytes], headers: dict[str, str]) -> Head | RefusedRequest:
    if "transfer-encoding" in headers:
        return RefusedRequest(411, "Transfer-Encoding is not supported; send the body with a Content-Length")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit() and len(length) < 16):
        return RefusedRequest(400, "Content-Length is not one number")
    expected = headers.get("expect", "").lower()
    if expected not in ("", "100-continue"):
        return RefusedRequest(417, "the only supported value of Expect is 100-continue")
    wanted = {token.strip() for token in headers.get("connection", "").lower().split(",")}
    newer = line[3] == b"1"
    path, _, query = line[2].decode("ascii").partition("?")
    return Head(
        method=line[1].decode("ascii"),
        path=path,
        query=query,
        headers=headers,
        length=int(length),
        keep=newer and "close" not in wanted,
        waits=newer and bool(expected) and int(length) > 0,
    )


def patience(query: str) -> float | None:
    """
    The seconds that the client waits for its answer, where its query says so; else None.

    API servers add `timeout=3s` to the URL of a webhook, a duration in Go's form (`time.ParseDuration`).
    """
    found = next((part[len("timeout=") :] for part in query.split("&") if part.startswith("timeout=")), "")
    if len(found) > _LONGEST_DURATION or _DURATION.fullmatch(found) is None:
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(found))


def answer(
    status: str, headers: Iterable[tuple[str, str]], body: bytes, *, keep: bool, bodiless: bool = False
) -> bytes:
    """The bytes of an answer. `status`: number and words. `bodiless`: for HEAD, whose answer has no body."""
    given = [(name, value) for name, value in headers if name.lower() not in ("connection", "content-length")]
    lines = [f"HTTP/1.1 {status}"]
    lines += [f"{name}: {value}" for name, value in given]
    lines.append(f"Content-Length: {len(body)}")
    if not keep:
        lines.append("Connection: close")
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    return head if bodiless else head + body


def refusal(refused: RefusedRequest) -> bytes:
    """The bytes of the answer to a refused request; the connection ends after it."""
    body = json.dumps({"message": refused.message}).encode() + b"\n"
    status = f"{refused.status} {_PHRASES[refused.status]}"
    return answer(status, [("Content-Type", "application/json")], body, keep=False)
