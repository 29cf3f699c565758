"""
Names that pods may still have but that a later release does not read: one table, `DEPRECATED`.

    release N     the name gets a row here. It is read as before; kubectl shows the warning, and the metric counts it
    until M       the last release that reads it, at least two minor releases after N; then name and row go together

`docs/deprecations.md` is made from the table, and a test holds it to CHANGELOG.md: `since` has a note that names it,
and no row is older than the release. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deprecation:
    """
    One name. `name`: an annotation, a label or a resource of a container, as a pod has it; an annotation that ends with
    a container's name counts too. `instead`: what to write in its place. `since`, `until`: releases, see above.
    """

    name: str
    instead: str
    since: str
    until: str

    @property
    def warning(self) -> str:
        """The text that kubectl shows to the user who creates such a pod."""
        return f"{self.name} is deprecated since {self.since} and read until {self.until}: {self.instead}"


DEPRECATED: tuple[Deprecation, ...] = ()
"""Everything that is deprecated now, in the order of the names."""


def used(pod: Mapping[str, Any], table: Iterable[Deprecation] = DEPRECATED) -> tuple[Deprecation, ...]:
    """The rows whose names the pod has. A part of the pod with the wrong shape names nothing."""
    rows = tuple(table)
    if not rows:
        return ()
    present = frozenset(_names(pod))
    return tuple(row for row in rows if row.name in present or any(_of_container(row.name, each) for each in present))


def _of_container(name: str, present: str) -> bool:
    return present.startswith(f"{name}.")


def _names(pod: Mapping[str, Any]) -> Iterator[str]:
    metadata, spec = _object(pod.get("metadata")), _object(pod.get("spec"))
    for kind in ("annotations", "labels"):
        yield from _object(metadata.get(kind))
    for kind in ("initContainers", "containers"):
        containers = spec.get(kind)
        for container in containers if isinstance(containers, list) else ():
            resources = _object(_object(container).get("resources"))
            for amounts in ("limits", "requests"):
                yield from _object(resources.get(amounts))


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
