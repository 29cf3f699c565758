"""A webhook for tests on a real TLS port: it answers with the result of a function."""

import base64
import json
import ssl
import tempfile
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.api import Api
from playground.api.http.certificates import Authority
from tests.unit.playground.api.manifests import ok

JSON = dict[str, Any]
Answer = Callable[[JSON], JSON]
_GROUP = "/apis/admissionregistration.k8s.io/v1"


class Hook:
    """Records the requests of the reviews that it received, and their connections."""

    def __init__(self, answer: Answer, *, status: int = 200) -> None:
        self.seen: list[JSON] = []
        self.connections: set[int] = set()
        self.authority = Authority("hook-ca")
        hook = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
                hook.seen.append(request)
                hook.connections.add(self.client_address[1])
                response = {"uid": request["uid"], **answer(request)}
                review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
                content = json.dumps(review).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            def handle_error(self, request: Any, client_address: Any) -> None:
                """Some tests are about a client that does not trust the certificate."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pair.pem")
            path.write_bytes(b"".join(self.authority.server(["hook.system.svc"])))
            context.load_cert_chain(path)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), name="hook", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def publish(api: Api, hook: Hook) -> None:
    """Make the hook reachable as the Service system/hook."""
    ok(api.call("POST", "/api/v1/namespaces", body={"metadata": {"name": "system"}}))
    service = {"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}}
    ok(api.call("POST", "/api/v1/namespaces/system/services", body=service))
    subset = {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": hook.port}]}
    body = {"metadata": {"name": "hook"}, "subsets": [subset]}
    ok(api.call("POST", "/api/v1/namespaces/system/endpoints", body=body))


def register(
    api: Api, hook: Hook, *, kind: str = "Mutating", name: str = "pods.hook.example.com", **about: Any
) -> None:
    """Register the hook for the creation of pods."""
    rule = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    bundle = base64.b64encode(hook.authority.pem).decode()
    entry = {
        "name": name,
        "clientConfig": {"service": {"namespace": "system", "name": "hook", "path": "/mutate"}, "caBundle": bundle},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **about,
    }
    path = f"{_GROUP}/{kind.lower()}webhookconfigurations"
    ok(api.call("POST", path, body={"metadata": {"name": name}, "webhooks": [entry]}))


def allowed(*operations: JSON, warnings: tuple[str, ...] = ()) -> JSON:
    """An answer that allows the request, with a JSON patch if operations are given."""
    answer: JSON = {"allowed": True, "warnings": list(warnings)}
    if operations:
        answer.update(patchType="JSONPatch", patch=base64.b64encode(json.dumps(operations).encode()).decode())
    return answer
