"""
The canonical text of a quantity, in which a real API server stores every one it decodes.

No fraction, no exponent that could be larger: `1000m` becomes `1`, `1024Mi` becomes `1Gi`, and `10000` becomes `10k`. A
program that compares what it wrote with what it reads meets this on every cluster.
"""

import functools
from typing import Any

from contract.encoding.quantity import BadQuantity, parse
from playground.api.kinds.values import JSON

_BINARY = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_NANO = 10**9


@functools.lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """The canonical form; text that is no quantity comes back as it is, for validation to complain about."""
    try:
        exact = parse(text)
    except BadQuantity:
        return text
    if text.endswith("i") and (exact.denominator == 1 and abs(exact) >= 1024):
        return _reduced(exact.numerator, 1024, _BINARY)
    if text[-1].isdigit() and ("e" in text or "E" in text):
        return text
    nanos = exact * _NANO
    return _reduced(-(-nanos.numerator // nanos.denominator), 1000, _DECIMAL)


def _reduced(amount: int, base: int, suffixes: tuple[str, ...]) -> str:
    if amount == 0:
        return "0"
    for i, suffix in enumerate(suffixes):
        if amount % base or i == len(suffixes) - 1:
            return f"{amount}{suffix}"
        amount //= base
    return str(amount)


def canonicalize(amounts: Any) -> None:
    """Rewrite the values of a resource list, in place. Numbers become text."""
    if not isinstance(amounts, dict):
        return
    for name, amount in amounts.items():
        if isinstance(amount, str | int | float) and not isinstance(amount, bool):
            amounts[name] = canonical(str(amount))


def canonicalize_at(value: JSON, *path: str) -> None:
    for key in path:
        inner = value.get(key)
        if not isinstance(inner, dict):
            return
        value = inner
    canonicalize(value)
