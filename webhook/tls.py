"""
The serving side of TLS: one context, made anew when the certificate's files have changed.

New connections are shaken with the newest pair that could be loaded; open ones are left alone. A pair that cannot be
loaded (half written, certificate and key of different versions) is no reason to stop serving the one before it.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import Any

from webhook.certfiles import CERTIFICATE, KEY

log = logging.getLogger(__name__)

_TRIES = 3
"""A directory can be exchanged between the opening of the two files; the next try reads both from the new one."""


SILENCE = 5.0
"""Seconds within which a handshake, or a request from its first byte to its last, must be here. Without a bound, as
many clients that stall or drip as there are threads would stop the server. Idle connections between requests are the
poller's and not affected."""


CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secrecy and authenticated encryption only, which Go, and so every API server, prefers anyway. All
suites of TLS 1.3 are such."""


class _Socket(ssl.SSLSocket):
    """A socket for which "blocking" means: until its context's `silence`, and for all of a request together."""

    _until: float | None = None

    def setblocking(self, flag: bool) -> None:
        context = self.context
        self.settimeout(context.silence if flag and isinstance(context, _Context) else None if flag else 0.0)
        self.begin()

    def begin(self) -> None:
        """A request may begin now."""
        patience = self.gettimeout()
        self._until = time.monotonic() + patience if patience else None

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        patience = self.gettimeout()
        if self._until is None or not patience:
            return super().recv(buflen, flags)
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self.settimeout(left)
        try:
            return super().recv(buflen, flags)
        finally:
            self.settimeout(patience)


class _Context(ssl.SSLContext):
    sslsocket_class = _Socket
    silence = SILENCE

    def wrap_socket(self, sock: socket.socket, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
        sock.settimeout(self.silence)  # the handshake's, and taken over by the new socket
        wrapped = super().wrap_socket(sock, *args, **kwargs)
        assert isinstance(wrapped, _Socket)
        wrapped.begin()
        return wrapped


class ServingContext:
    """The current `ssl.SSLContext` for the certificate in a directory. Safe to share between threads."""

    def __init__(self, directory: Path, *, silence: float = SILENCE) -> None:
        """`silence`: see `SILENCE`."""
        self._certificate, self._key = directory / CERTIFICATE, directory / KEY
        self._silence = silence
        self._lock = threading.Lock()  # guards the two fields below
        self._context: ssl.SSLContext | None = None
        self._version: object = None

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. Raises `OSError` (`ssl.SSLError` is one) while none was ever loaded."""
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
        context = _Context(ssl.PROTOCOL_TLS_SERVER)
        context.silence = self._silence
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(CIPHERS)
        # A client that asks for one handshake after the other would have the server do most of the work.
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
        context.load_cert_chain(os.path.realpath(self._certificate), os.path.realpath(self._key))
        return context

    def _seen(self) -> object:
        """Changes whenever either file does: by rename, by symlink or in place."""
        return _stamp(self._certificate), _stamp(self._key)


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size
