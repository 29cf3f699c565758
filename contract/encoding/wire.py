"""
The one codec: what values look like as JSON, declared once and used to read and to write.

A `Schema` is a pair of functions for one type. `record` makes one from a dataclass and a table of its fields: names in
JSON, types and bounds. Formats that others write or read are declared so. `typed` makes one from the declared types
alone, for what only our own programs write and read: a field added to a value is then in its JSON without another line.

Reading raises `Malformed` and no other exception, whatever the document is. The message names the field, what was found
and what to give. A field that the document lacks takes the default of the dataclass, and one that the record lacks is
left out, so that older and newer programs read each other. Fields at their default are not written.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from contract.encoding import moments
from contract.encoding.plain import NAME, plain
from contract.encoding.reading import Malformed, is_gpu, is_label, is_subdomain, is_uid, shown

T = TypeVar("T")
S = TypeVar("S")
JSON = dict[str, Any]
ABSENT: Any = object()
"""Stands for the value of a field that the document lacks, and for a missing default."""
_SNAKE = re.compile(r"_([a-z])")


class Misfit(Malformed):
    """A value of the wrong form. What contains it adds its part of the path."""

    def __init__(self, found: object, wanted: str, path: str = "") -> None:
        super().__init__(wanted)
        self.found, self.wanted, self.path = found, wanted, path

    def __str__(self) -> str:
        where = self.path.removeprefix(".") or "the document"
        if self.found is ABSENT:
            return f"{where} is missing; give {self.wanted}"
        return f"{where}: found {shown(self.found)}; give {self.wanted}"

    def below(self, part: str) -> Misfit:
        return Misfit(self.found, self.wanted, part + self.path)


@dataclass(frozen=True, slots=True)
class Schema(Generic[T]):
    """
    How values of one type are read and written. `read` raises `Misfit`; it gets `ABSENT` for a required field that is
    absent. The other fields describe such a value in a record.
    """

    read: Callable[[Any], T]
    write: Callable[[Any], Any] | None = None
    """None: written as it is."""
    key: str = ""
    """The field's name in JSON, where it is not the attribute's in camel case."""
    default: Any = ABSENT
    """The meaning of an absent field, if it is not the dataclass's default."""
    kept: bool = False
    """Whether it is written also at its default."""
    needed: bool = False
    """Whether it must be there although the dataclass has a default."""
    of: Callable[..., Any] | None = None
    """The dataclass of a value that is inlined."""

    def named(self, key: str) -> Schema[T]:
        return replace(self, key=key)

    def always(self) -> Schema[T]:
        return replace(self, kept=True)

    def otherwise(self, default: Any) -> Schema[T]:
        """With a default of its own, at which it is written too."""
        return replace(self, default=default, kept=True)

    def required(self) -> Schema[T]:
        return replace(self, needed=True)

    def then(self, after: Callable[[T], S], before: Callable[[Any], Any] | None = None) -> Schema[S]:
        """The same in JSON, for values that `after` makes of what is read; `before` is its inverse, for writing."""
        read, write = self.read, self.write
        undo = write if before is None else before if write is None else lambda value: write(before(value))
        return Schema(lambda found: after(read(found)), undo)

    def from_json(self, document: object, name: str = "") -> T:
        """Read a document, which messages call `name`. Raises `Malformed`."""
        try:
            return self.read(document)
        except Misfit as error:
            raise Malformed(str(error.below(name))) from None

    def to_json(self, value: Any) -> Any:
        return self.write(value) if self.write else value


