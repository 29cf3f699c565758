"""
Small questions to ports of this machine: is one free, does somebody answer there.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import urllib.request


def free_port() -> int:
    """A TCP port of the loopback address that nobody listens on at the moment."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts_tls(port: int) -> bool:
    """Whether somebody answers a TLS handshake on the port."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # only whether anybody answers
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain, context.wrap_socket(plain):
            return True
    except OSError:
        return False


def healthy(url: str) -> bool:
    """Whether the URL answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
