"""
Reads the cluster on a thread of its own, only while the page is viewed, and at most every few seconds.

All tabs share one picture. A read that took long is followed by a longer rest, so that a large cluster's API server
spends a bounded part of its time on the page. If a read fails, the last picture stays, with the time since which it is
old.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.ui.pages import About, Picture
from runtime.kubernetes.client import KubeError

log = logging.getLogger(__name__)

JSON = dict[str, Any]
LEAST_REST, MOST_REST = 2.0, 60.0
"""Seconds between two reads, at least and at most."""
_RESTS = 4.0
"""A read is followed by a rest of this many times its own length, within those bounds."""
_SLOW = 15.0
"""Seconds after which a read that still runs makes the picture count as old."""
_FIRST = 25.0
"""Seconds that a browser waits for the first picture."""
_MOST_KEPT = 64


@dataclass(frozen=True, slots=True)
class LatestPicture:
    """The state to show. `picture`: None before the first. `why`: why it is not new, or empty."""

    picture: Picture | None
    why: str = ""


class PictureReader:
    """
    Reads the cluster for all tabs; `close` ends it. `read` raises `KubeError`, or another error with a message.

    `about` reads the rest of the page after each `read`, and raises the same errors.
    """

    def __init__(
        self,
        read: Callable[[], ClusterView],
        namespace: str,
        *,
        least_rest: float = LEAST_REST,
        errors: tuple[type[Exception], ...] = (KubeError,),
        about: Callable[[ClusterView], About] = lambda _: About(),
    ) -> None:
        self._read = read
        self._about = about
        self._namespace = namespace
        self._least_rest = least_rest
        self._errors = errors
        self._changed = threading.Condition()
        self._wanted = False
        self._closed = False
        self._seen = LatestPicture(None)
        self._reading_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="ui-reader", daemon=True)
        self._thread.start()

    def current(self, wait: float = _FIRST) -> LatestPicture:
        """The present picture; a newer one will be read soon. Waits for the first one."""
        with self._changed:
            self._wanted = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._seen.picture or self._seen.why or self._closed, wait)
            since = self._reading_since
            late = since is not None and time.monotonic() - since > _SLOW
            if late and not self._seen.why:
                return LatestPicture(self._seen.picture, "the API server is slow to answer")
            return self._seen

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while self._awaited():
            started = time.monotonic()
            seen = self._once()
            took = time.monotonic() - started
            with self._changed:
                self._seen = seen
                self._reading_since = None
                self._changed.notify_all()
                rest = min(MOST_REST, max(self._least_rest, _RESTS * took))
                self._changed.wait_for(lambda: self._closed, rest)

    def _awaited(self) -> bool:
        """Wait until a picture is wanted; False where the reader is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._wanted or self._closed)
            self._wanted = False
            self._reading_since = time.monotonic()
            return not self._closed

    def _once(self) -> LatestPicture:
        try:
            view = self._read()
            at, about = datetime.now(UTC), self._about(view)
            return LatestPicture(Picture(view, at, self._namespace, about, self._seen.picture))
        except self._errors as error:
            return LatestPicture(self._seen.picture, str(error) or type(error).__name__)
        except Exception:
            log.exception("reading the cluster failed")
            return LatestPicture(self._seen.picture, "internal error; the command's terminal has it")


K = TypeVar("K", bound=Hashable)


class KeptAnswers(Generic[K]):
    """The results of `read` by key, kept for `keep` seconds, so that many tabs cost no more than one."""

    def __init__(self, read: Callable[[K], JSON], *, keep: float = LEAST_REST) -> None:
        self._read = read
        self._keep = keep
        self._lock = threading.Lock()
        self._kept: OrderedDict[K, tuple[float, JSON]] = OrderedDict()

    def get(self, key: K) -> JSON:
        """The newest result, or one that is at most `keep` seconds old. Raises the errors of `read`."""
        with self._lock:  # one read at a time: a page that asks for many pods must not overload the API server
            kept = self._kept.get(key)
            if kept is None or time.monotonic() - kept[0] > self._keep:
                kept = (time.monotonic(), self._read(key))
                self._kept[key] = kept
                self._kept.move_to_end(key)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
            return kept[1]
