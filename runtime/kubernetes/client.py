"""
A small synchronous Kubernetes client: plain JSON in, plain JSON out.

All our requests to the API server go through `Kube`, the one place for timeouts, error types and retries: a read is
repeated once when its connection broke, a write never is.

Must not: know any kind's fields, cache anything, log, or let a foreign exception out (see
`runtime.kubernetes.errors`). Formats: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from contract import kinds
from contract.encoding.reading import shown
from contract.kinds import ANYTHING, ObjectKind
from runtime.kubernetes import paths, wire
from runtime.kubernetes.errors import (
    KubeBadName,
    KubeConfigError,
    KubeConflict,
    KubeConnectionLost,
    KubeError,
    KubeForbidden,
    KubeGone,
    KubeInvalid,
    KubeMalformed,
    KubeNotFound,
    KubeTimeout,
    KubeTooManyRequests,
    KubeUnavailable,
)
from runtime.kubernetes.oversized import oversized
from runtime.kubernetes.transport import USER_AGENT, HttpRequest, TooLong, Transport, connect_transport
from runtime.kubernetes.wire import JSON, Query

__all__ = [
    "JSON",
    "Kube",
    "KubeBadName",
    "KubeConfigError",
    "KubeConflict",
    "KubeError",
    "KubeForbidden",
    "KubeInvalid",
    "KubeMalformed",
    "KubeNotFound",
    "KubeTimeout",
    "KubeTooManyRequests",
    "KubeUnavailable",
]

_JSON_PATCH = "application/json-patch+json"
_MERGE_PATCH = "application/merge-patch+json"
_STRATEGIC_PATCH = "application/strategic-merge-patch+json"
_PAGE_BYTES = 8 << 20
"""The most that one page of a list may have, unless it is one object; 500 ordinary pods have about 3 MiB."""
_FEWER = 4
"""A page that had more bytes is read again with this many times fewer objects."""
_AGAIN = 3
"""How often a list is read from its beginning because its continue token has expired."""
_LARGE = 256 << 10
"""Bytes of an event that is decoded by one thread at a time."""
_ABOUT_OBJECTS = ("ADDED", "MODIFIED", "DELETED")
_SILENCE = 180.0  # seconds; a watch gets a bookmark about once a minute, so one that missed three is broken


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent view of a collection: its objects, and the version from which to watch on."""

    items: list[JSON]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Page:
    """A part of a consistent view. `first`: forget the pages before it. `last`: the view is complete."""

    items: list[JSON]
    resource_version: str
    first: bool
    last: bool


