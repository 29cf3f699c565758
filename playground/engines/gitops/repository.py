"""A git repository that git's own server program serves over HTTP on loopback, read-only."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_PATIENCE = 60
_LONGEST = 1024 * 1024
"""The largest request in bytes. A client's list of the commits that it already has is far smaller."""
BRANCH = "main"
_IDENTITY = {
    "GIT_AUTHOR_NAME": "playground",
    "GIT_AUTHOR_EMAIL": "playground@localhost",
    "GIT_COMMITTER_NAME": "playground",
    "GIT_COMMITTER_EMAIL": "playground@localhost",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


@dataclass(frozen=True)
class Repository:
    """A served repository. `url`: its address. `folder`: its work tree; `commit` publishes changes to it."""

    url: str
    folder: Path

    def commit(self, message: str) -> None:
        """Commit and publish the files as they are now."""
        git(self.folder, "add", "--all")
        git(self.folder, "commit", "--quiet", "--allow-empty", "--message", message)


def git(folder: Path, *arguments: str) -> None:
    """Run one git command in that folder. Raises if it fails."""
    environment = {"PATH": os.environ["PATH"], **_IDENTITY}
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, timeout=_PATIENCE, capture_output=True)


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Repository]:
    """Serve an empty repository inside the context, in `directory`, which is created."""
    folder = directory / "repository"
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", f"--initial-branch={BRANCH}")
    handler = type("Handler", (_Handler,), {"root": str(directory)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, name="git", daemon=True)
    thread.start()
    try:
        yield Repository(f"http://127.0.0.1:{server.server_port}/repository/.git", folder)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Each request runs `git http-backend`, which speaks CGI (RFC 3875)."""

    root = ""

    def do_GET(self) -> None:
        self._run(b"")

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        if length > _LONGEST:
            self.send_error(413)
            return
        self._run(self.rfile.read(length))

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _run(self, body: bytes) -> None:
        command = ["git", "http-backend"]
        environment = self._environment(len(body))
        done = subprocess.run(command, input=body, env=environment, capture_output=True, timeout=_PATIENCE, check=False)
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(rest)))
        self.end_headers()
        self.wfile.write(rest)

    def _environment(self, length: int) -> Mapping[str, str]:
        path, _, query = self.path.partition("?")
        return {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
