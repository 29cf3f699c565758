"""
The minor versions of Kubernetes that the suite runs on: which messages differ, and which features not all of them have.

A test reads the version from the API server, never from a program's name or the environment.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pytest

Minor = tuple[int, int]
QUOTED_VALUES: Minor = (1, 34)
"""From this version on, an invalid quantity is shown as in manifests; before, as in the server's memory."""
WHOLE_PODS: Minor = (1, 34)
"""
From this version on, pods can request resources for the whole pod (`spec.resources`); earlier versions drop the field.
"""


@dataclass(frozen=True, slots=True)
class Worded:
    """A part of a message: `now` from a version on, `before` in older versions."""

    since: Minor
    now: str
    before: str

    def at(self, version: Minor) -> str:
        """The part as this version words it."""
        return self.now if version >= self.since else self.before


def unsaid(message: str, parts: Iterable[str | Worded], version: Minor) -> list[str]:
    """The parts that this server's messages lack."""
    worded = [part.at(version) if isinstance(part, Worded) else part for part in parts]
    return [part for part in worded if part not in message]


def needs(since: Minor, version: Minor) -> None:
    """Skip a test that needs a later version than the server's."""
    if version < since:
        pytest.skip(f"needs Kubernetes {shown(since)}; this is {shown(version)}")


def shown(version: Minor) -> str:
    """The version as people write it."""
    return ".".join(map(str, version))
