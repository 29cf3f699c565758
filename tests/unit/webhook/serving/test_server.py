"""The real server on loopback: gunicorn with TLS, certificates renewed under traffic, a stop that loses nothing."""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gunicorn.workers.base import Worker

from contract.encoding.protocol import CARDS_PATH, cards_to_json
from playground.programs.probes import free_port
from playground.waiting import wait_for
from runtime.httpserver import json_reply, serve_http
from tests.unit.webhook.builders import container, pod, review
from webhook.certificates.authority import Bundle, Lives, renewed, service_names
from webhook.certificates.keeper import SETTLING, Ensure
from webhook.certificates.store import Directories
from webhook.serving.connections import Bounds
from webhook.serving.server import THREADS, gunicorn_settings
from webhook.settings import ServeSettings

CLIENTS = THREADS + 4
NAMES = service_names("gpufraction-webhook", "gpufraction-system")
ROOT = Path(__file__).parents[4]
BODY = json.dumps(review(pod(container(gpufraction_io__gpu_memory="5Gi"))))
DEADLINE = 20.0


def utcnow() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


class Running:
    """A started webhook, and connections to it that verify its certificate as the API server does."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, health: int, ca: bytes) -> None:
        self.process, self.port, self.health = process, port, health
        self.context = ssl.create_default_context(cadata=ca.decode())

    def probe(self, path: str) -> tuple[int, str]:
        """What kubelet gets on the port for probes, well before its timeout."""
        connection = http.client.HTTPConnection("127.0.0.1", self.health, timeout=1)
        connection.request("GET", path)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def listens(self) -> bool:
        """Whether it accepts connections yet. Fails if its process has ended."""
        assert self.process.poll() is None, "the webhook ended at its start"
        try:
            self.connect().close()
        except OSError:
            return False
        return True

    def connect(self) -> Connection:
        connection = Connection("127.0.0.1", self.port, context=self.context, timeout=10)
        connection.connect()
        return connection


class Connection(http.client.HTTPSConnection):
    """HTTPS to loopback with the Service's name."""

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock: ssl.SSLSocket = self._context.wrap_socket(plain, server_hostname=NAMES[2])  # type: ignore[attr-defined]

    @property
    def serial(self) -> str:
        found: Any = self.sock.getpeercert()
        return str(found["serialNumber"])

    def review(self) -> tuple[int, Any]:
        self.request("POST", "/mutate", BODY, {"Content-Type": "application/json"})
        response = self.getresponse()
        return response.status, json.loads(response.read())


def places_in(directory: Path) -> Directories:
    """Both directories below a folder, created."""
    found = Directories(directory / "serving", directory / "authority")
    with found.locked():
        return found


@contextlib.contextmanager
def running(directory: Path, *flags: str) -> Iterator[Running]:
    places = places_in(directory)
    bundle = places.read() or renewed(None, utcnow(), NAMES)
    places.write(bundle)
    port, health = free_port(), free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "webhook", "serve", "--bind", f"127.0.0.1:{port}"),
            *("--listen", f"127.0.0.1:{health}"),
            *("--certificates", str(places.serving), "--socket", str(directory / "none.sock")),
            *flags,
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
    )
    try:
        web = Running(process, port, health, bundle.ca)
        wait_for(web.listens, "the webhook does not listen", DEADLINE)
        yield web
    finally:
        process.terminate()
        try:
            process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_certificates_are_renewed_under_traffic_and_the_stop_is_graceful(tmp_path: Path) -> None:
    with running(tmp_path) as web:
        kept = web.connect()
        before = kept.serial
        assert kept.review()[1]["response"]["warnings"] == [
            "waiting: the allocator does not answer; the pod is placed as soon as it does"
        ]
        renewals = 5
        ca = places_in(tmp_path).read().ca  # type: ignore[union-attr]  # `running` wrote it
        traffic = Traffic(web, lambda: ca)
        with traffic:
            for _ in range(renewals):
                places_in(tmp_path).write(renewed(places_in(tmp_path).read(), utcnow(), NAMES))
                assert kept.review()[0] == 200
                traffic.goes_on()
        assert traffic.failures == []
        assert len(set(traffic.serials) - {before}) == renewals
        assert kept.serial == before
        web.process.send_signal(signal.SIGTERM)
        assert kept.review()[0] == 200  # a connection that is open at the stop still gets its answer
        kept.close()
        assert web.process.wait(DEADLINE) == 0


YEAR = datetime.timedelta(days=365)


