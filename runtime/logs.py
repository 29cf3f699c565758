"""
Logs as fixed messages with fields.

Programs use the standard library's `logging` and its `extra`: `log.info("placed", extra={"pod": "ns/p"})`. The message
never varies, so that it can be searched for and counted; what varies is in fields. Each record is one line, as text for
people or JSON for machines.

Fields and messages are cut to a limit: users' names and texts get into logs, and a line of a megabyte once a second
fills a node's disk.

Line breaks, and characters that a terminal obeys or that cannot be encoded, are escaped in both.

Must not: be set up on import.
"""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Literal, TextIO

Form = Literal["text", "json"]

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/@+,%#*~")


LONGEST, LONGEST_ERROR = 1_000, 16_000
"""Characters of one field or message, and of a traceback; what is longer is cut in its middle."""


def setup(*, form: Form, level: str, stream: TextIO) -> logging.Handler:
    """Send all logs of this process to `stream`, replacing what was set up before.

    level: the least that is written, such as "info"; libraries are kept to warnings.
    """
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for noisy in ("urllib3", "kubernetes", "gunicorn.access", "werkzeug"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))
    return handler


class TextLines(logging.Formatter):
    """`2030-01-01T00:00:00.123Z INFO allocator.workers.loop: placed pod=ns/p node=n1`"""

    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_text(value)}" for key, value in _fields(self, record).items())
        message = _one_line(cut(record.getMessage()))
        return f"{_when(record)} {record.levelname} {record.name}: {message}{fields}"


class JsonLines(logging.Formatter):
    """One JSON object: time, level, logger, message, and the fields alongside them."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            **_fields(self, record),
            "time": _when(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": cut(record.getMessage()),
        }
        return _dumped(document)


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> dict[str, Any]:
    given = vars(record).items()
    fields = {cut(key): _bounded(value) for key, value in given if key not in _OWN and value is not None}
    if record.exc_info:
        fields["error"] = cut(formatter.formatException(record.exc_info), LONGEST_ERROR)
    return fields


def cut(text: str, most: int = LONGEST) -> str:
    """The text, without its middle where it has more than `most` characters."""
    if len(text) <= most:
        return text
    left_out = f"...({len(text) - most} left out)..."
    half = (most - len(left_out)) // 2
    return f"{text[:half]}{left_out}{text[-half:]}"


def _bounded(value: Any) -> Any:
    """A field's value; as text, where it is long."""
    if isinstance(value, bool | float):
        return value
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception as error:  # a number of more digits than Python prints, or a `__str__` that raises
        return f"<{type(value).__name__}: {type(error).__name__}>"
    return cut(text) if isinstance(value, str) or len(text) > LONGEST else value


def _when(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if text and _PLAIN.issuperset(text) else _dumped(text)


def _one_line(text: str) -> str:
    return text if text.isprintable() else _dumped(text)


def _dumped(value: Any) -> str:
    """As JSON on one line that prints as it is; other letters than ASCII's stay legible where all can be printed."""
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value, default=str).replace("\x7f", "\\u007f")
