"""The simulated node agents follow each change of a collection, even after an interrupted watch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.throughput.peers import acting
from runtime.kubernetes.client import Listing
from runtime.kubernetes.errors import KubeError

JSON = dict[str, Any]
_PATIENCE = 10.0


def thing(name: str) -> JSON:
    return {"metadata": {"name": name, "uid": name}}


class _Collection:
    """Each round lists these objects and then reports these changes; the last round lasts until it is closed."""

    def __init__(self, *rounds: tuple[list[JSON], list[JSON]]) -> None:
        self._rounds = iter(rounds)
        self._changes: list[JSON] = []
        self._closed = threading.Event()

    def list(self, path: str) -> Listing:
        listed, self._changes = next(self._rounds, ([], []))
        return Listing(listed, "1")

    def watch(
        self, path: str, *, resource_version: str, timeout_seconds: int, on_open: Callable[[Callable[[], None]], None]
    ) -> Iterator[JSON]:
        on_open(self._closed.set)
        yield from self._changes
        if not self._changes:
            self._closed.wait(_PATIENCE)


def seen_of(collection: _Collection, count: int) -> list[tuple[str, str]]:
    """The first changes that it reacts to, up to this number."""
    found: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()

    def react(happened: str, seen: JSON) -> None:
        found.put((happened, seen["metadata"]["name"]))

    with acting.reacting(collection, "/things", react):
        return [found.get(timeout=_PATIENCE) for _ in range(count)]


def test_what_is_listed_and_what_changes_is_reacted_to() -> None:
    changed = [{"type": "MODIFIED", "object": thing("a")}, {"type": "BOOKMARK", "object": {}}]
    found = seen_of(_Collection(([thing("a")], changed), ([thing("a")], [])), 2)
    assert found == [("ADDED", "a"), ("MODIFIED", "a")]


def test_what_went_while_nobody_watched_is_reacted_to() -> None:
    gone = [{"type": "ADDED", "object": thing("b")}, {"type": "DELETED", "object": thing("b")}]
    found = seen_of(_Collection(([thing("a")], gone), ([thing("c")], [])), 5)
    assert found == [("ADDED", "a"), ("ADDED", "b"), ("DELETED", "b"), ("DELETED", "a"), ("ADDED", "c")]


def test_an_error_of_one_piece_of_work_leaves_the_others() -> None:
    done: queue.SimpleQueue[str] = queue.SimpleQueue()

    def react(happened: str, seen: JSON) -> acting.Work:
        def work() -> None:
            if seen["metadata"]["name"] == "bad":
                raise KubeError("refused")
            done.put(seen["metadata"]["name"])

        return work

    with acting.reacting(_Collection(([thing("bad"), thing("good")], [])), "/things", react):
        assert done.get(timeout=_PATIENCE) == "good"