class Kube:
    """The Kubernetes API over one transport. Safe to share between threads.

    Every call raises only `KubeError` and its kinds, and `KubeBadName` before anything is sent where a path holds more
    than names between slashes (see `runtime.kubernetes.paths`). `query` values are written as Kubernetes expects
    (True becomes "true"); `timeout` overrides the client's for one call, in seconds.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        timeout: float = 10.0,
        oversized: Callable[[ObjectKind, str, int], None] = oversized,
    ) -> None:
        """`oversized` is called with each object that is larger than its kind may be: its name, and its characters."""
        self._transport = transport
        self._timeout = timeout
        self._oversized = oversized
        self._decoding = threading.Lock()

    @classmethod
    def connect(cls, *, kubeconfig: str | None = None, timeout: float = 10.0, user_agent: str = USER_AGENT) -> Kube:
        """Reach a cluster: the given kubeconfig; else, in a pod, its service account; else the user's
        ($KUBECONFIG, ~/.kube/config). Rotated tokens are picked up. Raises KubeConfigError."""
        transport = connect_transport(kubeconfig=kubeconfig, context=None, user_agent=user_agent)
        return cls(transport, timeout=timeout)

    def __repr__(self) -> str:
        return f"Kube({self._transport!r})"

    def get(self, path: str, query: Query | None = None, *, timeout: float | None = None) -> JSON:
        """One object, or any other JSON document of the API."""
        return self._call("GET", path, query, timeout=timeout)

    def list(
        self,
        path: str,
        query: Query | None = None,
        page: int = 500,
        *,
        of: ObjectKind = ANYTHING,
        trim: Callable[[JSON], JSON] | None = None,
        timeout: float | None = None,
    ) -> Listing:
        """
        A whole collection, read in pages of `page` objects from one consistent version.

        of: what is kept of each object, and what replaces one that is too large. Programs always name it. trim: applied
        to what is kept, before the next object is decoded.
        """
        items: list[JSON] = []
        version = ""
        for part in self.pages(path, query, page, of=of, trim=trim, timeout=timeout):
            if part.first:
                items = []
            items.extend(part.items)
            version = part.resource_version
        return Listing(items, version)

    def pages(
        self,
        path: str,
        query: Query | None = None,
        page: int = 500,
        *,
        of: ObjectKind = ANYTHING,
        trim: Callable[[JSON], JSON] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Page]:
        """
        What `list` reads, page by page, for callers that need not hold all of it at once.

        Users choose how large objects are. So a page of more than `_PAGE_BYTES` is dropped and read again with fewer
        objects, and one thread at a time decodes a page. A page of one object has at most `wire.MOST_BYTES`.

        When the continue token expires between two pages, the collection is read again from its beginning, some times.
        """
        _check(of, path)
        parameters = dict(query or {})
        page = min(page, of.page)
        token, most, again = "", page, _AGAIN
        while True:
            limits: Query = {"limit": page, **({"continue": token} if token else {})}
            try:
                raw = self._raw(path, {**parameters, **limits}, timeout, _PAGE_BYTES if page > 1 else wire.MOST_BYTES)
            except TooLong:
                if page == 1:
                    raise KubeMalformed(f"GET {path}: an object of more than {wire.MOST_BYTES >> 20} MiB") from None
                page = max(1, page // _FEWER)
                continue
            except KubeGone:
                if not token or not again:
                    raise
                token, again = "", again - 1
                continue
            items: list[JSON] = []

            def take(found: JSON, length: int, items: list[JSON] = items) -> None:
                kept = self._kept(of, found, length)
                if kept is not None:
                    items.append(trim(kept) if trim is not None else kept)

            with self._decoding:
                meta = wire.page(raw, path, take)
            length = len(raw)
            del raw
            first, token = not token, meta.get("continue") or ""
            yield Page(items, str(meta.get("resourceVersion") or ""), first, not token)
            if not token:
                return
            if 2 * length <= _PAGE_BYTES:  # otherwise the next page would be too large, and read in vain
                page = min(most, page * 2)

    def _kept(self, of: ObjectKind, found: JSON, length: int) -> JSON | None:
        """The part of an object to keep; None for nothing. `length`: of its text."""
        try:
            kept = of.keep(found)
            if not of.is_beyond(kept, length):
                return kept
            reduced = of.beyond(kept) if of.beyond is not None else None
        except Exception:  # of another shape than its API promises
            if length <= of.most:
                return found  # the next reader finds the cause
            reduced = None
        self._oversized(of, kinds.name_of(found), length)
        return reduced

    def _raw(self, path: str, query: Query, timeout: float | None, most: int) -> bytes:
        """The answer to a GET; repeated once where the server may have closed an idle connection."""
        request = _request("GET", path, query, None, "", self._timeout if timeout is None else timeout)
        try:
            return self._exchange(request, most)[1]
        except KubeConnectionLost:
            return self._exchange(request, most)[1]

    def create(self, path: str, body: JSON, query: Query | None = None, *, timeout: float | None = None) -> JSON:
        """POST to a collection (or to a subresource such as eviction or binding)."""
        return self._call("POST", path, query, body, timeout=timeout)

    def replace(self, path: str, body: JSON, query: Query | None = None, *, timeout: float | None = None) -> JSON:
        """PUT. With metadata.resourceVersion in the body it fails if the object has changed since."""
        return self._call("PUT", path, query, body, timeout=timeout)

    def delete(
        self, path: str, body: JSON | None = None, query: Query | None = None, *, timeout: float | None = None
    ) -> JSON:
        """DELETE; `body` is a DeleteOptions, such as a uid precondition or a grace period."""
        return self._call("DELETE", path, query, body, timeout=timeout)

    def patch_json(
        self, path: str, ops: Sequence[JSON], query: Query | None = None, *, timeout: float | None = None
    ) -> JSON:
        """Apply RFC 6902 operations; a failing `test` is KubeInvalid and changes nothing."""
        return self._call("PATCH", path, query, list(ops), _JSON_PATCH, timeout=timeout)

    def patch_merge(self, path: str, body: JSON, query: Query | None = None, *, timeout: float | None = None) -> JSON:
        """Apply an RFC 7386 merge patch; None removes a key, lists are replaced whole."""
        return self._call("PATCH", path, query, body, _MERGE_PATCH, timeout=timeout)

    def patch_strategic(self, path: str, body: JSON, query: Query | None = None) -> JSON:
        """Apply a strategic merge patch; built-in kinds only, lists merge by their key."""
        return self._call("PATCH", path, query, body, _STRATEGIC_PATCH)

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        query: Query | None = None,
        timeout_seconds: int,
        on_open: Callable[[Callable[[], None]], None] | None = None,
        of: ObjectKind = ANYTHING,
    ) -> Generator[JSON, None, None]:
        """Changes of a collection after `resource_version`, as {"type", "object"}, bookmarks included.

        of: what is kept of each object. One that is left out comes as DELETED with its name, for any kind of change.

        Ends when the server ends it (after timeout_seconds at the latest) or when the consumer leaves the loop.
        on_open is called once the server has accepted, with a function that ends the stream from any thread.
        ERROR events are yielded like the others; `error_from_status` makes exceptions of them.
        """
        _check(of, path)
        parameters: dict[str, str | int | bool] = {
            **(query or {}),
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
        }
        silence = min(timeout_seconds + self._timeout, _SILENCE)
        response = self._transport.request(_request("GET", path, parameters, None, "", silence, stream=True))
        try:
            if response.status != 200:
                raise wire.refusal(response.status, response.read(), response.headers, f"GET {path}", path)
            if on_open is not None:
                on_open(response.close)
            for line in wire.lines(response.chunks()):
                yield self._event(line, path, of)
        finally:
            response.close()

    def _event(self, line: bytes, path: str, of: ObjectKind) -> JSON:
        if len(line) < _LARGE:
            return self._reduced(wire.event(line, path), len(line), of)
        with self._decoding:
            return self._reduced(wire.event(line, path), len(line), of)

    def _reduced(self, event: JSON, length: int, of: ObjectKind) -> JSON:
        found = event.get("object")
        if event["type"] not in _ABOUT_OBJECTS or not isinstance(found, dict):
            return event
        kept = self._kept(of, found, length)
        if kept is None:
            return {"type": "DELETED", "object": kinds.identity(found)}
        return {"type": event["type"], "object": kept}

    def text(self, path: str, query: Query | None = None, *, timeout: float | None = None) -> str:
        """A body that is not JSON, such as a container's log."""
        request = _request("GET", path, query, None, "", self._timeout if timeout is None else timeout)
        return self._exchange(request)[1].decode(errors="replace")

    def version(self) -> tuple[int, int]:
        """
        The server's (major, minor), such as (1, 30), without a vendor's suffix such as in "30+".

        A server that was built without a version may answer ""; then the release that it emulates counts.
        """
        answer = self.get("/version")
        for major, minor in (("major", "minor"), ("emulationMajor", "emulationMinor")):
            found = [re.match(r"\d+", str(answer.get(key, ""))) for key in (major, minor)]
            if all(found):
                numbers = [int(match.group()) for match in found if match]
                return numbers[0], numbers[1]
        found_instead = {key: answer.get(key) for key in ("major", "minor", "gitVersion")}
        raise KubeMalformed(f"GET /version: expected numbers as major and minor, found {shown(found_instead)}")

    def _call(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: JSON | Sequence[JSON] | None = None,
        content_type: str = "application/json",
        *,
        timeout: float | None = None,
    ) -> JSON:
        request = _request(method, path, query, body, content_type, self._timeout if timeout is None else timeout)
        most = wire.MOST_BYTES if method == "GET" else None
        try:
            status, raw = self._exchange(request, most)
        except TooLong:
            raise KubeMalformed(f"{request}: an object of more than {wire.MOST_BYTES >> 20} MiB") from None
        except KubeConnectionLost:
            if method != "GET":
                raise
            # The server may have closed an idle connection; a read can be repeated.
            status, raw = self._exchange(request, most)
        found = wire.document(raw, status, str(request))
        if method == "GET" and isinstance(found.get("items"), list):
            raise KubeMalformed(f"{request}: expected an object, got a collection, which `list` reads")
        return found

    def _exchange(self, request: HttpRequest, most: int | None = None) -> tuple[int, bytes]:
        """The status, which is a success, and the body. Raises `TooLong` for a body of more than `most` bytes."""
        response = self._transport.request(request)
        status, raw = response.status, response.read(most)
        if not 200 <= status < 300:
            raise wire.refusal(status, raw, response.headers, str(request), request.path)
        return status, raw


def _check(of: ObjectKind, path: str) -> None:
    if of.plural and path.rsplit("/", 1)[-1] != of.plural:
        raise ValueError(f"{path}: this is not a collection of {of.plural}")


def _request(
    method: str,
    path: str,
    query: Query | None,
    body: JSON | Sequence[JSON] | None,
    content_type: str,
    timeout: float,
    *,
    stream: bool = False,
) -> HttpRequest:
    headers, encoded = {"Accept": "application/json"}, None
    if body is not None:
        headers["Content-Type"], encoded = content_type, wire.body(body)
    return HttpRequest(method, paths.checked(path), wire.parameters(query), headers, encoded, timeout, stream)
