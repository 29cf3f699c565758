"""
A third-party admission webhook: an HTTPS server that answers reviews as configured, for tests and benchmarks.

It runs in the caller's process, so that its time does not count as a program's.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority

JSON = dict[str, Any]
Respond = Callable[[JSON], JSON]
"""Takes the review's request, and returns its response without the uid."""


def patching(patch: list[JSON]) -> JSON:
    """Allow every object, with this JSON patch."""
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


@contextlib.contextmanager
def serving(respond: Respond) -> Iterator[JSON]:
    """Serve inside the context. Yields the `clientConfig` with which an API server calls it."""
    authority = Authority()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(respond))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        pair = Path(directory) / "pair.pem"
        pair.write_bytes(b"".join(authority.server(("localhost",))))
        context.load_cert_chain(pair)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="other-webhook", daemon=True).start()
    try:
        yield {
            "url": f"https://localhost:{server.server_address[1]}/mutate",
            "caBundle": base64.b64encode(authority.pem).decode(),
        }
    finally:
        server.shutdown()
        server.server_close()


def _handler(respond: Respond) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            request = review["request"]
            response = {"uid": request["uid"], **respond(request)}
            answer = {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
            body = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: the caller prints what is needed."""

    return Handler
