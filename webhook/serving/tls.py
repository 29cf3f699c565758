"""
The serving side of TLS: one context, made anew when the certificate's files have changed.

New connections are shaken with the newest pair that could be loaded; open ones are left alone. A pair that cannot be
loaded (half written, certificate and key of different versions) is no reason to stop serving the one before it.
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
"""A directory can be exchanged between the opening of the two files; the next try reads both from the new one."""


SILENCE = 5.0
"""Seconds within which a handshake, or a request from its first byte to its last, must be here."""


CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only, which Go, and so every API server, prefers anyway. All
suites of TLS 1.3 are such."""


class NoAuthority(OSError):
    """The authorities of clients cannot be read; the message has the setting, the file and why."""


class ServingContext:
    """The current `ssl.SSLContext` for the certificate in a directory. Safe to share between threads."""

    def __init__(self, directory: Path, *, client_ca: Path | None = None) -> None:
        """`client_ca`: the authorities of whom clients must have a certificate; none: they need none."""
        self._certificate, self._key = directory / CERTIFICATE, directory / KEY
        self._client_ca = client_ca
        self._lock = threading.Lock()  # guards the two fields below
        self._context: ssl.SSLContext | None = None
        self._version: object = None

    def current(self) -> ssl.SSLContext:
        """
        The context for a new connection.

        While none was ever loaded it raises `NoAuthority`, or another `OSError` for the certificate.
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
        # A client that asks for one handshake after the other would have the server do most of the work.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        # API servers begin anew each time; nobody can have us remember sessions.
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
        """Changes whenever one of the files does: by rename, by symlink or in place."""
        authorities = None if self._client_ca is None else _stamp(self._client_ca)
        return _stamp(self._certificate), _stamp(self._key), authorities


def names_of(certificate: Any) -> frozenset[str]:
    """Common names and DNS names of a client's certificate, as `SSLSocket.getpeercert` gives it; of none, none."""
    found = certificate or {}
    common = (value for part in found.get("subject", ()) for key, value in part if key == "commonName")
    return frozenset((*common, *(value for kind, value in found.get("subjectAltName", ()) if kind == "DNS")))


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
