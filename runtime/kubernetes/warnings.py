"""The warnings that an API server sends with an answer (`Warning` headers, RFC 7234)."""

from __future__ import annotations

import re

from runtime.kubernetes.transport import HttpRequest, Response, Transport

_WARNING = re.compile(r'[0-9]{3} \S+ "((?:[^"\\]|\\.)*)"')


class WarningTransport:
    """A transport that remembers the warnings of the last answer."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.warnings: tuple[str, ...] = ()

    def request(self, request: HttpRequest) -> Response:
        response = self._inner.request(request)
        self.warnings = tuple(
            re.sub(r"\\(.)", r"\1", text) for text in _WARNING.findall(response.headers.get("warning", ""))
        )
        return response
