"""
How a value that somebody else wrote is repeated in a message: short, on one line, whatever it is.

A tenant's text may be megabytes long, nested deeply, or a number that Python refuses to print. Messages travel to
kubectl, into Events and logs, so none of them may grow with what was written.
"""

from __future__ import annotations

_LONGEST = 80


def shown(value: object, *, most: int = _LONGEST) -> str:
    """The `repr` of a value, cut to `most` characters in its middle. Never raises for values that came from JSON."""
    if isinstance(value, str):
        value = value if len(value) <= most else value[:most] + value[-most:]
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too large to show>"
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"
