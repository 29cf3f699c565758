"""
CEL: the expressions of match conditions, admission policies and schema rules.

Evaluation is the library `cel`'s. What Kubernetes adds to the language is limited here to quantities, and an expression
that needs more says so when it is compiled. An error of evaluation is a value: the caller decides what it means.
"""

import functools
import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cel

from contract.encoding.quantity import BadQuantity, parse
from playground.api.rules import reading

_REMEMBERED_BYTES = 4096
"""Of what an expression reads of a variable, at most, for its value to be remembered. More is hardly asked twice."""
_SMALL_BYTES = 256
"""What a variable may take for an expression to be tried with it first, and without the larger ones."""
_WITHOUT_REFERENCES = 2
"""The newest format of `marshal` that writes equal values alike, however often each of their parts occurs."""
_TYPES: Mapping[type, str] = {bool: "bool", str: "string", int: "int", float: "double", list: "list", dict: "map"}


@dataclass(frozen=True, slots=True)
class Failed:
    """An expression that has no value for these variables, for example because a field is missing."""

    message: str


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled expression, and those of our functions that it calls: a context takes a while for each it is given."""

    compiled: Any
    variables: frozenset[str]
    functions: Mapping[str, Callable[..., Any]]


@functools.lru_cache(maxsize=1024)
def _program(text: str) -> _Program:
    """Raises `ValueError`."""
    compiled = cel.compile(text)
    functions = {name: _FUNCTIONS[name] for name in compiled.functions() if name in _FUNCTIONS}
    return _Program(compiled, frozenset(compiled.variables()), functions)


def problem(text: str) -> str | None:
    """Why an expression does not compile; None when it does."""
    try:
        _program(text)
    except ValueError as failure:
        return str(failure)
    return None


def constant_type(text: str) -> str:
    """The type of an expression that needs no variable, in CEL's words; empty for any other."""
    if problem(text):
        return ""
    value = evaluate(text, {})
    return "" if isinstance(value, Failed) else _TYPES.get(type(value), "dyn")


class Evaluation:
    """
    Expressions over the same variables, which do not change meanwhile.

    Most of a request's time would go into handing objects over to CEL, for expressions that read a field or two, and
    mostly the same as the last time. So an expression gets only what it can read, and its value for that is remembered.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = dict(variables)

    def put(self, name: str, value: Any) -> None:
        """Set the variable to this value."""
        self._variables[name] = value

    def value(self, text: str) -> Any:
        """The value of an expression, or `Failed`. Others get the same value, so it must not be changed."""
        try:
            reads = _reads(text, tuple(self._variables))
            parts = tuple([(name, _written(reading.part(self._variables[name], fields))) for name, fields in reads])
        except ValueError:  # it does not compile, or a value is of no type of JSON, as a time that was computed is not
            return execute(text, self._variables)
        small = tuple([part for part in parts if len(part[1]) <= _SMALL_BYTES])
        if len(small) == len(parts):
            return _remembered(text, parts)
        # What has a value without an object, by the user alone perhaps, has the same with it: CEL's operators let go of
        # an error only where the other side decides.
        found = _remembered(text, small)
        if not isinstance(found, Failed):
            return found
        if max(len(part) for _, part in parts) <= _REMEMBERED_BYTES:
            return _remembered(text, parts)
        return execute(text, {name: reading.part(self._variables[name], fields) for name, fields in reads})


@functools.lru_cache(maxsize=1024)
def _reads(text: str, names: tuple[str, ...]) -> tuple[tuple[str, reading.Fields], ...]:
    """The variables among these that an expression names, each with what can be read of it. Raises `ValueError`."""
    named = _program(text).variables
    return tuple((name, reading.fields(text, name)) for name in names if name in named)


def _written(value: Any) -> bytes:
    """The same for equal values, and for no others. Raises `ValueError`."""
    return marshal.dumps(value, _WITHOUT_REFERENCES)


@functools.lru_cache(maxsize=4096)
def _remembered(text: str, parts: tuple[tuple[str, bytes], ...]) -> Any:
    return execute(text, {name: marshal.loads(part) for name, part in parts})


def execute(text: str, variables: Mapping[str, Any]) -> Any:
    """The value of an expression, or `Failed`, by nothing but the library: what `Evaluation` must agree with."""
    try:
        program = _program(text)
        named = {name: value for name, value in variables.items() if name in text}
        return program.compiled.execute(cel.Context(variables=named, functions=dict(program.functions)))
    except (ValueError, RuntimeError, LookupError, TypeError) as failure:
        return Failed(_message(failure))


def evaluate(text: str, variables: Mapping[str, Any]) -> Any:
    """The value of one expression, or `Failed`."""
    return Evaluation(variables).value(text)


def _message(failure: Exception) -> str:
    if isinstance(failure, KeyError):
        return f"no such key: {failure.args[0] if failure.args else ''}"
    return str(failure)


def _compare(holds: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def function(left: Any, right: Any) -> bool:
        return holds(_exact(left), _exact(right))

    return function


def _exact(value: Any) -> Any:
    try:
        return parse(value)
    except BadQuantity as failure:
        raise ValueError(str(failure)) from None


def _is_quantity(value: Any) -> bool:
    try:
        parse(value)
    except BadQuantity:
        return False
    return True


def _quantity(value: Any) -> str:
    """A quantity stays its text: the comparisons read it again."""
    _exact(value)
    return str(value)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isQuantity": _is_quantity,
    "isGreaterThan": _compare(lambda left, right: left > right),
    "isLessThan": _compare(lambda left, right: left < right),
    "compareTo": lambda left, right: (_exact(left) > _exact(right)) - (_exact(left) < _exact(right)),
    "isInteger": lambda value: _exact(value).denominator == 1,
    "asInteger": lambda value: int(_exact(value)),
    "split": lambda text, by: str(text).split(str(by)),
    "join": lambda items, by="": str(by).join(str(item) for item in items),
    "lowerAscii": lambda text: str(text).lower(),
    "upperAscii": lambda text: str(text).upper(),
    "trim": lambda text: str(text).strip(),
    "replace": lambda text, old, new: str(text).replace(str(old), str(new)),
    "substring": lambda text, start, end=None: str(text)[int(start) : None if end is None else int(end)],
    "indexOf": lambda text, part: str(text).find(str(part)),
}
