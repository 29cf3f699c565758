"""
A small synchronous Kubernetes client: plain JSON in, plain JSON out.

All our requests to the API server go through `Kube`, the one place for timeouts, error types and retries: a read is
repeated once when its connection broke, a write never is.

Must not: know any kind's fields, cache anything, log, or let a foreign exception out (see
`runtime.kubernetes.errors`). Formats: https://kubernetes.io/docs/reference/using-api/api-concepts/
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass

from runtime.kubernetes import wire
from runtime.kubernetes.errors import (
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
from runtime.kubernetes.transport import USER_AGENT, HttpRequest, TooLong, Transport, connect_transport
from runtime.kubernetes.wire import JSON, Query

__all__ = [
    "JSON",
    "Kube",
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

    Every call raises only `KubeError` and its kinds. `query` values are written as Kubernetes expects
    (True becomes "true"); `timeout` overrides the client's for one call, in seconds.
    """

    def __init__(self, transport: Transport, *, timeout: float = 10.0) -> None:
        self._transport = transport
        self._timeout = timeout

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
        trim: Callable[[JSON], JSON] | None = None,
        timeout: float | None = None,
    ) -> Listing:
        """A whole collection, read in pages of `page` objects from one consistent version.

        trim: applied to each object as its page arrives, which bounds the memory. When the continue token expires
        between two pages, the collection is read again as one page.
        """
        items: list[JSON] = []
        version = ""
        for part in self.pages(path, query, page, trim=trim, timeout=timeout):
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
        trim: Callable[[JSON], JSON] | None = None,
        timeout: float | None = None,
    ) -> Iterator[Page]:
        """
        What `list` reads, page by page as it comes, for callers that need not hold all of it at once.

        Users choose how large objects are, and decoded JSON takes ten times its size. So a page of more than
        `_PAGE_BYTES` is dropped and read again with fewer objects; a page of one object is always accepted.
        """
        asked = dict(query or {})
        token, most = "", page
        while True:
            try:
                limits: Query = {"limit": page, **({"continue": token} if token else {})} if page else {}
                most_bytes = _PAGE_BYTES if page > 1 else None
                answer = self._call("GET", path, {**asked, **limits}, timeout=timeout, most=most_bytes)
            except TooLong:
                page = max(1, page // _FEWER)
                continue
            except KubeGone:
                if not token:
                    raise
                token, page = "", 0
                continue
            found, meta = wire.page_of(answer, path)
            del answer
            first, token = not token, meta.get("continue") or ""
            items = list(map(trim, found)) if trim else found
            del found
            yield Page(items, str(meta.get("resourceVersion") or ""), first, not token)
            if not token:
                return
            page = min(most, page * 2)

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
    ) -> Generator[JSON, None, None]:
        """Changes of a collection after `resource_version`, as raw {"type", "object"}, bookmarks included.

        Ends when the server ends it (after timeout_seconds at the latest) or when the consumer leaves the loop.
        on_open is called once the server has accepted, with a function that ends the stream from any thread.
        ERROR events are yielded like the others; `error_from_status` makes exceptions of them.
        """
        asked: dict[str, str | int | bool] = {
            **(query or {}),
            "watch": True,
            "allowWatchBookmarks": True,
            "resourceVersion": resource_version,
            "timeoutSeconds": timeout_seconds,
        }
        silence = min(timeout_seconds + self._timeout, _SILENCE)
        response = self._transport.request(_request("GET", path, asked, None, "", silence, stream=True))
        try:
            if response.status != 200:
                raise wire.refusal(response.status, response.read(), response.headers, f"GET {path}", path)
            if on_open is not None:
                on_open(response.close)
            for line in wire.lines(response.chunks()):
                yield wire.event(line, path)
        finally:
            response.close()

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
        raise KubeMalformed(f"GET /version: expected numbers as major and minor, found {found_instead}")

    def _call(
        self,
        method: str,
        path: str,
        query: Query | None,
        body: JSON | Sequence[JSON] | None = None,
        content_type: str = "application/json",
        *,
        timeout: float | None = None,
        most: int | None = None,
    ) -> JSON:
        request = _request(method, path, query, body, content_type, self._timeout if timeout is None else timeout)
        try:
            status, raw = self._exchange(request, most)
        except KubeConnectionLost:
            if method != "GET":
                raise
            # The server may have closed an idle connection; a read can be repeated.
            status, raw = self._exchange(request, most)
        return wire.document(raw, status, str(request))

    def _exchange(self, request: HttpRequest, most: int | None = None) -> tuple[int, bytes]:
        """The status, which is a success, and the body. Raises `TooLong` for a body of more than `most` bytes."""
        response = self._transport.request(request)
        status, raw = response.status, response.read(most)
        if not 200 <= status < 300:
            raise wire.refusal(status, raw, response.headers, str(request), request.path)
        return status, raw


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
    return HttpRequest(method, path, wire.parameters(query), headers, encoded, timeout, stream)
