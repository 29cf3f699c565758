"""
The TLS context of the server, which is replaced when the files of the certificate change.

New connections use the newest pair of certificate and key that could be loaded; open connections keep theirs. While a
pair cannot be loaded (half written, or of different versions), the one before it is served.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from pathlib import Path
from typing import Any

from webhook.certificates.store import CERTIFICATE, KEY

log = logging.getLogger(__name__)

_TRIES = 3
"""A directory can be replaced between the reads of its two files; the next try reads both from the new one."""

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: only forward secrecy and authenticated encryption, which Go, and so every API server, prefers anyway.
All suites of TLS 1.3 have both."""


class NoAuthority(OSError):
    """The authorities of clients cannot be read. The message has the setting, the file and the reason."""


class ServingContext:
    """The current `ssl.SSLContext` for the certificate in a directory. Safe to share between threads."""

    def __init__(self, directory: Path, *, client_ca: Path | None = None) -> None:
        """`client_ca`: the authorities that must have signed a client's certificate; None: clients need none."""
        self._certificate = directory / CERTIFICATE
        self._key = directory / KEY
        self._client_ca = client_ca
        self._lock = threading.Lock()  # guards the two fields below
        self._context: ssl.SSLContext | None = None
        self._version: object = None

    def current(self) -> ssl.SSLContext:
        """
        The context for a new connection.

        Raises `NoAuthority`, or another `OSError` for the certificate, only while no pair was ever loaded.
        """
        with self._lock:
            if self._context is None or self._version != self._seen():
                self._reload()
            assert self._context is not None
            return self._context

    def _reload(self) -> None:
        for attempt in range(1, _TRIES + 1):
            version = self._seen()
            try:
                self._context = self._load()
            except OSError as error:
                if attempt < _TRIES:
                    continue
                if self._context is None:
                    raise
                log.warning(
                    "the new certificate cannot be loaded",
                    extra={"directory": str(self._certificate.parent), "reason": str(error)},
                )
                return
            self._version = version
            return

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        # Renegotiation would let a client cause handshake after handshake, most of whose work is the server's.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # API servers resume no sessions, and stored sessions would cost memory.
        context.num_tickets = 0
        context.load_cert_chain(os.path.realpath(self._certificate), os.path.realpath(self._key))
        if self._client_ca is not None:
            try:
                context.load_verify_locations(self._client_ca)
            except OSError as error:
                raise NoAuthority(f"client_ca {self._client_ca}: {error}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _seen(self) -> object:
        """A value that changes with each of the files: by rename, by symlink or in place."""
        authorities = None if self._client_ca is None else _stamp(self._client_ca)
        return _stamp(self._certificate), _stamp(self._key), authorities


def names_of(certificate: Any) -> frozenset[str]:
    """The common names and DNS names of a client's certificate, as `SSLSocket.getpeercert` returns it."""
    found = certificate or {}
    common = (value for part in found.get("subject", ()) for key, value in part if key == "commonName")
    return frozenset((*common, *(value for kind, value in found.get("subjectAltName", ()) if kind == "DNS")))


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
