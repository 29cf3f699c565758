"""
The administrator's options by way of the API: for an agent in another namespace, which cannot mount their ConfigMap.

It follows the rules of the mounted file (`runtime.livefile`): content that cannot be read is refused as a whole and the
last good content stays in use; a missing ConfigMap counts as empty, because it is optional. Until the ConfigMap was
looked for, nothing is known, and the agent reports this: without the right it publishes what its node had before,
and says so.

Must not: start a thread, or read the API (`nodeagent.app` has the informer).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from contract import names
from contract.options import PoolOptions, pool_options
from nodeagent.publishing.terms import PoolDocument
from runtime.kubernetes.watch import Deleted, Event, Put, Replaced
from runtime.livefile import UnreadableContent, yaml_reader

log = logging.getLogger(__name__)
JSON = dict[str, Any]
WHERE = f"ConfigMap {names.NAMESPACE}/{names.OPTIONS}"
_READ = yaml_reader(pool_options)
_FIRST = 10.0
"""Seconds that a start waits for the ConfigMap before it publishes without it."""


class FollowedOptions:
    """`event` takes the watch's events; `document` and `awaited` return what is known. Safe to call from any thread."""

    def __init__(self, changed: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._changed = changed
        self._clock = clock
        self._until = clock() + _FIRST
        self._lock = threading.Lock()
        self._good: PoolOptions | None = None
        self._trouble = f"{WHERE}: it has not been read yet; may the agent list and watch it?"
        self._known = False

    def document(self) -> PoolDocument:
        """The options in use, and why the present content is not."""
        with self._lock:
            return PoolDocument(self._good, self._trouble)

    def awaited(self) -> bool:
        """Whether it is too early to publish: a node's first look would offer what the options may forbid."""
        with self._lock:
            return not self._known and self._clock() < self._until

    def event(self, event: Event) -> None:
        """Called with each event of a watch of this one ConfigMap."""
        match event:
            case Put(found) | Replaced([found, *_]):
                self._take(found)
            case Deleted() | Replaced():
                self._take({})

    def _take(self, configmap: JSON) -> None:
        text = (configmap.get("data") or {}).get(names.OPTIONS_FILE, "")
        with self._lock:
            before = (self._known, self._good, self._trouble)
            self._known = True
            try:
                self._good, self._trouble = _READ(text), ""
            except UnreadableContent as error:
                self._trouble = f"{WHERE}: {error}"
            differs = before != (self._known, self._good, self._trouble)
            trouble = self._trouble
        if differs and trouble:
            log.error("refused; the options in use stay", extra={"reason": trouble})
        if differs:
            self._changed()
