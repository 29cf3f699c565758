"""
The bytes between a Kubernetes client and the API server: writes queries and bodies, reads answers and watches.

A server or a proxy may send anything; an answer that breaks the API's promise is `KubeMalformed`.
Must not: send or wait, know any kind's fields, or decide on retries.
Formats: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from contract.encoding.reading import shown
from runtime.kubernetes.errors import KubeError, KubeMalformed, error_from_status, patience

JSON = dict[str, Any]
Query = Mapping[str, str | int | bool]
MOST_BYTES = 20 << 20
"""
The most that one object has. An API server takes requests of 3 MiB, and JSON needs at most six bytes for one of them.
"""
_DEEPEST = 100
"""
Levels of a value that are read where it has more than Python can decode. No kind of Kubernetes has thirty, but users
can nest ten thousand in what an API server keeps as it is: anyone who may write an object writes its `managedFields`.
"""
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")
_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[][{}]', re.DOTALL)
"""A text, which may have brackets in it, or a bracket. A text without an end goes on to the end of all."""


def parameters(query: Query | None) -> dict[str, str]:
    """A query as Kubernetes writes it: True is "true"."""
    return {
        key: ("true" if value else "false") if isinstance(value, bool) else str(value)
        for key, value in (query or {}).items()
    }


def body(value: JSON | Sequence[JSON]) -> bytes:
    """A request's body."""
    return json.dumps(value, separators=(",", ":")).encode()


def document(raw: bytes, status: int, what: str) -> JSON:
    """The object in a successful answer to the call `what`. Raises KubeMalformed."""
    try:
        answer = _whole(raw)
    except _NotJson as error:
        raise KubeMalformed(f"{what}: {status} with a body that is not JSON") from error
    if not isinstance(answer, dict):
        raise KubeMalformed(f"{what}: expected an object, got {type(answer).__name__}")
    return answer


def page(raw: bytes, path: str, take: Callable[[JSON, int], None]) -> JSON:
    """
    Read a page of a list object by object, and return the list's metadata. Raises KubeMalformed.

    take: called with each object and the number of characters of its text, before the next one is decoded. Decoded
    JSON takes ten times the bytes of its text, so a page must not be decoded as a whole.
    """
    head: JSON = {}
    listed = False
    try:
        text = _text(raw)
        for key, at in _members(text):
            if key == "items" and text.startswith("[", at.position):
                listed = True
                for start in _elements(text, at):
                    found, at.position = _decoded(text, start)
                    if not isinstance(found, dict):
                        raise KubeMalformed(f"GET {path}: expected objects in a list, got {type(found).__name__}")
                    take(found, at.position - start)
                    del found
            else:
                head[key], at.position = _decoded(text, at.position)
    except _NotJson as error:
        raise KubeMalformed(f"GET {path}: 200 with a body that is not JSON") from error
    meta = head.get("metadata")
    # Go encodes an empty list of some kinds as null.
    empty = head.get("items") is None and str(head.get("kind", "")).endswith("List")
    if not (listed or empty) or not isinstance(meta, dict):
        raise KubeMalformed(f"GET {path}: expected a list, got kind {shown(head.get('kind'))}")
    return meta


class _NotJson(Exception):
    """The text is not one JSON object."""


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise _NotJson from error


def _whole(raw: bytes) -> Any:
    """The one value of a body."""
    text = _text(raw)
    found, end = _decoded(text, _skip(text, 0))
    if _skip(text, end) != len(text):
        raise _NotJson("more than one value")
    return found


def _decoded(text: str, start: int) -> tuple[Any, int]:
    """
    The value that begins here, and where it ends.

    One unreadable object would make its whole collection unreadable. So in a value that is nested too deeply,
    everything below `_DEEPEST` levels becomes null.
    """
    try:
        return _DECODER.raw_decode(text, start)
    except RecursionError:
        shallow, end = _shallow(text, start)
    except ValueError as error:
        raise _NotJson from error
    try:
        return _DECODER.decode(shallow), end
    except ValueError as error:
        raise _NotJson from error


def _shallow(text: str, start: int, deepest: int = _DEEPEST) -> tuple[str, int]:
    """The text of the object or list that begins here, with null for what is too deep in it, and where it ends."""
    kept: list[str] = []
    depth, since = 0, start
    for token in _TOKEN.finditer(text, start):
        first = text[token.start()]
        if first in "[{":
            depth += 1
            if depth == deepest + 1:
                kept += (text[since : token.start()], "null")
        elif first in "]}":
            if depth == deepest + 1:
                since = token.end()
            depth -= 1
            if not depth:
                kept.append(text[since : token.end()])
                return "".join(kept), token.end()
    raise _NotJson("no end")


class _Position:
    """Where the next value begins; reading the value moves it to the value's end."""

    def __init__(self) -> None:
        self.position = 0


def _members(text: str) -> Iterator[tuple[str, _Position]]:
    """The names of the one object in the text, each with the position of its value."""
    at = _Position()
    start = _skip(text, 0)
    if not text.startswith("{", start):
        raise _NotJson("not an object")
    at.position = _skip(text, start + 1)
    while not text.startswith("}", at.position):
        key, after = _decoded(text, at.position)
        after = _skip(text, after)
        if not isinstance(key, str) or not text.startswith(":", after):
            raise _NotJson("not a name")
        at.position = _skip(text, after + 1)
        yield key, at
        at.position = _next(text, at.position, "}")
    if _skip(text, at.position + 1) != len(text):
        raise _NotJson("more than one value")


def _elements(text: str, at: _Position) -> Iterator[int]:
    """Where each element of the list that begins here begins; at the end the position is behind the list."""
    at.position = _skip(text, at.position + 1)
    while not text.startswith("]", at.position):
        yield at.position
        at.position = _next(text, at.position, "]")
    at.position += 1


def _next(text: str, after: int, end: str) -> int:
    """The position of the next name or element, or of the end."""
    after = _skip(text, after)
    if text.startswith(",", after):
        after = _skip(text, after + 1)
        if not text.startswith(end, after):
            return after
    elif text.startswith(end, after):
        return after
    raise _NotJson("not a comma")


def _skip(text: str, start: int) -> int:
    """The first position that is no white space."""
    found = _SPACE.match(text, start)
    return found.end() if found is not None else start


def refusal(status: int, raw: bytes, headers: Mapping[str, str], what: str, path: str) -> KubeError:
    """The error for an answer that refuses. It leaves out the server's message about Secrets."""
    try:
        answer = _whole(raw)
    except _NotJson:
        answer = None
    delay = patience(headers.get("retry-after"))
    return error_from_status(status, answer, what=what, retry_after=delay, withhold="/secrets" in path)


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of a body that comes in pieces. An unfinished last line, of a broken connection, is dropped."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        if b"\n" not in chunk:
            if len(pending) > MOST_BYTES:
                raise KubeMalformed(f"watch: an event of more than {MOST_BYTES >> 20} MiB")
            continue
        *whole, rest = bytes(pending).split(b"\n")
        pending = bytearray(rest)
        yield from (line for line in whole if line.strip())


def event(line: bytes, path: str) -> JSON:
    """One line of a watch: {"type", "object"}. Raises KubeMalformed."""
    try:
        found = _whole(line)
    except _NotJson as error:
        raise KubeMalformed(f"watch {path}: an event that is not JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise KubeMalformed(f"watch {path}: expected an object with type and object")
    about = found.get("object")
    if not isinstance(about, dict) or not isinstance(about.get("metadata"), dict | None):
        raise KubeMalformed(f"watch {path}: expected an object, and its metadata as one")
    return found
