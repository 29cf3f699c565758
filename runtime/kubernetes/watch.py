"""
Keep a view of a collection up to date: list once, then follow the watch.

`Reflector` is the protocol without I/O: its caller reports what happened, and it answers what to do next. So every
sequence of disconnects, 410s and errors can be tested without a thread or a socket. `Informer` is the thread that does
it against a `Kube` and hands typed events to one handler.

        +--------- 410, ERROR, refused, unreadable ----------+
        v                                                     |
      List ---- ok ----> Watch(resourceVersion) ---- ends ----+---- closed, cut, timed out ----+
        ^                   ^                                                                   |
        +-- failed, later --+------------------- from the last event or bookmark --------------+

The last `Replaced` and every `Put` and `Deleted` after it make the server's state as of the last event: none is lost,
invented or repeated. A handler can have a large collection in parts instead; with the last part its view is complete.

The rules are those of client-go's reflector. A watch lives a random 5 to 10 minutes, so that connections spread over
API servers again after one was down. Failures back off exponentially with jitter, so that a thousand clients do not
come back at once.

Must not: store the objects (the handler's owner does), know any kind, or continue after a handler's exception as if the
event had been handled.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from contract.backoff import backoff, with_jitter
from contract.encoding.reading import shown
from contract.kinds import ANYTHING, ObjectKind
from runtime.kubernetes.client import (
    JSON,
    Kube,
    KubeError,
    KubeMalformed,
    KubeNotFound,
    KubeTooManyRequests,
    KubeUnavailable,
    Listing,
)
from runtime.kubernetes.errors import error_from_status
from runtime.supervision import Workers

log = logging.getLogger(__name__)
_LIST_TIMEOUT = 60.0  # seconds for one page


@dataclass(frozen=True, slots=True)
class Replaced:
    """The whole collection; an object that is not in `items` no longer exists."""

    items: list[JSON]


@dataclass(frozen=True, slots=True)
class Put:
    """An object is new or changed."""

    object: JSON


@dataclass(frozen=True, slots=True)
class Deleted:
    """An object was deleted (or left the selector); this is its last state."""

    object: JSON


@dataclass(frozen=True, slots=True)
class Part:
    """
    A part of the whole collection, each object as if it were `Put`. `first`: a new list begins. `last`: the list ends,
    and an object that was in none of its parts no longer exists.
    """

    items: list[JSON]
    first: bool
    last: bool


Event = Replaced | Part | Put | Deleted


@dataclass(frozen=True, slots=True)
class List:
    """Read the whole collection, after so many seconds."""

    after: float


@dataclass(frozen=True, slots=True)
class WatchRequest:
    """Follow the changes from `resource_version`, after this many seconds, for `timeout_seconds`."""

    after: float
    resource_version: str
    timeout_seconds: int


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient a reflector is; all in seconds."""

    watch_age: float = 300.0  # a watch lives between this and twice this
    backoff: float = 0.2  # before the first retry, doubled for each failure in a row
    backoff_cap: float = 30.0
    healthy_after: float = 1.0  # a watch that lived this long was no failure, however it ended
    doubt_after: int = 5  # after this many answered failures in a row, the version itself may be wrong


