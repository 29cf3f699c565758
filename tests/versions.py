"""
The minor versions of Kubernetes on which the suite runs: what they word differently, and what not all of them have.

A test asks the API server for its version, never the name of a program or the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

Minor = tuple[int, int]
QUOTED_VALUES: Minor = (1, 34)
"""From here on an invalid quantity is written as in manifests; before, as in the server's memory."""
WHOLE_PODS: Minor = (1, 34)
"""From here on pods ask for resources as a whole (`spec.resources`); before, the field is dropped."""


@dataclass(frozen=True, slots=True)
class Worded:
    """A part of a message: `now` from a version on, `before` in the older ones."""

    since: Minor
    now: str
    before: str

    def at(self, version: Minor) -> str:
        """The part as this version says it."""
        return self.now if version >= self.since else self.before


def unsaid(message: str, parts: Iterable[str | Worded], version: Minor) -> list[str]:
    """The parts that the message of such a server lacks."""
    worded = [part.at(version) if isinstance(part, Worded) else part for part in parts]
    return [part for part in worded if part not in message]


def needs(since: Minor, version: Minor) -> None:
    """Skip a test of what comes with a later version than the server's."""
    if version < since:
        pytest.skip(f"needs Kubernetes {shown(since)}; this is {shown(version)}")


def shown(version: Minor) -> str:
    """As people write it."""
    return ".".join(map(str, version))
