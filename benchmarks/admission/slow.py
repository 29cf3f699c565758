"""
`python -m benchmarks.admission.slow`: clients of a webhook that are slow, until the process is ended.

Half of them begin a handshake and do not go on; the others send a review a byte at a time. Whenever the server gives
one up, it connects again. Prints a line when all are connected for the first time.

One thread for all of them, so that they take as little as possible of the processor that they share with the server.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

_HELLO = b"\x16\x03\x01\x02\x00\x01"
_HEAD = b"POST /mutate HTTP/1.1\r\nContent-Length: 100000\r\n\r\n{"
_EVERY = 0.1
"""Seconds between two bytes of a slow body."""


@dataclass
class Slow:
    """One client. `context`: with it a handshake is made and a body begun."""

    port: int
    server_name: str
    context: ssl.SSLContext | None
    sock: socket.socket | None = None

    def step(self) -> None:
        """Connect if it is not connected; send a byte if there is a body; leave if the server gives it up."""
        try:
            if self.sock is None:
                self._come()
            elif self.context is not None:
                self.sock.send(b" ")
            elif self.sock.recv(1) == b"":
                self._go()
        except (BlockingIOError, ssl.SSLWantReadError):
            pass
        except OSError:
            self._go()

    def _come(self) -> None:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=5.0)
        if self.context is None:
            plain.sendall(_HELLO)
            self.sock = plain
        else:
            self.sock = self.context.wrap_socket(plain, server_hostname=self.server_name)
            self.sock.sendall(_HEAD)
        self.sock.setblocking(False)

    def _go(self) -> None:
        if self.sock is not None:
            with contextlib.suppress(OSError):
                self.sock.close()
        self.sock = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Be slow; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission.slow", description="Be slow clients.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ca", required=True, help="file with the authority that signed the server's certificate")
    parser.add_argument("--server-name", required=True, help="name that the certificate must be for")
    parser.add_argument("--clients", type=int, default=100)
    given = parser.parse_args(arguments)
    context = ssl.create_default_context(cafile=given.ca)
    clients = [Slow(given.port, given.server_name, context if n % 2 else None) for n in range(given.clients)]
    reported = False
    while True:
        for client in clients:
            client.step()
        if not reported and all(client.sock is not None for client in clients):
            print("all are there", flush=True)
            reported = True
        time.sleep(_EVERY)


if __name__ == "__main__":
    sys.exit(main())
