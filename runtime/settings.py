"""
Strict settings: frozen dataclasses in, one checked value out; and single values from text or YAML and back.

A program declares its settings as a frozen dataclass, in groups if it likes, each field with its meaning:

    @dataclass(frozen=True)
    class Admission:
        timeout: float = setting(2.0, "How long to wait for the allocator.", unit="duration", minimum=0.1)

and `load` fills it, in this order, from the defaults, a YAML file (`admission: {timeout: 1s}`), the environment
(`GPUFRACTION_ADMISSION_TIMEOUT=1s`) and flags (`--admission-timeout=1s`). An unknown name or value is an error, and all
errors are reported together: a typing error must not silently mean the default.

A dataclass may say which settings it had, and what to give in their place (`REMOVED`, by their names within it).

A field with unit "duration" holds seconds and is written "1m30s", one with unit "bytes" holds bytes and is written
"256Mi".

Must not: read the environment or argv itself (they are passed in), or know any program's settings.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from contract.encoding import quantity
from contract.encoding.reading import shown, words

ENV_PREFIX = "GPUFRACTION_"
_FILE_FLAG = "--settings"
NOT_YAML = (ValueError, AttributeError, RecursionError)
"""What PyYAML raises besides its own errors: for an impossible date, a wrong tag, or too deep nesting."""
T = TypeVar("T")
Unit = Literal["", "duration", "bytes"]


class SettingsError(Exception):
    """The settings cannot be used; `errors` has a line for each error."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("settings:\n" + "\n".join(f"  {error}" for error in errors))
        self.errors = tuple(errors)


def setting(
    default: Any,
    doc: str,
    *,
    unit: Unit = "",
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    formerly: str = "",
    deprecated: str = "",
) -> Any:
    """
    A field of a settings dataclass. doc: what it does, why this default. secret: never shown. formerly: its old name in
    its group; a value under that name is refused, and the error has the new name. deprecated: the same one release
    earlier: a value under that name is still read, and `load` warns of it.
    """
    bounds = {"minimum": minimum, "maximum": maximum}
    metadata = {"doc": doc, "unit": unit, "secret": secret, "formerly": formerly, "deprecated": deprecated, **bounds}
    return dataclasses.field(default=default, metadata=metadata)


def grouped(kind: type[Any], at: str | None = None) -> Any:
    """
    A field with a group of settings. They are named below `at`, which is the field's name by default; empty: as if they
    stood alongside the field. So a part has its settings as one value, regardless of their names.
    """
    return dataclasses.field(default_factory=kind, metadata={} if at is None else {"at": at})


def composed(base: type[T], groups: Iterable[tuple[str, str, type[Any]]]) -> type[T]:
    """
    `base` with further groups: for each the field, where its settings are named (as `at`), and its dataclass. Raises
    TypeError if two fields or two settings have one name.
    """
    fields = [(name, kind, grouped(kind, at)) for name, at, kind in groups]
    made = typing.cast(type[T], dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True))
    core = {each.name for each in dataclasses.fields(typing.cast(Any, base))}
    taken = core & {name for name, _, _ in fields}
    paths = [leaf.path for leaf in every_setting(made)]
    taken |= {".".join(path) for path in paths if paths.count(path) > 1}
    if taken:
        raise TypeError(f"two settings have the same name: {', '.join(sorted(taken))}")
    return made


@dataclass(frozen=True)
class NoSettings:
    """The group of a part that has no settings."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting at any place in the tree. `attributes`: where its value is."""

    path: tuple[str, ...]
    kind: Any
    default: Any
    metadata: Mapping[str, Any]
    attributes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return ".".join(self.path)

    @property
    def env(self) -> str:
        return ENV_PREFIX + "_".join(self.path).upper()

    @property
    def flag(self) -> str:
        return "--" + "-".join(self.path).replace("_", "-")

    @property
    def unit(self) -> str:
        return str(self.metadata.get("unit") or "")

    @property
    def former(self) -> Leaf | None:
        """The setting under its old name; None if it has none."""
        old = self.metadata.get("formerly")
        return dataclasses.replace(self, path=(*self.path[:-1], old), metadata={}) if old else None

    @property
    def deprecated(self) -> Leaf | None:
        """The setting under the name that is still read; None if it has none. `metadata["becomes"]` is its place."""
        old = self.metadata.get("deprecated")
        return dataclasses.replace(self, path=(*self.path[:-1], old), metadata={"becomes": self.path}) if old else None