class Configuration:
    """One webhook configuration, and the state that an API server one look behind believes in."""

    def __init__(self) -> None:
        self.bundle, self.believed, self.version = "", b"", 1

    def get(self, path: str) -> Any:
        webhooks = [{"clientConfig": {"caBundle": self.bundle}}]
        return {"metadata": {"resourceVersion": str(self.version)}, "webhooks": webhooks}

    def patch_json(self, path: str, ops: list[Any]) -> Any:
        self.bundle, self.version = ops[1]["value"], self.version + 1
        return {}

    def catch_up(self) -> None:
        self.believed = base64.b64decode(self.bundle)


def test_a_new_authority_comes_under_traffic_and_no_handshake_fails(tmp_path: Path) -> None:
    """The authority grows old. Every client trusts the configuration of one look ago."""
    configuration = Configuration()
    began = utcnow() - 14 * YEAR

    def look(at: datetime.datetime) -> bytes:
        ensure = Ensure(
            store=lambda: places_in(tmp_path),
            names=NAMES,
            configuration="w",
            lives=Lives(ca=21 * YEAR, leaf=21 * YEAR),
            connect=lambda: configuration,
            now=lambda: at,
            say=lambda line: None,
        )
        assert ensure.once() == 0
        served = places_in(tmp_path).read()
        assert served is not None
        return served.ca

    authorities = {look(began)}
    configuration.catch_up()
    with running(tmp_path) as web:
        traffic = Traffic(web, lambda: configuration.believed)
        with traffic:
            for at in (utcnow(), utcnow() + SETTLING, utcnow() + 2 * SETTLING):
                authorities.add(look(at))
                traffic.goes_on()
                configuration.catch_up()
        assert traffic.failures == []
        assert len(authorities) == 2
        assert len(set(traffic.serials)) == 2


class Traffic:
    """
    Two clients that connect, send a request and leave, repeatedly. Each trusts what `trusted` returns at that moment.
    """

    def __init__(self, web: Running, trusted: Callable[[], bytes]) -> None:
        self.failures: list[Exception] = []
        self.serials: list[str] = []
        self._web, self._trusted, self._stop = web, trusted, threading.Event()
        self._clients = [threading.Thread(target=self._knock, name=f"client-{n}", daemon=True) for n in range(2)]

    def __enter__(self) -> Traffic:
        for client in self._clients:
            client.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.join(DEADLINE)

    def goes_on(self) -> None:
        """Wait until some more connections were made."""
        seen = len(self.serials)
        wait_for(lambda: len(self.serials) >= seen + 6 or self.failures, "there is no traffic", DEADLINE, every=0.01)

    def _knock(self) -> None:
        while not self._stop.is_set():
            context = ssl.create_default_context(cadata=self._trusted().decode())
            try:
                connection = Connection("127.0.0.1", self._web.port, context=context, timeout=10)
                assert connection.review()[0] == 200
                self.serials.append(connection.serial)
                connection.close()
            except Exception as error:
                self.failures.append(error)


def test_clients_that_stall_in_the_handshake_do_not_stop_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as web, contextlib.ExitStack() as stalled:
        for _ in range(CLIENTS):
            client = stalled.enter_context(socket.create_connection(("127.0.0.1", web.port)))
            client.sendall(b"\x16\x03\x01\x02\x00\x01")  # the start of a ClientHello that never continues
        connection = web.connect()
        assert connection.review()[0] == 200
        connection.close()


def test_probes_and_metrics_are_answered_on_a_port_of_their_own(tmp_path: Path) -> None:
    socket_of = tmp_path / "allocator.sock"
    flags = ("--socket", str(socket_of), "--metrics-access", "open")
    with running(tmp_path, *flags) as web, contextlib.ExitStack() as busy:
        assert reviewed(web)
        assert web.probe("/readyz") == (503, "the allocator has not answered yet\n")
        cards = {("GET", CARDS_PATH): lambda request: json_reply(cards_to_json(()))}
        busy.callback(serve_http(cards, socket_of, name="allocator").close)
        wait_for(lambda: web.probe("/readyz")[0] == 200, "it is never ready", DEADLINE)
        for _ in range(CLIENTS):
            busy.enter_context(socket.create_connection(("127.0.0.1", web.port))).sendall(b"\x16\x03\x01\x02\x00\x01")
        assert web.probe("/healthz") == (200, "ok\n")
        assert web.probe("/readyz") == (200, "ok\n")
        status, metrics = web.probe("/metrics")
        assert status == 200
        assert 'gpufraction_admission_requests_total{dialect="native",outcome="gated"} 1.0' in metrics
        places_in(tmp_path).write(ended(places_in(tmp_path).read()))
        status, reason = web.probe("/readyz")
        assert (status, reason.startswith("the serving certificate ended")) == (503, True)
        assert web.probe("/healthz") == (200, "ok\n")


