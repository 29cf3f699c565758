"""
The bytes between a Kubernetes client and the API server: writes queries and bodies, reads answers and watches.

A server or a proxy may send anything; an answer that breaks the API's promise is `KubeMalformed`.
Must not: send or wait, know any kind's fields, or decide on retries.
Formats: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime.kubernetes.errors import KubeError, KubeMalformed, error_from_status, patience

JSON = dict[str, Any]
Query = Mapping[str, str | int | bool]


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
        answer = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise KubeMalformed(f"{what}: {status} with a body that is not JSON") from error
    if not isinstance(answer, dict):
        raise KubeMalformed(f"{what}: expected an object, got {type(answer).__name__}")
    return answer


def page_of(answer: JSON, path: str) -> tuple[list[JSON], JSON]:
    """A list's objects and its metadata. Raises KubeMalformed."""
    items = answer.get("items")
    meta = answer.get("metadata")
    if items is None and str(answer.get("kind", "")).endswith("List"):
        items = []  # Go encodes an empty list of some kinds as null
    if not isinstance(items, list) or not isinstance(meta, dict):
        raise KubeMalformed(f"GET {path}: expected a list, got kind {answer.get('kind')!r}")
    return items, meta


def refusal(status: int, raw: bytes, headers: Mapping[str, str], what: str, path: str) -> KubeError:
    """The error for an answer that refuses. It leaves out the server's message about Secrets."""
    try:
        answer = json.loads(raw)
    except (ValueError, RecursionError):
        answer = None
    asked = patience(headers.get("retry-after"))
    return error_from_status(status, answer, what=what, retry_after=asked, withhold="/secrets" in path)


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Whole lines of a body that comes in pieces. An unfinished last line, of a broken connection, is dropped."""
    pending = bytearray()
    for chunk in chunks:
        pending += chunk
        if b"\n" not in chunk:
            continue
        *whole, rest = bytes(pending).split(b"\n")
        pending = bytearray(rest)
        yield from (line for line in whole if line.strip())


def event(line: bytes, path: str) -> JSON:
    """One line of a watch: {"type", "object"}. Raises KubeMalformed."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise KubeMalformed(f"watch {path}: an event that is not JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise KubeMalformed(f"watch {path}: expected an object with type and object")
    about = found.get("object")
    if not isinstance(about, dict) or not isinstance(about.get("metadata"), dict | None):
        raise KubeMalformed(f"watch {path}: expected an object, and its metadata as one")
    return found
