"""
Watches: the changes of one resource, as one client sees them.

A watch with a selector gets ADDED when an object starts to match, and DELETED when it stops matching, whatever the
change in the store was.
"""

import queue
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from playground.api.kinds.errors import ApiError, expired, too_large_revision
from playground.api.kinds.kinds import Kind
from playground.api.kinds.values import JSON, copy_json
from playground.api.store.selection import Predicate, everything
from playground.api.store.store import Change, StaleRevision, Store, Subscription

BOOKMARK_SECONDS = 60.0
"""How often an idle watch that allows bookmarks gets one, as a real API server does."""
INITIAL_EVENTS_END = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One event. `object` is a snapshot; `change` is what it came from, None for initial and synthetic events."""

    type: str
    object: JSON
    change: Change | None = None


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """What a client requested. `since` None: begin with the state of now. `seconds`: when the server ends the watch.

    `not_before`: the revision that the current state must have reached.
    """

    kind: Kind
    namespace: str = ""
    selects: Predicate = everything
    since: int | None = None
    not_before: int = 0
    bookmarks: bool = False
    initial_events_end: bool = False
    seconds: float = 1800.0


class Watch:
    """An iterable of `{"type", "object"}`. `close()` from any thread ends the iteration."""

    def __init__(
        self,
        store: Store,
        options: WatchOptions,
        convert: Callable[[JSON], JSON],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`convert` gives a stored object in the version that is asked for. `monotonic`: seconds since some moment."""
        self._options = options
        self._convert = convert
        self._monotonic = monotonic
        self._deadline = monotonic() + options.seconds
        self._refusal: ApiError | None = None
        self._subscription: Subscription | None = None
        self._state: list[JSON] = []
        self._revision = options.since or 0
        if (revision := store.revision) < options.not_before:
            self._refusal = too_large_revision(options.not_before, revision)
            return
        try:
            self._subscription, self._state, self._revision = store.subscribe(options.kind.key, options.since)
        except StaleRevision as stale:
            self._refusal = expired(str(stale))

    def close(self) -> None:
        if self._subscription is not None:
            self._subscription.close()

    def __iter__(self) -> Iterator[JSON]:
        """The events as copies, which the caller may change."""
        for event in self.events():
            yield {"type": event.type, "object": copy_json(event.object)}

    def events(self) -> Iterator[WatchEvent]:
        """Events with shared snapshots. Ends by `close()`, at the time limit, or after an ERROR event."""
        if self._refusal is not None:
            yield WatchEvent("ERROR", self._refusal.status())
            return
        try:
            yield from self._initial()
            yield from self._follow()
        finally:
            self.close()

    def _initial(self) -> Iterator[WatchEvent]:
        for value in self._state:
            if self._sees(value):
                yield WatchEvent("ADDED", self._convert(value))
        self._state = []
        if self._options.initial_events_end:
            yield self._bookmark({INITIAL_EVENTS_END: "true"})

    def _follow(self) -> Iterator[WatchEvent]:
        assert self._subscription is not None
        next_bookmark = self._monotonic() + BOOKMARK_SECONDS
        while (now := self._monotonic()) < self._deadline:
            if now >= next_bookmark:
                next_bookmark = now + BOOKMARK_SECONDS
                if self._bookmarks():
                    yield self._bookmark({})
            try:
                change = self._subscription.get(min(next_bookmark, self._deadline) - now)
            except queue.Empty:
                continue
            if change is None:
                return
            if (event := self._event(change)) is not None:
                yield event
        if self._bookmarks():
            yield self._bookmark({})

    def _bookmarks(self) -> bool:
        """Whether to send a bookmark: the client allows bookmarks, and its revision is not in the future."""
        return self._options.bookmarks and self._revision >= (self._options.since or 0)

    def _event(self, change: Change) -> WatchEvent | None:
        self._revision = max(self._revision, change.revision)
        if change.type == "BOOKMARK":
            return self._bookmark({}) if self._options.bookmarks else None
        seen = change.type != "DELETED" and self._sees(change.object)
        before = change.previous is not None and self._sees(change.previous)
        match seen, before:
            case True, True:
                return WatchEvent("MODIFIED", self._convert(change.object), change)
            case True, False:
                return WatchEvent("ADDED", self._convert(change.object), change)
            case False, True:
                return WatchEvent("DELETED", self._convert(change.object), change)
        return None

    def _sees(self, value: JSON) -> bool:
        namespace = self._options.namespace
        if namespace and value["metadata"].get("namespace") != namespace:
            return False
        return self._options.selects(value)

    def _bookmark(self, annotations: dict[str, str]) -> WatchEvent:
        kind = self._options.kind
        metadata: JSON = {"resourceVersion": str(self._revision), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        return WatchEvent("BOOKMARK", {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata})
