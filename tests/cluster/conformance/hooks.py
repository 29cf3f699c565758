"""An admission webhook on loopback that answers with the result of a function, and its registration by URL."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from playground.api.http.certificates import Authority
from playground.waiting import wait_for
from tests.cluster.conformance.asking import JSON, Api, Ask, create, pod

_PROBE = "conformance-probe"
_names = itertools.count()
Respond = Callable[[JSON, JSON], "JSON | bytes | int"]
"""From the path's name and the review's request to a response, a whole body, or a status."""


class Hook:
    """A server on which every path is a separate webhook. It records its requests. `days`: of its certificate."""

    def __init__(self, *, days: float = 30.0) -> None:
        self.seen: list[tuple[str, JSON]] = []
        self.answers: dict[str, Callable[[JSON], Any]] = {}
        self.authority = Authority("hook-ca")
        self._server = _server(self)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "pair.pem")
            path.write_bytes(b"".join(self.authority.server(["localhost"], life=datetime.timedelta(days=days))))
            context.load_cert_chain(path)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hook", daemon=True).start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def calls(self) -> list[tuple[str, JSON]]:
        """Path names and requests, in order, without probes."""
        return [(name, request) for name, request in self.seen if request.get("name") != _PROBE]


def _server(hook: Hook) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            name = self.path.partition("?")[0].strip("/")
            hook.seen.append((name, request))
            probe = request.get("name") == _PROBE
            answer = {"allowed": True} if probe else hook.answers[name](request)
            code = 200
            if isinstance(answer, tuple):
                code, content = answer
            elif isinstance(answer, bytes):
                content = answer
            else:
                response = {"uid": request["uid"], **answer}
                review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
                content = json.dumps(review).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            """Print nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Some tests are about a client that does not trust the certificate."""

    return Server(("127.0.0.1", 0), Handler)


@contextmanager
def registered(api: Api, hook: Hook, **webhooks: JSON) -> Iterator[None]:
    """
    Register webhooks for the creation of pods in the test's namespace, by path name in their order.

    The API server applies a configuration a moment after it was stored, so this waits until the first webhook has seen
    a probe.
    """
    name = f"conformance-{next(_names)}"
    path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    entries = [entry(api, hook, called, about) for called, about in webhooks.items()]
    api.done(Ask("POST", path, {"metadata": {"name": name}, "webhooks": entries}))
    try:
        first, before = next(iter(webhooks)), len(hook.seen)

        def seen() -> bool:
            api.ask(create(pod(_PROBE), dryRun="All"))
            return any(called == first for called, _ in hook.seen[before:])

        wait_for(seen, "the webhook is not called")
        yield
    finally:
        api.ask(Ask("DELETE", f"{path}/{name}"))


def entry(api: Api, hook: Hook, called: str, about: JSON) -> JSON:
    """One webhook of a configuration."""
    config: JSON = {
        "url": f"https://localhost:{hook.port}/{called}",
        "caBundle": base64.b64encode(hook.authority.pem).decode(),
    }
    if "caBundle" in about:
        config["caBundle"] = about["caBundle"]
    return {
        "name": f"{called}.gpufraction.io",
        "clientConfig": config,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "namespaceSelector": {"matchLabels": {"test": api.namespace}},
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
        **{key: value for key, value in about.items() if key != "caBundle"},
    }


def allowed(*operations: JSON, **more: Any) -> JSON:
    """An answer that allows the request, with a JSON patch if operations are given."""
    answer: JSON = {"allowed": True, **more}
    if operations:
        answer.update(patchType="JSONPatch", patch=base64.b64encode(json.dumps(operations).encode()).decode())
    return answer


def denied(**status: Any) -> JSON:
    return {"allowed": False, **({"status": status} if status else {})}
