"""Which TLS the webhook supports: each version and suite that this machine's OpenSSL can offer is tested."""

from __future__ import annotations

import ssl
import warnings
from pathlib import Path

import pytest

from playground.api.http.certificates import Authority
from playground.api.kinds.values import User
from tests.unit.webhook.serving.test_server import NAMES, places_in, utcnow
from webhook.certificates.authority import renewed
from webhook.serving.tls import NoAuthority, ServingContext, names_of

TLS_1_2 = {
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
}
"""
The suites with one of our certificates. A certificate with an RSA key, from another authority, adds the same with RSA.
"""
TLS_1_3 = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
VERSIONS = (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    places = places_in(tmp_path_factory.mktemp("certs"))
    places.write(renewed(None, utcnow(), NAMES))
    return ServingContext(places.serving).current()


def client(version: ssl.TLSVersion, suite: str = "ALL:COMPLEMENTOFALL") -> ssl.SSLContext:
    """A client of one version that accepts anything, and offers one suite if there is a choice."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = version
    context.set_ciphers(f"{suite}:@SECLEVEL=0")
    return context


def agreed(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str, str] | None:
    """Version and suite of a handshake without a network; None if it fails."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(back, there, server_side=False), server.wrap_bio(there, back, server_side=True)]
    done: set[int] = set()
    for _ in range(10):
        for number, end in enumerate(ends):
            try:
                end.do_handshake()
                done.add(number)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLError:
                return None
        if len(done) == len(ends):
            break
    found = ends[0].cipher()
    assert found is not None
    return ends[0].version() or "", found[0]


def test_tls_1_2_needs_authenticated_encryption_with_forward_secrecy(server: ssl.SSLContext) -> None:
    offered = {each["name"] for each in client(ssl.TLSVersion.TLSv1_2).get_ciphers() if each["protocol"] != "TLSv1.3"}
    assert any(name.endswith("CBC-SHA") or name == "AES128-SHA" for name in offered)
    answered = {name: agreed(server, client(ssl.TLSVersion.TLSv1_2, name)) for name in offered}
    assert {name: found for name, found in answered.items() if found} == {name: ("TLSv1.2", name) for name in TLS_1_2}


def test_tls_1_3_is_spoken_and_nothing_older_than_1_2(server: ssl.SSLContext) -> None:
    spoken = {version.name: (agreed(server, client(version)) or ("",))[0] for version in VERSIONS}
    assert spoken == {"TLSv1": "", "TLSv1_1": "", "TLSv1_2": "TLSv1.2", "TLSv1_3": "TLSv1.3"}
    named = {each["name"] for each in server.get_ciphers()}
    assert {name for name in named if name.startswith("TLS_")} == TLS_1_3
    assert {name for name in named if not name.startswith("TLS_")} == TLS_1_2 | {
        name.replace("ECDSA", "RSA") for name in TLS_1_2
    }


def test_a_client_cannot_begin_the_handshake_again(server: ssl.SSLContext) -> None:
    assert server.options & ssl.OP_NO_RENEGOTIATION


# -- clients' certificates ----------------------------------------------------------------------------------------


def as_user(folder: Path, authority: Authority, name: str = "api-server") -> ssl.SSLContext:
    """A client of TLS 1.2, in which it learns during the handshake what happens to its certificate."""
    context = client(ssl.TLSVersion.TLSv1_2)
    certificate, key = authority.client(User(name))
    (folder / "client.pem").write_bytes(certificate + key)
    context.load_cert_chain(folder / "client.pem")
    return context


def test_clients_need_a_certificate_of_the_authority_which_is_reloaded(tmp_path: Path) -> None:
    places, file = places_in(tmp_path), tmp_path / "client-ca.crt"
    places.write(renewed(None, utcnow(), NAMES))
    first, second = Authority(), Authority()
    file.write_bytes(first.pem)
    serving = ServingContext(places.serving, client_ca=file)

    def accepted(context: ssl.SSLContext) -> bool:
        return agreed(serving.current(), context) is not None

    def answers() -> list[bool]:
        anybody = client(ssl.TLSVersion.TLSv1_2)
        return [accepted(anybody), accepted(as_user(tmp_path, first)), accepted(as_user(tmp_path, second))]

    assert answers() == [False, True, False]
    file.write_bytes(first.pem + second.pem)
    assert answers() == [False, True, True]
    file.write_bytes(second.pem)
    assert answers() == [False, False, True]
    file.write_bytes(b"")
    assert answers() == [False, False, True]  # a file that cannot be read lets no client in
    file.unlink()
    assert answers() == [False, False, True]


def test_a_servers_certificate_is_none_of_a_client(tmp_path: Path) -> None:
    places, file, authority = places_in(tmp_path), tmp_path / "client-ca.crt", Authority()
    places.write(renewed(None, utcnow(), NAMES))
    file.write_bytes(authority.pem)
    context = client(ssl.TLSVersion.TLSv1_2)
    (tmp_path / "server.pem").write_bytes(b"".join(authority.server(["api-server"])))
    context.load_cert_chain(tmp_path / "server.pem")
    assert agreed(ServingContext(places.serving, client_ca=file).current(), context) is None


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_without_a_readable_authority_nobody_is_served_from_the_start(tmp_path: Path, content: bytes | None) -> None:
    places, file = places_in(tmp_path), tmp_path / "client-ca.crt"
    places.write(renewed(None, utcnow(), NAMES))
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoAuthority, match=r"client_ca .*client-ca\.crt: "):
        ServingContext(places.serving, client_ca=file).current()


CERTIFICATES = {
    "none": (None, set()),
    "empty": ({}, set()),
    "a common name": ({"subject": ((("organizationName", "o"),), (("commonName", "api-server"),))}, {"api-server"}),
    "several": (
        {
            "subject": ((("commonName", "a"), ("commonName", "b")),),
            "subjectAltName": (("DNS", "c"), ("IP Address", "d")),
        },
        {"a", "b", "c"},
    ),
}


@pytest.mark.parametrize(("certificate", "names"), CERTIFICATES.values(), ids=CERTIFICATES.keys())
def test_the_names_of_a_client(certificate: object, names: set[str]) -> None:
    assert names_of(certificate) == names
