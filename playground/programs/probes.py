"""
Small questions to ports of this machine: is one free, does somebody answer there.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import secrets
import socket
import ssl
import urllib.request

_PORTS = range(20_000, 32_768)
"""Below those that Linux gives to outgoing connections (`ip_local_port_range`), which could take one that was free."""
_NEXT = itertools.count(secrets.randbelow(len(_PORTS)))
"""One port after the other from anywhere, so that none is given twice before it is used. Another process begins
elsewhere."""
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on at the moment, and that no call before has given."""
    while True:
        port = _PORTS[next(_NEXT) % len(_PORTS)]
        with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@functools.cache
def unverified() -> ssl.SSLContext:
    """
    Trusts whoever answers, as one may on a port of one's own.

    It does without the authorities of the system, which Python's default context reads again each time, in 30 ms.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def accepts_tls(port: int) -> bool:
    """Whether somebody answers a TLS handshake on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain, unverified().wrap_socket(plain):
            return True
    except OSError:
        return False


def healthy(url: str) -> bool:
    """Whether the URL answers 200."""
    try:
        with _NO_PROXY.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
