"""
Times: read and written as Kubernetes writes them, and shown to people as an age.

An object keeps "requested at 2026-01-05T08:00:00Z", which stays true; "requested 40 s ago" would be wrong a second
later. The program that shows the sentence turns the time into an age (`spoken`). Pure: the present is passed in.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

_AT = re.compile(r"\bat (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)")
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LATEST = 253_402_300_800
"""The year 10000, in seconds since 1970, which cannot be written."""
_FINE = 120
"""Up to this many, the smaller unit is shown: 90 s, but 5 min."""


def stamp(moment: float) -> str:
    """`2026-01-05T08:00:00Z`, of seconds since 1970."""
    return datetime.fromtimestamp(int(moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def shown(moment: float) -> str:
    """The same; empty for 0, which stands for no time."""
    return stamp(moment) if moment else ""


def at(moment: float) -> str:
    """`at 2026-01-05T08:00:00Z`, of seconds since 1970."""
    return f"at {stamp(moment)}"


def seconds(text: object) -> float | None:
    """Seconds since 1970 of a time as Kubernetes writes it; None for anything else, such as a time without a zone."""
    try:
        found = datetime.fromisoformat(text)  # type: ignore[arg-type]  # others are a TypeError
        moment = found.timestamp() if found.tzinfo else -1.0
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if 0 <= moment < _LATEST else None


def created(document: Mapping[str, Any]) -> float:
    """When the API server first stored an object, in seconds since 1970; 0 if the object does not say."""
    metadata = document.get("metadata")
    return (seconds(metadata.get("creationTimestamp")) if isinstance(metadata, Mapping) else None) or 0.0


def spoken(text: str, now: float) -> str:
    """The text with `40 s ago` or `in 5 min` for each time that `at` wrote into it."""
    return _AT.sub(lambda found: _age(found[1], now) or found[0], text)


def duration(length: float) -> str:
    """`40 s`, `5 min`, `3 h`, `2 d`, of seconds: the largest unit with enough of them, rounded down."""
    whole = max(0, int(length))
    size, name = next((unit for unit in _UNITS if whole >= max(unit[0] * 2, _FINE) and unit[0] > 1), _UNITS[-1])
    return f"{whole // size} {name}"


def _age(text: str, now: float) -> str:
    then = seconds(text)
    if then is None:
        return ""
    return f"{duration(now - then)} ago" if now >= then else f"in {duration(then - now)}"
