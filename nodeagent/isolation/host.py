"""
What the agent reads of its machine besides the GPUs: kernel, control groups, and files that set runtimes up.

Must not: change anything.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nodeagent.files import read_text

_MOST_BYTES = 1 << 20
"""Read from one file: a configuration is a few KiB, and another program's file must not fill our memory."""
_MOST_FILES = 64
"""Read from one folder."""


@dataclass(frozen=True, slots=True)
class HostSystem:
    """The machine's system. Empty text: unknown."""

    kernel: str = ""
    cgroup: str = ""
    """`v1` or `v2`; driver-enforced memory limits need v2."""
    sees_processes: bool = False
    """Whether process ids here are the machine's."""


UNKNOWN = HostSystem()


def read_host() -> HostSystem:
    """The machine here. A container shares kernel and cgroup mode with its node, and neither changes while it runs."""
    mode = cgroup_mode(Path("/sys/fs/cgroup"))
    return HostSystem(kernel=os.uname().release, cgroup=mode, sees_processes=sees_host_processes())


def read_files(root: Path, paths: Iterable[str], folders: Iterable[str]) -> Mapping[str, str]:
    """
    The text of these files, and of every file in these folders, by path below `root`, without those that cannot be
    read.
    """
    found: dict[str, str] = {}
    inside = (
        f"{folder}/{name.relative_to(root / folder)}"
        for folder in folders
        for name in islice(sorted((root / folder).rglob("*")), _MOST_FILES)
    )
    for path in (*paths, *inside):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if (root / path).is_file():
                with (root / path).open(encoding="utf-8") as file:
                    found[path] = file.read(_MOST_BYTES)
    return found


def enforced_label(root: Path, file: Path, *, attribute: Callable[[Path, str], bytes] = os.getxattr) -> str:
    """A file's SELinux label, `user:role:type:level`; empty if the host, whose root is `root`, enforces none."""
    try:
        if (root / "sys/fs/selinux/enforce").read_text(encoding="ascii").strip() != "1":
            return ""
    except OSError:
        return ""
    try:
        return attribute(file, "security.selinux").rstrip(b"\0").decode(errors="replace")
    except OSError:
        return "system_u:object_r:unlabeled_t:s0"  # the kernel's label for a file without one


def cgroup_mode(cgroups: Path) -> str:
    """
    `v2` if the unified hierarchy is mounted at `cgroups`, `v1` if another is, else empty.

    The root of a unified hierarchy always has `cgroup.controllers` (Linux, admin-guide/cgroup-v2.rst).
    """
    if (cgroups / "cgroup.controllers").exists():
        return "v2"
    return "v1" if (cgroups / "memory").is_dir() or (cgroups / "cpu").is_dir() else ""


def sees_host_processes(name_of: Callable[[int], str] | None = None) -> bool:
    """Whether process ids here are the host's, where process 2 is the kernel's thread daemon."""
    return (name_of or _name_of)(2) == "kthreadd"


def _name_of(pid: int) -> str:
    return read_text(Path(f"/proc/{pid}/comm")).strip()
