"""
One setting's value: from text or YAML to what the program holds, and back.

Strict both ways: a number where a duration is expected is refused, since nobody can say whether 5 meant seconds. Must
not know where a value came from or what it is for; `runtime.settings` does.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from contract.encoding import quantity

Unit = Literal["", "duration", "bytes"]


def convert(kind: Any, unit: str, raw: Any) -> Any:
    """`raw`, from YAML or as text, as a value of the annotated type `kind`. Raises ValueError."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        if raw is None or raw == "none":
            return None
        kind = next(arm for arm in typing.get_args(kind) if arm is not type(None))
    if unit == "duration":
        return parse_duration(raw)
    if unit == "bytes":
        return _bytes(raw)
    if choices := choices_of(kind):
        if raw not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return raw
    if typing.get_origin(kind) is tuple:
        return _strings(raw)
    converter = _CONVERTERS.get(kind)
    if converter is None:
        raise TypeError(f"settings cannot hold {kind!r}")
    return converter(raw)


def choices_of(kind: Any) -> tuple[str, ...]:
    """The texts that a Literal allows; empty for every other type."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _bool(raw: Any) -> bool:
    known = {"true": True, "false": False}
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or raw.lower() not in known:
        raise ValueError("expected true or false")
    return known[raw.lower()]


def _int(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]+", raw):
        return int(raw)
    raise ValueError("expected a whole number")


def _float(raw: Any) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", raw):
        return float(raw)
    raise ValueError("expected a number such as 1.5")


def _str(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("expected a text; quote it in YAML")
    return raw


def _strings(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str):
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, list) and all(isinstance(part, str) for part in raw):
        return tuple(raw)
    raise ValueError("expected a list of texts")


def _bytes(raw: Any) -> int:
    try:
        return quantity.integer(raw)
    except quantity.BadQuantity as error:
        raise ValueError("expected bytes such as 268435456 or 256Mi") from error


_CONVERTERS: Mapping[Any, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: lambda raw: Path(_str(raw)),
}

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def parse_duration(raw: Any) -> float:
    """Seconds in a text such as "500ms", "30s", "1m30s" or "1h". Raises ValueError."""
    match = _DURATION.fullmatch(raw) if isinstance(raw, str) and raw else None
    if match is None:
        raise ValueError("expected a duration such as 500ms, 30s or 1m30s")
    hours, minutes, seconds, millis = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def format_duration(seconds: float) -> str:
    """The shortest of our own forms: 90.0 is "1m30s", 0.5 is "500ms"."""
    whole = round(seconds * 1000)
    if whole < 1000 and whole:
        return f"{whole}ms"
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    return text + (f"{rest / 1000:g}s" if rest or not text else "")


def parse_address(text: str, name: str, example: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`. Raises ValueError with the setting's name and an example."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{name} is {text!r}; give address and port such as {example}")
    return host.strip("[]"), int(port)


def write(unit: str, value: Any) -> Any:
    """`value` as it would be written in a settings file: plain data, with its unit."""
    if value is None or isinstance(value, bool):
        return value
    if unit == "duration":
        return format_duration(value)
    if unit == "bytes":
        return quantity.format_bytes(value)
    if isinstance(value, tuple):
        return list(value)
    if value == Path():
        return ""  # how none is written where a path may be left out
    return str(value) if isinstance(value, Path) else value
