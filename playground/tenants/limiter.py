"""
A folder that a node's agent accepts as HAMi-core's library, so that the node publishes the level `preload`.

It enforces no limit, because the simulated containers run no programs.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_IN_CONTAINER = "/usr/local/vgpu/libvgpu.so"
_ELF, _MACHINE_AT = b"\x7fELF\x02", 18
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""elf.h, `e_machine`, by the kernel's name of the architecture."""


def agents(folder: Path) -> tuple[str, ...]:
    """The flags by which agents look for the library there."""
    return "--limiters-preload", str(folder), "--limiters-host-paths", "--delivery", "env-plain"


def install(folder: Path) -> None:
    """Install the library. Agents publish the level after their next check."""
    folder.mkdir(parents=True, exist_ok=True)
    content = _ELF.ljust(_MACHINE_AT, b"\0") + _MACHINES[os.uname().machine].to_bytes(2, "little")
    name = f"libvgpu.so.{hashlib.sha256(content).hexdigest()[:12]}"
    for file, text in ((name, content), ("ld.so.preload", f"{_IN_CONTAINER}\n".encode()), ("current", name.encode())):
        (folder / file).write_bytes(text)
        (folder / file).chmod(0o755)


def remove(folder: Path) -> None:
    """Remove the library and its folder."""
    for file in folder.iterdir() if folder.is_dir() else ():
        file.unlink()
    if folder.is_dir():
        folder.rmdir()
