"""
Informers that start once they are needed: for claims, volumes and related objects, once a pod that requests a share has
a claim; of ResourceClaims and DeviceClasses, once such a pod names one, or an extended resource; of Services and
controllers, once the administrator has set default topology spread constraints.

A cluster that does not need them has no cost. Objects are trimmed as they come: a claim then has some hundred bytes. An
unreadable one counts as absent, so a pod that needs it waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from allocator.neighbours.followed import FollowedKind, key_of
from allocator.scheduler.core import Controller
from allocator.scheduler.events import StorageChanged, StorageDeleted, StorageListed
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Put, Replaced
from runtime.supervision import Workers

JSON = dict[str, Any]
log = logging.getLogger(__name__)

_EVERY = 0.2
"""Seconds between two looks at whether they are needed."""


class InformersOnDemand:
    """Waits until some kinds are needed, and then watches all of them. `why`: the purpose, for the log."""

    def __init__(
        self,
        kube: Kube,
        controller: Controller,
        kinds: Iterable[FollowedKind],
        *,
        wanted: Callable[[], bool],
        why: str,
        on_restart: Callable[[str, str], None],
        workers: Workers | None = None,
    ) -> None:
        self._kube = kube
        self._controller = controller
        self._on_restart = on_restart
        self._workers = workers
        self._kinds = tuple(kinds)
        self._wanted = wanted
        self._why = why
        self._informers: tuple[Informer, ...] = ()

    @property
    def name(self) -> str:
        """Of what it follows."""
        return "-".join(kind.plural for kind in self._kinds)

    def run(self, stop: threading.Event) -> None:
        """Until stopped."""
        while not self._wanted():
            if stop.wait(_EVERY):
                return
        log.info("following %s: %s", ", ".join(kind.plural for kind in self._kinds), self._why)
        self._informers = tuple(self._informer(kind) for kind in self._kinds)
        for informer in self._informers:
            informer.start()
        stop.wait()
        for informer in self._informers:
            informer.stop()

    def _informer(self, kind: FollowedKind) -> Informer:
        def restarted(why: str) -> None:
            self._on_restart(kind.plural, why)

        def handle(event: Event) -> None:
            for changed in _events(kind, event):
                self._controller.handle(changed)

        return Informer(
            self._kube,
            paths.path(kind.group_version, kind.plural),
            handle,
            name=kind.plural,
            of=kind.of,
            on_restart=restarted,
            optional=True,
            workers=self._workers,
        )


def _events(kind: FollowedKind, event: Event) -> list[StorageListed | StorageChanged | StorageDeleted]:
    match event:
        case Replaced(items):
            read = ((key_of(item), _read(kind, item)) for item in items)
            return [StorageListed(kind.plural, tuple((key, found) for key, found in read if found is not None))]
        case Put(item):
            found = _read(kind, item)
            if found is not None:
                return [StorageChanged(kind.plural, key_of(item), found)]
            return [StorageDeleted(kind.plural, key_of(item))]
        case Deleted(item):
            return [StorageDeleted(kind.plural, key_of(item))]
    return []


def _read(kind: FollowedKind, document: Mapping[str, Any]) -> object | None:
    try:
        return kind.read(document)
    except Exception as error:
        namespace, name = key_of(document)
        log.warning(
            "object unreadable",
            extra={"kind": kind.plural, "namespace": namespace, "object": name, "reason": type(error).__name__},
        )
        return None
