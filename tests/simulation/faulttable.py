"""
The table of faults for docs/testing.md: what each fault is, how long it lasts, and what holds during and after it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from tests.simulation.feature import Fault, Feature

HEAD = ("fault", "lasts", "during", "after")
_USUAL = re.compile(r"^(?:All invariants hold|Everything that fits is placed)(?:$|[;:.] )")
"""What the page says once about all faults. Cells contain only what differs."""


def lines(features: Iterable[Feature]) -> list[str]:
    """The table in Markdown, a row for each fault."""
    rows = [row_of(fault) for feature in features for fault in feature.faults]
    return [_line(HEAD), "|" + "---|" * len(HEAD), *map(_line, rows)]


def row_of(fault: Fault) -> tuple[str, str, str, str]:
    """The cells of a fault."""
    return f"`{fault.name}`", _lasts(fault), _differing(_during(fault)), _differing(_capital(fault.after))


def _lasts(fault: Fault) -> str:
    least, most = fault.seconds
    return f"{least:g} to {most:g} s" if most else "a moment"


def _during(fault: Fault) -> str:
    text = _capital(fault.during)
    if not fault.suspends:
        return text
    until = "to the end of the run" if math.isinf(fault.lingers) else f"until {fault.lingers:g} s after it"
    return f"{text}. Not checked {until}: {', '.join(sorted(fault.suspends))}"


def _differing(text: str) -> str:
    return _capital(_USUAL.sub("", text)) or "as usual"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"
