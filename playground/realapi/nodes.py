"""
Two tasks of a kubelet and the node controller besides running pods: completing a node's registration, and serving logs.

The API server forwards `kubectl logs` to the node's kubelet. Here this process serves every node, on one loopback port.
The API server gives each new node the taint `node.kubernetes.io/not-ready`. The node controller removes it once the
node is ready; here this module does.
"""

from __future__ import annotations

import ssl
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from playground.api.http.certificates import Authority
from playground.api.kinds.values import JSON
from playground.machinery.client.client import MERGE, NODES, Client, Refused
from playground.machinery.kubelet.nodekeeper import node_user
from playground.machinery.objects import resources

NOT_READY = "node.kubernetes.io/not-ready"
Logs = Callable[[str, str, str], str]


class Registration:
    """Publishes the address of a node's kubelet, if this process serves it, and removes the taint."""

    def __init__(self, client: Client, port: int | None) -> None:
        self._client = client
        self._port = port

    def changed(self, old: JSON | None, new: JSON | None) -> Refused | None:
        """A handler for a `Reactor`. It ignores `old`, because it completes a node whatever its earlier state was."""
        if new is None:
            return None
        return (self._address(new) if self._port is not None else None) or self._untaint(new)

    def _address(self, node: JSON) -> Refused | None:
        status = node.get("status") or {}
        wanted = {"kubeletEndpoint": {"Port": self._port}}
        if status.get("daemonEndpoints") == wanted:
            return None
        theirs = [each for each in status.get("addresses") or [] if each.get("type") != "ExternalIP"]
        patch = {
            "addresses": [*theirs, {"type": "ExternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": wanted,
        }
        client = self._client.as_user(node_user(node["metadata"]["name"]))
        return _refused(client.patch(NODES, node, {"status": patch}, sub="status", content_type=MERGE))

    def _untaint(self, node: JSON) -> Refused | None:
        taints = node.get("spec", {}).get("taints") or []
        others = [taint for taint in taints if taint.get("key") != NOT_READY]
        if len(others) == len(taints) or not resources.is_ready(node):
            return None
        # Only for this state of the node: newer taints must stay. The next state comes here too.
        version = {"resourceVersion": node["metadata"]["resourceVersion"]}
        patch = {"metadata": version, "spec": {"taints": others or None}}
        refused = _refused(self._client.patch(NODES, node, patch, content_type=MERGE))
        return None if refused is not None and refused.outdated else refused


class KubeletServer:
    """The part of a kubelet's server that `kubectl logs` needs. It accepts only the API server's certificate."""

    def __init__(self, authority: Authority, logs: Logs) -> None:
        self._server = _Server(("127.0.0.1", 0), _handler(logs))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=authority.pem.decode())
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "kubelet.pem")
            path.touch(mode=0o600)
            path.write_bytes(b"".join(authority.server(["127.0.0.1"])))
            context.load_cert_chain(path)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="playground-kubelet-server", daemon=True
        )

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a rejected or closed client connection."""


def _handler(logs: Logs) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_GET(self) -> None:
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            found = len(parts) == 4 and parts[0] == "containerLogs"
            content = logs(parts[1], parts[2], parts[3]).encode() if found else b"not found\n"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/plain")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing."""

    return Handler


def _refused(answer: JSON | Refused) -> Refused | None:
    return answer if isinstance(answer, Refused) else None
