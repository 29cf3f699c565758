"""
Our own certificate authority and the webhook's serving certificate: how they are made, and when they must be renewed.

Pure except for the randomness of keys; `webhook.certificates.store` reads and writes them. ECDSA on P-256, which every
TLS 1.2 client knows and whose handshake costs a tenth of RSA's. Extensions follow RFC 5280 in full, since OpenSSL's
strict mode and Go refuse other certificates.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE, LEAF_LIFE = timedelta(days=3650), timedelta(days=365)
BACKDATED = timedelta(minutes=5)
"""Certificates are valid from this long before they are made, for API servers with a clock behind ours."""

MISSING, UNREADABLE, MISMATCH, NAMES, NOT_YET, DUE = "missing", "unreadable", "mismatch", "names", "not-yet", "due"


@dataclass(frozen=True, slots=True)
class Lives:
    """How long certificates are valid."""

    ca: timedelta = CA_LIFE
    leaf: timedelta = LEAF_LIFE


@dataclass(frozen=True, slots=True)
class Bundle:
    """A serving certificate with its key, and the authority that signed it. PEM; empty bytes where one is missing."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    ca_key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Renewal:
    """Why a new certificate is needed. `code` is one of the constants above."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"


def service_names(service: str, namespace: str) -> tuple[str, ...]:
    """The DNS names by which a Service is reached inside a cluster; the API server uses the third."""
    base = f"{service}.{namespace}"
    return service, base, f"{base}.svc", f"{base}.svc.cluster.local"


def needs_renewal(bundle: Bundle | None, now: datetime.datetime, names: Iterable[str]) -> Renewal | None:
    """Why the bundle can no longer serve `names`, or None. A certificate is due after two thirds of its life."""
    if bundle is None or not (bundle.ca and bundle.certificate and bundle.key):
        return Renewal(MISSING, "there is no complete certificate")
    try:
        ca, leaf = _certificate(bundle.ca), _certificate(bundle.certificate)
        key = _key(bundle.key)
    except ValueError:
        return Renewal(UNREADABLE, "the certificate, its key or its authority is not valid PEM")
    if leaf.public_key() != key.public_key():
        return Renewal(MISMATCH, "the key does not belong to the certificate")
    try:
        leaf.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return Renewal(MISMATCH, "the certificate is not signed by the authority stored with it")
    lacking = sorted(set(names) - _dns_names(leaf))
    if lacking:
        return Renewal(NAMES, f"the certificate lacks {', '.join(lacking)}")
    return _by_time("certificate", leaf, now) or _by_time("authority", ca, now)


def _by_time(what: str, certificate: x509.Certificate, now: datetime.datetime) -> Renewal | None:
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        return Renewal(NOT_YET, f"the {what} is valid from {start:%Y-%m-%d %H:%M} only")
    if now >= start + (end - start) * 2 / 3:
        return Renewal(DUE, f"the {what} ends {end:%Y-%m-%d %H:%M}, and two thirds of its lifetime are over")
    return None


def renewed(
    bundle: Bundle | None, now: datetime.datetime, names: Iterable[str], *, lives: Lives | None = None
) -> Bundle:
    """
    A bundle with a new serving certificate. It is from the same authority if that is not due and its key is here: then
    no API server needs to trust a new one.
    """
    lives = lives or Lives()
    authority = _usable_authority(bundle, now) or _new_authority(now, lives.ca)
    ca, ca_key = authority
    key = ec.generate_private_key(ec.SECP256R1())
    leaf = _leaf(tuple(names), key.public_key(), ca, ca_key, now, lives.leaf)
    return Bundle(ca=_pem(ca), certificate=_pem(leaf), key=_key_pem(key), ca_key=_key_pem(ca_key))


def made(certificate: bytes) -> datetime.datetime:
    """When one of our PEM certificates was made. Raises `ValueError` if it cannot be read."""
    return _certificate(certificate).not_valid_before_utc + BACKDATED


def expiry(certificate: bytes) -> datetime.datetime:
    """When a PEM certificate expires. Raises `ValueError` if it cannot be read."""
    return _certificate(certificate).not_valid_after_utc


_Authority = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def _usable_authority(bundle: Bundle | None, now: datetime.datetime) -> _Authority | None:
    if bundle is None or not bundle.ca_key:
        return None
    try:
        ca, ca_key = _certificate(bundle.ca), _key(bundle.ca_key)
    except ValueError:
        return None
    usable = ca.public_key() == ca_key.public_key() and _by_time("authority", ca, now) is None
    return (ca, ca_key) if usable else None


def _new_authority(now: datetime.datetime, life: timedelta) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # The serial number in the name distinguishes two authorities for clients that find issuers by name.
    name = _name(f"gpufraction webhook CA {serial:x}"[:64])
    usage = _usage(signs_certificates=True)
    certificate = (
        _builder(name, name, key.public_key(), serial, now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(_identifier(key.public_key())),
            critical=False,
        )
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _leaf(
    names: tuple[str, ...],
    public: ec.EllipticCurvePublicKey,
    ca: x509.Certificate,
    ca_key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    life: timedelta,
) -> x509.Certificate:
    life = min(life, ca.not_valid_after_utc - now)
    issuer = ca.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return (
        _builder(_name("gpufraction webhook"), ca.subject, public, x509.random_serial_number(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer), critical=False)
        .sign(ca_key, hashes.SHA256())
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    public: ec.EllipticCurvePublicKey,
    serial: int,
    now: datetime.datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(serial)
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(_identifier(public), critical=False)
    )


def _identifier(public: ec.EllipticCurvePublicKey) -> x509.SubjectKeyIdentifier:
    """
    A key's name in certificates: the first 160 bits of its SHA-256 (RFC 7093, section 2, method 1). The library's own
    is of SHA-1, which a machine in FIPS mode may refuse.
    """
    point = public.public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return x509.SubjectKeyIdentifier(hashlib.sha256(point).digest()[:20])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _dns_names(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return set(names.get_values_for_type(x509.DNSName))


def _certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, ValueError) as error:
        raise ValueError("not a private key in PEM without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not an elliptic curve key")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
