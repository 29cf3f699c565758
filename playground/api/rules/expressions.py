"""
CEL: the expressions of match conditions, admission policies and schema rules.

The library `cel` evaluates expressions. Of Kubernetes' additions to the language, only quantities are implemented: an
expression that needs more fails to compile. An evaluation error is a value: the caller decides what it means.
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
"""Bytes that an expression reads of each variable, at most, for its value to be cached. More is rarely read twice."""
_SMALL_BYTES = 256
"""Bytes of the variables with which an expression is evaluated first, without the larger ones."""
_WITHOUT_REFERENCES = 2
"""The newest format of `marshal` that writes equal values alike, however often each of their parts occurs."""
_TYPES: Mapping[type, str] = {bool: "bool", str: "string", int: "int", float: "double", list: "list", dict: "map"}


@dataclass(frozen=True, slots=True)
class Failed:
    """An expression that has no value for these variables, for example because a field is missing."""

    message: str


@dataclass(frozen=True, slots=True)
class _Program:
    """A compiled expression and the functions of ours that it calls. A context takes time for each function it gets."""

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
    Evaluates expressions with the same variables, which must not change in between.

    Passing objects to CEL would take most of a request's time, although most expressions read one or two fields, which
    rarely change. So an expression gets only the fields that it can read, and its value for them is cached.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._variables = dict(variables)

    def put(self, name: str, value: Any) -> None:
        """Set the variable to this value."""
        self._variables[name] = value

    def value(self, text: str) -> Any:
        """The value of an expression, or `Failed`. The value is shared: do not change it."""
        try:
            reads = _reads(text, tuple(self._variables))
            parts = tuple([(name, _written(reading.part(self._variables[name], fields))) for name, fields in reads])
        except ValueError:  # it does not compile, or a value has no JSON type, for example a computed time
            return execute(text, self._variables)
        small = tuple([part for part in parts if len(part[1]) <= _SMALL_BYTES])
        if len(small) == len(parts):
            return _remembered(text, parts)
        # An expression that has a value without the objects, for example from the user alone, has the same value with
        # them: CEL's operators ignore an error only if the other operand decides the result.
        found = _remembered(text, small)
        if not isinstance(found, Failed):
            return found
        if max(len(part) for _, part in parts) <= _REMEMBERED_BYTES:
            return _remembered(text, parts)
        return execute(text, {name: reading.part(self._variables[name], fields) for name, fields in reads})


@functools.lru_cache(maxsize=1024)
def _reads(text: str, names: tuple[str, ...]) -> tuple[tuple[str, reading.Fields], ...]:
    """Those of the variables that an expression names, each with the fields that it reads. Raises `ValueError`."""
    named = _program(text).variables
    return tuple((name, reading.fields(text, name)) for name in names if name in named)


def _written(value: Any) -> bytes:
    """A key that is the same for equal values only. Raises `ValueError`."""
    return marshal.dumps(value, _WITHOUT_REFERENCES)


@functools.lru_cache(maxsize=4096)
def _remembered(text: str, parts: tuple[tuple[str, bytes], ...]) -> Any:
    return execute(text, {name: marshal.loads(part) for name, part in parts})


def execute(text: str, variables: Mapping[str, Any]) -> Any:
    """The value of an expression, or `Failed`, by the library alone. `Evaluation` must give the same value."""
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
    """A quantity stays text, which the comparisons parse."""
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
