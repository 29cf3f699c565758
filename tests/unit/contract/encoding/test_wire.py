"""A table of fields reads and writes. A wrong field is named by its path, with what was found and what is expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.encoding import wire
from contract.encoding.reading import Malformed


@dataclass(frozen=True)
class Colour:
    hue: str = "red"
    depth: int = 1


@dataclass(frozen=True)
class Part:
    name: str
    colour: Colour = Colour()
    is_new: bool = False


@dataclass(frozen=True)
class Machine:
    parts: tuple[Part, ...]
    made: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


PART = wire.record(
    Part,
    {
        "name": wire.LABEL,
        "colour": wire.inline(Colour, {"hue": wire.one_of(("red", "blue")), "depth": wire.number(8)}),
        "is_new": wire.FLAG,
    },
)
MACHINE = wire.record(
    Machine,
    {"parts": wire.listed(PART, 2).named("items"), "made": wire.TIME.named("madeAt"), "notes": wire.mapped(wire.TEXT)},
)
WHOLE = Machine((Part("a", Colour("blue", 2), True), Part("b")), 1_767_600_000, {"a": "b"})
WRITTEN = {
    "items": [{"name": "a", "isNew": True, "hue": "blue", "depth": 2}, {"name": "b"}],
    "madeAt": "2026-01-05T08:00:00Z",
    "notes": {"a": "b"},
}


def test_a_value_is_written_without_its_defaults_and_read_back() -> None:
    assert (MACHINE.to_json(WHOLE), MACHINE.from_json(WRITTEN)) == (WRITTEN, WHOLE)
    assert (MACHINE.to_json(Machine(())), MACHINE.from_json({"items": [], "later": 1})) == ({"items": []}, Machine(()))


def test_all_fields_of_a_whole_record_are_written() -> None:
    assert wire.typed(Colour, whole=True).to_json(Colour()) == {"hue": "red", "depth": 1}


WRONG: dict[str, tuple[Any, str]] = {
    "no object": ([], "machine: found []; give an object"),
    "a missing field": ({}, "machine.items is missing; give a list"),
    "too many items": ({"items": [1, 2, 3]}, "machine.items: found [1, 2, 3]; give at most 2 items"),
    "an item of another type": ({"items": [{"name": "a"}, 5]}, "machine.items[1]: found 5; give an object"),
    "a word that nobody knows": (
        {"items": [{"name": "a", "hue": "\x1b[31m"}]},
        r"machine.items[0].hue: found '\x1b[31m'; give 'red' or 'blue'",
    ),
    "true for a number": (
        {"items": [{"name": "a", "depth": True}]},
        "machine.items[0].depth: found True; give a whole number from 0 to 8",
    ),
    "a number for true": (
        {"items": [{"name": "a", "isNew": 1}]},
        "machine.items[0].isNew: found 1; give true or false",
    ),
    "no time": (
        {"items": [], "madeAt": "now"},
        "machine.madeAt: found 'now'; give a time such as 2026-01-05T08:00:00Z",
    ),
    "a value below any key": ({"items": [], "notes": {"a\n": 5}}, r"machine.notes['a\n']: found 5; give text"),
}


@pytest.mark.parametrize(("document", "message"), WRONG.values(), ids=WRONG.keys())
def test_what_is_wrong_is_named_by_its_path_with_a_cure(document: Any, message: str) -> None:
    with pytest.raises(Malformed) as caught:
        MACHINE.from_json(document, "machine")
    assert str(caught.value) == message


def test_no_key_of_a_stranger_names_a_value_that_is_inlined() -> None:
    forged = {"name": "a", "": {"hue": 5}, "colour": {"hue": 5}}
    assert PART.from_json(forged) == Part("a")
