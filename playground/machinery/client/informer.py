"""
The machinery's caches of the cluster: one for each kind, filled by one list and then a watch.

A component puts the response to each of its writes into the cache (`observe`), so that a controller never counts a pod
that it has just created as missing. This is exact because the server numbers all changes of a kind in one order: the
cache drops a response that is older than what the watch has delivered.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from playground.api.kinds.values import JSON
from playground.machinery.client.client import Client, Refused, Resource, Watching

log = logging.getLogger(__name__)

Name: TypeAlias = tuple[str, str]
"""Namespace, empty for cluster scope, and name."""
Handler: TypeAlias = Callable[[JSON | None, JSON | None], None]
"""Gets the old and the new state of an object, in the order of changes. A new object has no old state, and a deleted
object has no new state."""
Indexer: TypeAlias = Callable[[JSON], Iterable[str]]

RETRY_SECONDS = 0.5


def name_of(value: JSON) -> Name:
    return value["metadata"].get("namespace", ""), value["metadata"]["name"]


def version_of(value: JSON) -> int:
    return int(value["metadata"]["resourceVersion"])


def by_owner(value: JSON) -> Iterable[str]:
    """The uid of the controller that owns the object."""
    return [owner["uid"] for owner in value["metadata"].get("ownerReferences") or () if owner.get("controller")]


class Cache:
    """The latest known state of every object of one kind. Thread safe. Callers must not change the objects."""

    def __init__(self, indexers: Mapping[str, Indexer] | None = None) -> None:
        self._lock = threading.RLock()
        self._indexers = dict(indexers or {})
        self._objects: dict[Name, JSON] = {}
        self._index: dict[str, dict[str, dict[Name, JSON]]] = {name: {} for name in self._indexers}
        self._passed = 0
        self._handlers: list[Handler] = []

    def on_change(self, handler: Handler) -> None:
        """Call it before the informer starts."""
        self._handlers.append(handler)

    def get(self, namespace: str, name: str) -> JSON | None:
        with self._lock:
            return self._objects.get((namespace, name))

    def all(self) -> list[JSON]:
        with self._lock:
            return list(self._objects.values())

    def find(self, index: str, key: str) -> list[JSON]:
        """The objects that `index` files under `key`."""
        with self._lock:
            return list(self._index[index].get(key, {}).values())

    def observe(self, value: JSON) -> None:
        """Add the response to one of our own writes."""
        with self._lock:
            if version_of(value) > self._passed:
                self._put(value)

    def applied(self, event: JSON) -> None:
        """Apply one watch event."""
        value = event["object"]
        with self._lock:
            self._passed = max(self._passed, version_of(value))
            if event["type"] == "DELETED":
                self._remove(value)
            elif event["type"] in ("ADDED", "MODIFIED"):
                self._put(value)

    def replaced(self, items: Iterable[JSON], version: int) -> None:
        """Apply a list: objects that are not in it were deleted."""
        with self._lock:
            self._passed = max(self._passed, version)
            present = {name_of(item): item for item in items}
            for name, old in list(self._objects.items()):
                if name not in present and version_of(old) <= version:
                    self._remove({**old, "metadata": {**old["metadata"], "resourceVersion": str(version)}})
            for item in present.values():
                self._put(item)

    def _put(self, value: JSON) -> None:
        name = name_of(value)
        old = self._objects.get(name)
        if old is not None and version_of(old) >= version_of(value):
            return
        if old is not None and old["metadata"]["uid"] != value["metadata"]["uid"]:
            self._remove(old)
            old = None
        self._objects[name] = value
        self._reindex(name, old, value)
        for handler in self._handlers:
            handler(old, value)

    def _remove(self, value: JSON) -> None:
        name = name_of(value)
        old = self._objects.get(name)
        if old is None or version_of(old) > version_of(value):
            return
        del self._objects[name]
        self._reindex(name, old, None)
        for handler in self._handlers:
            handler(old, None)

    def _reindex(self, name: Name, old: JSON | None, new: JSON | None) -> None:
        for index, keys_of in self._indexers.items():
            filed = self._index[index]
            for key in keys_of(old) if old is not None else ():
                filed[key].pop(name, None)
                if not filed[key]:
                    del filed[key]
            for key in keys_of(new) if new is not None else ():
                filed.setdefault(key, {})[name] = new or {}


class Informer:
    """The thread that keeps one cache up to date."""

    def __init__(self, client: Client, resource: Resource, cache: Cache, stop: threading.Event) -> None:
        self._client = client
        self._resource = resource
        self._cache = cache
        self._stop = stop
        self._watch: Watching | None = None
        self._lock = threading.Lock()
        self.synced = threading.Event()

    def run(self) -> None:
        """List, watch, and list again whenever the watch was too old; until stopped."""
        version: str | None = None
        while not self._stop.is_set():
            if version is None:
                version = self._list()
            if version is None:
                self._stop.wait(RETRY_SECONDS)
                continue
            version = self._follow(version)

    def close(self) -> None:
        """End the watch in progress, after the stop event was set."""
        with self._lock:
            if self._watch is not None:
                self._watch.close()

    def _list(self) -> str | None:
        listing = self._client.list(self._resource)
        if isinstance(listing, Refused):
            log.warning("list refused", extra={"resource": self._resource.plural, "said": listing.message})
            return None
        version = str(listing["metadata"]["resourceVersion"])
        self._cache.replaced(listing["items"], int(version))
        self.synced.set()
        return version

    def _follow(self, version: str) -> str | None:
        """The version from which to continue; None if it is too old."""
        watch = self._client.watch(self._resource, version)
        with self._lock:
            self._watch = watch
        if self._stop.is_set():
            watch.close()
        for event in watch:
            if event["type"] == "ERROR":
                return None
            self._cache.applied(event)
            version = event["object"]["metadata"]["resourceVersion"]
        return version
