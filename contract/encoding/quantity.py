"""
Kubernetes quantities to exact integers and back.

Exact: amounts are never floats, since both 10^18 bytes and `0.1` must stay what they are. The grammar is that of the
Kubernetes resource model: a decimal number, then a binary suffix (`Ki` .. `Ei`), a decimal suffix (`n` `u` `m` `k`
`M` .. `E`) or a decimal exponent (`e3`).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

from contract.encoding.reading import shown

T = TypeVar("T")

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?P<suffix>[numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]{1,3})?"
)
_SUFFIX: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{s: Fraction(10 ** (3 * i)) for i, s in enumerate("kMGTPE", 1)},
    **{s + "i": Fraction(1 << (10 * i)) for i, s in enumerate("KMGTPE", 1)},
}
_LONGEST = 64
_MOST_BITS = 200
"""Longer text and larger numbers are refused without parsing; no real amount needs them."""


class BadQuantity(ValueError):
    """The value is not a quantity, or not a whole number. The message says which, without the field's name."""


def _remembered(read: Callable[[object], T]) -> Callable[[object], T]:
    """Caches `read`: a cluster's pods have few different amounts, and parsing costs ten times as much as a look-up."""
    known = functools.lru_cache(maxsize=4096)(read)

    @functools.wraps(read)
    def reading(value: object) -> T:
        # Only these types: the cache would find True and 1.0 under 1, and True is not a quantity.
        return known(value) if type(value) in (str, int) else read(value)

    return reading


@_remembered
def parse(value: object) -> Fraction:
    """The exact value of a quantity given as text or as a number. Raises `BadQuantity`."""
    match = _QUANTITY.fullmatch(_text(value))
    if match is None:
        raise BadQuantity(f"{shown(value)} is not a quantity such as 5, 500m or 8Gi")
    number, suffix = match["number"], match["suffix"] or ""
    if suffix not in _SUFFIX:
        return Fraction(number) * Fraction(10) ** int(suffix[1:])
    return Fraction(number) * _SUFFIX[suffix]


def _text(value: object) -> str:
    """The text to parse; empty, which is no quantity, for other types and for what is too long."""
    if isinstance(value, str):
        return value if len(value) <= _LONGEST else ""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ""
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return ""  # Python raises for the text of very large integers
    return repr(value)


@_remembered
def integer(value: object) -> int:
    """The value of a quantity that must be a whole number (bytes, counts, percents). Raises `BadQuantity`."""
    exact = parse(value)
    if exact.denominator != 1:
        raise BadQuantity(f"{shown(value)} is not a whole number")
    return exact.numerator


def integer_or(value: object, default: int) -> int:
    """As `integer`, with the default for anything that is not a whole number."""
    try:
        return integer(value)
    except BadQuantity:
        return default


def is_zero(value: object) -> bool:
    """Whether the value is a quantity of zero; False if it is not a quantity."""
    try:
        return parse(value) == 0
    except BadQuantity:
        return False


@_remembered
def rounded_up(value: object) -> int:
    """The value rounded up to an integer, as Kubernetes rounds a request for bytes. Raises `BadQuantity`."""
    exact = parse(value)
    return -(-exact.numerator // exact.denominator)


@_remembered
def milli(value: object) -> int:
    """Thousandths, rounded up: `500m` of CPU is 500, `2` is 2000. Raises `BadQuantity`."""
    exact = parse(value) * 1000
    return -(-exact.numerator // exact.denominator)


_SHORTENED = re.compile("[0-9]{1,18}k")


def written(value: object) -> str:
    """
    An amount for a message, as its author probably wrote it: an API server rewrites `8000` as `8k`.

    `8M` stays, since that is more likely the author's own form.
    """
    if isinstance(value, str) and _SHORTENED.fullmatch(value):
        return repr(str(integer(value)))
    return shown(value)


def format_bytes(amount: int) -> str:
    """Exactly `amount` bytes, with the largest binary suffix that divides them: 8589934592 is `8Gi`, 1000 is `1000`."""
    if amount:
        for power, suffix in ((60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
            if amount % (1 << power) == 0:
                return f"{amount >> power}{suffix}"
    return str(amount)


def mib(amount: int) -> int:
    """Whole MiB in `amount` bytes, rounded down: a limit made from it never exceeds the share."""
    return amount >> 20


def spoken(amount: int) -> str:
    """Bytes in a sentence: `5 GiB`, or `5000 MiB` where it is no whole number of GiB; rounded down to MiB."""
    return f"{amount // GIB} GiB" if amount and amount % GIB == 0 else f"{mib(amount)} MiB"
