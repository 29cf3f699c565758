"""
Checks of this machine's ports: whether one is free, and whether a server answers on it.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import secrets
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator

_PORTS = range(20_000, 32_768)
"""Below the ports of outgoing connections on Linux (`ip_local_port_range`), which could use a port that was free."""
_BLOCK = 32
"""The number of ports that a process claims together, with one open file."""
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def claimed_ports(ports: range = _PORTS, block: int = _BLOCK) -> Iterator[int]:
    """
    Ports that no other caller on this machine gets while this process lives. Other programs may still use them.

    A block of ports belongs to the process that has bound its first port for UDP. None of our programs uses UDP, so a
    claim does not get in their way. It lasts while a program on one of the ports restarts, and the kernel ends it with
    the process.
    """
    blocks = range(ports.start, ports.stop - block + 1, block)
    begin = secrets.randbelow(len(blocks))  # so that processes do not all start with the same ones
    for first in (*blocks[begin:], *blocks[:begin]):
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:
            claim.close()
            continue
        claim.detach()  # until the process ends
        yield from range(first, first + block)


_OURS, _ONE_BY_ONE = claimed_ports(), threading.Lock()


def free_port(among: Iterator[int] = _OURS) -> int:
    """
    A TCP port of the loopback address on which no program listens now, and that no call in any living process has
    returned. Raises `OSError` if none is left.
    """
    with _ONE_BY_ONE:
        for port in among:
            with contextlib.closing(socket.socket()) as probe, contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise OSError(errno.EADDRINUSE, "every port is taken")


@functools.cache
def unverified() -> ssl.SSLContext:
    """
    A TLS context that accepts any certificate, which is safe on the caller's own port.

    It does not load the system's certificate authorities, which take Python's default context 30 ms each time.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def accepts_tls(port: int) -> bool:
    """Whether a server answers a TLS handshake on the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as plain, unverified().wrap_socket(plain):
            return True
    except OSError:
        return False


def healthy(url: str) -> bool:
    """Whether the URL responds with 200."""
    try:
        with _NO_PROXY.open(url, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
