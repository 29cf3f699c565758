"""
One thread that gets what changed, for the small duties alongside the machinery.

A failed duty is tried again a moment later: its object may be in the middle of a change.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence

from playground.api.kinds.values import JSON
from playground.machinery.client.client import Client, Refused, Resource
from playground.machinery.client.informer import Cache, Informer

log = logging.getLogger(__name__)

Duty = Callable[[JSON | None, JSON | None], Refused | None]
"""Gets the old and the new state of an object. A refusal that is worth another try is returned."""

_RETRY_SECONDS = 0.2
_TRIES = 25
_SYNC_SECONDS = 30.0


class Reactor:
    """Watches some resources, and runs the duty of each, one change after the other."""

    def __init__(self, client: Client, duties: Sequence[tuple[Resource, Duty]], stop: threading.Event) -> None:
        self._stop = stop
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._informers = [Informer(client, resource, self._cache(duty), stop) for resource, duty in duties]
        self._resources = [resource for resource, _ in duties]
        self._threads: list[threading.Thread] = []

    def start(self, name: str) -> None:
        """Start, and wait until everything that is there was seen. Raises TimeoutError."""
        for resource, informer in zip(self._resources, self._informers, strict=True):
            self._run(f"{name}-{resource.plural}", informer.run)
        self._run(name, self._work)
        for resource, informer in zip(self._resources, self._informers, strict=True):
            if not informer.synced.wait(_SYNC_SECONDS):
                raise TimeoutError(f"no list of {resource.plural} within {_SYNC_SECONDS:.0f} s")

    def close(self) -> None:
        """End the threads, after the stop event was set."""
        for informer in self._informers:
            informer.close()
        self._inbox.put(None)
        for thread in self._threads:
            thread.join(2.0)

    def _cache(self, duty: Duty) -> Cache:
        cache = Cache()
        cache.on_change(lambda old, new: self._inbox.put(lambda: self._do(duty, old, new)))
        return cache

    def _run(self, name: str, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"playground-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _work(self) -> None:
        while not self._stop.is_set():
            task = self._inbox.get()
            if task is None:
                return
            task()

    def _do(self, duty: Duty, old: JSON | None, new: JSON | None) -> None:
        about = new or old or {}
        refused: Refused | None = None
        for _ in range(_TRIES):
            refused = duty(old, new)
            if refused is None or refused.gone or self._stop.wait(_RETRY_SECONDS):
                return
        log.warning("duty given up", extra={"kind": about.get("kind"), "said": refused.message if refused else ""})
