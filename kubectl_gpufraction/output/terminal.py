"""
Where the command prints: the one place that writes to a terminal.

Names and messages come from objects that anyone may have written, and a terminal obeys control characters: it would
move the cursor over other lines, change the title, or answer as if the user had typed. So text is made fit to be shown
before it is laid out (`CommandOutput.text`), and here nothing passes that is neither printable nor a sequence of ours.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import TextIO

from contract.encoding.plain import LINE, plain

GREEN, RED, YELLOW, PLAIN = "\x1b[32m", "\x1b[31m", "\x1b[33m", "\x1b[0m"
CLEAR = "\x1b[H\x1b[2J\x1b[3J"
"""To the upper left corner, and clear the screen and what was scrolled."""
_OURS = re.compile(f"({'|'.join(map(re.escape, (CLEAR, GREEN, RED, YELLOW, PLAIN)))}|[\n\t])")
_MOST_LINES = 200


class Terminal:
    """Prints to a stream, which may be a file or a pipe. Raises what the stream raises (`BrokenPipeError`)."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    @property
    def is_screen(self) -> bool:
        """Whether this is a terminal, so that colours make sense."""
        return self._stream.isatty()

    @property
    def width(self) -> int:
        """The columns of the terminal; 0 if it is none, or does not say."""
        if not self.is_screen:
            return 0
        with contextlib.suppress(OSError, ValueError):
            return os.get_terminal_size(self._stream.fileno()).columns
        return 0

    def write(self, text: str) -> None:
        """Text that was laid out already, with our colours and line breaks in it."""
        if not text.replace("\n", "").isprintable():
            text = "".join(part if _OURS.fullmatch(part) else plain(part, len(part) * 4) for part in _OURS.split(text))
        try:
            self._stream.write(text)
        except UnicodeEncodeError:  # a terminal of few characters; half a table is worse than question marks
            encoding = self._stream.encoding or "ascii"
            self._stream.write(text.encode(encoding, errors="replace").decode(encoding))
        self._stream.flush()

    def say(self, message: object) -> None:
        """A message, which may have several lines and other programs' text."""
        self.write("".join(f"{plain(line, LINE)}\n" for line in str(message).splitlines()[:_MOST_LINES] or [""]))
