"""
How the C library keeps freed memory: by default for itself, in one heap for each few threads and in blocks of up to
32 MiB, so that a process stays as large as its largest moment.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's malloc.h."""
_BLOCK = 128 << 10


def give_back_freed_memory() -> None:
    """
    Have this process give large blocks back to the system as they are freed: for one that reads what strangers send.

    Does nothing where the C library is not glibc: others do so by themselves.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # Both thresholds grow by themselves until they are set.
    for parameter, value in ((_MMAP_THRESHOLD, _BLOCK), (_TRIM_THRESHOLD, _BLOCK), (_ARENA_MAX, 2)):
        mallopt(parameter, value)
