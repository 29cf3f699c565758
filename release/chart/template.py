"""
A tree of choices as the text of a Helm template.

The text uses little of the template language: `if`, `else` and `end` on lines of their own, `with` and `range` over
values, and `toYaml`, `toJson`, `include`. Everything else is plain YAML. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import yaml

from release.chart.tree import ABSENT, MORE, Expression, Node, Text, Values, When

_WIDTH = 2


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as they are, and every text quoted that some YAML reader takes for something else."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    several = "\n" in value and not value.endswith("\n\n") and not value.startswith((" ", "\n"))
    if several and all(line == line.rstrip() for line in value.split("\n")):
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|")
    numeric = value[:1].isdigit() or value[:1] in "+-." or value.lower() in ("y", "n", "on", "off", "yes", "no")
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style='"' if numeric else None)


_Dumper.add_representer(str, _text)


def plain(node: Node) -> list[str]:
    """The lines of a node without choices, with everything escaped that the template language would interpret."""
    text = yaml.dump(node, Dumper=_Dumper, sort_keys=False, width=10**6, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...").replace("{{", '{{ "{{" }}').split("\n")


def written(node: Node, named: Callable[[str], str]) -> list[str]:
    """
    The lines of a whole document.

    `named` gives the template's expression for the condition of a `When`.
    """
    return _Writer(named).document(node)


class _Writer:
    def __init__(self, named: Callable[[str], str]) -> None:
        self._named = named

    def document(self, node: Node) -> list[str]:
        if isinstance(node, When):
            return self._choice(node, 0, self.document)
        return ["---", *self._map(node, 0)]

    def _choice(self, node: When, depth: int, write: Callable[[Node], list[str]]) -> list[str]:
        """`if` and `else` around what `write` makes of either side; the condition is negated where only one is left."""
        pad, condition = " " * depth, self._named(node.condition)
        if node.then is ABSENT:
            return [f"{pad}{{{{- if not {_grouped(condition)} }}}}", *write(node.otherwise), f"{pad}{{{{- end }}}}"]
        lines = [f"{pad}{{{{- if {condition} }}}}", *write(node.then)]
        if node.otherwise is not ABSENT:
            lines += [f"{pad}{{{{- else }}}}", *write(node.otherwise)]
        return [*lines, f"{pad}{{{{- end }}}}"]

    def _map(self, node: dict[str, Node], depth: int) -> list[str]:
        return [line for key, value in node.items() for line in self._entry(key, value, depth)]

    def _entry(self, key: str, value: Node, depth: int) -> list[str]:
        if isinstance(value, When):
            return self._choice(value, depth, lambda side: self._entry(key, side, depth))
        pad = " " * depth
        if key == MORE:
            return [
                f"{pad}{{{{- with {value.text} }}}}",
                f"{pad}{{{{- toYaml . | nindent {depth} }}}}",
                f"{pad}{{{{- end }}}}",
            ]
        name = plain(key)[0]
        match value:
            case Expression():
                return [f"{pad}{name}: {{{{ {value.text} }}}}"]
            case Values():
                return [f"{pad}{name}:", f"{pad}  {{{{- toYaml {value.text} | nindent {depth + _WIDTH} }}}}"]
            case Text():
                return [f"{pad}{name}: |", f"{pad}  {{{{- toYaml {value.text} | nindent {depth + _WIDTH} }}}}"]
            case dict() if value and _chosen(value):
                return [f"{pad}{name}:", *self._map(value, depth + _WIDTH)]
            case list() if value and _chosen(value):
                return [f"{pad}{name}:", *(line for item in value for line in self._item(item, depth))]
        return [pad + line if line else line for line in plain({key: value})]

    def _item(self, item: Node, depth: int) -> list[str]:
        if isinstance(item, When):
            return self._choice(item, depth, lambda side: self._item(side, depth))
        pad = " " * depth
        if isinstance(item, Values):
            return [
                f"{pad}{{{{- with {item.text} }}}}",
                f"{pad}{{{{- toYaml . | nindent {depth} }}}}",
                f"{pad}{{{{- end }}}}",
            ]
        if not _chosen(item):
            return [pad + line if line else line for line in plain([item])]
        # The first key is on the dash's line, so it must be plain.
        first = next(key for key, value in item.items() if not _chosen(value))
        rest = {key: value for key, value in item.items() if key != first}
        head = [("- " if not i else "  ") + line for i, line in enumerate(plain({first: item[first]}))]
        return [*(pad + line for line in head), *self._map(rest, depth + _WIDTH)]


def _grouped(expression: str) -> str:
    return f"({expression})" if " " in expression else expression


def _chosen(node: Any) -> bool:
    """Whether anything in the node depends on values."""
    match node:
        case When() | Expression() | Values() | Text():
            return True
        case dict():
            return any(_chosen(value) for value in node.values())
        case list():
            return any(_chosen(item) for item in node)
    return False
