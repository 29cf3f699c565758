"""
Plays the parts of a peer's node agents, since no kubelet runs: a few threads react to each change of a collection.

It works in the benchmark's own process, so that its time is not counted: only the API server's work for it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from runtime.kubernetes.client import Listing
from runtime.kubernetes.errors import KubeError

JSON = dict[str, Any]
Work = Callable[[], None]
React = Callable[[str, JSON], Work | None]
"""
Gets the type of a watch's event and the object, one change after the other. Returns work, which other threads do
meanwhile. A listed object counts as ADDED, and one that is not listed any more as DELETED.
"""


class Client(Protocol):
    """The calls of the players to the API server."""

    def get(self, path: str) -> JSON: ...

    def patch_merge(self, path: str, body: JSON) -> JSON: ...


class Watched(Protocol):
    """The calls to the API server that follow a collection."""

    def list(self, path: str) -> Listing: ...

    def watch(
        self, path: str, *, resource_version: str, timeout_seconds: int, on_open: Callable[[Callable[[], None]], None]
    ) -> Iterator[JSON]: ...


log = logging.getLogger(__name__)
_WORKERS = 8
_SECONDS, _PAUSE = 300, 0.5


@contextlib.contextmanager
def reacting(kube: Watched, path: str, react: React, *, workers: int = _WORKERS) -> Iterator[None]:
    """
    Meanwhile `react` is called with each change of this collection. So many threads do the work that it returns.

    An object can be seen twice. An error of the API server ends that one piece of work.
    """
    watch = _Watch(kube, path)
    with ThreadPoolExecutor(workers, thread_name_prefix="played") as pool:

        def tell(happened: str, seen: JSON) -> None:
            work = react(happened, seen)
            if work is not None:
                _submit(pool, work, seen["metadata"]["name"])

        thread = threading.Thread(target=watch.run, args=(tell,), name="played", daemon=True)
        thread.start()
        try:
            yield
        finally:
            watch.end()
            thread.join(_PAUSE)


def _submit(pool: ThreadPoolExecutor, work: Work, name: str) -> None:
    def do() -> None:
        try:
            work()
        except KubeError as error:
            log.warning("not played", extra={"name": name, "error": str(error)})

    with contextlib.suppress(RuntimeError):  # the pool has ended
        pool.submit(do)


class _Watch:
    """Lists a collection and watches it from there, repeatedly, until `end`."""

    def __init__(self, kube: Watched, path: str) -> None:
        self._kube = kube
        self._path = path
        self._known: dict[str, JSON] = {}
        self._ended = threading.Event()
        self._close: Callable[[], None] = lambda: None

    def end(self) -> None:
        self._ended.set()
        self._close()

    def run(self, tell: Callable[[str, JSON], None]) -> None:
        while not self._ended.is_set():
            try:
                self._once(tell)
            except KubeError:
                self._ended.wait(_PAUSE)

    def _once(self, tell: Callable[[str, JSON], None]) -> None:
        listing = self._kube.list(self._path)
        listed = {each["metadata"]["uid"]: each for each in listing.items}
        for uid in self._known.keys() - listed.keys():
            tell("DELETED", self._known[uid])
        for each in listing.items:
            tell("ADDED", each)
        self._known = listed
        version = listing.resource_version
        events = self._kube.watch(self._path, resource_version=version, timeout_seconds=_SECONDS, on_open=self._opened)
        for event in events:
            if self._ended.is_set() or event["type"] == "ERROR":
                return
            if event["type"] != "BOOKMARK":
                self._note(event["type"], event["object"])
                tell(event["type"], event["object"])

    def _note(self, happened: str, seen: JSON) -> None:
        if happened == "DELETED":
            self._known.pop(seen["metadata"]["uid"], None)
        else:
            self._known[seen["metadata"]["uid"]] = seen

    def _opened(self, close: Callable[[], None]) -> None:
        self._close = close
        if self._ended.is_set():
            close()