def load(text: object, what: str, *, most: int | None = None, version: int | tuple[int, ...] = ()) -> JSON:
    """The JSON object in a text of at most `most` characters, with such a version as its `v`. Raises `Malformed`."""
    wanted = version if isinstance(version, tuple) else (version,)
    if not isinstance(text, str):
        raise Malformed(f"{what} is not text")
    if most is not None and len(text) > most:
        raise Malformed(f"{what} has {len(text)} characters; give at most {most}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"{what} is not JSON") from error
    if not isinstance(value, dict):
        raise Malformed(f"{what} is not a JSON object")
    if wanted and value.get("v") not in wanted:
        raise Malformed(
            f"{what} has version {shown(value.get('v'))}, this program reads {' and '.join(map(str, wanted))}"
        )
    return value


# -- single values ------------------------------------------------------------------------------------------------


def _of_type(kind: type[T], wanted: str) -> Schema[T]:
    def read(found: Any) -> T:
        if isinstance(found, kind):
            return found
        raise Misfit(found, wanted)

    return Schema(read)


def number(most: int = 1 << 62, least: int = 0) -> Schema[int]:
    """A whole number."""
    wanted = f"a whole number from {least} to {most}"

    def read(found: Any) -> int:
        if isinstance(found, int) and not isinstance(found, bool) and least <= found <= most:
            return found
        raise Misfit(found, wanted)

    return Schema(read)


def matching(test: Callable[[str], bool], wanted: str, *, empty: bool = False) -> Schema[str]:
    """Text that passes a test; `empty`: or empty text."""
    wanted = f"{wanted}, or nothing" if empty else wanted

    def read(found: Any) -> str:
        if isinstance(found, str) and (test(found) or (empty and not found)):
            return found
        raise Misfit(found, wanted)

    return Schema(read)


def one_of(words: tuple[Any, ...]) -> Schema[Any]:
    """One of these values."""
    wanted = " or ".join(map(repr, words))

    def read(found: Any) -> Any:
        if found in words:
            return found
        raise Misfit(found, wanted)

    return Schema(read)


def _read_float(found: Any) -> float:
    if isinstance(found, int | float) and not isinstance(found, bool) and abs(found) < 1 << 62:
        return float(found)
    raise Misfit(found, "a number")


def _read_time(found: Any) -> int:
    seconds = moments.seconds(found)
    if seconds is None:
        raise Misfit(found, "a time such as 2026-01-05T08:00:00Z")
    return int(seconds)


TEXT = _of_type(str, "text")
FLAG = _of_type(bool, "true or false")
OBJECT: Schema[JSON] = _of_type(dict, "an object")
AMOUNT = number()
TIME = Schema(_read_time, moments.stamp)
"""Whole seconds since 1970, as Kubernetes writes times."""
LABEL = matching(is_label, "at most 63 of a-z, 0-9 and -")
"""The name of a namespace or a container."""
OBJECT_NAME = matching(is_subdomain, "at most 253 of a-z, 0-9, - and .")
UID = matching(is_uid, "1 to 128 printable characters")
GPU_UUID = matching(is_gpu, "the UUID of a GPU")


def line(most: int = NAME) -> Schema[str]:
    """Text for people, made safe to display (`contract.encoding.plain`)."""
    return TEXT.then(lambda text: plain(text, most))


# -- values of several parts --------------------------------------------------------------------------------------


def optional(schema: Schema[T]) -> Schema[T | None]:
    """The same, or null."""
    read, to_json = schema.read, schema.to_json
    return Schema(
        lambda found: None if found is None else read(found), lambda value: None if value is None else to_json(value)
    )


def _numbered(items: Iterator[T]) -> tuple[T, ...]:
    """The items that are read, with the number of the one that is wrong."""
    found: list[T] = []
    try:
        found.extend(items)
    except Misfit as error:
        raise error.below(f"[{len(found)}]") from None
    return tuple(found)


def listed(schema: Schema[T], most: int | None = None) -> Schema[tuple[T, ...]]:
    """A list of at most `most` items, as a tuple."""
    read_item, write = schema.read, schema.write

    def read(found: Any) -> tuple[T, ...]:
        if not isinstance(found, list):
            raise Misfit(found, "a list")
        if most is not None and len(found) > most:
            raise Misfit(found, f"at most {most} items")
        return _numbered(map(read_item, found))

    return Schema(read, list if write is None else lambda values: [write(value) for value in values])


def parts(*schemas: Schema[Any]) -> Schema[tuple[Any, ...]]:
    """A list with a type for each of its items."""

    def read(found: Any) -> tuple[Any, ...]:
        if not isinstance(found, list) or len(found) != len(schemas):
            raise Misfit(found, f"a list of {len(schemas)} items")
        return _numbered(each.read(item) for each, item in zip(schemas, found, strict=True))

    return Schema(read, lambda values: [each.to_json(value) for each, value in zip(schemas, values, strict=True)])


def readable(schema: Schema[T], found: object, most: int) -> Iterator[T]:
    """Those of the first `most` items of a list that can be read; empty for anything else. Never raises."""
    for item in found[:most] if isinstance(found, list) else ():
        with contextlib.suppress(Malformed):
            yield schema.read(item)


def mapped(schema: Schema[T]) -> Schema[Mapping[str, T]]:
    """An object with any keys, and values of one type."""
    read_item = schema.read

    def read(found: Any) -> Mapping[str, T]:
        if not isinstance(found, Mapping):
            raise Misfit(found, "an object")
        items, key = {}, ""
        try:
            for key, item in found.items():
                items[key] = read_item(item)
        except Misfit as error:
            raise error.below(f"[{shown(key)}]") from None
        return items

    return Schema(read, lambda values: {key: schema.to_json(value) for key, value in values.items()})


Rows = Mapping[str, Schema[Any]]
"""The fields of a record, by the names of the attributes."""


def record(
    kind: Callable[..., T], rows: Rows, *, make: Callable[..., Any] | None = None, whole: bool = False
) -> Schema[T]:
    """
    An object with a field for each row. A field is required if the dataclass `kind` has no default for it.

    `make`: the function that makes the value from its attributes, if it is not `kind`; absent ones are left out.
    `whole`: fields are written also at their default.
    """
    own = fields(kind) if is_dataclass(kind) else ()
    defaults = {each.name: each.default for each in own if each.default is not MISSING}
    defaults |= {each.name: each.default_factory() for each in own if each.default_factory is not MISSING}
    table = []
    for name, schema in rows.items():
        default = (
            ABSENT if schema.needed else defaults.get(name, ABSENT) if schema.default is ABSENT else schema.default
        )
        key = schema.key or _SNAKE.sub(lambda found: found[1].upper(), name)
        table.append(_Field(name, key, schema, default))
    return Schema(_reader(make or kind, table), _writer(table, whole=whole))


def struct(rows: Rows) -> Schema[JSON]:
    """An object that is read as a mapping. Fields without a default of their own are required."""
    return record(dict, rows)


def row(rows: Rows) -> Schema[tuple[Any, ...]]:
    """An object that is read as a tuple of its values, all of which are required."""
    values = struct(rows).read
    return Schema(lambda found: tuple(values(found).values()), lambda items: dict(zip(rows, items, strict=True)))


def inline(kind: Callable[..., T], rows: Rows) -> Schema[T]:
    """A record whose fields are fields of the one that has it; the default where the document has none of them."""
    return replace(record(kind, rows, make=dict), of=kind)


class _Field(NamedTuple):
    attribute: str
    key: str
    schema: Schema[Any]
    default: Any
    """`ABSENT` for a field that is required."""


def _reader(make: Callable[..., Any], table: Sequence[_Field]) -> Callable[[Any], Any]:
    steps = [
        (each.attribute, each.key, each.schema.read, each.default is ABSENT) for each in table if not each.schema.of
    ]
    inlined = [(each.attribute, each.schema.read, each.schema.of) for each in table if each.schema.of]
    given = {each.attribute: each.default for each in table if each.schema.default is not ABSENT}

    def read(document: Any) -> Any:
        if not isinstance(document, Mapping):
            raise Misfit(document, "an object")
        found, key = given.copy(), ""
        try:
            for attribute, key, read_field, required in steps:
                if key in document:
                    found[attribute] = read_field(document[key])
                elif required:
                    found[attribute] = read_field(ABSENT)
        except Misfit as error:
            raise error.below(f".{key}") from None
        for attribute, read_inner, kind in inlined:
            inner = read_inner(document)
            if inner:
                found[attribute] = kind(**inner)
        return make(**found)

    return read


def _writer(table: Sequence[_Field], *, whole: bool) -> Callable[[Any], JSON]:
    def default_of(each: _Field) -> Any:
        return ABSENT if whole or each.schema.kept else each.default

    steps = [(each.attribute, each.key, each.schema.write, default_of(each)) for each in table if not each.schema.of]
    inlined = [(each.attribute, each.schema.to_json, each.default) for each in table if each.schema.of]

    def write(value: Any) -> JSON:
        document = {}
        for attribute, key, write_field, default in steps:
            field = getattr(value, attribute)
            if default is ABSENT or (field is not default and field != default):
                document[key] = write_field(field) if write_field else field
        for attribute, to_json, default in inlined:
            field = getattr(value, attribute)
            if field is not default:
                document.update(to_json(field))
        return document

    return write


# -- types --------------------------------------------------------------------------------------------------------

_PLAIN: Mapping[type, Schema[Any]] = {
    str: TEXT,
    bool: FLAG,
    int: number((1 << 63) - 1, -(1 << 63)),
    float: Schema(_read_float),
}


@functools.cache
def typed(kind: Any, *, whole: bool = False) -> Schema[Any]:
    """
    The schema of a declared type: dataclasses, tuples, frozensets, mappings and plain values. Names are those of the
    attributes. A mapping whose keys are not text is a list of pairs. A field with `stored` False in its metadata is
    left out. `whole`: as for `record`.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        stored = [each.name for each in fields(kind) if each.init and each.metadata.get("stored", True)]
        rows = {name: typed(hints[name]).named(name) for name in stored}
        return record(kind, rows, whole=whole)
    if origin in (types.UnionType, typing.Union):
        (only,) = (one for one in arguments if one is not types.NoneType)
        return optional(typed(only))
    if origin is Literal:
        return one_of(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return parts(*map(typed, arguments))
    if origin in (tuple, frozenset):
        items = listed(typed(arguments[0]))
        return items if origin is tuple else items.then(frozenset, lambda values: tuple(sorted(values)))
    if origin in (dict, Mapping):
        if arguments[0] is str:
            return mapped(typed(arguments[1]))
        return listed(parts(*map(typed, arguments))).then(dict, lambda values: tuple(values.items()))
    if issubclass(kind, dict):
        return mapped(TEXT).then(kind)
    return one_of(tuple(kind)).then(kind) if issubclass(kind, StrEnum) else _PLAIN[kind]
