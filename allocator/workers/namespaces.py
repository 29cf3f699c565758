"""
Numbers in labels of namespaces: weights in the fair queue, and the time after which idle pods may be evicted.

Only namespaces with the label are requested. If the API server does not answer, the former values still count. A value
that cannot be read is logged once, and is left out.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from contract import kinds
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeError

log = logging.getLogger(__name__)
JSON = dict[str, Any]

_EVERY = 10.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class NamespaceLabel:
    """
    A label, and its reader: `tell` gets what `read` makes of each value, by namespace, after each look.

    `read` gives None for a value that it cannot read, and `misread` the sentence about it.
    """

    name: str
    read: Callable[[str], int | None]
    misread: Callable[[str, str], str]
    tell: Callable[[Mapping[str, int]], None]


class NamespaceLabels:
    """Follows labels of namespaces."""

    def __init__(self, kube: Kube, labels: Sequence[NamespaceLabel], *, timeout: float) -> None:
        """`timeout`, in seconds, of one look."""
        self._kube = kube
        self._labels = labels
        self._timeout = timeout
        self._logged: dict[str, frozenset[str]] = {}

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not stop.wait(_EVERY):
            self.once()

    def once(self) -> None:
        """One look at each label."""
        for label in self._labels:
            self._look(label)

    def _look(self, label: NamespaceLabel) -> None:
        def valued(namespace: JSON) -> JSON:
            metadata = namespace.get("metadata") or {}
            return {"name": metadata.get("name", ""), "value": (metadata.get("labels") or {}).get(label.name, "")}

        try:
            listed = self._kube.list(
                paths.namespaces(),
                {"labelSelector": label.name},
                of=kinds.NAMESPACES,
                trim=valued,
                timeout=self._timeout,
            )
        except KubeError as error:
            log.warning("labels of namespaces not read", extra={"label": label.name, "reason": str(error)})
            return
        found = {each["name"]: label.read(each["value"]) for each in listed.items}
        odd = frozenset(
            label.misread(each["name"], each["value"]) for each in listed.items if found[each["name"]] is None
        )
        for sentence in sorted(odd - self._logged.get(label.name, frozenset())):
            log.warning("label of a namespace not usable", extra={"reason": sentence})
        self._logged[label.name] = odd
        label.tell({name: number for name, number in found.items() if number is not None})
