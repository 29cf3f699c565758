"""
Which functions a shared library offers, read from its file.

HAMi-core limits by offering functions of CUDA's names. One that was built to hide them (its own release build, with the
headers of CUDA 13) is loaded into every program, makes its file, and limits nothing.

Form: elf(5), for 64 bits, least significant byte first. Pure. Must not: load what it reads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_DYNAMIC_SYMBOLS = 11
_HIDDEN = (1, 2)
"""elf.h: `SHT_DYNSYM`; `STV_INTERNAL` and `STV_HIDDEN`."""


def offers(content: bytes, function: str) -> bool | None:
    """Whether the library offers that function to others; None where its symbols cannot be found."""
    found = list(_sections(content))
    for kind, offset, size, link in found:
        if kind == _DYNAMIC_SYMBOLS and link < len(found):
            names, wanted, symbols = found[link][1], function.encode() + b"\0", content[offset : offset + size]
            return any(
                content[names + name : names + name + len(wanted)] == wanted
                for name, _, other, section in struct.iter_unpack("<IBBH16x", symbols[: len(symbols) // 24 * 24])
                if section and other & 3 not in _HIDDEN
            )
    return None


def _sections(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Type, offset, size and link of each section; those that the file does not have are left out."""
    if len(content) < 64:
        return
    start, size, count = *struct.unpack_from("<Q", content, 40), *struct.unpack_from("<HH", content, 58)
    for at in range(start, start + size * count, size or 1):
        if size < 64 or at + size > len(content):
            return
        kind, offset, length, link = struct.unpack_from("<4xI16xQQI", content, at)
        yield kind, offset, length, link
