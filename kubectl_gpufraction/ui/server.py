"""
The answers to the browser: the page's files, and its views as JSON.

The server listens on loopback, where every user of the machine and every page in the user's browser can connect. So
each path begins with a random token, which only the terminal shows. A request must name this server by an address or by
a name that is known, since a stranger's page could otherwise reach it under a name of its own (DNS rebinding). No
answer allows another origin to read it, and none changes anything.

Every text in an answer is made fit to be shown: printable, and on one line.

Must not: write to the cluster, or send anything that is not in the requested view.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

from contract.encoding.plain import plain_values
from kubectl_gpufraction.ui.pages import SORTS, Picture, Selection
from kubectl_gpufraction.ui.reading import KeptAnswers, LatestPicture, PictureReader
from runtime.httpserver import Handler, HttpError, Reply, Request, Routes, ServerLimits, json_reply

JSON = dict[str, Any]
View = Callable[[Picture, Selection], JSON]
FILES: Mapping[str, tuple[str, str]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
"""The page's files by their paths, with their types."""
VIEWS: Mapping[str, View] = {
    "/api/gpus": Picture.gpus,
    "/api/queue": Picture.queue,
    "/api/pods": Picture.pods,
    "/api/namespaces": Picture.namespaces,
}
LIMITS = ServerLimits(max_body=0, max_connections=64, max_held=64 << 20)
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the address has the token
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer that shows anything."""
_LOCAL = frozenset(("localhost",))
_LONGEST = 200
"""Characters of a filter or a name; a Kubernetes name has at most 253 and most have 50."""
_MOST_BODIES = 64


def routes(
    reader: PictureReader,
    stories: KeptAnswers[tuple[str, str]],
    use: KeptAnswers[Selection] | None = None,
    *,
    token: str = "",
    hosts: Collection[str] = (),
) -> Routes:
    """
    The routes by method and path.

    `use`: the real use of the GPUs of a selection's nodes; None: unknown. `token`: the start of every path; empty:
    anyone who can connect is answered. `hosts`: names of this server besides addresses and localhost.
    """
    base, known = f"/{token}" if token else "", _LOCAL | {host.lower() for host in hosts}
    views = _Views(reader)
    found: dict[tuple[str, str], Handler] = {}
    for path, (name, kind) in FILES.items():
        found["GET", f"{base}{path}"] = _guarded(_file(name, kind), known)  # a link elsewhere may lead here
    for path, view in VIEWS.items():
        found["GET", f"{base}{path}"] = _guarded(views.answer(path, view), known, own=True)
    found["GET", f"{base}/api/pod"] = _guarded(_story(stories), known, own=True)
    if use is not None:
        found["GET", f"{base}/api/use"] = _guarded(_use(use), known, own=True)
    if not token:
        found["GET", "/healthz"] = lambda _: Reply(200, b"ok\n")
    return found


def routes_for_viewers(each: Callable[[tuple[str, str]], Handler], *, use: bool, hosts: Collection[str]) -> Routes:
    """
    The same where each viewer has routes of their own: `each` gives the handler that answers a path with those. The
    page's files say nothing about the cluster, and are served to everyone. `use`: as in `routes`.
    """
    known = _LOCAL | {host.lower() for host in hosts}
    found: dict[tuple[str, str], Handler] = {("GET", "/healthz"): lambda _: Reply(200, b"ok\n")}
    for path, (name, kind) in FILES.items():
        found["GET", path] = _guarded(_file(name, kind), known)
    for path in (*VIEWS, "/api/pod", *(("/api/use",) if use else ())):
        # The name and the page are checked before the token is.
        found["GET", path] = _guarded(each(("GET", path)), known, own=True)
    return found


def _guarded(handler: Handler, known: Collection[str], *, own: bool = False) -> Handler:
    """The handler for requests under our names, with the headers of every answer. `own`: only for this page."""

    def answer(request: Request) -> Reply:
        host = request.headers.get("host", "")
        if not named_rightly(host, known):
            raise HttpError(421, f"this server is not {host!r}; open the address that the terminal shows")
        if own and request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            raise HttpError(403, "requests from other pages are refused")
        reply = handler(request)
        return Reply(reply.status, reply.body, reply.content_type, {**HEADERS, **reply.headers})

    return answer


def named_rightly(host: str, known: Collection[str]) -> bool:
    """Whether a `Host` header has an address or a known name. A stranger's page can bind neither to this server."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
    name = name.lower().removesuffix(".")
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return name in known
    return True


