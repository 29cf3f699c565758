"""
A command's result, and its text in each of the forms: a table, JSON, YAML, names.

Pure. A command gives values once. Tables and sentences are for people; the other forms are for programs, which get
times as they are stored and every field in each row. Every text of an object is made fit to be shown here, in each
form, because a person may print the input of a program too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract.encoding.plain import LINE, plain, plain_values
from kubectl_gpufraction.output import jsonpath
from kubectl_gpufraction.output.tables import Column, Row, joined, table, wrapped

FORMS = ("table", "wide", "json", "yaml", "name")


@dataclass(frozen=True, slots=True)
class Form:
    """
    How an output is printed: one of `FORMS` or a JSONPath template, with colours and headings or without, and the
    present.
    """

    name: str = "table"
    colour: bool = False
    headers: bool = True
    now: float = 0.0
    width: int = 0
    """Columns of the terminal, at which sentences wrap; 0: each is one line, as for a pipe."""


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """A command's result: a table with its rows, or `lines` of text in its place."""

    columns: Sequence[Column] = ()
    rows: Sequence[Row] = ()
    in_table: Sequence[Row] | None = None
    """The rows of the table, if they differ between people and programs."""
    head: Sequence[str] = ()
    """For people, above the table: what to read first."""
    empty: str = ""
    """The text of a table without rows."""
    lines: Sequence[str] | None = None
    """For people, in place of the table."""
    exact: str = ""
    """For people, in place of the table: text of another tool's form, as it is."""
    notes: Sequence[str] = ()
    """For people, below the table: totals, and what the rows have in common."""
    document: Mapping[str, Any] | None = None
    """For programs, in place of the rows."""
    names: Sequence[str] = ()
    """The objects as `kind/name`, each once."""
    status: int = 0
    """The exit status."""

    def text(self, form: Form) -> str:
        """The output in one form, with a final newline; empty if it names nothing."""
        document = self.document or {"items": [dict(row) for row in self.rows]}
        if form.name in ("json", "yaml"):
            return serialized(document, form.name)
        if form.name.startswith(jsonpath.PREFIX):
            return jsonpath.printed(form.name.removeprefix(jsonpath.PREFIX), plain_values(document))
        if form.name == "name":
            return joined(dict.fromkeys(self.names))
        if self.exact:
            return "\n".join(plain(line, LINE) for line in self.exact.split("\n"))
        if self.lines is not None:
            return wrapped(self.lines, form.width)
        rows = self.rows if self.in_table is None else self.in_table
        if not rows:
            return wrapped(self.empty.split("\n"), form.width)
        wide = form.name == "wide"
        shown = table(
            self.columns,
            rows,
            wide=wide,
            colour=form.colour,
            headers=form.headers,
            now=form.now,
            width=form.width,
        )
        return wrapped(self.head, form.width) + shown + wrapped(self.notes, form.width) if form.headers else shown


def serialized(document: Mapping[str, Any], form: str) -> str:
    """A document as JSON or YAML, its texts made fit to be shown."""
    document = plain_values(document)
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    import yaml  # the other forms start sooner without it

    text: str = yaml.safe_dump(document, sort_keys=False)
    return text
