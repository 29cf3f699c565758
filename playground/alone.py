"""
One playground in one folder: a second one would overwrite the first one's kubeconfig, and remove it when it ends.

The lock is the kernel's and ends with the process in every case, so no stale lock remains.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path


class Unusable(Exception):
    """The folder cannot be used; the message says why, and what works."""


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Hold the folder for as long as the context lasts. Raises `Unusable`."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Unusable(f"{directory} cannot be written to: {error.strerror}; give another by --directory") from error
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable(_taken(directory, os.read(lock, 32).decode(errors="replace").strip())) from None
        os.ftruncate(lock, 0)
        os.write(lock, f"{os.getpid()}\n".encode())
        yield
    finally:
        os.close(lock)


def running_in(directory: Path) -> int:
    """The process of the playground that holds the folder. Raises `Unusable` if none does."""
    try:
        with (directory / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int((directory / "lock").read_text())
    except OSError:
        pass
    raise Unusable(f"no playground runs in {directory}; start one in another terminal: make playground")


def _taken(directory: Path, process: str) -> str:
    return (
        f"a playground already runs in {directory} (process {process or 'unknown'}). To use it:\n\n"
        f"    export KUBECONFIG={directory / 'kubeconfig'}\n\n"
        "Ctrl-C in its terminal ends it. To start another one alongside it: make playground DIRECTORY=.playground-2"
    )
