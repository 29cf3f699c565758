"""
One HTTP connection: bytes to requests, answers to bytes.

It decides nothing. Headers that only matter to HTTP (Accept, Authorization, Warning, chunked transfer) end here.
"""

import http
import json
import logging
import ssl
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import yaml

from playground.api.api import Api
from playground.api.http import protobuf
from playground.api.kinds import discovery, errors, requests
from playground.api.kinds.requests import Request, Response
from playground.api.kinds.values import ANONYMOUS, JSON, User
from playground.api.store.watching import WatchEvent
from playground.api.tables import tables

_BODY_BYTES = 3 * 1024 * 1024  # a real API server refuses larger requests
_JSON = "application/json"
_READABLE = (_JSON, "application/yaml", protobuf.MEDIA)


class Backend(Protocol):
    """What the listener hands to its connections."""

    api: Api

    def user_of(self, token: str) -> User | None: ...


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "playground"
    rbufsize = 64 * 1024
    connection: ssl.SSLSocket

    @property
    def backend(self) -> Backend:
        found: Backend = self.server.backend  # type: ignore[attr-defined]
        return found

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: the caller sees the answer, and tests read no log."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError, TimeoutError, ValueError):
            self.close_connection = True

    def _serve(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            body = self._body()
            user = self._user()
            if self.command == "GET" and query.get("watch", "").lower() in ("1", "true"):
                self._watch(url.path, query, user)
                return
            answer = self._answer(url.path, query, body, user)
        except errors.ApiError as refusal:
            answer = Response(refusal.code, refusal.status())
        except (ConnectionError, ssl.SSLError, TimeoutError):
            raise
        except Exception as bug:  # a fault of the server's own must reach the client as one, and the log whole
            logging.getLogger(__name__).exception("request failed")
            answer = Response(500, errors.internal(f"{type(bug).__name__}: {bug}").status())
        self._send(answer, url.path)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _answer(self, path: str, query: dict[str, str], body: Any, user: User) -> Response:
        accept = self.headers.get("Accept", "")
        if self.command == "GET" and path.rstrip("/") in ("/api", "/apis") and "APIGroupDiscoveryList" in accept:
            return Response(200, discovery.aggregated(path, self.backend.api.kinds.all()))
        content_type = self.headers.get("Content-Type", _JSON)
        answer = self.backend.api.handle(
            self.command, path, query=query, body=body, content_type=content_type, user=user
        )
        if answer.kind is not None and answer.code < 300 and isinstance(answer.body, dict):
            answer.body = self._formed(answer, query, accept)
        return answer

    def _formed(self, answer: Response, query: dict[str, str], accept: str) -> JSON:
        assert answer.kind is not None
        if answer.body.get("kind") not in (answer.kind.name, answer.kind.list_kind):
            return dict(answer.body)
        match tables.wanted_form(accept):
            case "Table":
                include = query.get("includeObject", "Metadata")
                return tables.table(answer.kind, answer.body, self.backend.api.clock(), include)
            case "PartialObjectMetadata":
                return tables.partial(answer.body)
        return dict(answer.body)

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _BODY_BYTES:
            self.close_connection = True
            raise errors.ApiError(
                413, "RequestEntityTooLarge", f"Request entity too large: limit is {_BODY_BYTES}", None
            )
        raw = self.rfile.read(length) if length else b""
        if not raw:
            return None
        content_type = self.headers.get("Content-Type", _JSON)
        if self.command in ("POST", "PUT") and content_type.partition(";")[0].strip() not in _READABLE:
            raise errors.unsupported_media_type(_READABLE)
        if protobuf.MEDIA in content_type:
            return protobuf.decode(raw)
        try:
            return yaml.safe_load(raw) if "yaml" in content_type else json.loads(raw)
        except (ValueError, yaml.YAMLError) as problem:
            if "json" in content_type or "yaml" in content_type:
                raise errors.bad_request(f"the object provided is unrecognized: {problem}") from None
            raise errors.unsupported_media_type([_JSON, "application/yaml"]) from None

    def _user(self) -> User:
        scheme, _, token = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            user = self.backend.user_of(token.strip())
            if user is None:
                raise errors.unauthorized()
            return user
        certificate = self.connection.getpeercert() or {}
        subject: Any = certificate.get("subject", ())
        named = [pair for part in subject for pair in part]
        names = [value for key, value in named if key == "commonName"]
        if not names:
            return User(ANONYMOUS, ("system:unauthenticated",))
        return User(names[0], tuple(v for k, v in named if k == "organizationName"))

    def _send(self, answer: Response, path: str) -> None:
        if isinstance(answer.body, str):
            content, media = answer.body.encode(), "text/plain; charset=utf-8"
        else:
            content, media = json.dumps(answer.body, separators=(",", ":")).encode(), _JSON
            if answer.body.get("kind") == "APIGroupDiscoveryList":
                media = discovery.AGGREGATED
        self._head(answer.code, media, answer.warnings, f"Content-Length: {len(content)}", content)

    def _head(self, code: int, media: str, warnings: list[str], framing: str, content: bytes) -> None:
        """The head and what follows it, in one write: two would wait for each other on the wire."""
        lines = [
            f"HTTP/1.1 {code} {http.HTTPStatus(code).phrase if code in _CODES else 'Unknown'}",
            f"Content-Type: {media}",
            "Cache-Control: no-cache, private",
            f"Date: {self.date_time_string()}",
            *(f'Warning: 299 - "{_quoted(text)}"' for text in warnings),
            framing,
        ]
        if self.close_connection:
            lines.append("Connection: close")
        self.wfile.write("\r\n".join([*lines, "", ""]).encode("utf-8") + content)

    def _watch(self, path: str, query: dict[str, str], user: User) -> None:
        api = self.backend.api
        request = requests.parse(api.kinds, "GET", path, query=query, user=user)
        watch = api.open_watch(request)
        form = tables.wanted_form(self.headers.get("Accept", ""))
        self.close_connection = True  # the stream's end is the connection's end: simplest for either side
        try:
            self._head(200, _JSON, [], "Transfer-Encoding: chunked", b"")
            first = True
            for event in watch.events():
                content = self._encoded(request, event, form, first=first)
                first = first and event.type == "BOOKMARK"
                self.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            watch.close()

    def _encoded(self, request: Request, event: WatchEvent, form: str, *, first: bool) -> bytes:
        if form and event.type != "ERROR":
            return _event_line(event.type, self._shaped(request, event, form, first=first))
        if event.change is None:
            return _event_line(event.type, event.object)
        key = f"{event.type} {event.object['apiVersion']}"
        if (line := event.change.wire.get(key)) is None:
            line = event.change.wire[key] = _event_line(event.type, event.object)
        return line

    def _shaped(self, request: Request, event: WatchEvent, form: str, *, first: bool) -> JSON:
        if form != "Table":
            return tables.partial(event.object)
        if event.type == "BOOKMARK":
            empty = {"kind": request.kind.list_kind, "items": [], "metadata": event.object["metadata"]}
            return tables.table(request.kind, empty, 0.0, header=False)
        include = request.query.get("includeObject", "Metadata")
        return tables.table(request.kind, event.object, self.backend.api.clock(), include, header=first)


_CODES = frozenset(int(status) for status in http.HTTPStatus)


def _event_line(event: str, value: JSON) -> bytes:
    return json.dumps({"type": event, "object": value}, separators=(",", ":")).encode() + b"\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
