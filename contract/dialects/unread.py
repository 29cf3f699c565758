"""
Annotations in our own domain that nothing reads.

A misspelt annotation is a warning only: a manifest may be written for a newer version than this one. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from contract import names
from contract.dialects import native
from contract.dialects.spelling import MOST_REPORTED, REMOVE, UNDER_LIMITS, UNREAD, Spelling, did_you_mean
from contract.encoding.reading import shown

OURS = f"{names.GROUP}/"
"""The part before the slash in our own names."""
_ALL = tuple(str(key) for key in names.REGISTRY if key.on.startswith("Pod annotation"))
_WHOLE_NAMES = frozenset(_ALL)
_TENANTS = tuple(
    str(key).removeprefix(OURS) for key in names.REGISTRY if key.on == "Pod annotation" and key.writer == "tenant"
)
_PREFIXES = (*(name if name.endswith(".") else f"{name}." for name in _ALL), *names.DEVICE_ANNOTATION_PREFIXES)


def unread_annotations(annotations: Iterable[str], spelling: Spelling | None = None) -> Iterator[str]:
    """A warning for each annotation in our own domain that nothing reads; one at the end stands for the rest."""
    spelling = spelling or Spelling()
    unread = sorted(
        each
        for each in annotations
        if each.startswith(OURS) and each not in _WHOLE_NAMES and not each.startswith(_PREFIXES)
    )
    for each in unread[:MOST_REPORTED]:
        yield f"metadata.annotations[{shown(each)[1:-1]}]: {UNREAD}; {_cure(each, spelling)}"
    if len(unread) > MOST_REPORTED:
        yield f"metadata.annotations: nothing reads {len(unread) - MOST_REPORTED} more of {names.GROUP}; remove them"


def _cure(name: str, spelling: Spelling) -> str:
    if name in native.DIALECT.resources:
        return UNDER_LIMITS
    near = spelling.closest(name.removeprefix(OURS), _TENANTS)
    return did_you_mean(f"{OURS}{near}") if near else REMOVE
