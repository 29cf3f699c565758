"""The pooled transport with a real server on loopback, with and without TLS."""

from __future__ import annotations

import base64
import datetime
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from kubernetes import client
from urllib3.util import parse_url

from runtime.kubernetes.client import Kube, KubeConfigError, KubeTimeout, KubeUnavailable
from runtime.kubernetes.errors import KubeConnectionLost
from runtime.kubernetes.transport import HttpRequest, PooledTransport, Response, connect_transport
from runtime.kubernetes.watch import Informer, Replaced


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    tokens: list[str | None]
    released: threading.Event

    def do_GET(self) -> None:
        self.tokens.append(self.headers.get("Authorization"))
        where = self.path.partition("?")[0]
        if where == "/silent":
            self.released.wait(20)
        elif "watch=true" in self.path:
            self._stream()
        elif where == "/hangup":
            self.close_connection = True
        elif where == "/drip":
            self._drip()
        else:
            self._say({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._say({"got": json.loads(body)})

    def _say(self, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        data = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"2"}}}\n'
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.released.wait(20)
        self.close_connection = True

    def _drip(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        while not self.released.wait(0.05):
            try:
                self.wfile.write(b" ")
            except OSError:
                break
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        pass


class Server:
    def __init__(self, folder: Path, *, tls: bool) -> None:
        self.tokens: list[str | None] = []
        self.released = threading.Event()
        handler = type("Bound", (Handler,), {"tokens": self.tokens, "released": self.released})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.ca = b""
        if tls:
            self.ca, key = certificate()
            (folder / "tls.pem").write_bytes(self.ca + key)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(folder / "tls.pem")
            self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.http.server_address[1]}"
        self.kubeconfig = folder / "kubeconfig"
        self.write_kubeconfig(self.ca)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def write_kubeconfig(self, ca: bytes) -> None:
        cluster = {"server": self.url}
        if ca:
            cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
        self.kubeconfig.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "c",
                    "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                    "clusters": [{"name": "c", "cluster": cluster}],
                    "users": [{"name": "u", "user": {"token": "s3cret"}}],
                }
            )
        )

    def connect(self, timeout: float = 5.0) -> Kube:
        return Kube.connect(kubeconfig=str(self.kubeconfig), timeout=timeout)

    def close(self) -> None:
        self.released.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(5)


