"""
Somebody else's mutating webhook, for pods with a label: it adds a container or a gate, refuses, or breaks.
"""

from __future__ import annotations

import base64
import contextlib
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube

JSON = dict[str, Any]
# Webhooks are called in the order of their configurations' names.
BEFORE, AFTER = "another", "zzz-another"
"""The names of one that is called before ours, and of one after."""
Respond = Callable[[JSON], JSON]
"""From the review's request to what is in its response besides the uid."""


def adding_a_container(request: JSON) -> JSON:
    """As a service mesh does: a proxy for each pod that has none."""
    if any(c["name"] == "proxy" for c in request["object"]["spec"]["containers"]):
        return {"allowed": True}
    added = {"name": "proxy", "image": "registry.example/cuda-proxy:1"}
    return patching([{"op": "add", "path": "/spec/containers/-", "value": added}])


def patching(patch: list[JSON]) -> JSON:
    """Let in with this JSON patch."""
    encoded = base64.b64encode(json.dumps(patch).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}


def adding_a_container_that_asks(resource: str, amount: str) -> Respond:
    """As one that adds a proxy with a GPU share of its own."""

    def respond(request: JSON) -> JSON:
        if any(c["name"] == "proxy" for c in request["object"]["spec"]["containers"]):
            return {"allowed": True}
        asked = {"limits": {resource: amount}, "requests": {resource: amount}}
        added = {"name": "proxy", "image": "registry.example/cuda-proxy:1", "resources": asked}
        patch = [{"op": "add", "path": "/spec/containers/-", "value": added}]
        encoded = base64.b64encode(json.dumps(patch).encode()).decode()
        return {"allowed": True, "patchType": "JSONPatch", "patch": encoded}

    return respond


def refusing(request: JSON) -> JSON:
    """As a policy engine does."""
    return {"allowed": False, "status": {"code": 403, "message": "not today"}}


def _server(respond: Respond) -> ThreadingHTTPServer:
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
            """Nothing: tests print what they need."""

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@contextlib.contextmanager
def registered(
    kube: Kube,
    respond: Respond = adding_a_container,
    *,
    label: str = "sidecar",
    name: str = AFTER,
    selector: JSON | None = None,
    kinds: Sequence[tuple[str, str]] = (("", "pods"),),
) -> Iterator[None]:
    """
    The webhook serves and is registered meanwhile, for new pods with the label `LABEL: yes`.

    `selector`: another selector of objects. `kinds`: API group and plural of others than pods.
    """
    authority = Authority()
    server = _server(respond)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "pair.pem"
        path.write_bytes(b"".join(authority.server(("localhost",))))
        context.load_cert_chain(path)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, name="another-webhook", daemon=True).start()
    collection = paths.path("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
    kube.create(
        collection,
        _configuration(
            name, server.server_address[1], authority.pem, selector or {"matchLabels": {label: "yes"}}, kinds
        ),
    )
    try:
        yield
    finally:
        kube.delete(f"{collection}/{name}")
        server.shutdown()
        server.server_close()


def _configuration(name: str, port: int, authority: bytes, selector: JSON, kinds: Sequence[tuple[str, str]]) -> JSON:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": name},
        "webhooks": [
            {
                "name": "another.example.org",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 30,
                "clientConfig": {
                    "url": f"https://localhost:{port}/mutate",
                    "caBundle": base64.b64encode(authority).decode(),
                },
                "objectSelector": selector,
                "rules": [
                    {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": [plural]}
                    for group, plural in kinds
                ],
            }
        ],
    }
