"""
The placement of a pod set by Kueue's topology-aware scheduling: the number of pods in each domain, such as a rack.

Each version of Kueue's API has its own format. v1beta1 lists the domains; v1beta2 has slices of domains, which contain
a value common to all domains, or its prefix and suffix, only once. Pure. Reading may raise any exception for a document
of another shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

JSON = dict[str, Any]
MOST_DOMAINS = 4096
"""The most domains of one pod set that are read; each has at least one pod."""


@dataclass(frozen=True, slots=True)
class TopologyDomain:
    """This many pods run on nodes with these labels."""

    selector: tuple[tuple[str, str], ...]
    count: int


def domains(assignment: Mapping[str, Any] | None) -> tuple[TopologyDomain, ...]:
    """The domains of a `topologyAssignment`, in its order; none without an assignment."""
    if not assignment:
        return ()
    levels = [str(level) for level in assignment["levels"]]
    return tuple(islice(_domains(levels, assignment), MOST_DOMAINS))


def _domains(levels: Sequence[str], assignment: Mapping[str, Any]) -> Iterator[TopologyDomain]:
    for each in assignment.get("domains") or ():
        yield _domain(levels, each["values"], each["count"])
    for part in assignment.get("slices") or ():
        for position in range(int(part["domainCount"])):
            values = [_value(level, position) for level in part["valuesPerLevel"]]
            yield _domain(levels, values, _at(part["podCounts"], position))


def _domain(levels: Sequence[str], values: Sequence[str], count: int) -> TopologyDomain:
    return TopologyDomain(tuple(sorted(zip(levels, map(str, values), strict=True))), int(count))


def _value(level: JSON, position: int) -> str:
    if "universal" in level:
        return str(level["universal"])
    found = level["individual"]
    return f"{found.get('prefix') or ''}{found['roots'][position]}{found.get('suffix') or ''}"


def _at(counts: JSON, position: int) -> int:
    return int(counts["universal"] if "universal" in counts else counts["individual"][position])
