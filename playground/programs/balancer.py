"""
Balances connections as a Service does in a cluster: those to one port go to several servers in turn.

A server that does not accept the connection is skipped, as kube-proxy skips one that is not ready. Bytes are forwarded
unchanged; TLS ends at the server.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Sequence

_CHUNK = 1 << 16
_CONNECT_SECONDS = 0.5


class Balancer:
    """Listens on a loopback port from `start` to `stop`. `backends` returns the ports for the next connection."""

    def __init__(self, backends: Callable[[], Sequence[int]]) -> None:
        self._backends = backends
        self._turn = itertools.count()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()  # guards _open
        self._stopped = False

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Accept connections."""
        threading.Thread(target=self._accept, name="balancer", daemon=True).start()

    def stop(self) -> None:
        """Accept no more connections, and cut the open ones."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def cut(self) -> None:
        """Cut every open connection. Clients connect again, to another server."""
        with self._lock:
            for each in self._open:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while not self._stopped:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), name="balancer-connection", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        server = self._connect()
        if server is None:
            client.close()
            return
        for each in (client, server):  # else a response in two parts waits 40 ms for an acknowledgement
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._open |= {client, server}
        back = threading.Thread(target=_pump, args=(server, client), name="balancer-back", daemon=True)
        back.start()
        _pump(client, server)
        back.join()
        with self._lock:
            self._open -= {client, server}
        client.close()
        server.close()

    def _connect(self) -> socket.socket | None:
        ports = list(self._backends())
        first = next(self._turn)
        for step in range(len(ports)):
            try:
                return socket.create_connection(
                    ("127.0.0.1", ports[(first + step) % len(ports)]), timeout=_CONNECT_SECONDS
                )
            except OSError:
                continue
        return None


def _pump(source: socket.socket, sink: socket.socket) -> None:
    source.settimeout(None)
    try:
        while chunk := source.recv(_CHUNK):
            sink.sendall(chunk)
    except OSError:
        pass
    for each in (source, sink):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