class Reflector:
    """The list+watch protocol as pure bookkeeping. Not thread-safe; one owner.

    Ask `next()`, do it, and report: `listed`, `opened`, `event`, `ended`. `now` is any monotonic clock.
    """

    def __init__(self, timing: Timing | None = None, *, rng: random.Random) -> None:
        self._timing = timing or Timing()
        self._rng = rng
        self._resource_version: str | None = None  # None: list the collection again
        self._failures = 0
        self._asked_to_wait = 0.0
        self._opened_at: float | None = None
        self._progress = False
        self.last_contact: float | None = None

    def next(self) -> List | WatchRequest:
        """What to do now. Draws the jitter, so ask once per step."""
        after = self._backoff()
        if self._resource_version is None:
            return List(after)
        age = self._timing.watch_age
        return WatchRequest(after, self._resource_version, int(age * (1.0 + self._rng.random())))

    def listed(self, listing: Listing, now: float) -> Replaced:
        """The collection was read. Raises KubeMalformed where it carries no version to watch from."""
        if not listing.resource_version:
            raise KubeMalformed("list: expected metadata.resourceVersion, found none")
        self._resource_version = listing.resource_version
        self._failures = 0
        self._asked_to_wait = 0.0
        self.last_contact = now
        return Replaced(listing.items)

    def opened(self, now: float) -> None:
        """The server accepted the watch."""
        self._opened_at = now
        self._progress = False
        self.last_contact = now

    def event(self, raw: JSON, now: float) -> Put | Deleted | None:
        """One watch event; None for a bookmark. Raises the KubeError that an ERROR event stands for."""
        kind, obj = raw["type"], raw["object"]
        if kind == "ERROR":
            code = obj.get("code")
            raise error_from_status(code if isinstance(code, int) else 500, obj, what="watch")
        version = (obj.get("metadata") or {}).get("resourceVersion")
        if kind not in _DELIVERS or not version:
            raise KubeMalformed(f"watch: event {shown(kind)} with resourceVersion {shown(version)}")
        self._resource_version = version
        self._progress = True
        self.last_contact = now
        made = _DELIVERS[kind]
        return made(obj) if made else None

    def ended(self, error: KubeError | None, now: float) -> None:
        """A list failed or a watch ended; `error` is None if the server closed it in good order."""
        lived = now - self._opened_at if self._opened_at is not None else 0.0
        watched = self._opened_at is not None
        self._opened_at = None
        if error is None:
            self.last_contact = now
        elif not isinstance(error, KubeUnavailable | KubeTooManyRequests):
            # After a 410, a refusal or an unreadable answer our version is useless.
            self._resource_version = None
        if watched and lived >= self._timing.healthy_after:
            self._failures = 0
        elif watched and self._progress:
            self._failures = 1
        else:
            self._failures += 1
        if error is not None and error.status and self._failures >= self._timing.doubt_after:
            self._resource_version = None
        self._asked_to_wait = (error.retry_after or 0.0) if error is not None else 0.0

    def spoiled(self) -> None:
        """The handler failed, so its view is not the server's state: list the collection again."""
        self._resource_version = None
        self._opened_at = None

    def _backoff(self) -> float:
        if not self._failures:
            return self._asked_to_wait
        timing = self._timing
        longest = backoff(self._failures, timing.backoff, timing.backoff_cap)
        return max(self._asked_to_wait, with_jitter(longest, self._rng.random()))


_DELIVERS: Mapping[Any, type[Put] | type[Deleted] | None] = {
    "ADDED": Put,
    "MODIFIED": Put,
    "DELETED": Deleted,
    "BOOKMARK": None,
}


