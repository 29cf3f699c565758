"""
What a command has found, and its text in each of the forms: a table, JSON, YAML.

Pure. A command gives values once, and no form shows more than another knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubectl_gpufraction.output.tables import Column, Row, joined, table

FORMS = ("table", "wide", "json", "yaml")


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """An answer: a table with its rows, or `lines` of text."""

    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    in_table: Sequence[Row] | None = None
    """The rows of the table, where people see them in other words than programs."""
    empty: str = ""
    """The text of a table without rows."""
    lines: Sequence[str] | None = None
    """For people, in place of the table."""
    exact: str = ""
    """For people, in place of the table: text of another tool's form, as it is."""
    notes: Sequence[str] = ()
    """For people, below the table."""
    status: int = 0
    """The exit status."""
    trouble: str = ""
    """What went wrong, for standard error."""

    def text(self, form: str, *, colour: bool) -> str:
        """The answer in one of `FORMS`, with a final newline."""
        if form in ("json", "yaml"):
            return serialized({"items": [dict(row) for row in self.rows]}, form)
        if self.exact:
            return self.exact
        if self.lines is not None:
            return joined(self.lines)
        rows = self.rows if self.in_table is None else self.in_table
        shown = table(self.columns, rows, wide=form == "wide", colour=colour) if rows else f"{self.empty}\n"
        return shown + joined(self.notes)


def serialized(document: Mapping[str, Any], form: str) -> str:
    """A document as JSON or YAML."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    import yaml  # the other forms start sooner without it

    text: str = yaml.safe_dump(dict(document), sort_keys=False)
    return text