def test_a_port_for_probes_that_is_taken_ends_with_a_message(tmp_path: Path) -> None:
    with running(tmp_path) as web:
        second = subprocess.run(
            [
                *(sys.executable, "-m", "webhook", "serve", "--bind", "127.0.0.1:0"),
                *("--certificates", str(places_in(tmp_path).serving), "--listen", f"127.0.0.1:{web.health}"),
            ],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"]},
            capture_output=True,
            timeout=DEADLINE,
            check=False,
        )
    assert second.returncode == 1
    assert "cannot listen" in second.stderr.decode()
    assert f"127.0.0.1:{web.health}" in second.stderr.decode()
    assert "Traceback" not in second.stderr.decode()


def test_clients_that_say_nothing_have_no_thread(tmp_path: Path) -> None:
    with running(tmp_path) as web, contextlib.ExitStack() as silent:
        for _ in range(CLIENTS):
            silent.enter_context(socket.create_connection(("127.0.0.1", web.port)))
        assert reviewed(web)


def test_clients_that_drip_a_request_do_not_stop_the_server(tmp_path: Path) -> None:
    with running(tmp_path) as web, contextlib.ExitStack() as dripping:
        stop = threading.Event()
        dripping.callback(stop.set)
        begun = [threading.Event() for _ in range(CLIENTS)]
        for each in begun:
            threading.Thread(target=drip, args=(web, each, stop), daemon=True).start()
        for each in begun:
            assert each.wait(DEADLINE)
        assert reviewed(web)


def drip(web: Running, begun: threading.Event, stop: threading.Event) -> None:
    """Send a request whose header never ends, one byte at a time, until the server ends the connection."""
    with contextlib.closing(web.connect()) as client, contextlib.suppress(OSError):
        client.sock.sendall(b"POST /mutate HTTP/1.1\r\nX: ")
        while not stop.wait(0.05):
            client.sock.sendall(b"x")
            begun.set()


def ended(bundle: Bundle | None) -> Bundle:
    """A certificate that no one accepts any more."""
    return renewed(bundle, utcnow() - 2 * YEAR, NAMES)


def reviewed(web: Running) -> bool:
    """Whether a well-behaved client is answered, even if it must wait for its turn."""
    connection = web.connect()
    status, _ = connection.review()
    connection.close()
    return status == 200


def test_connections_are_kept_longer_than_the_api_server_keeps_them() -> None:
    """The API server's client drops idle connections after 90 s. If we did so earlier, a review could be cut."""
    assert Bounds().idle > 90
    settings = gunicorn_settings(ServeSettings(certificates=Path("/nowhere")))
    assert settings["workers"] == 1
    assert issubclass(settings["worker_class"], Worker)


def test_serving_without_a_certificate_ends_with_a_message(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "webhook", "serve", "--bind", "127.0.0.1:0", "--certificates", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 1
    assert "there is no usable serving certificate" in ended.stderr.decode()
    assert str(tmp_path) in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


def test_serving_without_the_authorities_of_clients_ends_with_a_message(tmp_path: Path) -> None:
    """It ends instead of letting every client in."""
    places_in(tmp_path).write(renewed(None, utcnow(), NAMES))
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "webhook", "serve", "--bind", "127.0.0.1:0", "--listen", ""),
            *("--certificates", str(places_in(tmp_path).serving), "--client-ca", str(tmp_path / "none.crt")),
        ],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        timeout=DEADLINE,
        check=False,
    )
    assert ended.returncode == 1
    assert f"client_ca {tmp_path / 'none.crt'}: " in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


@pytest.mark.parametrize(
    "module",
    ["webhook.__main__", "webhook.serving.application", "webhook.serving.server", "webhook.certificates.keeper"],
)
def test_importing_starts_nothing(module: str) -> None:
    code = (
        "import sys, threading, socket\n"
        "def refuse(*_, **__): raise AssertionError('a socket at import')\n"
        "socket.socket.connect = refuse\n"
        f"import {module}\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={}, check=True, timeout=DEADLINE)
