"""
Changes of JSON documents that keep them valid JSON, so that fuzzing reaches the code after the parser.

A change replaces, removes, repeats, moves or renames one part of a document, or inserts a part of a seed. Values are
those that decoders tend to fail on: other types, large numbers, long and odd text, names that are almost ours.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from contract import names

TEXTS: tuple[str, ...] = (
    "",
    " ",
    "0",
    "-1",
    "1",
    "5",
    "100",
    "1e400",
    "NaN",
    "Infinity",
    "8Gi",
    "3000",
    "1e999",
    "0.1",
    "-0",
    "1" * 30,
    "9" * 400,
    "true",
    "True",
    "null",
    "None",
    "all",
    "none",
    "void",
    "a",
    "a" * 64,
    "a" * 254,
    "ä",
    "\x00",
    "\n",
    "\r\n",
    "\x1b[2J\x1b[31m",
    "\x9b31m",
    "\u202e",
    "\u2028",
    "\ud800",
    "\udfff\ud800",
    "\U0001f600",
    "%s%n",
    "{}",
    "[]",
    "[" * 300,
    '{"v":1}',
    "../../..",
    "/",
    "a/b",
    "a,b",
    ",",
    ",,,,",
    "a=b",
    "=",
    ":",
    "GPU-0",
    "MIG-0",
    "nvidia.com/gpu",
    "2026-01-05T08:00:00Z",
    "0001-01-01T00:00:00",
    "9999-12-31T23:59:59",
    "0001-01-01T00:00:00Z",
    "2026-01-05",
    "9999-12-31T23:59:59-23:59",
    "1970-01-01",
    "Healthy",
    "Cordoned",
    "Pending",
    "Ready",
    "Retry",
    "True",
    "False",
    "nodeName",
    "affinity",
    "placed",
    "wait",
    "never",
    "native",
    "hami",
    "aliyun",
    "binpack",
    "spread",
    *sorted({str(value) for key, value in vars(names).items() if isinstance(value, str) and not key.startswith("__")}),
)
NUMBERS: tuple[object, ...] = (
    0,
    1,
    -1,
    2,
    16,
    100,
    101,
    255,
    256,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    (1 << 62) + 1,
    (1 << 63) - 1,
    1 << 63,
    1 << 64,
    10**30,
    10**400,
    -(10**400),
    0.5,
    -0.0,
    1.0,
    1e308,
    1e-308,
    float("inf"),
    float("-inf"),
    float("nan"),
)
OTHERS: tuple[object, ...] = (None, True, False, {}, [], [[]], [{}], [None], {"": None}, {"a": {}}, [1], ["a"])
FREE = frozenset(
    ("labels", "annotations", "nodeSelector", "matchLabels", "limits", "requests", "allocatable", "data", "nodeLabels")
)
"""Objects whose keys their author chose freely, with texts as values."""
_MOST_DEPTH = 60
_LONGEST = 64 << 10
"""The length of a text in characters, and the number of parts of a document, above which they are not made longer."""
_REPEATS = (2, 3, 10, 100, 1000)

Path = tuple[Any, ...]


def parts(document: Any, here: Path = ()) -> Iterator[Path]:
    """The paths of all parts of a document."""
    yield here
    if len(here) < _MOST_DEPTH:
        inside = document.items() if isinstance(document, dict) else enumerate(document) if _is_list(document) else ()
        for key, value in inside:
            yield from parts(value, (*here, key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


class Mutator:
    """
    Changes documents. `seeds`: documents whose parts are inserted into others. `typed`: each part keeps its type, as
    after the checks of an API server.
    """

    def __init__(self, seeds: Sequence[Any], *, typed: bool = False) -> None:
        self._steps = _TYPED if typed else _STEPS
        self._free = False
        self._pool = [at(seed, path) for seed in seeds for path in parts(seed)] or [None]
        keys = {path[-1] for seed in seeds for path in parts(seed) if path and isinstance(path[-1], str)}
        self._keys = sorted(keys) or ["a"]

    def change(self, document: Any, chance: random.Random) -> Any:
        """A copy of the document with one to four changes."""
        made = copy.deepcopy(document)
        for _ in range(chance.choice((1, 1, 1, 2, 2, 4))):
            made = self._once(made, chance)
        return made

    def _once(self, made: Any, chance: random.Random) -> Any:
        places = list(islice(parts(made), _LONGEST))
        path = chance.choice(places)
        self._free = bool(path) and path[-1] in FREE
        step: Callable[[Any, Any, random.Random], Any] = chance.choice(self._steps)
        return put(made, path, step(self, at(made, path), chance))

    def value(self, chance: random.Random) -> Any:
        """Some value."""
        match chance.randrange(5):
            case 0:
                return chance.choice(TEXTS)
            case 1:
                return chance.choice(NUMBERS)
            case 2:
                return copy.deepcopy(chance.choice(OTHERS))
            case 3:
                return chance.choice(self._keys)
        return copy.deepcopy(chance.choice(self._pool))

    def key(self, chance: random.Random) -> str:
        """Some key of an object."""
        return str(chance.choice(self._keys if chance.random() < 0.7 else TEXTS))

    # -- the steps: each maps a part to its replacement ---------------------------------------------------------------

    def another(self, part: Any, chance: random.Random) -> Any:
        """Another value."""
        return self.value(chance)

    def near(self, part: Any, chance: random.Random) -> Any:
        """A value of the same type that is close to the current one."""
        if isinstance(part, bool):
            return not part
        if isinstance(part, int):
            if abs(part) > 1 << 80:
                return 0
            return part + chance.choice((-1, 1, -part, part, 1 << 20))
        if isinstance(part, str):
            return _text_near(part, chance)
        return self.value(chance) if part is None or isinstance(part, float) else part

    def lacking(self, part: Any, chance: random.Random) -> Any:
        """The part without one of its own parts."""
        if isinstance(part, dict) and part:
            dropped = chance.choice(list(part))
            return {key: value for key, value in part.items() if key != dropped}
        if isinstance(part, list) and part:
            position = chance.randrange(len(part))
            return part[:position] + part[position + 1 :]
        return self.value(chance)

    def adding(self, part: Any, chance: random.Random) -> Any:
        """The part with one more part."""
        if isinstance(part, dict):
            return {**part, self.key(chance): self.value(chance)}
        if isinstance(part, list):
            return [*part, self.value(chance)]
        return [part] if chance.random() < 0.5 else {self.key(chance): part}

    def alike(self, part: Any, chance: random.Random) -> Any:
        """
        Another value of the same type; for an object, one with other values or without one of its parts, and so on.
        """
        if isinstance(part, bool) or part is None:
            return part if part is None else not part
        if isinstance(part, int):
            whole = [number for number in NUMBERS if isinstance(number, int) and abs(number) < 1 << 63]
            return chance.choice(whole)
        if isinstance(part, str):
            return chance.choice(TEXTS)
        if isinstance(part, list):
            return [*part, copy.deepcopy(chance.choice(part))] if part else part
        if isinstance(part, dict) and self._free:
            return {**part, self.key(chance): chance.choice(TEXTS)}
        return part

    def optional(self, part: Any, chance: random.Random) -> Any:
        """The part without one of its own parts, except the name that every object of a list has."""
        if isinstance(part, dict) and not self._free:
            left = [key for key in part if key not in ("name", "key", "metadata", "type")]
            dropped = chance.choice(left) if left else None
            return {key: value for key, value in part.items() if key != dropped}
        return self.lacking(part, chance) if isinstance(part, dict | list) and part else part

    def longer(self, part: Any, chance: random.Random) -> Any:
        """The part repeated, with the existing types."""
        if isinstance(part, str) or (isinstance(part, list) and part):
            return self.many(part, chance)
        return self.many(part, chance) if isinstance(part, dict) and part and self._free else part

    def same_near(self, part: Any, chance: random.Random) -> Any:
        """Like `near`, but never a value of another type."""
        return self.near(part, chance) if isinstance(part, bool | int | str) else part

    def many(self, part: Any, chance: random.Random) -> Any:
        """The part repeated: a list of the same items, an object of similar keys, a longer text, a deeper nesting."""
        size = len(str(part)) if isinstance(part, str | list | dict) else 1
        times = min(chance.choice(_REPEATS), _LONGEST // max(1, size))
        if isinstance(part, list) and part:
            return part + [copy.deepcopy(chance.choice(part)) for _ in range(times)]
        if isinstance(part, dict) and part:
            key = chance.choice(list(part))
            return {**part, **{f"{key}{number}": part[key] for number in range(times)}}
        if isinstance(part, str):
            return part * times
        for _ in range(min(times, _MOST_DEPTH)):
            part = [part] if chance.random() < 0.5 else {self.key(chance): part}
        return part

    def renamed(self, part: Any, chance: random.Random) -> Any:
        """The part with another key."""
        if not isinstance(part, dict) or not part:
            return self.value(chance)
        old = chance.choice(list(part))
        new = self.key(chance) if chance.random() < 0.5 else _text_near(old, chance)
        return {(new if key == old else key): value for key, value in part.items()}

    def inner(self, part: Any, chance: random.Random) -> Any:
        """A text that is itself a document, such as an annotation, with a change inside it."""
        try:
            found = json.loads(part) if isinstance(part, str) else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict | list):
            return self.near(part, chance)
        return json.dumps(self._once(found, chance))

    def inner_text(self, part: Any, chance: random.Random) -> Any:
        """Like `inner`, but only for texts."""
        return self.inner(part, chance) if isinstance(part, str) else part


_STEPS = (
    Mutator.another,
    Mutator.another,
    Mutator.near,
    Mutator.near,
    Mutator.lacking,
    Mutator.adding,
    Mutator.many,
    Mutator.renamed,
    Mutator.inner,
    Mutator.inner,
)

_TYPED = (
    Mutator.alike,
    Mutator.alike,
    Mutator.optional,
    Mutator.longer,
    Mutator.same_near,
    Mutator.same_near,
    Mutator.inner_text,
)


def _text_near(text: str, chance: random.Random) -> str:
    position = chance.randrange(len(text) + 1)
    match chance.randrange(4):
        case 0:
            return text[:position] + chance.choice(TEXTS) + text[position:]
        case 1:
            return text[:position]
        case 2:
            return text[:position] + text[position + 1 :]
    return text.swapcase() if chance.random() < 0.3 else text[position:] + text[:position]


def at(document: Any, path: Path) -> Any:
    """The part at a path."""
    for key in path:
        document = document[key]
    return document


def put(document: Any, path: Path, value: Any) -> Any:
    """The document with another value at the path. It is changed in place."""
    if not path:
        return value
    at(document, path[:-1])[path[-1]] = value
    return document


def written(document: Any) -> bytes:
    """The text of a document."""
    return json.dumps(document, separators=(",", ":")).encode()
