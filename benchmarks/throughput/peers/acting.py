"""
What is played of a peer's node agents, since no kubelet runs: a few threads react to each change of a collection.

It works in the benchmark's own process, so that its time is not counted: only what the API server works for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeError

JSON = dict[str, Any]
React = Callable[[str, JSON], None]
"""Gets what happened to an object, as a watch says it, and the object. What is listed counts as ADDED."""


class Client(Protocol):
    """What those who play call of the API server."""

    def get(self, path: str) -> JSON: ...

    def patch_merge(self, path: str, body: JSON) -> JSON: ...


log = logging.getLogger(__name__)
_WORKERS = 8
_SECONDS, _PAUSE = 300, 0.5


@contextlib.contextmanager
def reacting(kube: Kube, path: str, react: React, *, workers: int = _WORKERS) -> Iterator[None]:
    """
    Meanwhile `react` is called with each change of this collection, in so many threads.

    One object can be seen twice, and two changes at once. An error of the API server ends that one call.
    """
    watch = _Watch(kube, path)
    with ThreadPoolExecutor(workers, thread_name_prefix="played") as pool:
        thread = threading.Thread(
            target=watch.run, args=(lambda *seen: _submit(pool, react, *seen),), name="played", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            watch.end()
            thread.join(_PAUSE)


def _submit(pool: ThreadPoolExecutor, react: React, happened: str, seen: JSON) -> None:
    def call() -> None:
        try:
            react(happened, seen)
        except KubeError as error:
            log.warning("not played", extra={"name": seen["metadata"]["name"], "error": str(error)})

    with contextlib.suppress(RuntimeError):  # the pool has ended
        pool.submit(call)


class _Watch:
    """Lists a collection and watches it from there, again and again, until `end`."""

    def __init__(self, kube: Kube, path: str) -> None:
        self._kube = kube
        self._path = path
        self._ended = threading.Event()
        self._close: Callable[[], None] = lambda: None

    def end(self) -> None:
        self._ended.set()
        self._close()

    def run(self, tell: React) -> None:
        while not self._ended.is_set():
            try:
                self._once(tell)
            except KubeError:
                self._ended.wait(_PAUSE)

    def _once(self, tell: React) -> None:
        listing = self._kube.list(self._path)
        for each in listing.items:
            tell("ADDED", each)
        version = listing.resource_version
        events = self._kube.watch(self._path, resource_version=version, timeout_seconds=_SECONDS, on_open=self._opened)
        for event in events:
            if self._ended.is_set() or event["type"] == "ERROR":
                return
            if event["type"] != "BOOKMARK":
                tell(event["type"], event["object"])

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._ended.is_set():
            close()
