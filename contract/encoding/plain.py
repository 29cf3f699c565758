"""
Makes text of others safe to display: on one line, without control characters, and of bounded length.

A terminal obeys control characters, a log line ends at a line break, no encoder takes half of a surrogate pair, and
characters that turn the direction of text make a sentence say something else. Therefore each such character is replaced
wherever other people's text is kept, written or printed. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

MESSAGE = 1_000
"""Bytes of a message on an object: an Event has at most 1,024 (Kubernetes, Events), and conditions keep to the same."""
NAME = 253
"""Bytes of a name (Kubernetes, "Object Names and IDs"), and of any other word of an object that is shown."""
LINE = 16 << 10
"""Bytes of a line that is printed, or of a text in a document: a pod has at most 256 shares, and one may name all."""
CELL = 4 << 10
"""Bytes of a cell of a table, whose rows are all as wide as the widest."""
_REPLACED = "\N{REPLACEMENT CHARACTER}"
_ELLIPSIS = "…"


def plain(text: str, most: int = MESSAGE) -> str:
    """
    The text in at most `most` bytes of UTF-8. White space becomes a space, and every other character that has no shape
    of its own (control characters, halves of surrogate pairs, marks of direction) becomes a replacement character.
    """
    if len(text) > most:
        text = text[: most + 1]  # before anything else looks at megabytes; it is cut to bytes below
    if not text.isprintable():
        text = "".join(map(_printable, text))
    return text if len(text) * 4 <= most else _cut(text, most)


def is_plain(text: str, most: int = NAME) -> bool:
    """Whether the text is shown as it is."""
    return len(text) <= most and text == plain(text, most)


def stand_in(text: str) -> str:
    """
    A name for text that is no name: equal texts have the same one, different texts different ones.

    Amounts under such a text are still counted, and the text itself is not passed on.
    """
    return f"odd-{hashlib.sha256(text.encode(errors='surrogatepass')).hexdigest()[:32]}"


def _printable(character: str) -> str:
    if character.isprintable():
        return character
    return " " if character.isspace() else _REPLACED


def _cut(text: str, most: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    return encoded[: most - len(_ELLIPSIS.encode())].decode(errors="ignore") + _ELLIPSIS


def plain_values(document: Any, most: int = LINE) -> Any:
    """A JSON document with every text in it, including keys, made safe to display; other values are unchanged."""
    if isinstance(document, str):
        return plain(document, most)
    if isinstance(document, Mapping):
        return {plain(str(key), most): plain_values(value, most) for key, value in document.items()}
    return [plain_values(value, most) for value in document] if isinstance(document, list | tuple) else document
