"""An API server with given answers, and a kubeconfig for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.wires import status_body

Serve = Callable[[dict[str, tuple[int, Any]]], int]


class Answers(BaseHTTPRequestHandler):
    """Answers each path with what it was given, and any other path with 404; `asked` has the targets of all reads."""

    given: dict[str, tuple[int, Any]]

    def do_GET(self) -> None:
        self.given.setdefault("asked", (0, []))[1].append(self.path)
        path = self.path.partition("?")[0]
        status, document = self.given.get(path, (404, status_body(404, "NotFound", f"no {path}")))
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_PATCH(self) -> None:
        self._write("PATCH")

    def do_POST(self) -> None:
        self._write("POST")

    def _write(self, method: str) -> None:
        """Answers a write with what was given for `METHOD path`, or with what was sent; `seen` has all writes."""
        path, sent = self.path.partition("?")[0], json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.given.setdefault("seen", (0, []))[1].append((method, path, sent))
        status, document = self.given.get(f"{method} {path}", (200, sent))
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def answering(given: dict[str, tuple[int, Any]]) -> Iterator[int]:
    """An API server with these answers. Yields its port."""
    server = HTTPServer(("127.0.0.1", 0), type("Bound", (Answers,), {"given": given}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), name="answers", daemon=True)
    with server:
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join(10)


def kubeconfig(directory: Path, port: int) -> Path:
    """A kubeconfig for an API server on that port, in the namespace `default`."""
    file, named = directory / "kubeconfig", {"name": "here"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [named | {"cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [named | {"user": {}}],
        "contexts": [named | {"context": {"cluster": "here", "user": "here"}}],
    }
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file
