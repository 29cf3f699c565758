"""
The consent of a pod to its eviction when its share has been idle for some time, and how it is written.

The pod's annotation `gpufraction.io/idle-after` sets the time. Without it, the label of the same name on its namespace
does. `0` is no consent, so the annotation `0` excludes a pod from its namespace's consent. An unreadable value is no
consent either: no pod is evicted because of a typing error. Pure.
"""

from __future__ import annotations

import re

from contract import names

_DURATION = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?", re.ASCII)
_UNITS = (86_400, 3_600, 60, 1)
MOST = 365 * 86_400
"""Seconds: a longer time is a mistake."""
FORM = "a duration such as 90m or 2h (at most 365d), or 0 for no consent"


def idle_after(value: str | None) -> int | None:
    """The value of one object in seconds: None if it has none, 0 if it has no consent or cannot be read."""
    if value is None:
        return None
    return seconds_of(value) or 0


def seconds_of(value: str) -> int | None:
    """The seconds that a value means; None if it cannot be read."""
    if value == "0":
        return 0
    found = _DURATION.fullmatch(value) if value else None
    if found is None:
        return None
    seconds = sum(int(part or 0) * unit for part, unit in zip(found.groups(), _UNITS, strict=True))
    return seconds if seconds <= MOST else None


def agreed(pod: int | None, namespace: int | None) -> int:
    """Seconds after which the pod may be evicted, by its annotation or its namespace's label; 0 if it may not."""
    return (namespace or 0) if pod is None else pod


def misread(namespace: str, value: str) -> str:
    """The sentence about a namespace's label that cannot be read."""
    return f"namespace {namespace}: the label {names.IDLE_AFTER}={value} counts as no consent; it must be {FORM}"
