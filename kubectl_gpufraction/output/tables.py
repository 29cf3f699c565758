"""
Rows to text: aligned columns, coloured on a terminal; and Go's tabwriter for the older tool's form.

Pure. A table is a tuple of columns and rows of plain values by the columns' keys, so that every form shows the same.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.encoding.plain import CELL, LINE, plain
from kubectl_gpufraction.output.terminal import GREEN, PLAIN, RED, YELLOW

_COLOURS = {
    "Healthy": GREEN,
    "Running": GREEN,
    "Unhealthy": RED,
    "Cordoned": YELLOW,
    "Failed": RED,
    "GPUUnhealthy": RED,
    "GPUGone": RED,
    "NotReady": RED,
    "AgentSilent": YELLOW,
    "OptionsRefused": YELLOW,
    "Waiting": YELLOW,
    "Placed": GREEN,
    "Denied": RED,
    "OK": GREEN,
    "WARN": YELLOW,
    "FAIL": RED,
    "UNKNOWN": YELLOW,
}
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Column:
    """
    A column: its key in the rows, its heading, and whether only the wide form shows it.

    `of`: what a cell shows of its row now (seconds since 1970), where that is not the row's value, such as an age.
    """

    key: str
    heading: str
    wide: bool = False
    of: Callable[[Row, float], object] | None = None

    def shown(self, row: Row, now: float) -> str:
        """The text of a row's cell."""
        return cell(row[self.key] if self.of is None else self.of(row, now))


_GAP = "   "
_LEAST = 30
"""Columns of a last cell that goes on in the next line; where there are fewer, it is left as it is."""


def table(
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    wide: bool,
    colour: bool,
    headers: bool,
    now: float,
    width: int = 0,
) -> str:
    """
    The rows in aligned columns, under their headings unless `headers` is False. `width`: of the terminal, at which the
    last cell goes on in the next line; 0: it does not.
    """
    shown = [column for column in columns if wide or not column.wide]
    cells = [[column.shown(row, now) for column in shown] for row in rows]
    if headers:
        cells.insert(0, [column.heading for column in shown])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = width - sum(widths[:-1]) - len(_GAP) * (len(widths) - 1)
    return "".join(
        _line(part, widths, colour and (number > 0 or not headers))
        for number, line in enumerate(cells)
        for part in _folded(line, left)
    )


def _folded(line: Sequence[str], left: int) -> Iterable[Sequence[str]]:
    """The line, and those in which its last cell goes on where `left` columns are too few for it."""
    if left < _LEAST or len(line[-1]) <= left:
        return (line,)
    first, *rest = textwrap.wrap(line[-1], left, break_long_words=False, break_on_hyphens=False)
    empty = [""] * (len(line) - 1)
    return ([*line[:-1], first], *([*empty, each] for each in rest))


def cell(value: object) -> str:
    """A value in a table, made fit to be shown: lists with commas, an empty value as `-`."""
    if isinstance(value, list | tuple):
        return plain(",".join(map(str, value)), CELL) or "-"
    return "-" if value in ("", None) else plain(str(value), CELL)


def _line(line: Sequence[str], widths: Sequence[int], colour: bool) -> str:
    padded = [text.ljust(width) for text, width in zip(line, widths, strict=True)]
    padded[-1] = line[-1]
    if colour:
        padded = [_coloured(text) for text in padded]
    return _GAP.join(padded).rstrip() + "\n"


def _coloured(text: str) -> str:
    words = {_COLOURS[word] for word in text.strip().split(",") if word in _COLOURS}
    found = next((colour for colour in (RED, YELLOW, GREEN) if colour in words), "")
    return f"{found}{text}{PLAIN}" if found else text


def tabwriter(text: str) -> str:
    """
    The text as Go's `text/tabwriter` writes it with minimal width 0, padding 2 and spaces.

    A cell ends with a tab; the text after a line's last tab belongs to no column. A column's width is that of its
    widest cell among neighbouring lines that all have the cell.
    """
    lines = [line.split("\t") for line in text.split("\n")]
    return "\n".join(
        "".join(each.ljust(_block(lines, row, column) + 2) for column, each in enumerate(line[:-1])) + line[-1]
        for row, line in enumerate(lines)
    )


def _block(lines: Sequence[Sequence[str]], row: int, column: int) -> int:
    """The widest cell of a column in the block of lines around one of them."""
    first = last = row
    while first > 0 and len(lines[first - 1]) > column + 1:
        first -= 1
    while last + 1 < len(lines) and len(lines[last + 1]) > column + 1:
        last += 1
    return max(len(line[column]) for line in lines[first : last + 1])


def joined(parts: Iterable[str]) -> str:
    """Lines, made fit to be shown, to one text that ends in a newline."""
    return "".join(f"{plain(part, LINE)}\n" for part in parts)


def wrapped(lines: Iterable[str], width: int) -> str:
    """
    Sentences as lines of at most `width` columns, each indented as it began, and by two more where it goes on. 0: one
    line each. A word that is longer than a line is not broken, so that commands and names can be copied.
    """
    if not width:
        return joined(lines)
    parts = list[str]()
    for line in lines:
        text = plain(line, LINE)
        indent = text[: len(text) - len(text.lstrip())]
        if indent.startswith(COMMAND):
            parts.append(text)
            continue
        found = textwrap.wrap(
            text.strip(),
            max(width, _LEAST),
            initial_indent=indent,
            subsequent_indent=f"{indent}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        parts += found or [""]
    return joined(parts)


COMMAND = " " * 4
"""The indent of a command to copy, which stays on one line."""
