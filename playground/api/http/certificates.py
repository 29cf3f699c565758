"""
The server's own CA: its serving certificate, and client certificates for users.

Each server creates its own CA and keeps it in memory, so its certificates are useless after the process ends. Do not
use it for anything else.
"""

import datetime
import ipaddress
from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from playground.api.kinds.values import User

_VALID = datetime.timedelta(days=30)
_SLACK = datetime.timedelta(hours=1)  # the clocks of client and server may differ


class Authority:
    """A CA with one key."""

    def __init__(self, name: str = "playground-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, names: Sequence[str], *, life: datetime.timedelta = _VALID) -> tuple[bytes, bytes]:
        """Certificate and key, PEM, for host names and IP addresses, valid for `life` from now: below zero, expired."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, names, life)

    def client(self, user: User) -> tuple[bytes, bytes]:
        """Certificate and key, PEM, that authenticate a user: its name as CN, its groups as O."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in user.groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user.name)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH, (), _VALID)

    def _issue(
        self, subject: x509.Name, use: x509.ObjectIdentifier, names: Sequence[str], life: datetime.timedelta
    ) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key(), life)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(authority, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_name(n) for n in names]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: datetime.timedelta = _VALID
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - _SLACK, now + life)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
