"""
kubectl's JSONPath templates: `{.items[*].name}`, `{range .items[*]}{.node}{"\\n"}{end}`, `{.items[?(@.gpu==0)].uuid}`.

Pure. A path that finds nothing is empty, as in kubectl. Not supported: unions of paths, and regular expressions.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = "jsonpath="
_MOST = 4096
"""Characters of a template."""
_PART = re.compile(r"\{((?:\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|[^{}\"'])*)\}|([^{}]+)")
_STEP = re.compile(
    r"(?P<deep>\.\.)(?P<below>\w[\w-]*)"
    r"|\.(?P<name>\*|(?:[\w/-]|\\.)+)"
    r"|\[(?:(?P<all>\*)|'(?P<quoted>[^']*)'|(?P<index>-?\d+)|(?P<slice>-?\d*:-?\d*)"
    r"|\?\(@(?P<path>[^=!<>]*?)\s*(?:(?P<operator>==|!=|<=|>=|<|>)\s*(?P<literal>[^)]*?)\s*)?\))\]"
)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
Step = Callable[[Any], Iterator[Any]]


class BadTemplate(ValueError):
    """The template cannot be read. The message says which part."""


@dataclass(frozen=True, slots=True)
class TemplatePart:
    """A part of a template: text, or the values that `path` finds. `body`: what is printed of each of them."""

    text: str = ""
    path: tuple[Step, ...] | None = None
    body: tuple[TemplatePart, ...] | None = None

    def of(self, value: Any) -> str:
        """The printed text of a document."""
        if self.path is None:
            return self.text
        found = _walk(self.path, value)
        if self.body is None:
            return " ".join(map(_shown, found))
        return "".join(part.of(each) for each in found for part in self.body)


def compiled(text: str) -> tuple[TemplatePart, ...]:
    """The template's parts. Raises `BadTemplate`."""
    if len(text) > _MOST:
        raise BadTemplate(f"a template of {len(text)} characters; {_MOST} are read")
    words, at = list[tuple[bool, str]](), 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            raise BadTemplate(
                f"{text[at : at + 40]!r} is not a JSONPath; give paths in braces, such as {{.items[*].name}}"
            )
        words.append((found[1] is not None, (found[1] if found[1] is not None else found[2])))
        at = found.end()
    parts, rest = _block(words, inside=False)
    assert not rest
    return parts


def printed(text: str, document: Mapping[str, Any]) -> str:
    """The template's text for a document. Raises `BadTemplate`."""
    return "".join(part.of(document) for part in compiled(text))


def _block(
    words: Sequence[tuple[bool, str]], *, inside: bool
) -> tuple[tuple[TemplatePart, ...], Sequence[tuple[bool, str]]]:
    """The parts up to the end, or up to the `{end}` of a range; and the words after it."""
    parts = list[TemplatePart]()
    while words:
        (is_path, word), words = words[0], words[1:]
        word = word.strip() if is_path else word
        if not is_path:
            parts.append(TemplatePart(word))
        elif word == "end":
            if not inside:
                raise BadTemplate("{end} without a {range ...} before it")
            return tuple(parts), words
        elif word.startswith("range "):
            body, words = _block(words, inside=True)
            parts.append(TemplatePart(path=_path(word.removeprefix("range ").strip()), body=body))
        elif word[:1] in ("'", '"'):
            parts.append(TemplatePart(re.sub(r"\\(.)", lambda found: _ESCAPES.get(found[1], found[1]), word[1:-1])))
        else:
            parts.append(TemplatePart(path=_path(word)))
    if inside:
        raise BadTemplate("{range ...} without its {end}")
    return tuple(parts), words


_ESCAPES = {"n": "\n", "t": "\t"}


def _path(text: str) -> tuple[Step, ...]:
    """The steps of a path. Raises `BadTemplate`."""
    steps, at = list[Step](), 1 if text[:1] in ("$", "@") else 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            raise BadTemplate(f"{{{text}}}: {text[at:]!r} cannot be read; give a path such as .items[*].name")
        steps.append(_step(found))
        at = found.end()
    return tuple(steps)


def _step(found: re.Match[str]) -> Step:
    part = found.groupdict()
    if part["deep"]:
        return lambda value: _deep(value, part["below"])
    if part["all"] or part["name"] == "*":
        return lambda value: iter(list(value.values()) if isinstance(value, dict) else _items(value))
    if part["name"] is not None or part["quoted"] is not None:
        name = re.sub(r"\\(.)", r"\1", part["name"]) if part["name"] is not None else part["quoted"]
        return lambda value: iter((value[name],) if isinstance(value, dict) and name in value else ())
    if part["index"] is not None:
        index = int(part["index"])
        return lambda value: iter(_items(value)[index : index + 1 or None])
    if part["slice"] is not None:
        first, last = (int(each) if each else None for each in part["slice"].split(":"))
        return lambda value: iter(_items(value)[first:last])
    steps, compares, literal = _path(part["path"].strip()), part["operator"], _literal(part["literal"] or "")
    return lambda value: (each for each in _items(value) if _holds(steps, compares, literal, each))


def _items(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _literal(text: str) -> Any:
    if text[:1] in ("'", '"'):
        return text[1:-1]
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _holds(steps: Sequence[Step], compares: str | None, literal: Any, value: Any) -> bool:
    found = list(_walk(steps, value))
    if compares is None:
        return bool(found)
    try:
        return any(_OPERATORS[compares](each, literal) for each in found)
    except TypeError:
        return False


def _walk(steps: Sequence[Step], value: Any) -> Iterator[Any]:
    if not steps:
        yield value
        return
    for each in steps[0](value):
        yield from _walk(steps[1:], each)


def _deep(value: Any, name: str) -> Iterator[Any]:
    """The values under a name, however deep they lie."""
    if isinstance(value, dict):
        if name in value:
            yield value[name]
        for each in value.values():
            yield from _deep(each, name)
    for each in _items(value):
        yield from _deep(each, name)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, separators=(",", ":"))
