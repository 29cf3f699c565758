"""Pieces of CEL: texts and lists, and how an expression compares names as `release.warnings.names` does."""

from __future__ import annotations

from collections.abc import Iterable

from release.warnings import names


def text(value: str) -> str:
    """A text. Raises ValueError for quotes, backslashes and characters that are not printable ASCII."""
    if not value.isascii() or not value.isprintable() or "'" in value or "\\" in value:
        raise ValueError(f"{value!r} has a character that no name has")
    return f"'{value}'"


def texts(values: Iterable[str]) -> str:
    """A list of texts."""
    return "[" + ", ".join(map(text, values)) + "]"


def known(values: Iterable[str]) -> str:
    """A list of maps with each name, and the name without capitals and separators."""
    rows = ",\n  ".join(f"{{'name': {text(each)}, 'plain': {text(names.plain(each))}}}" for each in values)
    return f"[\n  {rows}\n]"


def plain(value: str) -> str:
    """The text of an expression without capitals and separators."""
    return value + ".lowerAscii()" + "".join(f".replace({text(each)}, '')" for each in names.SEPARATORS)


def some(value: str, starts: Iterable[str]) -> str:
    """Does the text begin with one of these?"""
    return " || ".join(f"{value}.startsWith({text(start)})" for start in starts)


def matches(value: str, patterns: Iterable[str]) -> str:
    """Does the text match one of the regular expressions? The API server compiles them once."""
    return " ||\n".join(f"{value}.matches({text(each)})" for each in patterns)


def misspells(q: str) -> str:
    """`names.misspells` for a plain text and `k` of `known`. It needs `variables.letters`, the numbers of letters."""
    swapped = (
        f"i + 1 < k.plain.size() && {q}.size() == k.plain.size() && {q}.endsWith(k.plain.substring(i + 2)) &&\n"
        f"        {q}.substring(i, i + 1) == k.plain.substring(i + 1, i + 2) && "
        f"{q}.substring(i + 1, i + 2) == k.plain.substring(i, i + 1)"
    )
    return (
        f"k.plain.size() - 2 < {q}.size() && {q}.size() < k.plain.size() + 2 &&\n"
        f"    variables.letters.exists(i, i <= k.plain.size() && {q}.startsWith(k.plain.substring(0, i)) &&\n"
        f"      ({q}.size() == k.plain.size() + 1 ? {q}.endsWith(k.plain.substring(i)) :\n"
        f"        i < k.plain.size() && ({q}.endsWith(k.plain.substring(i + 1)) ||\n        {swapped})))"
    )


def shortens(q: str) -> str:
    """`names.shortens` for a plain text with a slash and `k` of `known`."""
    return f"k.plain.startsWith({q}) && {_long(q)}"


def lengthens(q: str) -> str:
    """`names.lengthens` for a plain text and `k` of `known`."""
    return f"{q}.startsWith(k.plain) && {_long('k.plain')}"


def _long(value: str) -> str:
    return f"{value}.split('/')[1].size() >= {names.LONG}"
