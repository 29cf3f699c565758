"""
Values that others wrote: how they are checked, and how a message shows them.

- `is_label` and its siblings check names by the rules of Kubernetes ("Object Names and IDs": RFC 1123 labels and
  subdomains). Other text must not become part of a path, a key, a log line or a series.
- `shown` shows a value in a message, short and on one line. A tenant's value may be megabytes of text, nested deeply,
  or a number that Python refuses to print, and messages go to kubectl, Events and logs.
"""

from __future__ import annotations

import re

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


def is_gpu(text: str) -> bool:
    """Whether this can be the UUID of one GPU."""
    return _UUID.fullmatch(text) is not None and text not in _NO_UUID


def are_kinds(text: str) -> bool:
    """Whether this lists CDI kinds, `vendor/class`, separated by commas (CDI specification); empty text lists none."""
    found = text.split(",") if text else []
    return len(found) <= _MOST_KINDS and all(_KIND.fullmatch(kind) for kind in found)


class Malformed(ValueError):
    """The document has the wrong form. The message names the wrong part."""