def _known(cls: type[Any]) -> tuple[Leaf, ...]:
    """All settings, those under a deprecated name, and those that are refused with what to give in their place."""
    settings = tuple(every_setting(cls))
    return (*settings, *(old for each in settings if (old := each.deprecated) is not None), *removed(cls))


def removed(cls: type[Any], prefix: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The refused names; `metadata["removed"]` of each says what to give in its place, or why nothing."""
    own: Mapping[str, str] = getattr(cls, "REMOVED", {})
    for name, cure in own.items():
        yield Leaf((*prefix, *name.split(".")), str, "", {"removed": cure})
    for one, kind in _fields(cls):
        if dataclasses.is_dataclass(kind):
            yield from removed(typing.cast(type[Any], kind), _below(prefix, one))


def _fields(cls: type[Any]) -> Iterator[tuple[dataclasses.Field[Any], Any]]:
    """The fields with their types."""
    hints = typing.get_type_hints(cls)
    return ((one, hints[one.name]) for one in dataclasses.fields(cls))


def _below(prefix: tuple[str, ...], group: dataclasses.Field[Any]) -> tuple[str, ...]:
    """Where the settings of a group are named."""
    at = group.metadata.get("at", group.name)
    return (*prefix, at) if at else prefix


@dataclass(frozen=True, slots=True)
class _Given:
    raw: Any
    source: str


def load(
    cls: type[T],
    *,
    file: Path | None,
    env: Mapping[str, str],
    argv: Sequence[str],
    warn: Callable[[str], None] | None = None,
) -> T:
    """
    The settings of a program. argv: flags only, without the program's name. `warn` gets a line for each setting
    that was given under a deprecated name; standard error by default, where the errors go too. Raises SettingsError.
    """
    errors: list[str] = []
    leaves = {leaf.path: leaf for leaf in _known(cls)}
    given: dict[tuple[str, ...], _Given] = {}
    for layer in (_from_file(leaves, file, errors), _from_env(leaves, env, errors), _from_flags(leaves, argv, errors)):
        given.update(_renamed(layer, leaves, errors, warn or _warn))
    for path in [path for path in given if "removed" in leaves[path].metadata]:
        source = given.pop(path).source
        errors.append(f"{leaves[path].name} ({source}): removed; {leaves[path].metadata['removed']}")
    values = {path: _converted(leaves[path], one, errors) for path, one in given.items()}
    built = _build(cls, (), values, errors)
    if errors:
        raise SettingsError(errors)
    assert isinstance(built, cls)
    return built


def _warn(text: str) -> None:
    print(f"settings: {text}", file=sys.stderr)


def _renamed(
    layer: Mapping[tuple[str, ...], _Given],
    leaves: Mapping[tuple[str, ...], Leaf],
    errors: list[str],
    warn: Callable[[str], None],
) -> dict[tuple[str, ...], _Given]:
    """What one source gives, each setting under its present name. Both names in one source are an error."""
    found = dict(layer)
    for path in layer:
        becomes = leaves[path].metadata.get("becomes")
        if becomes is None:
            continue
        one = found.pop(path)
        if becomes in layer:
            errors.append(
                f"{leaves[path].name} ({one.source}): given together with its new name "
                f"{leaves[becomes].name}; remove it"
            )
        warn(f"the setting {leaves[path].name} ({one.source}) is deprecated: give {leaves[becomes].name}")
        found.setdefault(becomes, one)
    return found


def settings_file(argv: Sequence[str]) -> tuple[Path | None, list[str]]:
    """
    The file of the flag `--settings FILE`, and the other flags. Raises SettingsError if the file's name is missing.
    """
    flags = list(argv)
    for position, flag in enumerate(flags):
        name, equals, path = flag.partition("=")
        if name != _FILE_FLAG:
            continue
        rest = flags[position + 1 :]
        if not equals and rest and not rest[0].startswith("--"):
            path = rest.pop(0)
        if not path:
            raise SettingsError([f"flag {_FILE_FLAG}: expected a file, as in {_FILE_FLAG}=FILE"])
        return Path(path), flags[:position] + rest
    return None, flags


def effective(settings: Any) -> dict[str, Any]:
    """The settings as plain data, as in the file, for the log at the start."""
    shown: dict[str, Any] = {}
    for leaf in every_setting(type(settings)):
        value = functools.reduce(getattr, leaf.attributes, settings)
        into = shown
        for part in leaf.path[:-1]:
            into = into.setdefault(part, {})
        into[leaf.path[-1]] = _written(leaf, value)
    return shown


def describe(cls: type[Any]) -> str:
    """A Markdown table of all settings, for the documentation."""
    rows = ["| setting | environment | default | meaning |", "|---|---|---|---|"]
    for leaf in every_setting(cls):
        doc = " ".join(str(leaf.metadata.get("doc", "")).split()).replace("|", "\\|")
        default = "(required)" if leaf.default is dataclasses.MISSING else _shown(leaf)
        rows.append(f"| `{leaf.name}` | `{leaf.env}` | {default} | {doc}{_bounds(leaf)} |")
    return "\n".join(rows) + "\n"


def _shown(leaf: Leaf) -> str:
    value = _written(leaf, leaf.default)
    if value is None:
        return "(none)"
    if isinstance(value, bool):
        value = str(value).lower()
    text = ",".join(value) if isinstance(value, list) else str(value)
    return f"`{text}`" if text else "(empty)"


def _bounds(leaf: Leaf) -> str:
    low, high = leaf.metadata.get("minimum"), leaf.metadata.get("maximum")
    parts = [f"at least {_figure(leaf, low)}"] if low is not None else []
    parts += [f"at most {_figure(leaf, high)}"] if high is not None else []
    if choices := choices_of(leaf.kind):
        parts.append("one of " + ", ".join(f"`{choice}`" for choice in choices))
    return f" ({', '.join(parts)})" if parts else ""


def every_setting(cls: type[Any], prefix: tuple[str, ...] = (), above: tuple[str, ...] = ()) -> Iterator[Leaf]:
    """The settings in their order, those of groups included. `prefix`, `above`: of a group, as in `Leaf`."""
    for one, kind in _fields(cls):
        attributes = (*above, one.name)
        if dataclasses.is_dataclass(kind):
            yield from every_setting(typing.cast(type[Any], kind), _below(prefix, one), attributes)
        else:
            made = one.default_factory
            default = one.default if made is dataclasses.MISSING else made()
            yield Leaf((*prefix, one.name), kind, default, one.metadata, attributes)


def _from_file(
    leaves: Mapping[tuple[str, ...], Leaf], file: Path | None, errors: list[str]
) -> dict[tuple[str, ...], _Given]:
    if file is None:
        return {}
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        errors.append(f"file {file}: {error.strerror}")
        return {}
    except (yaml.YAMLError, *NOT_YAML) as error:
        errors.append(f"file {file}: not YAML: {' '.join(str(error).split())}")
        return {}
    found: dict[tuple[str, ...], _Given] = {}
    groups = {path[:depth] for path in leaves for depth in range(len(path))}

    def walk(path: tuple[str, ...], node: Any) -> None:
        if path in leaves:
            found[path] = _Given(node, f"file {file}")
        elif path not in groups:
            name = ".".join(map(_legible, path))
            errors.append(f"{name} (file {file}): {_stranger(name, leaves.values(), operator.attrgetter('name'))}")
        elif isinstance(node, dict):
            for key, below in node.items():
                walk((*path, str(key)), below)
        elif node is not None:
            errors.append(f"{'.'.join(path) or 'top level'} (file {file}): expected a mapping, got {shown(node)}")

    walk((), document)
    return found


# For a Service named gpufraction-* kubelet puts such variables into our containers.
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")


def _from_env(
    leaves: Mapping[tuple[str, ...], Leaf], env: Mapping[str, str], errors: list[str]
) -> dict[tuple[str, ...], _Given]:
    by_name = {leaf.env: path for path, leaf in leaves.items()}
    found: dict[tuple[str, ...], _Given] = {}
    for name in sorted(env):
        if not name.startswith(ENV_PREFIX):
            continue
        link = _SERVICE_LINK.fullmatch(name) and ("://" in env[name] or name not in by_name)
        if link:
            continue
        if name in by_name:
            found[by_name[name]] = _Given(env[name], f"environment {name}")
        else:
            errors.append(
                f"environment {_legible(name)}: {_stranger(name, leaves.values(), operator.attrgetter('env'))}"
            )
    return found


def _from_flags(
    leaves: Mapping[tuple[str, ...], Leaf], argv: Sequence[str], errors: list[str]
) -> dict[tuple[str, ...], _Given]:
    by_name = {leaf.flag: path for path, leaf in leaves.items()}
    found: dict[tuple[str, ...], _Given] = {}
    rest = list(argv)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        if flag not in by_name:
            errors.append(f"flag {_legible(flag)}: {_stranger(flag, leaves.values(), operator.attrgetter('flag'))}")
            # Skip its value, which is no second unknown flag.
            if not equals and rest and not rest[0].startswith("--"):
                rest.pop(0)
            continue
        path = by_name[flag]
        if not equals:
            if leaves[path].kind is bool:
                text = "true"
            elif rest and not rest[0].startswith("--"):
                text = rest.pop(0)
            else:
                errors.append(f"flag {flag}: expected a value, as in {flag}=VALUE")
                continue
        found[path] = _Given(text, f"flag {flag}")
    return found


def _legible(name: str) -> str:
    """An unknown name for a message: cut if it is long, with unprintable characters escaped."""
    return shown(name)[1:-1]


def _stranger(given: str, leaves: Iterable[Leaf], name: Callable[[Leaf], str]) -> str:
    """The error for a name without a setting. `name`: a setting's name in that source."""
    known = {}
    for leaf in leaves:
        if "removed" in leaf.metadata or "becomes" in leaf.metadata:
            continue
        if leaf.former and name(leaf.former) == given:
            return f"renamed to {name(leaf)}"
        known[name(leaf).removeprefix(ENV_PREFIX)] = name(leaf)  # a common prefix would make all names similar
    near = difflib.get_close_matches(given.removeprefix(ENV_PREFIX), list(known), n=1)
    return f"unknown; did you mean {known[near[0]]}?" if near else "unknown"


def _build(cls: type[Any], prefix: tuple[str, ...], values: Mapping[tuple[str, ...], Any], errors: list[str]) -> Any:
    """The dataclass with those in it; the errors of their own checks count like any other."""
    before, arguments = len(errors), {}
    for one, kind in _fields(cls):
        path = (*prefix, one.name)
        if dataclasses.is_dataclass(kind):
            arguments[one.name] = _build(typing.cast(type[Any], kind), _below(prefix, one), values, errors)
        elif path in values:
            arguments[one.name] = values[path]
        elif one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            errors.append(f"{'.'.join(path)}: not set, and there is no default")
    if len(errors) > before or any(value is _BAD for value in arguments.values()):
        return _BAD
    try:
        return cls(**arguments)
    except ValueError as error:
        errors.append(f"{'.'.join(prefix) or 'settings'}: {error}")
        return _BAD


_BAD = object()


def _converted(leaf: Leaf, given: _Given, errors: list[str]) -> Any:
    try:
        value = convert(leaf.kind, leaf.unit, given.raw)
        _check_bounds(leaf, value)
        return value
    except ValueError as error:
        found = "the value" if leaf.metadata.get("secret") else shown(given.raw)
        errors.append(f"{leaf.name} ({given.source}): {found}: {error}")
        return _BAD


def _check_bounds(leaf: Leaf, value: Any) -> None:
    low, high = leaf.metadata.get("minimum"), leaf.metadata.get("maximum")
    if value is not None and low is not None and value < low:
        raise ValueError(f"expected at least {_figure(leaf, low)}")
    if value is not None and high is not None and value > high:
        raise ValueError(f"expected at most {_figure(leaf, high)}")


def _figure(leaf: Leaf, value: Any) -> str:
    return str(_written(leaf, value))


def _written(leaf: Leaf, value: Any) -> Any:
    return "(secret)" if leaf.metadata.get("secret") else write(leaf.unit, value)


# -- values: strict both ways, since a number without a unit leaves open whether 5 means seconds -------------------


def convert(kind: Any, unit: str, raw: Any) -> Any:
    """`raw`, from YAML or as text, as a value of the annotated type `kind`. Raises ValueError."""
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        if raw is None or raw == "none":
            return None
        kind = next(arm for arm in typing.get_args(kind) if arm is not type(None))
    if unit == "duration":
        return parse_duration(raw)
    if unit == "bytes":
        return _bytes(raw)
    if choices := choices_of(kind):
        if raw not in choices:
            raise ValueError(f"expected one of {', '.join(choices)}")
        return raw
    if typing.get_origin(kind) is tuple:
        return _strings(raw)
    converter = _CONVERTERS.get(kind)
    if converter is None:
        raise TypeError(f"settings cannot hold {kind!r}")
    return converter(raw)


def choices_of(kind: Any) -> tuple[str, ...]:
    """The texts that a Literal allows; empty for every other type."""
    return typing.get_args(kind) if typing.get_origin(kind) is Literal else ()


def _bool(raw: Any) -> bool:
    known = {"true": True, "false": False}
    if isinstance(raw, bool):
        return raw
    if not isinstance(raw, str) or raw.lower() not in known:
        raise ValueError("expected true or false")
    return known[raw.lower()]


def _int(raw: Any) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]+", raw):
        return int(raw)
    raise ValueError("expected a whole number")