def _file(name: str, kind: str) -> Handler:
    body = (resources.files("kubectl_gpufraction.ui") / "static" / name).read_bytes()
    return lambda _: Reply(200, body, kind)


class _Views:
    """The views as JSON. The same question about the same picture is answered from memory."""

    def __init__(self, reader: PictureReader) -> None:
        self._reader = reader
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._bodies: OrderedDict[tuple[str, Selection, str], tuple[bytes, str]] = OrderedDict()

    def answer(self, path: str, view: View) -> Handler:
        """The handler of one view. 304 where the browser has it already, 503 before the first picture."""

        def answered(request: Request) -> Reply:
            wanted, seen = wanted_of(request.query), self._reader.current()
            if seen.picture is None:
                return json_reply({"error": seen.why or "the API server has not answered yet"}, 503)
            body, tag = self._body(path, view, wanted, seen, seen.picture)
            age = max(0, int((datetime.now(UTC) - seen.picture.at).total_seconds()))
            headers = {"ETag": tag, "Age": str(age)}
            if request.headers.get("if-none-match") == tag:
                return Reply(304, headers=headers)
            return Reply(200, body, "application/json", headers)

        return answered

    def _body(
        self, path: str, view: View, wanted: Selection, seen: LatestPicture, picture: Picture
    ) -> tuple[bytes, str]:
        key = (path, wanted, seen.why)
        with self._lock:
            if picture is not self._picture:
                self._picture = picture
                self._bodies.clear()
            if key not in self._bodies:
                old = {"since": picture.at.isoformat(timespec="seconds"), "why": seen.why} if seen.why else None
                document = plain_values({"head": picture.head(), "old": old, "view": view(picture, wanted)})
                body = json.dumps(document, separators=(",", ":")).encode()
                self._bodies[key] = body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'
                if len(self._bodies) > _MOST_BODIES:
                    self._bodies.popitem(last=False)
            return self._bodies[key]


def _story(stories: KeptAnswers[tuple[str, str]]) -> Handler:
    def answer(request: Request) -> Reply:
        parameters = _query(request.query)
        return json_reply(plain_values(stories.get((parameters.get("namespace", ""), parameters.get("name", "")))))

    return answer


def _use(use: KeptAnswers[Selection]) -> Handler:
    return lambda request: json_reply(plain_values(use.get(wanted_of(request.query))))


def wanted_of(query: str) -> Selection:
    """The rows that a query asks for. Raises HttpError 400."""
    parameters = _query(query)
    sort = parameters.get("sort", "")
    if sort and sort.removeprefix("-") not in SORTS:
        raise HttpError(400, f"sort: expected one of {', '.join(SORTS)}, or one of them after a -")
    try:
        return Selection(
            parameters.get("filter", ""), int(parameters.get("from", "0")), int(parameters.get("count", "50")), sort
        )
    except ValueError:
        raise HttpError(400, "from, count: expected numbers") from None


def _query(query: str) -> dict[str, str]:
    try:
        found = parse_qs(query, max_num_fields=8)
    except ValueError:
        raise HttpError(400, "too many parameters") from None
    if any(len(value) > _LONGEST * 2 for values in found.values() for value in values):
        raise HttpError(400, f"a parameter is longer than {_LONGEST * 2} characters")
    return {key: values[-1] for key, values in found.items()}
