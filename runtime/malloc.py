"""
Settings of the C library's allocator. By default it does not return freed memory to the system: it has several heaps
and blocks of up to 32 MiB, so that a process stays as large as it ever was.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""glibc's malloc.h."""
_BLOCK = 128 << 10


def give_back_freed_memory() -> None:
    """
    Have this process return large blocks to the system as they are freed: for one that reads what users send.

    Does nothing if the C library is not glibc: others do so by themselves.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    # glibc raises both thresholds by itself until they are set.
    for parameter, value in ((_MMAP_THRESHOLD, _BLOCK), (_TRIM_THRESHOLD, _BLOCK), (_ARENA_MAX, 2)):
        mallopt(parameter, value)