def certificate() -> tuple[bytes, bytes]:
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "loopback")])
    now = datetime.datetime.now(datetime.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return cert.public_bytes(pem), private


@pytest.fixture(params=[False, True], ids=["http", "https"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, tls=request.param)
    yield made
    made.close()


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path, tls=False)
    yield made
    made.close()


def test_a_call_carries_the_kubeconfigs_token(server: Server) -> None:
    kube = server.connect()
    assert kube.list("/api/v1/pods").resource_version == "1"
    assert kube.create("/api/v1/pods", {"kind": "Pod"}) == {"got": {"kind": "Pod"}}
    assert server.tokens == ["Bearer s3cret"]
    assert "s3cret" not in repr(kube)


def test_a_token_where_the_packages_older_releases_have_it_is_sent_too(plain: Server) -> None:
    configuration: Any = client.Configuration(host=plain.url)
    # They know neither the newer name nor a second argument.
    configuration.get_api_key_with_prefix = {"authorization": "Bearer 0ld"}.get
    assert Kube(PooledTransport(configuration)).list("/api/v1/pods").items == []
    assert plain.tokens == ["Bearer 0ld"]


PROXY = "http://proxy:3128"
PROXIED: dict[str, tuple[str, str, str | None]] = {
    "this machine by its address": ("https://127.0.0.1:6443", "", None),
    "this machine by its name": ("https://localhost:6443", "", None),
    "this machine by IPv6": ("https://[::1]:6443", "", None),
    "another machine": ("https://10.0.0.1:6443", "", PROXY),
    "one that is named": ("https://10.0.0.1:6443", "example.com,10.0.0.1", None),
    "one of a network": ("https://10.96.0.1:443", "10.96.0.0/12,.svc", None),
    "one of a network of IPv6": ("https://[fd00:10::1]:443", "fd00:10::/64", None),
    "one of a domain": ("https://api.cluster.example.com:6443", ".example.com", None),
    "one of another network": ("https://10.0.0.1:6443", "10.96.0.0/12", PROXY),
    "one of another domain": ("https://api.example.org:6443", ".example.com", PROXY),
}


@pytest.mark.parametrize(("host", "excepted", "want"), PROXIED.values(), ids=PROXIED.keys())
def test_a_proxy_of_the_environment_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, excepted: str, want: str | None
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    if excepted:
        monkeypatch.setenv("no_proxy", excepted)
    monkeypatch.setenv("https_proxy", PROXY)
    file = tmp_path / "kubeconfig"
    file.write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": {"server": host}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    transport = connect_transport(kubeconfig=str(file), context=None, user_agent="t")
    assert getattr(transport._pool, "proxy", None) == (parse_url(want) if want else None)


def test_a_quiet_watch_is_stopped_promptly_from_another_thread(server: Server) -> None:
    closers: list[Any] = []
    got = threading.Event()
    seen: list[Any] = []

    def follow() -> None:
        for event in server.connect().watch(
            "/api/v1/pods", resource_version="1", timeout_seconds=300, on_open=closers.append
        ):
            seen.append(event["type"])
            got.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert got.wait(5)
    started = time.monotonic()
    closers[0]()
    thread.join(5)
    assert (thread.is_alive(), seen) == (False, ["ADDED"])
    assert time.monotonic() - started < 2


def test_an_informer_syncs_and_stops(server: Server) -> None:
    events: list[Any] = []
    informer = Informer(server.connect(), "/api/v1/pods", events.append, name="pods")
    assert informer.age() is None
    informer.start()
    assert informer.synced.wait(5)
    informer.stop()
    assert events[0] == Replaced([])
    age = informer.age()
    assert age is not None
    assert 0 <= age < 10
    assert not any(thread.name == "informer-pods" for thread in threading.enumerate())


def test_a_port_that_nobody_listens_on_is_unavailable_with_a_known_outcome(plain: Server) -> None:
    kube = plain.connect()
    plain.http.shutdown()
    plain.http.server_close()
    with pytest.raises(KubeUnavailable, match="cannot connect: Connection refused") as caught:
        kube.create("/api/v1/pods", {})
    assert caught.value.outcome_unknown is False


def test_a_server_that_hangs_up_leaves_the_outcome_open(plain: Server) -> None:
    with pytest.raises(KubeConnectionLost) as caught:
        plain.connect().get("/hangup")
    assert caught.value.outcome_unknown is True


def test_silence_is_a_timeout(plain: Server) -> None:
    with pytest.raises(KubeTimeout, match="no answer in time"):
        plain.connect(timeout=0.2).get("/silent")


def patient(server: Server, answer_timeout: float) -> PooledTransport:
    """A transport that waits this many seconds for a stream to begin."""
    configuration = client.Configuration(host=server.url)
    if server.ca:
        configuration.ssl_ca_cert = str(server.kubeconfig.parent / "tls.pem")
    return PooledTransport(configuration, answer_timeout=answer_timeout)


def watch(transport: PooledTransport, path: str, timeout: float) -> Response:
    return transport.request(HttpRequest("GET", path, {"watch": "true"}, {}, None, timeout, stream=True))


def test_a_stream_that_does_not_begin_is_given_up_long_before_one_that_is_quiet(server: Server) -> None:
    with pytest.raises(KubeTimeout, match="no answer in time"):
        watch(patient(server, 0.2), "/silent", timeout=600)


def test_a_stream_that_has_begun_may_be_quiet_for_longer(server: Server) -> None:
    pieces = watch(patient(server, 0.2), "/api/v1/pods", timeout=600).chunks()
    assert next(pieces).startswith(b'{"type":"ADDED"')
    threading.Timer(0.5, server.released.set).start()
    with pytest.raises(KubeTimeout) as caught:
        next(pieces)
    assert type(caught.value) is KubeConnectionLost, "the server ended it, and not our patience"


def test_a_dripping_answer_is_bounded_as_a_whole(plain: Server) -> None:
    with pytest.raises(KubeTimeout, match="did not end in time"):
        plain.connect(timeout=0.4).get("/drip")


def test_a_certificate_of_another_ca_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    server = Server(tmp_path, tls=True)
    try:
        other, _ = certificate()
        server.write_kubeconfig(other)
        with pytest.raises(KubeUnavailable) as caught:
            server.connect().get("/api/v1/pods")
        assert (caught.value.outcome_unknown, server.tokens) == (False, [])
    finally:
        server.close()


def test_a_missing_kubeconfig_is_reported(tmp_path: Path) -> None:
    with pytest.raises(KubeConfigError, match="kubeconfig"):
        Kube.connect(kubeconfig=str(tmp_path / "none"))


def test_in_a_pod_the_service_account_is_used() -> None:
    with pytest.raises(KubeConfigError, match="service account"):
        connect_transport(kubeconfig=None, context=None, user_agent="t", env={"KUBERNETES_SERVICE_HOST": "127.0.0.1"})


def test_a_kubeconfig_that_cannot_be_used_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    missing, text = tmp_path / "missing", tmp_path / "text"
    text.write_text("some words", encoding="utf-8")
    messages = {}
    for file in (missing, text):
        with pytest.raises(KubeConfigError) as refused:
            connect_transport(kubeconfig=str(file), context=None, user_agent="t", env={})
        messages[file] = str(refused.value)
    assert messages == {
        missing: f"kubeconfig {missing}: no such file",
        text: f"kubeconfig {text}: this is not a kubeconfig",
    }
