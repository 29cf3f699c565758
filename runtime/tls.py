"""
The certificate of a port for metrics: one from a folder, or one of the program's own.

A scraper shows its token there, which must not be read on the way. TLS 1.3 only: every scraper of the last years speaks
it. The program's own certificate is signed by itself and lives in memory, as in the controllers that are built with
controller-runtime: it protects against listeners on the network, but not against an attacker between the scraper and
the program. For that, put a certificate of an authority that the scraper knows into the folder.
"""

from __future__ import annotations

import datetime
import logging
import os
import ssl
import threading
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

log = logging.getLogger(__name__)
CERTIFICATE, KEY = "tls.crt", "tls.key"
_DAYS = 3650
_NAME = "gpufraction-metrics"


class MetricsTls:
    """
    The TLS context for a new connection. Safe to share between threads.

    `directory` has tls.crt and tls.key, which are read again when they change; None: a certificate is made. Raises
    `OSError` (`ssl.SSLError` is one) where the folder has no pair that fits.
    """

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._lock = threading.Lock()  # guards the two fields below
        self._stamp = self._seen()
        self._context = _context(*self._paths()) if directory is not None else _own()

    def current(self) -> ssl.SSLContext:
        """The context now. A new pair that cannot be read is logged, and the last one stays in use."""
        with self._lock:
            if self._directory is None or (stamp := self._seen()) == self._stamp:
                return self._context
            self._stamp = stamp
            try:
                self._context = _context(*self._paths())
            except OSError as error:
                fields = {"directory": str(self._directory), "reason": str(error)}
                log.warning("the new certificate for metrics cannot be loaded", extra=fields)
            return self._context

    def _paths(self) -> tuple[str, str]:
        assert self._directory is not None
        return str(self._directory / CERTIFICATE), str(self._directory / KEY)

    def _seen(self) -> object:
        if self._directory is None:
            return None
        found = []
        for path in self._paths():
            try:
                status = os.stat(path)
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)


def _context(certificate: str, key: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # stored sessions would cost memory
    context.load_cert_chain(certificate, key)
    return context


def _own() -> ssl.SSLContext:
    """With a certificate that is made now. `ssl` reads files only, so it is a file in memory."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    handle = os.memfd_create("metrics-certificate")
    try:
        os.write(handle, private + made.public_bytes(serialization.Encoding.PEM))
        path = f"/proc/self/fd/{handle}"
        return _context(path, path)
    finally:
        os.close(handle)
