"""
Values that others wrote: how they are checked, and how a message shows them.

- `Reader` reads typed fields of JSON. It knows types and ranges; the codecs know what the fields mean. It returns a
  value of the right type or raises `Malformed`, and no other exception.
- `is_label` and its siblings check names by the rules of Kubernetes ("Object Names and IDs": RFC 1123 labels and
  subdomains). Other text must not become part of a path, a key, a log line or a series.
- `shown` shows a value in a message, short and on one line. A tenant's value may be megabytes of text, nested deeply,
  or a number that Python refuses to print, and messages go to kubectl, Events and logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from contract.encoding.plain import NAME, is_plain, plain, stand_in
from contract.model import LONGEST_WORD, MOST_WORDS, POLICIES

_LONGEST_SHOWN = 80
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = re.compile(r"[!-~]{1,128}")
_LONGEST_NAME = 253
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,126}/[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_KINDS = 4
_NO_UUID = frozenset(("all", "none", "void"))
"""Words that mean more than one GPU, or none, where a GPU's UUID is expected (NVIDIA container toolkit)."""


def shown(value: object, *, most: int = _LONGEST_SHOWN) -> str:
    """The `repr` of a value, cut to `most` characters in its middle. Never raises for values that came from JSON."""
    if isinstance(value, str):
        value = value if len(value) <= most else value[:most] + value[-most:]
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        return f"<{type(value).__name__} too large to show>"
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[:half]}...{text[-half:]}"


def words(text: object) -> tuple[str, ...]:
    """The words of a text that is a list with commas, without spaces around them; none of an absent one."""
    return tuple(word for word in (part.strip() for part in str(text or "").split(",")) if word)


def is_label(text: str) -> bool:
    """Whether a namespace or a container can have this name."""
    return _LABEL.fullmatch(text) is not None


def is_subdomain(text: str) -> bool:
    """Whether a pod or a node can have this name."""
    return len(text) <= _LONGEST_NAME and _SUBDOMAIN.fullmatch(text) is not None


def is_beginning(text: str) -> bool:
    """Whether this can be a pod's `generateName`: the beginning of a name, which may end in a dash or a dot."""
    return len(text) <= _LONGEST_NAME and is_subdomain(text.rstrip("-.") or "-") and ".." not in text


def is_uid(text: str) -> bool:
    """Whether this can be an object's or a review's uid: an API server makes UUIDs, others short text."""
    return _UID.fullmatch(text) is not None


def are_kinds(text: str) -> bool:
    """Whether this lists CDI kinds, `vendor/class`, separated by commas (CDI specification); empty text lists none."""
    found = text.split(",") if text else []
    return len(found) <= _MOST_KINDS and all(_KIND.fullmatch(kind) for kind in found)


class Malformed(ValueError):
    """The document has the wrong form. The message names the wrong part."""


class Reader:
    """Reads typed fields of a JSON object. Its methods raise `Malformed` with the path of a wrong field."""

    def __init__(self, value: object, path: str) -> None:
        if not isinstance(value, Mapping):
            raise Malformed(f"{path} is not an object")
        self._value = value
        self._path = path

    def has(self, key: str) -> bool:
        """Whether the field is present and not null."""
        return self._value.get(key) is not None

    def object(self, key: str) -> Reader:
        return Reader(self._value.get(key), f"{self._path}.{key}")

    def text(self, key: str, default: str | None = None) -> str:
        """Text; a field without a default must be present."""
        value = self._value.get(key, default)
        if not isinstance(value, str):
            raise Malformed(f"{self._path}.{key} is not text")
        return value

    def line(self, key: str, default: str | None = None, *, most: int = NAME) -> str:
        """Text for people, made fit to be shown (`contract.encoding.plain`)."""
        return plain(self.text(key, default), most)

    def label_or(self, key: str, otherwise: str) -> str:
        """As `label`; `otherwise` for everything else, also for what is no text."""
        value = self._value.get(key)
        return value if isinstance(value, str) and is_label(value) else otherwise

    def label(self, key: str) -> str:
        """The name of a namespace or a container."""
        value = self.text(key)
        if not is_label(value):
            raise Malformed(f"{self._path}.{key} is not a name of at most 63 of a-z, 0-9 and -")
        return value

    def name(self, key: str, default: str | None = None) -> str:
        """The name of an object, or the default."""
        value = self.text(key, default)
        if value != default and not is_subdomain(value):
            raise Malformed(f"{self._path}.{key} is not a name of at most 253 of a-z, 0-9, - and .")
        return value

    def named(self, key: str, default: str | None = None) -> str:
        """The name of an object, or the default; for text that is no name a name that stands for it (`stand_in`)."""
        value = self.text(key, default)
        return value if value == default or is_subdomain(value) else stand_in(value)

    def uuid(self, key: str) -> str:
        """The UUID of one GPU."""
        value = self.text(key)
        if not _UUID.fullmatch(value) or value in _NO_UUID:
            raise Malformed(f"{self._path}.{key} is not the UUID of a GPU")
        return value

    def policy(self, key: str) -> str:
        """One of `POLICIES`, or empty."""
        value = self.text(key, "")
        if value not in ("", *POLICIES):
            raise Malformed(f"{self._path}.{key} is neither {' nor '.join(POLICIES)}")
        return value

    def amount(self, key: str, default: int | None = None, *, most: int = 1 << 62) -> int:
        """A whole number from 0 to `most`."""
        value = self._value.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
            raise Malformed(f"{self._path}.{key} is not a whole number from 0 to {most}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._value.get(key, default)
        if not isinstance(value, bool):
            raise Malformed(f"{self._path}.{key} is neither true nor false")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of text; empty where the field is absent."""
        value = self._value.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise Malformed(f"{self._path}.{key} is not a list of text")
        return tuple(value)

    def words(self, key: str) -> tuple[str, ...]:
        """A list of models or UUIDs within the bounds for tenants; empty where the field is absent."""
        found = self.texts(key)
        # The list may be joined from a dialect's own and ours.
        if len(found) > 2 * MOST_WORDS or any(len(word) > LONGEST_WORD for word in found):
            raise Malformed(f"{self._path}.{key} has more than {2 * MOST_WORDS} words, or too long ones")
        if not all(is_plain(word, 4 * LONGEST_WORD) for word in found):
            raise Malformed(f"{self._path}.{key} has characters that cannot be shown")
        return found

    def lines(self, key: str, *, most: int = NAME) -> tuple[str, ...]:
        """A list of text for people, each made fit to be shown; empty where the field is absent."""
        return tuple(plain(text, most) for text in self.texts(key))

    def objects(self, key: str, *, most: int | None = None) -> list[Reader]:
        """A list of at most `most` objects; empty where the field is absent."""
        value = self._value.get(key, [])
        if not isinstance(value, list):
            raise Malformed(f"{self._path}.{key} is not a list")
        if most is not None and len(value) > most:
            raise Malformed(f"{self._path}.{key} has more than {most} items")
        return [Reader(item, f"{self._path}.{key}[{i}]") for i, item in enumerate(value)]
