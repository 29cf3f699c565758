"""
Small text files of the host: read without raising, written atomically.

Must not: know their content.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

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


class KeptFiles:
    """Files whose content this program keeps. An error is logged once, not at every round. One thread uses it."""

    def __init__(self) -> None:
        self._errors: dict[Path, str] = {}

    def keep(self, file: Path, text: str) -> bool:
        """Make the text the file's content; True if it succeeded."""
        found = ""
        if read_text(file) != text:
            try:
                write_atomically(file, text)
            except OSError as error:
                found = str(error)
        if found and self._errors.get(file) != found:
            log.warning("file not written", extra={"file": str(file), "reason": found})
        self._errors[file] = found
        return not found
