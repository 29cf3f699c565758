"""
A mutating webhook that does nothing but name a node, registered with our own webhook's rules and match conditions.

What a pod costs through it is what no webhook can go below that gives pods their nodes. It works in the benchmark's own
process, so that its time is not counted: only the API server's, for calling it.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority
from playground.programs import installing
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
_NAME = "bench-empty-webhook"
_CONFIGURATIONS = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")


@contextlib.contextmanager
def registered(kube: Kube, namespace: str, nodes: Sequence[str]) -> Iterator[None]:
    """Meanwhile it serves and is registered for the pods of a namespace, and names these nodes by turns."""
    authority, turns = Authority(_NAME), itertools.cycle(nodes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(lambda: next(turns)))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        pair = Path(directory) / "pair.pem"
        pair.write_bytes(b"".join(authority.server(("localhost",))))
        context.load_cert_chain(pair)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name=_NAME, daemon=True).start()
    try:
        kube.create(_CONFIGURATIONS, configuration(namespace, server.server_address[1], authority.pem))
        yield
    finally:
        kube.delete(f"{_CONFIGURATIONS}/{_NAME}")
        server.shutdown()
        server.server_close()


def configuration(namespace: str, port: int, authority: bytes) -> JSON:
    """Our own webhook's, but for where it is called and for whose pods."""
    webhook: JSON
    (webhook,) = (
        each
        for document in installing.documents(installing.BASE / "webhook.yaml")
        for each in document.get("webhooks", ())
    )
    client = {"url": f"https://localhost:{port}/mutate", "caBundle": base64.b64encode(authority).decode()}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": _NAME},
        "webhooks": [{**webhook, "name": "empty.bench.example", "clientConfig": client, "namespaceSelector": selector}],
    }


def answer(review: JSON, node: str) -> JSON:
    """The pod goes to this node, and nothing else changes."""
    patch = json.dumps([{"op": "add", "path": "/spec/nodeName", "value": node}]).encode()
    response = {
        "uid": review["request"]["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(patch).decode(),
    }
    return {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}


def _handler(next_node: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            body = json.dumps(answer(review, next_node())).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the benchmark prints its figures only."""

    return Handler
