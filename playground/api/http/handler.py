"""
One HTTP connection: authentication, headers, and the framing of the response.

It decides nothing. It handles the headers that concern the connection only (Authorization, Warning, chunked transfer).
The module `answers` reads and writes the bodies.
"""

import http
import logging
import ssl
from http.server import BaseHTTPRequestHandler
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from playground.api.api import Api
from playground.api.http import answers, impersonation
from playground.api.kinds import errors, requests
from playground.api.kinds.requests import Response
from playground.api.kinds.values import ANONYMOUS, User

_BODY_BYTES = 3 * 1024 * 1024  # a real API server refuses larger requests


class Backend(Protocol):
    """The values that the listener passes to its connections."""

    api: Api
    recorded: dict[str, bytes]

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
        """Log nothing: the caller sees the response, and tests read no log."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError, TimeoutError, ValueError):
            self.close_connection = True

    def _serve(self) -> None:
        if self.command == "GET" and (content := self.backend.recorded.get(self.path)) is not None:
            self._head(200, answers.JSON_MEDIA, [], f"Content-Length: {len(content)}", content)
            return
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        try:
            body = self._body()
            user = impersonation.effective(self._user(), self.headers, self.backend.api.authorizer)
            if requests.is_watch(self.command, query):
                self._watch(url.path, query, user)
                return
            answer = answers.answer(
                self.backend.api,
                self.command,
                url.path,
                query=query,
                body=body,
                content_type=self.headers.get("Content-Type", answers.JSON_MEDIA),
                accept=self.headers.get("Accept", ""),
                user=user,
            )
        except errors.ApiError as refusal:
            answer = Response(refusal.code, refusal.status())
        except (ConnectionError, ssl.SSLError, TimeoutError):
            raise
        except Exception as bug:  # an internal error must reach the client as such, and the log with its traceback
            logging.getLogger(__name__).exception("request failed")
            answer = Response(500, errors.internal(f"{type(bug).__name__}: {bug}").status())
        self._send(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _serve

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _BODY_BYTES:
            self.close_connection = True
            raise errors.ApiError(
                413, "RequestEntityTooLarge", f"Request entity too large: limit is {_BODY_BYTES}", None
            )
        raw = self.rfile.read(length) if length else b""
        return answers.value_of(raw, self.headers.get("Content-Type", answers.JSON_MEDIA), method=self.command)

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

    def _send(self, answer: Response) -> None:
        content, media = answers.content_of(answer)
        self._head(answer.code, media, answer.warnings, f"Content-Length: {len(content)}", content)

    def _head(self, code: int, media: str, warnings: list[str], framing: str, content: bytes) -> None:
        """Send the head and the bytes after it in one write: a second write would wait for an acknowledgement."""
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
        accept = self.headers.get("Accept", "")
        watch, lines = answers.open_watch(self.backend.api, path, query=query, accept=accept, user=user)
        self.close_connection = True  # the stream ends with the connection, which is simplest for both sides
        try:
            self._head(200, answers.JSON_MEDIA, [], "Transfer-Encoding: chunked", b"")
            for line in lines:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
        finally:
            watch.close()


_CODES = frozenset(int(status) for status in http.HTTPStatus)


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\r", " ").replace("\n", " ")