class Informer:
    """A named thread that keeps one handler up to date with one collection.

    handler: called with every event, in order, on this thread only. When it raises, its view may lack an event: the
    failure is counted in `workers`, and after the pause that `workers` gives the collection is listed again. Without
    `workers` the exception ends the thread, and in our programs the process. of: what is kept of each object, and what
    becomes of one that is too large. Programs always name it. trim: applied to what is kept. May change and return the
    object that it was given. on_restart: called with the reason whenever a list or a watch fails; for a metric.
    optional: the server may not serve this kind. Then the collection is empty, and it is listed again later. wait:
    waits this many seconds or until stopped, for tests that own the time. parts: a list comes as `Part` after `Part`
    while it is read, instead of as one `Replaced`. page: objects per request while listing.
    """

    def __init__(
        self,
        kube: Kube,
        path: str,
        handler: Callable[[Event], None],
        *,
        name: str,
        query: Mapping[str, str | int | bool] | None = None,
        of: ObjectKind = ANYTHING,
        trim: Callable[[JSON], JSON] | None = None,
        clock: Callable[[], float] = time.monotonic,
        rng: random.Random | None = None,
        wait: Callable[[float], object] | None = None,
        on_restart: Callable[[str], None] | None = None,
        parts: bool = False,
        page: int = 500,
        optional: bool = False,
        workers: Workers | None = None,
    ) -> None:
        self.name = name
        self._workers = workers
        self.synced = threading.Event()
        self._kube = kube
        self._path = path
        self._handler = handler
        self._query = dict(query or {})
        self._of = of
        self._trim = trim
        self._clock = clock
        self._on_restart = on_restart
        self._parts = parts
        self._page = page
        self._optional = optional
        self._reflector = Reflector(rng=rng or random.Random())
        self._stopping = threading.Event()
        self._wait = wait or self._stopping.wait
        self._close_lock = threading.Lock()
        self._close_stream: Callable[[], None] | None = None
        self._thread: threading.Thread | None = None
        self._troubled = False

    def start(self) -> None:
        """Start the thread; at most once."""
        if self._thread is not None:
            raise RuntimeError(f"informer {self.name} was started before")
        self._thread = threading.Thread(target=self._run, name=f"informer-{self.name}", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End the watch and the thread, waiting at most `timeout` seconds. Idempotent."""
        self._stopping.set()
        with self._close_lock:
            close = self._close_stream
        if close is not None:
            close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def age(self) -> float | None:
        """
        Seconds since the server last sent anything; None before the first list. A quiet collection gets a bookmark
        about once a minute, and a new watch within ten.
        """
        seen = self._reflector.last_contact
        return None if seen is None else max(0.0, self._clock() - seen)

    def step(self) -> None:
        """Do the next thing: one list, or one watch until it ends. The thread repeats it."""
        todo = self._reflector.next()
        if todo.after > 0:
            self._wait(todo.after)
        if self._stopping.is_set():
            return
        try:
            if isinstance(todo, List):
                self._list()
            else:
                self._follow(todo)
        except KubeError as error:
            self._reflector.ended(error, self._clock())
            self._report(error)
        except Exception as error:
            if self._workers is None:
                raise
            log.exception("informer failed", extra={"informer": self.name})
            self._reflector.spoiled()
            self._wait(self._workers.failed(f"informer-{self.name}", type(error).__name__))

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.step()

    def _list(self) -> None:
        (self._list_in_parts if self._parts else self._list_whole)()
        if not self._stopping.is_set():
            self.synced.set()
            self._recovered()

    def _list_whole(self) -> None:
        try:
            listing = self._kube.list(
                self._path, self._query, self._page, of=self._of, trim=self._trim, timeout=_LIST_TIMEOUT
            )
        except KubeNotFound:
            if self._optional:
                self._handler(Replaced([]))
                self.synced.set()
            raise
        self._handler(self._reflector.listed(listing, self._clock()))

    def _list_in_parts(self) -> None:
        read = self._kube.pages(
            self._path, self._query, self._page, of=self._of, trim=self._trim, timeout=_LIST_TIMEOUT
        )
        for page in read:
            if self._stopping.is_set():
                return
            if page.last:
                self._reflector.listed(Listing(page.items, page.resource_version), self._clock())
            self._handler(Part(page.items, page.first, page.last))

    def _follow(self, todo: WatchRequest) -> None:
        stream = self._kube.watch(
            self._path,
            resource_version=todo.resource_version,
            query=self._query,
            timeout_seconds=todo.timeout_seconds,
            on_open=self._opened,
            of=self._of,
        )
        try:
            with closing(stream) as events:
                self._consume(events)
        finally:
            with self._close_lock:
                self._close_stream = None
        self._reflector.ended(None, self._clock())

    def _consume(self, events: Iterator[JSON]) -> None:
        for raw in events:
            if self._stopping.is_set():
                return
            event = self._reflector.event(raw, self._clock())
            if event is None:
                continue
            if self._trim is not None:
                event = type(event)(self._trim(event.object))
            self._handler(event)

    def _opened(self, close: Callable[[], None]) -> None:
        self._reflector.opened(self._clock())
        self._recovered()
        with self._close_lock:
            self._close_stream = close
        # `stop` may have been called while we were connecting, when it had no stream to close.
        if self._stopping.is_set():
            close()

    def _report(self, error: KubeError) -> None:
        if self._stopping.is_set():
            return
        reason = type(error).__name__
        # An expired version is part of the protocol. Trouble is a warning once, not at every retry.
        level = logging.INFO if error.status == 410 or self._troubled else logging.WARNING
        self._troubled = self._troubled or error.status != 410
        log.log(level, "watch interrupted", extra={"informer": self.name, "reason": reason, "detail": str(error)})
        if self._on_restart is not None:
            self._on_restart(reason)

    def _recovered(self) -> None:
        if self._troubled:
            self._troubled = False
            log.info("watch recovered", extra={"informer": self.name})
