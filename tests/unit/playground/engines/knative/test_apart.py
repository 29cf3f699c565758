"""A program in its own network namespace has every port to itself, and reaches one port outside it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from playground.engines.knative import apart

PROGRAM = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))):
    pass  # its own loopback has no other listener there
with socket.create_connection(("127.0.0.1", int(sys.argv[2]))) as connection:
    connection.sendall(b"hello")
    connection.shutdown(socket.SHUT_WR)
    print(connection.makefile().read())
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])))
except ConnectionRefusedError:
    print("nothing else")
"""


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """A port that answers one connection with what it receives, in uppercase."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(connection.makefile("rb").read().upper())

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield int(listener.getsockname()[1])
    thread.join(10.0)


@pytest.mark.skipif(sys.platform != "linux", reason="network namespaces are Linux's")
def test_a_program_apart_has_all_ports_to_itself_and_reaches_one_out_here() -> None:
    if not may_unshare():
        pytest.skip("this user may not make namespaces")
    with echo() as reached, socket.create_server(("127.0.0.1", 0)) as taken:
        ports = (str(taken.getsockname()[1]), str(reached))
        command = (*apart.command(reached, sys.executable), "-c", PROGRAM, *ports)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout.split("\n"), ran.returncode) == (["HELLO", "nothing else", ""], 0), ran.stderr


def may_unshare() -> bool:
    """Whether a process of this user can get a user namespace and a network namespace."""
    call = f"import ctypes; raise SystemExit(ctypes.CDLL(None).unshare({apart.NEW_USER | apart.NEW_NETWORK}))"
    return subprocess.run((sys.executable, "-c", call), check=False).returncode == 0
