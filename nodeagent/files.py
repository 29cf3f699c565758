"""
Small text files of the host: read without raising, written atomically.

Must not: know their content.
"""

from __future__ import annotations

import os
from pathlib import Path

_MOST_BYTES = 1 << 20


def write_atomically(path: Path, text: str) -> None:
    """Readers see all of the old text or all of the new. Raises OSError."""
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.chmod(0o644)
    os.replace(new, path)


def read_text(path: Path) -> str:
    """The text; empty if the file does not exist or cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(_MOST_BYTES)
    except (OSError, UnicodeDecodeError):
        return ""
