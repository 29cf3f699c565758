"""
CEL: the expressions of match conditions, admission policies and schema rules.

Evaluation is the library `cel`'s. What Kubernetes adds to the language is limited here to quantities, and an expression
that needs more says so when it is compiled. An error of evaluation is a value: who evaluates decides what it means.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import cel

from contract.encoding.quantity import BadQuantity, parse

_TYPES: Mapping[type, str] = {bool: "bool", str: "string", int: "int", float: "double", list: "list", dict: "map"}


@dataclass(frozen=True, slots=True)
class Failed:
    """An expression that has no value for these variables, for example because a field is missing."""

    message: str


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> Any:
    return cel.compile(text)


def problem(text: str) -> str | None:
    """Why an expression does not compile; None when it does."""
    try:
        _compiled(text)
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
    Expressions over the same variables. An object of a thousand fields takes long to hand over: it is handed over once,
    and only if some expression names it.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        self._waiting = dict(variables)
        self._context = cel.Context(variables={}, functions=dict(_FUNCTIONS))

    def put(self, name: str, value: Any) -> None:
        """The variable has this value from now on."""
        self._waiting[name] = value

    def value(self, text: str) -> Any:
        """The value of an expression, or `Failed`."""
        try:
            for name in [name for name in self._waiting if name in text]:
                self._context.add_variable(name, self._waiting.pop(name))
            return _compiled(text).execute(self._context)
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
