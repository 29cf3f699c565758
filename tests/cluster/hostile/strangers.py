"""Clients without any identity that reach the webhooks' ports: what they open, send, and leave out."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import multiprocessing
import os
import socket
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from contract import names
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError
from tests.cluster.hostile.attack import TENANT, Hostile

JSON = dict[str, Any]
SERVER_NAME = f"gpufraction-webhook.{names.NAMESPACE}.svc"
HELLO = b"\x16\x03\x01\x02\x00\x01"
"""The start of a ClientHello that never continues."""


def trusting(attacked: Hostile) -> ssl.SSLContext:
    """A TLS context that trusts the webhook, as the API server does."""
    return ssl.create_default_context(cafile=str(attacked.cluster.directory / "certs" / "ca.crt"))


def plain(port: int, sent: bytes = b"") -> socket.socket:
    """A TCP connection that has sent this much."""
    made = socket.create_connection(("127.0.0.1", port), 10)
    made.sendall(sent)
    return made


def secured(port: int, context: ssl.SSLContext, sent: bytes = b"") -> ssl.SSLSocket:
    """A TLS connection that has sent this much."""
    made = context.wrap_socket(plain(port), server_hostname=SERVER_NAME)
    made.sendall(sent)
    return made


def post(port: int, context: ssl.SSLContext, body: bytes, *, path: str = "/mutate") -> tuple[int, bytes]:
    """Send one request and read its answer. Status 0 if the server ends the connection instead."""
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with contextlib.closing(secured(port, context)) as made:
        with contextlib.suppress(OSError):
            made.sendall(head + body)
        answer = http.client.HTTPResponse(made)
        try:
            answer.begin()
            return answer.status, answer.read()
        except (http.client.HTTPException, OSError):
            return 0, b""


def review(pod: JSON, *, uid: str = "stranger", **request: Any) -> bytes:
    """A review as an API server would send it."""
    asked = {
        "uid": uid,
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "operation": "CREATE",
        "namespace": "default",
        "object": pod,
        **request,
    }
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": asked}).encode()


def served_by_each(attacked: Hostile, requests: JSON) -> list[float]:
    """How long each replica takes for the review of a small pod with these requests, sent as its API server does."""
    context, took = trusting(attacked), []
    body = review({"metadata": {"name": "small", "namespace": "neighbour"}, "spec": {"containers": [requests]}})
    body = body.replace(b'"namespace": "default"', b'"namespace": "neighbour", "dryRun": true')
    for replica in attacked.cluster.replicas:
        started = time.monotonic()
        status, answer = post(replica.webhook_port, context, body, path="/mutate?timeout=3s")
        took.append(time.monotonic() - started)
        assert status == 200, (status, answer)
        assert json.loads(answer)["response"]["allowed"] is True
    return took


class Crowd:
    """
    Clients that send these bodies to all webhooks in turn, repeatedly until the end. The results are counted. With a
    pace each body is sent once, and each client waits this many seconds between two bodies. `tenants`: the bodies are
    pods, which go to the API server as dry runs; `rests`: the seconds that each client then waits between two.

    They run in their own process with a low priority, because attackers do not use the cluster's processor.
    """

    def __init__(
        self,
        attacked: Hostile,
        clients: int,
        bodies: Sequence[bytes],
        *,
        pace: float = 0.0,
        tenants: bool = False,
        rests: float = 0.0,
    ) -> None:
        self.found: Counter[str] = Counter()
        spawning = multiprocessing.get_context("spawn")
        self._stop, self._answered, self._counts = spawning.Event(), spawning.Event(), spawning.Queue()
        ports = [replica.webhook_port for replica in attacked.cluster.replicas]
        authority = str(attacked.cluster.directory / "certs" / "ca.crt")
        by = str(attacked.cluster.kubeconfig) if tenants else ""
        self._process = spawning.Process(
            target=_send,
            args=(ports, authority, by, clients, list(bodies), pace, rests, self._stop, self._answered, self._counts),
            daemon=True,
        )

    def __enter__(self) -> Crowd:
        self._process.start()
        return self

    def is_at_work(self, within: float = 60.0) -> bool:
        """Wait until one of its requests has finished."""
        return bool(self._answered.wait(within))

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.found.update(self._counts.get(timeout=60))
        self._process.join(60)
        self._process.close()
        self._counts.close()


def _send(
    ports: list[int],
    authority: str,
    kubeconfig: str,
    clients: int,
    bodies: list[bytes],
    pace: float,
    rests: float,
    stop: Any,
    answered: Any,
    counts: Any,
) -> None:
    """The process of a `Crowd`."""
    os.nice(15)
    context = ssl.create_default_context(cafile=authority)
    kube = Kube.connect(kubeconfig=kubeconfig, user_agent="crowd") if kubeconfig else None
    pods = [json.loads(body) for body in bodies] if kube is not None else []
    found: Counter[str] = Counter()

    turn = itertools.count()
    lock = threading.Lock()

    def client(position: int) -> None:
        stop.wait(rests * position / clients)
        while not stop.is_set():
            with lock:
                number = next(turn)
            if pace and number >= len(bodies):
                return
            port, which = ports[(number // len(bodies) + number) % len(ports)], number % len(bodies)
            try:
                if kube is None:
                    key = str(post(port, context, bodies[which])[0])
                else:
                    kube.create(paths.pods(TENANT), pods[which], {"dryRun": "All"}, timeout=30)
                    key = "201"
            except (OSError, KubeError) as error:
                key = type(error).__name__
            with lock:
                found[key] += 1
            answered.set()
            stop.wait(pace or rests)

    threads = [threading.Thread(target=client, args=(position,)) for position in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts.put(dict(found))


@contextlib.contextmanager
def holding(opened: Callable[[int], Any], ports: Sequence[int], number: int) -> Iterator[None]:
    """This many connections to each port, opened again when the server ends them."""
    stop = threading.Event()

    def keep(port: int) -> None:
        held: list[Any] = []
        while not stop.is_set():
            with contextlib.suppress(OSError):
                held.append(opened(port))
            if len(held) >= number:
                held.pop(0).close()
                stop.wait(0.02)
        for each in held:
            each.close()

    threads = [threading.Thread(target=keep, args=(port,), daemon=True) for port in ports]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)


def probes_answer(attacked: Hostile, within: float = 2.0) -> list[str]:
    """The result of kubelet's probes of both webhooks and both allocators; empty if all are answered in time."""
    wrong = []
    for replica in attacked.cluster.replicas:
        for url in (attacked.cluster.webhook_url(replica.number), attacked.cluster.allocator_url(replica.number)):
            host = url.removeprefix("http://")
            for path in ("/healthz", "/readyz"):
                started = time.monotonic()
                connection = http.client.HTTPConnection(host, timeout=within)
                try:
                    connection.request("GET", path)
                    status = connection.getresponse().status
                    if status != 200 and (path == "/healthz" or "webhook" in url):
                        wrong.append(f"{host}{path}: {status}")
                except OSError as error:
                    wrong.append(f"{host}{path}: {error} after {time.monotonic() - started:.1f} s")
                finally:
                    connection.close()
    return wrong


def complaints(attacked: Hostile) -> list[str]:
    """Lines of the webhooks' logs that an administrator would have to investigate."""
    return [
        line
        for replica in attacked.cluster.replicas
        for line in (attacked.cluster.directory / f"{replica.name('webhook')}.log").read_text().splitlines()
        if "ERROR" in line or "CRITICAL" in line or "Traceback" in line
    ]
