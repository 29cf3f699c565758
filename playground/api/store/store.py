"""
The storage of objects: snapshots under keys, one revision counter for all, a bounded history, and the watchers.

It replaces etcd and the watch cache of a real API server. It does not know kinds, users or admission. The store owns
the objects that it gets. Callers must not change the objects that it returns.
"""

import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from playground.api.kinds.values import JSON

Name: TypeAlias = tuple[str, str]
"""Namespace (empty for cluster scope) and name."""


@dataclass(slots=True, eq=False)
class Change:
    """One write: what watchers receive. `previous` lets a selector see objects move in and out of its view."""

    type: str
    resource: str
    revision: int
    object: JSON
    previous: JSON | None = None
    wire: dict[str, bytes] = field(default_factory=dict)
    """The event as bytes, by form, made once by the first watcher that needs it."""


class StaleRevision(Exception):
    """The revision to watch from is older than the history that is kept."""

    def __init__(self, wanted: int, oldest: int) -> None:
        super().__init__(f"too old resource version: {wanted} ({oldest})")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All objects of a store at one moment, as in a backup of etcd. It can be restored any number of times."""

    revision: int
    objects: Mapping[str, Mapping[Name, JSON]]


def unobserved(_: Change) -> None:
    """The observer of a store without one."""


class Subscription:
    """The changes of one resource after a revision, in order. Unbounded: a slow reader costs memory, not time."""

    def __init__(self, after: int, on_close: Callable[["Subscription"], None]) -> None:
        self._queue: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self._after = after
        self._on_close = on_close

    def put(self, change: Change) -> None:
        """Add a change, unless the reader has already passed its revision, as after the restore of a backup."""
        if change.revision > self._after or (change.type == "BOOKMARK" and change.revision == self._after):
            self._queue.put(change)

    def get(self, timeout: float) -> Change | None:
        """The next change, or None when the subscription was closed; `queue.Empty` after `timeout` seconds."""
        return self._queue.get(timeout=max(timeout, 0))

    def close(self) -> None:
        self._on_close(self)
        self._queue.put(None)


class Store:
    """Thread safe. One lock guards every field; only the observer is called under it."""

    def __init__(self, history: int = 50_000, committed: Callable[[Change], None] = unobserved) -> None:
        """
        `history`: how many changes are kept for watches from older revisions.

        `committed` gets every change in the order of revisions, in the thread that makes it and under the lock: nothing
        else sees a change earlier. It must be short and call no method of the store; the change has all information.
        """
        self._committed = committed
        self._lock = threading.RLock()
        self._revision = 0
        self._oldest = 0
        self._objects: dict[str, dict[Name, JSON]] = {}
        self._in_order: dict[str, list[JSON]] = {}
        """By resource, as long as nothing in it changes: a list of 100,000 is read in hundreds of pages."""
        self._owners: dict[str, set[tuple[str, Name]]] = {}
        self._uids: dict[str, tuple[str, Name]] = {}
        self._writes: dict[str, int] = {}
        self._history: deque[Change] = deque()
        self._limit = history
        self._subscribers: dict[str, tuple[Subscription, ...]] = {}

    @property
    def revision(self) -> int:
        return self._revision

    def writes(self, resources: tuple[str, ...]) -> tuple[int, ...]:
        """
        The number of changes of each of these resources. Call it before you read them: a result that you compute
        from them is valid as long as the numbers stay the same.
        """
        return tuple(self._writes.get(resource, 0) for resource in resources)

    def get(self, resource: str, name: Name) -> JSON | None:
        with self._lock:
            return self._objects.get(resource, {}).get(name)

    def ordered(self, resource: str, namespace: str = "") -> tuple[list[JSON], int]:
        """Objects in the order of their keys, and the revision of this state."""
        with self._lock:
            held = self._objects.get(resource, {})
            revision = self._revision
            if not namespace:
                if resource not in self._in_order:
                    self._in_order[resource] = [held[name] for name in sorted(held)]
                return list(self._in_order[resource]), revision
            found = [item for item in held.items() if item[0][0] == namespace]
        found.sort(key=lambda item: item[0])
        return [value for _, value in found], revision

    def ordered_at(self, resource: str, namespace: str, revision: int) -> list[JSON]:
        """Objects in the order of their keys as they were at a revision. Raises `StaleRevision`."""
        with self._lock:
            if revision < self._oldest:
                raise StaleRevision(revision, self._oldest)
            later = itertools.islice(reversed(self._history), max(self._revision - revision, 0))
            changes = [change for change in later if change.resource == resource]
            if not changes:
                return self.ordered(resource, namespace)[0]
            held = dict(self._objects.get(resource, {}))
            for change in changes:
                meta = change.object["metadata"]
                key = (meta.get("namespace", ""), meta["name"])
                if change.previous is None:
                    del held[key]
                else:
                    held[key] = change.previous
        return [held[key] for key in sorted(held) if not namespace or key[0] == namespace]

    def scan(self, resource: str, namespace: str = "") -> list[JSON]:
        """Objects in no particular order; cheaper than `ordered`."""
        with self._lock:
            held = self._objects.get(resource, {})
            if not namespace:
                return list(held.values())
            return [value for key, value in held.items() if key[0] == namespace]

    def in_namespace(self, namespace: str) -> list[tuple[str, Name]]:
        with self._lock:
            return [(res, key) for res, held in self._objects.items() for key in held if key[0] == namespace]

    def dependents(self, uid: str) -> list[tuple[str, Name]]:
        """The objects whose ownerReferences name this uid."""
        with self._lock:
            return sorted(self._owners.get(uid, ()))

    def has_uid(self, uid: str) -> bool:
        return uid in self._uids

    def locate(self, uid: str) -> tuple[str, Name] | None:
        return self._uids.get(uid)

    def create(self, resource: str, name: Name, value: JSON) -> JSON | None:
        """Store a new object; None when the name is taken."""
        with self._lock:
            held = self._objects.setdefault(resource, {})
            if name in held:
                return None
            self._commit("ADDED", resource, name, value, None)
            return value

    def replace(self, resource: str, name: Name, value: JSON, expected: JSON) -> JSON | None:
        """Store a new state in the place of exactly `expected`; None when that is no longer the state."""
        with self._lock:
            if self._objects.get(resource, {}).get(name) is not expected:
                return None
            self._commit("MODIFIED", resource, name, value, expected)
            return value

    def remove(self, resource: str, name: Name, expected: JSON, last: JSON | None = None) -> JSON | None:
        """Remove exactly `expected`; returns the last state (`last` where given) under the revision of its removal."""
        with self._lock:
            if self._objects.get(resource, {}).get(name) is not expected:
                return None
            last = last or {**expected, "metadata": dict(expected["metadata"])}
            self._commit("DELETED", resource, name, last, expected)
            return last

    def _commit(self, event: str, resource: str, name: Name, value: JSON, previous: JSON | None) -> None:
        self._revision += 1
        self._in_order.pop(resource, None)
        value["metadata"]["resourceVersion"] = str(self._revision)
        held = self._objects[resource]
        if previous is not None:
            self._unindex(resource, name, previous)
        if event == "DELETED":
            del held[name]
        else:
            held[name] = value
            self._index(resource, name, value)
        self._writes[resource] = self._writes.get(resource, 0) + 1
        change = Change(event, resource, self._revision, value, previous)
        self._history.append(change)
        if len(self._history) > self._limit:
            self._oldest = self._history.popleft().revision
        self._committed(change)
        for subscriber in self._subscribers.get(resource, ()):
            subscriber.put(change)

    def _index(self, resource: str, name: Name, value: JSON) -> None:
        meta = value["metadata"]
        self._uids[meta.get("uid", "")] = (resource, name)
        for owner in meta.get("ownerReferences") or ():
            self._owners.setdefault(owner.get("uid", ""), set()).add((resource, name))

    def _unindex(self, resource: str, name: Name, value: JSON) -> None:
        meta = value["metadata"]
        self._uids.pop(meta.get("uid", ""), None)
        for owner in meta.get("ownerReferences") or ():
            entries = self._owners.get(owner.get("uid", ""), set())
            entries.discard((resource, name))
            if not entries:
                self._owners.pop(owner.get("uid", ""), None)

    def subscribe(self, resource: str, since: int | None) -> tuple[Subscription, list[JSON], int]:
        """Follow a resource.

        `since` is a revision: the subscription gets every later change, or `StaleRevision` is raised. After the
        restore of a backup, a reader may have a revision of the future: it gets no change until that revision has
        passed. None means from the current state, which is returned with its revision alongside the subscription.
        """
        with self._lock:
            subscription = Subscription(self._revision if since is None else since, self._unsubscribe)
            state: list[JSON] = []
            if since is None:
                state, _ = self.ordered(resource)
            else:
                for change in self._since(resource, since):
                    subscription.put(change)
            self._subscribers[resource] = (*self._subscribers.get(resource, ()), subscription)
            return subscription, state, self._revision

    def _since(self, resource: str, since: int) -> Iterator[Change]:
        if since < self._oldest:
            raise StaleRevision(since, self._oldest)
        missed = list(itertools.islice(reversed(self._history), max(self._revision - since, 0)))
        for change in reversed(missed):
            if change.resource == resource:
                yield change

    def _unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            for resource, subscribers in list(self._subscribers.items()):
                if subscription in subscribers:
                    self._subscribers[resource] = tuple(s for s in subscribers if s is not subscription)

    def compact(self) -> int:
        """Forget the history up to now: watches from an older revision get 410. Returns the revision."""
        with self._lock:
            self._history.clear()
            self._oldest = self._revision
            return self._revision

    def snapshot(self) -> Snapshot:
        """The current state, to `restore` later. It is cheap: stored objects never change, so they are shared."""
        with self._lock:
            return Snapshot(self._revision, {resource: dict(held) for resource, held in self._objects.items()})

    def restore(self, state: Snapshot, *, bump: int = 0) -> None:
        """
        Go back to a state, as an etcd that is restored from a backup does.

        Revisions go on from the state's, so the ones after it are given out a second time; `bump` is added first, as by
        `etcdutl snapshot restore --bump-revision --mark-compacted`. The history is empty afterwards and every
        subscription has ended. The observer is not called. Use `Api.restore` to restore a cluster.
        """
        with self._lock:
            self._revision = self._oldest = state.revision + bump
            self._objects = {resource: dict(held) for resource, held in state.objects.items()}
            self._writes = {resource: count + 1 for resource, count in self._writes.items()}
            self._history.clear()
            self._in_order.clear()
            self._owners.clear()
            self._uids.clear()
            for resource, held in self._objects.items():
                for name, value in held.items():
                    self._index(resource, name, value)
            self.close()

    def nudge(self, resource: str | None = None) -> None:
        """Ask the watchers for a bookmark now: a change that carries no object."""
        with self._lock:
            change = Change("BOOKMARK", resource or "", self._revision, {})
            for name, subscribers in self._subscribers.items():
                if resource in (None, name):
                    for subscriber in subscribers:
                        subscriber.put(change)

    def close(self) -> None:
        """End every subscription."""
        with self._lock:
            subscribers = {s for group in self._subscribers.values() for s in group}
        for subscriber in subscribers:
            subscriber.close()
