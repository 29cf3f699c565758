"""
Containers whose programs really run, on this machine, with a simulated CUDA driver: for tests of what programs find.

The simulated kubelet decides whether a container starts, and with which variables and GPUs. Then its command runs with
these variables, a `libcuda.so.1` built from cuda.c and an `nvidia-smi` that lists the GPUs. Unlike on a node, there are
no namespaces and control groups, so the file system is this machine's.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from contract.encoding.quantity import MIB
from playground.machinery.kubelet.gpuruntime import NodeGpus

JSON = dict[str, Any]
_SOURCE = Path(__file__).parent / "cuda.c"


def driver(folder: Path) -> Path:
    """The folder with the simulated driver. Skips the test if there is no C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler to build the driver that is played: install gcc")
    folder.mkdir(parents=True, exist_ok=True)
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", folder / "libcuda.so.1", _SOURCE], check=True, timeout=60)
    return folder


class PlayedProcess:
    """A container's program, and what it has printed."""

    def __init__(
        self, arguments: list[str], environment: dict[str, str], log: Path, ended: Callable[[int], None]
    ) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                arguments, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
            )
        threading.Thread(target=self._wait, args=(ended,), daemon=True).start()

    def _wait(self, ended: Callable[[int], None]) -> None:
        code = self._process.wait()
        ended(code if code >= 0 else 128 - code)

    def output(self) -> str:
        """What it has printed."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it and everything that it has started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)


class PlayedPrograms:
    """
    Runs the pods of these namespaces. `holds`: which limits the simulated limiter enforces, of `memory` and `cores`.
    """

    def __init__(self, folder: Path, namespaces: Collection[str]) -> None:
        self._folder = folder
        self._driver = driver(folder / "driver")
        self._namespaces = namespaces
        self._count = 0
        self.holds: frozenset[str] = frozenset(("memory", "cores"))
        self.slow = 0.0
        """Seconds that a program sleeps before it begins."""
        self.seen: list[str] = []
        """The names of the pods that were started."""

    def started(
        self,
        pod: JSON,
        container: JSON,
        variables: Mapping[str, str],
        gpus: NodeGpus,
        ended: Callable[[int], None],
    ) -> PlayedProcess | None:
        """Start the container's command; None for pods of other namespaces."""
        if pod["metadata"]["namespace"] not in self._namespaces:
            return None
        self._count += 1
        self.seen.append(pod["metadata"]["name"])
        here = self._folder / f"container-{self._count}"
        (here / "bin").mkdir(parents=True)
        (here / "bin/python3").symlink_to(sys.executable)
        (here / "bin/python").symlink_to(sys.executable)
        environment = {"PATH": f"{here}/bin:/usr/bin:/bin", **variables}
        if gpus:
            lines = "".join(f"GPU {n}: {gpu.model} (UUID: {gpu.uuid})\n" for n, gpu in enumerate(gpus))
            (here / "gpus").write_text(lines)
            (here / "bin/nvidia-smi").write_text(f"#!/bin/sh\nexec cat {here}/gpus\n")
            (here / "bin/nvidia-smi").chmod(0o755)
            environment |= {
                "LD_LIBRARY_PATH": str(self._driver),
                "PLAYED_CARD_MIB": str(gpus[0].memory // MIB),
                "PLAYED_HOLDS": " ".join(sorted(self.holds)),
                "PLAYED_LOCK": str(self._folder / f"{gpus[0].uuid}.lock"),
            }
        arguments = [*(container.get("command") or ()), *(container.get("args") or ())]
        if self.slow:
            arguments = ["sh", "-c", f'sleep {self.slow}; exec "$@"', "sh", *arguments]
        arguments[0] = shutil.which(arguments[0], path=environment["PATH"]) or arguments[0]
        return PlayedProcess(arguments, environment, here / "log", ended)