def _float(raw: Any) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool):
        return float(raw)
    if isinstance(raw, str) and re.fullmatch(r"[+-]?[0-9]+(\.[0-9]+)?", raw):
        return float(raw)
    raise ValueError("expected a number such as 1.5")


def _str(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("expected a text; quote it in YAML")
    return raw


def _strings(raw: Any) -> tuple[str, ...]:
    if isinstance(raw, str):
        return words(raw)
    if isinstance(raw, list) and all(isinstance(part, str) for part in raw):
        return tuple(raw)
    raise ValueError("expected a list of texts")


def _bytes(raw: Any) -> int:
    try:
        return quantity.integer(raw)
    except quantity.BadQuantity as error:
        raise ValueError("expected bytes such as 268435456 or 256Mi") from error


_CONVERTERS: Mapping[Any, Callable[[Any], Any]] = {
    bool: _bool,
    int: _int,
    float: _float,
    str: _str,
    Path: lambda raw: Path(_str(raw)),
}

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+)ms)?")


def parse_duration(raw: Any) -> float:
    """Seconds in a text such as "500ms", "30s", "1m30s" or "1h". Raises ValueError."""
    match = _DURATION.fullmatch(raw) if isinstance(raw, str) and raw else None
    if match is None:
        raise ValueError("expected a duration such as 500ms, 30s or 1m30s")
    hours, minutes, seconds, millis = (float(group or 0) for group in match.groups())
    return hours * 3600 + minutes * 60 + seconds + millis / 1000


def format_duration(seconds: float) -> str:
    """The shortest of our own forms: 90.0 is "1m30s", 0.5 is "500ms"."""
    whole = round(seconds * 1000)
    if whole < 1000 and whole:
        return f"{whole}ms"
    minutes, rest = divmod(whole, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    return text + (f"{rest / 1000:g}s" if rest or not text else "")


def parse_address(text: str, name: str, example: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[host]:port`. Raises ValueError with the setting's name and an example."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{name} is {text!r}; give address and port such as {example}")
    return host.strip("[]"), int(port)


def write(unit: str, value: Any) -> Any:
    """`value` as it would be written in a settings file: plain data, with its unit."""
    if value is None or isinstance(value, bool):
        return value
    if unit == "duration":
        return format_duration(value)
    if unit == "bytes":
        return quantity.format_bytes(value)
    if isinstance(value, tuple):
        return list(value)
    if value == Path():
        return ""  # the form of an optional path that is not set
    return str(value) if isinstance(value, Path) else value
