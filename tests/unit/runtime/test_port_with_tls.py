"""One port for probes without TLS and for metrics with TLS, and clients that begin a handshake and do not continue."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from playground.programs.probes import unverified
from runtime.httpserver import HttpServer, Reply, ServerLimits, listening, serve_http, serve_probes
from runtime.scraping import ScrapeVerdict, guarded
from runtime.tls import CERTIFICATE, KEY, MetricsTls

OPEN = unverified()
LARGE = b"x" * 3_000_000
ROUTES = {
    ("GET", "/healthz"): lambda request: Reply(200, b"ok"),
    ("GET", "/readyz"): lambda request: Reply(200, b"ok"),
    ("GET", "/metrics"): lambda request: Reply(200, LARGE),
}


def verdict(token: str, client: str) -> ScrapeVerdict:
    assert client == "127.0.0.1"
    return ScrapeVerdict.ALLOWED if token == "t0" else ScrapeVerdict.UNKNOWN


@pytest.fixture
def port() -> Iterator[int]:
    bound = listening(("127.0.0.1", 0))
    server = serve_probes(ROUTES, bound, name="t", guard=guarded(verdict), tls=MetricsTls().current)
    yield int(bound.getsockname()[1])
    server.close(1.0)


def fetched(port: int, path: str, *, tls: bool, token: str = "") -> tuple[int, bytes]:
    made: http.client.HTTPConnection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    if tls:
        made = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=OPEN)
    try:
        made.request("GET", path, headers={"Authorization": f"Bearer {token}"} if token else {})
        answer = made.getresponse()
        return answer.status, answer.read()
    finally:
        made.close()


def test_probes_come_without_tls_and_metrics_with_it_and_a_token(port: int) -> None:
    assert fetched(port, "/healthz", tls=False) == (200, b"ok")
    assert fetched(port, "/readyz", tls=True) == (200, b"ok")
    assert fetched(port, "/metrics", tls=True, token="t0") == (200, LARGE)
    refused = [
        fetched(port, "/metrics", tls=tls, token=token)[0]
        for tls, token in ((True, ""), (True, "t1"), (False, "t0"), (False, ""))
    ]
    assert refused == [401, 401, 403, 403]


def test_one_connection_serves_several_scrapes(port: int) -> None:
    made = http.client.HTTPSConnection("127.0.0.1", port, timeout=10, context=OPEN)
    for _ in range(3):
        made.request("GET", "/metrics", headers={"Authorization": "Bearer t0"})
        answer = made.getresponse()
        assert (answer.status, len(answer.read())) == (200, len(LARGE))
    made.close()


def test_older_tls_is_not_spoken(port: int) -> None:
    old = ssl.create_default_context()
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError), socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
        old.wrap_socket(raw)


def test_handshakes_that_do_not_go_on_keep_no_probe_waiting() -> None:
    limits = ServerLimits(timeout=1.0, idle=30.0, max_connections=8)
    server = serve_http(ROUTES, ("127.0.0.1", 0), name="t", limits=limits, tls=MetricsTls().current)
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        for number, each in enumerate(silent):
            each.sendall((b"\x16", b"\x16\x03\x01\x02\x00\x01", b"\x16" + b"\xff" * 300)[number % 3])
        started = time.monotonic()
        assert fetched(server.port, "/healthz", tls=False) == (200, b"ok")
        assert fetched(server.port, "/healthz", tls=True) == (200, b"ok")
        assert time.monotonic() - started < 3
    finally:
        for each in silent:
            each.close()
        server.close(1.0)


def test_a_server_that_stops_ends_its_tls_connections() -> None:
    server: HttpServer = serve_http(ROUTES, ("127.0.0.1", 0), name="t", tls=MetricsTls().current)
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    with OPEN.wrap_socket(raw) as idle:
        idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert idle.recv(8) == b"HTTP/1.1"
        while idle.pending():
            idle.recv(4096)
        started = time.monotonic()
        server.close(5.0)
        assert time.monotonic() - started < 4
        with contextlib.suppress(ssl.SSLError):  # an alert may come first
            assert idle.recv(1) == b""


def pair(folder: Path, name: str) -> None:
    """A certificate with that name and its key."""
    import datetime

    key, subject = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    for file, content in (
        (CERTIFICATE, made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)),
        (KEY, key.private_bytes(*form)),
    ):
        fresh = folder / f"{file}.new"
        fresh.write_bytes(content)
        os.replace(fresh, folder / file)


def shown(port: int) -> str:
    text = ssl.get_server_certificate(("127.0.0.1", port), timeout=5)
    return x509.load_pem_x509_certificate(text.encode()).subject.rfc4514_string()


def test_a_certificate_of_a_folder_is_read_again_and_a_bad_one_is_not_taken(tmp_path: Path) -> None:
    pair(tmp_path, "first")
    server = serve_http(ROUTES, ("127.0.0.1", 0), name="t", tls=MetricsTls(tmp_path).current)
    try:
        assert shown(server.port) == "CN=first"
        pair(tmp_path, "second")
        assert shown(server.port) == "CN=second"
        (tmp_path / CERTIFICATE).write_text("nonsense")
        assert shown(server.port) == "CN=second"
        pair(tmp_path, "third")
        assert shown(server.port) == "CN=third"
    finally:
        server.close(1.0)


def test_a_folder_without_a_pair_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        MetricsTls(tmp_path)
