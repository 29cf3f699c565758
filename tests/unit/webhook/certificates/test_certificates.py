"""Certificates and their authority: what strict clients require of them, and when new ones are needed."""

from __future__ import annotations

import dataclasses
import datetime
import ssl
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.unit.webhook.certificates.cluster import NAMES, NOW, YEAR, places
from webhook.certificates.authority import Bundle, Lives, needs_renewal, renewed, service_names
from webhook.serving.tls import ServingContext


def load(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def extension(certificate: x509.Certificate, kind: Any) -> Any:
    return certificate.extensions.get_extension_for_class(kind).value


def test_names_of_a_service() -> None:
    assert service_names("web", "ns") == ("web", "web.ns", "web.ns.svc", "web.ns.svc.cluster.local")


def test_the_authority_and_the_leaf_are_what_strict_clients_want(bundle: Bundle) -> None:
    ca, leaf = load(bundle.ca), load(bundle.certificate)
    leaf.verify_directly_issued_by(ca)
    assert extension(leaf, x509.SubjectAlternativeName).get_values_for_type(x509.DNSName) == list(NAMES)
    assert list(extension(leaf, x509.ExtendedKeyUsage)) == [ExtendedKeyUsageOID.SERVER_AUTH]
    assert extension(leaf, x509.BasicConstraints) == x509.BasicConstraints(ca=False, path_length=None)
    assert extension(ca, x509.BasicConstraints) == x509.BasicConstraints(ca=True, path_length=0)
    assert extension(leaf, x509.KeyUsage).digital_signature
    assert extension(ca, x509.KeyUsage).key_cert_sign
    identifier = extension(ca, x509.SubjectKeyIdentifier).digest
    assert extension(leaf, x509.AuthorityKeyIdentifier).key_identifier == identifier
    assert extension(leaf, x509.SubjectKeyIdentifier).digest != identifier
    early = NOW - timedelta(minutes=5)
    assert [(c.not_valid_before_utc, c.not_valid_after_utc) for c in (leaf, ca)] == [
        (early, NOW + YEAR),
        (early, NOW + 10 * YEAR),
    ]


def test_keys_do_not_show_in_a_repr(bundle: Bundle) -> None:
    assert "PRIVATE" not in repr(bundle)


def test_a_strict_client_accepts_it() -> None:
    now = datetime.datetime.now(datetime.UTC)
    made = renewed(None, now, NAMES)
    context = ssl.create_default_context(cadata=made.ca.decode())
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    assert shaken(made, context) == 1


def shaken(made: Bundle, client: ssl.SSLContext) -> int:
    """How many certificates the client trusts, after a handshake in memory."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        places(Path(folder)).write(made)
        server = ServingContext(Path(folder) / "serving").current()
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=NAMES[2]),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    assert ends[0].version() in ("TLSv1.2", "TLSv1.3")
    return len(client.get_ca_certs())


JUDGED: dict[str, tuple[Any, timedelta, str | None]] = {
    "a new one is good": (lambda b: b, timedelta(0), None),
    "just before two thirds": (lambda b: b, YEAR * 2 / 3 - timedelta(minutes=10), None),
    "at two thirds it is due": (lambda b: b, YEAR * 2 / 3, "due"),
    "before it is valid": (lambda b: b, -timedelta(minutes=6), "not-yet"),
    "none": (lambda b: None, timedelta(0), "missing"),
    "no key": (lambda b: dataclasses.replace(b, key=b""), timedelta(0), "missing"),
    "a damaged certificate": (lambda b: dataclasses.replace(b, certificate=b"x"), timedelta(0), "unreadable"),
    "a damaged key": (lambda b: dataclasses.replace(b, key=b"x"), timedelta(0), "unreadable"),
    "another's key": (lambda b: dataclasses.replace(b, key=b.ca_key), timedelta(0), "mismatch"),
    "another authority": (
        lambda b: dataclasses.replace(b, ca=renewed(None, NOW, NAMES).ca),
        timedelta(0),
        "mismatch",
    ),
    "an authority that is due": (
        lambda b: renewed(None, NOW - 7 * YEAR, NAMES, lives=Lives(leaf=10 * YEAR)),
        timedelta(0),
        "due",
    ),
}


@pytest.mark.parametrize(("change", "later", "want"), JUDGED.values(), ids=JUDGED.keys())
def test_when_a_new_certificate_is_needed(bundle: Bundle, change: Any, later: timedelta, want: str | None) -> None:
    reason = needs_renewal(change(bundle), NOW + later, NAMES)
    assert (reason.code if reason else None) == want


def test_other_names_need_a_new_one(bundle: Bundle) -> None:
    reason = needs_renewal(bundle, NOW, [*NAMES, "example.org"])
    assert str(reason) == "names: the certificate lacks example.org"
    assert needs_renewal(bundle, NOW, NAMES[:2]) is None


def test_a_renewal_keeps_the_authority_while_it_can(bundle: Bundle) -> None:
    later = renewed(bundle, NOW + YEAR, NAMES)
    assert (later.ca, later.ca_key) == (bundle.ca, bundle.ca_key)
    assert later.certificate != bundle.certificate
    assert later.key != bundle.key
    assert needs_renewal(later, NOW + YEAR, NAMES) is None


NEW_AUTHORITY = {
    "its key is not here": lambda b: dataclasses.replace(b, ca_key=b""),
    "its key is damaged": lambda b: dataclasses.replace(b, ca_key=b"x"),
    "its key is another's": lambda b: dataclasses.replace(b, ca_key=b.key),
}


@pytest.mark.parametrize("change", NEW_AUTHORITY.values(), ids=NEW_AUTHORITY.keys())
def test_a_new_authority_is_made_when(bundle: Bundle, change: Any) -> None:
    later = renewed(change(bundle), NOW, NAMES)
    assert later.ca != bundle.ca
    assert needs_renewal(later, NOW, NAMES) is None


def test_an_authority_late_in_its_life_is_replaced(bundle: Bundle) -> None:
    assert renewed(bundle, NOW + 8 * YEAR, NAMES).ca != bundle.ca
