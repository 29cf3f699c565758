"""
Runs a program in its own network namespace, from which it reaches one port of this machine's loopback.

Some programs listen on ports that no setting changes. Two of them cannot run at the same time on one machine, and
neither can another program that uses the port. Linux only.

    python -m playground.engines.knative.apart PORT PROGRAM [ARGUMENT...]

The process executes the program. A child process stays outside the namespace and forwards connections to
127.0.0.1:PORT.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys
import threading
from collections.abc import Sequence

from playground.programs.process import die_with_parent

NEW_USER, NEW_NETWORK = 0x10000000, 0x40000000
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 0x1
_REQUEST = "16sh14x"
_CHUNK = 1 << 16


def command(port: int, program: str) -> Sequence[str]:
    """The command that runs the program in this way. Append the program's arguments to it."""
    return (sys.executable, "-m", __name__, str(port), program)


def _main(port: int, program: Sequence[str]) -> None:
    inside, outside = socket.socketpair()
    if os.fork() == 0:
        inside.close()
        die_with_parent()
        _carry(socket.socket(fileno=socket.recv_fds(outside, 1, 1)[1][0]), port)
        os._exit(0)
    outside.close()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_USER | NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace for the program")
    die_with_parent()  # a new user namespace does not keep it
    _raise_loopback()
    with socket.create_server(("127.0.0.1", port)) as listener:  # a socket keeps the namespace that created it
        socket.send_fds(inside, [b"-"], [listener.fileno()])
    os.execv(program[0], list(program))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        found = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack(_REQUEST, b"lo", 0))
        flags = struct.unpack(_REQUEST, found)[1]
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack(_REQUEST, b"lo", flags | _UP))


def _carry(listener: socket.socket, port: int) -> None:
    """Forward every connection of the listener to the port outside the namespace. Never returns."""
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection(("127.0.0.1", port))
        except OSError:
            near.close()  # the client sees the same as when no program listens on the port
            continue
        for source, target in ((near, far), (far, near)):
            threading.Thread(target=_pour, args=(source, target), daemon=True).start()


def _pour(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:  # one end closed the connection, so close the other end too
        for each in (source, target):
            each.close()


if __name__ == "__main__":
    _main(int(sys.argv[1]), sys.argv[2:])
