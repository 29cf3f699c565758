"""
CEL selectors of ResourceClaims: evaluated for kinds of GPUs.

The library `cel` implements the language. This module adds Kubernetes' extensions for devices: the attributes of
`device`, quantities and semantic versions. `contract.encoding.selectors` accepts only cheap expressions. An expression
that fails for a GPU, for example because an attribute is missing, does not accept the GPU.

Results are cached. Any thread may call.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import cel

from contract.encoding import selectors
from contract.encoding.quantity import BadQuantity, parse
from contract.model import WHOLE
from contract.scheduling.selecting import CardSeen

_QUANTITY, _SEMVER = "quantity", "semver"
"""The library does not have these types. A value is passed to it as a map with this key as its only entry."""
_VERSION = re.compile(r"(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})\.(0|[1-9][0-9]{0,8})")
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_THOUSAND = 1000
_MOST = 1 << 62
_SAMPLE = CardSeen("NVIDIA A100-SXM4-40GB", 40 << 30, 0, "8.0", False, "GPU-0")
_SENTENCE = re.compile(r"\. |: the operation|\n")
_FUNCTION_FAILED = re.compile(r"call failed: [A-Za-z]+: (.*?)\. Check function")
_ERRORS = (ValueError, RuntimeError, LookupError, TypeError, ArithmeticError)
"""The exceptions of the library for an expression that does not compile, or has no value."""
_PANIC = "PanicException"
"""The name of the class that the library's bindings raise when its Rust code panics. No module exports it."""


@lru_cache(maxsize=16_384)
def holds(expression: str, card: CardSeen) -> bool:
    """Whether an expression accepts a GPU."""
    try:
        return _value_for(expression, card) is True
    except _ERRORS:
        return False


@lru_cache(maxsize=1_024)
def problem(expression: str) -> str:
    """The error that an expression has for every GPU; empty if none is known."""
    try:
        found = _value_for(expression, _SAMPLE)
    except LookupError:
        return ""  # an attribute is missing, which other GPUs may have
    except _ERRORS as error:
        return _said(error)
    return "" if isinstance(found, bool) else f"its value is no boolean but of Python's type {type(found).__name__}"


def _value_for(expression: str, card: CardSeen) -> Any:
    """Its value for a GPU. Raises `_ERRORS`."""
    with panics_as_errors():
        program, domains = _program(expression)
        return program.execute(_context(card, domains))


@contextmanager
def panics_as_errors() -> Iterator[None]:
    """
    Raise `RuntimeError` where the library panics.

    A panic is no `Exception`: it would pass every handler and end the thread that decides about all pods.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise RuntimeError("the evaluation of the expression failed") from error


@lru_cache(maxsize=512)
def _program(expression: str) -> tuple[Any, frozenset[str]]:
    """The compiled expression, and the domains that it names. Raises `ValueError`."""
    logging.getLogger("cel").disabled = True  # it logs each failure of a function of ours, and a tenant can cause many
    domains = selectors.read(expression).domains | set(selectors.DOMAINS)
    return cel.compile(expression), domains


@lru_cache(maxsize=2_048)
def _context(card: CardSeen, domains: frozenset[str]) -> Any:
    """The variable `device`. As in Kubernetes, a domain without attributes is empty."""
    attributes = _attributes(card)
    capacity = {"memory": {_QUANTITY: card.memory * _THOUSAND}, "cores": {_QUANTITY: WHOLE * _THOUSAND}}
    device = {
        "driver": selectors.OURS,
        "attributes": {name: attributes if name in selectors.DOMAINS else {} for name in domains},
        "capacity": {name: capacity if name in selectors.DOMAINS else {} for name in domains},
        "allowMultipleAllocations": True,
    }
    return cel.Context(variables={"device": device}, functions=dict(_FUNCTIONS))


def _said(error: Exception) -> str:
    """The library's message without its advice about Python."""
    found = _FUNCTION_FAILED.search(str(error))
    return found[1] if found is not None else _SENTENCE.split(str(error), maxsplit=1)[0]


def _attributes(card: CardSeen) -> dict[str, Any]:
    found: dict[str, Any] = {
        "productName": card.model,
        "uuid": card.uuid,
        "type": "mig" if card.slice else "gpu",
    }
    if card.numa >= 0:
        found["numa"] = card.numa
    capability = _CAPABILITY.fullmatch(card.capability)
    if capability:
        found["cudaComputeCapability"] = {_SEMVER: [int(capability[1]), int(capability[2]), 0]}
    return found


# -- what Kubernetes adds to the language -------------------------------------------------------------------------


def _quantity(text: Any) -> dict[str, int]:
    """Thousandths, in which two amounts are compared exactly."""
    if not isinstance(text, str):
        raise TypeError("quantity() needs a text")
    try:
        amount = parse(text) * _THOUSAND
    except BadQuantity as error:
        raise ValueError(str(error)) from error
    if amount != int(amount) or abs(amount) > _MOST:
        raise ValueError(f"{text!r} is beyond the quantities that are compared here")
    return {_QUANTITY: int(amount)}


def _semver(text: Any) -> dict[str, list[int]]:
    found = _VERSION.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError("semver() needs a version such as '8.0.0'")
    return {_SEMVER: [int(part) for part in found.groups()]}


def _parses(convert: Callable[[Any], Any]) -> Callable[[Any], bool]:
    def function(text: Any) -> bool:
        try:
            convert(text)
        except (TypeError, ValueError):
            return False
        return True

    return function


def _order(one: Any, other: Any) -> int:
    """-1, 0 or 1. Raises `TypeError` unless both are quantities or both versions."""
    for kind in (_QUANTITY, _SEMVER):
        if isinstance(one, Mapping) and isinstance(other, Mapping) and kind in one and kind in other:
            return int(one[kind] > other[kind]) - int(one[kind] < other[kind])
    raise TypeError("both must be quantities, or both versions")


def _part(place: int) -> Callable[[Any], int]:
    def function(version: Any) -> int:
        return int(_typed(version, _SEMVER)[place])

    return function


def _typed(value: Any, kind: str) -> Any:
    if not isinstance(value, Mapping) or kind not in value:
        raise TypeError(f"not of type {kind}")
    return value[kind]


def _is_integer(value: Any) -> bool:
    return bool(_typed(value, _QUANTITY) % _THOUSAND == 0)


def _as_integer(value: Any) -> int:
    if not _is_integer(value):
        raise ValueError("no whole number")
    return int(_typed(value, _QUANTITY) // _THOUSAND)


def _ascii(change: Callable[[str], str]) -> Callable[[Any], str]:
    def function(text: Any) -> str:
        if not isinstance(text, str):
            raise TypeError("not a text")
        return "".join(change(each) if each.isascii() else each for each in text)

    return function


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "quantity": _quantity,
    "isQuantity": _parses(_quantity),
    "semver": _semver,
    "isSemver": _parses(_semver),
    "compareTo": _order,
    "isGreaterThan": lambda one, other: _order(one, other) > 0,
    "isLessThan": lambda one, other: _order(one, other) < 0,
    "isInteger": _is_integer,
    "asInteger": _as_integer,
    "major": _part(0),
    "minor": _part(1),
    "patch": _part(2),
    "lowerAscii": _ascii(str.lower),
    "upperAscii": _ascii(str.upper),
}
