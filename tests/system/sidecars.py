"""Somebody else's mutating webhook: it adds a container to every pod labelled `sidecar: yes`, after ours was called."""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.certificates import Authority
from runtime import kubepaths
from runtime.kube import Kube

JSON = dict[str, Any]
# Webhooks are called in the order of their names, and this one comes after ours.
NAME = "z-sidecars"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = review["request"]
        response: JSON = {"uid": request["uid"], "allowed": True}
        if all(c["name"] != "proxy" for c in request["object"]["spec"]["containers"]):
            added = {"name": "proxy", "image": "registry.example/cuda-proxy:1"}
            patch = [{"op": "add", "path": "/spec/containers/-", "value": added}]
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        body = json.dumps(
            {"apiVersion": review["apiVersion"], "kind": "AdmissionReview", "response": response}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests print what they need."""


@contextlib.contextmanager
def registered(kube: Kube) -> Iterator[None]:
    """The webhook serves and is registered meanwhile."""
    authority = Authority()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pair.pem"
        path.write_bytes(b"".join(authority.server(("localhost",))))
        context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="sidecars", daemon=True).start()
    collection = kubepaths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
    kube.create(collection, _configuration(server.server_address[1], authority.pem))
    try:
        yield
    finally:
        kube.delete(f"{collection}/{NAME}")
        server.shutdown()
        server.server_close()


def _configuration(port: int, authority: bytes) -> JSON:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": "sidecars.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "clientConfig": {
                    "url": f"https://localhost:{port}/mutate",
                    "caBundle": base64.b64encode(authority).decode(),
                },
                "objectSelector": {"matchLabels": {"sidecar": "yes"}},
                "rules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]},
                ],
            }
        ],
    }
