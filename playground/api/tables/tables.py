"""
The forms of an answer other than the object itself: a meta.k8s.io/v1 Table, or metadata only.

A client asks by its Accept header, for example `application/json;as=Table;v=v1;g=meta.k8s.io`.
"""

import re
from collections.abc import Callable
from typing import Any

from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON, dig
from playground.api.tables import podcolumns
from playground.api.tables.columns import AGE, COLUMNS, GENERIC, NAME, Column, since

_AS = re.compile(r"as=(?P<form>Table|PartialObjectMetadata(?:List)?)")
_STEP = re.compile(
    r"""\.?((?:[A-Za-z0-9_\-/]|\\\.)+)|\[['"]([^'"]+)['"]\]|\.?\[(\d+)\]"""
    r"""|\[\?\(@\.(\w+)\s*==\s*['"]([^'"]*)['"]\)\]"""
)


def wanted_form(accept: str) -> str:
    """`Table`, `PartialObjectMetadata` or empty for plain objects: the first form in the header that is known."""
    for choice in accept.split(","):
        if match := _AS.search(choice):
            return "Table" if match["form"] == "Table" else "PartialObjectMetadata"
        if choice.split(";")[0].strip() in ("application/json", "*/*"):
            return ""
    return ""


def columns_of(kind: Kind) -> tuple[Column, ...]:
    if kind.key == "pods":
        return podcolumns.COLUMNS
    if kind.custom is None:
        return COLUMNS.get(kind.key, GENERIC)
    printed = kind.custom.get("additionalPrinterColumns")
    return (NAME, *(_custom_column(entry) for entry in printed)) if printed else (NAME, AGE)


def table(kind: Kind, value: JSON, now: float, include: str = "Metadata", *, header: bool = True) -> JSON:
    """One object or a list as a Table."""
    columns = columns_of(kind)
    listed = "items" in value and value.get("kind") == kind.list_kind
    items = value["items"] if listed else [value]
    meta = value.get("metadata") or {}
    keep = ("resourceVersion", "continue", "remainingItemCount") if listed else ("resourceVersion",)
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {key: meta[key] for key in keep if key in meta},
        "columnDefinitions": [column.definition() for column in columns] if header else None,
        "rows": [
            {"cells": [column.cell(item, now) for column in columns], "object": _included(item, include)}
            for item in items
        ],
    }


def _included(item: JSON, include: str) -> Any:
    match include:
        case "Object":
            return item
        case "None":
            return None
    return partial(item)


def partial(value: JSON) -> JSON:
    """An object or a list, as metadata only."""
    if "items" in value and str(value.get("kind", "")).endswith("List"):
        items = [partial(item) for item in value["items"]]
        return {**_PARTIAL, "kind": "PartialObjectMetadataList", "metadata": value["metadata"], "items": items}
    return {**_PARTIAL, "metadata": value["metadata"]}


_PARTIAL = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}


def _custom_column(entry: JSON) -> Column:
    read, dated = json_path(entry["jsonPath"]), entry["type"] == "date"

    def cell(value: JSON, now: float) -> Any:
        found = read(value)
        if dated:
            return since(found, now)
        return found if not isinstance(found, dict | list) else str(found)

    return Column(entry["name"], cell, entry["type"], entry.get("priority", 0), entry.get("format", ""))


def json_path(text: str) -> Callable[[JSON], Any]:
    """Simple JSON paths of printer columns: keys (a dot as `\\.`), quoted keys, indexes and `[?(@.key=="value")]`."""
    steps = [match.groups() for match in _STEP.finditer(text.strip().removeprefix("{").removesuffix("}"))]

    def read(value: Any) -> Any:
        for key, quoted, index, field, wanted in steps:
            if isinstance(value, list) and field:
                value = next((item for item in value if dig(item, field) == wanted), None)
            elif isinstance(value, list) and index:
                value = value[int(index)] if int(index) < len(value) else None
            else:
                value = dig(value, (key or quoted or "").replace("\\.", "."))
        return value

    return read
