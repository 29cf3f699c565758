"""
Linux's figures of a process and its children: memory, processor time, and when it was started; from proc(5).

Time that a process worked is reported alongside time that passed, because on a shared machine the two differ.
"""

from __future__ import annotations

import os
from pathlib import Path

_UTIME, _STIME, _STARTED = 11, 12, 19
"""Places in stat, counted from the field after the command."""


def rss(pid: int) -> int:
    """Resident memory of a process and its children, in bytes."""
    return _field(pid, "VmRSS") + sum(rss(child) for child in _children(pid))


def peak(pid: int) -> int:
    """The most resident memory that a process ever had, in bytes."""
    return _field(pid, "VmHWM")


def cpu_seconds(pid: int) -> float:
    """Seconds that a process and its living children worked so far."""
    fields = _stat(pid)
    own = (int(fields[_UTIME]) + int(fields[_STIME])) / os.sysconf("SC_CLK_TCK")
    return own + sum(cpu_seconds(child) for child in _children(pid))


def started(pid: int) -> float:
    """When a process was started, in seconds since the machine was (CLOCK_BOOTTIME)."""
    return int(_stat(pid)[_STARTED]) / os.sysconf("SC_CLK_TCK")


def _field(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
