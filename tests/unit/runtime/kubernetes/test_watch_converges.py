"""Whatever a server does in between, an informer's handler ends in the server's state."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.kubernetes.client import Kube
from runtime.kubernetes.watch import Deleted, Event, Informer, Part, Put, Replaced
from tests.examples import examples
from tests.unit.runtime.scripted import FAULTS, Collection

names = st.sampled_from(["a", "b", "c"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), names),
        st.tuples(st.just("delete"), names),
        st.tuples(st.just("tick"), st.none()),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("step"), st.tuples(st.sampled_from(FAULTS), st.integers(0, 3) | st.none())),
    ),
    max_size=60,
)


class Follower:
    """Applies events as a user does, and checks each against the server's history when it arrives."""

    def __init__(self, server: Collection) -> None:
        self.server = server
        self.view: dict[str, Any] = {}
        self.listed: set[str] = set()
        self.at = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, Replaced):
            self.view = {obj["metadata"]["name"]: obj for obj in event.items}
            assert self.view == self.server.objects
            self.at = self.server.version
            return
        if isinstance(event, Part):
            self.part(event)
            return
        due = next(entry for entry in self.server.history if entry[0] > self.at)
        assert (due[2], due[1] == "DELETED") == (event.object, isinstance(event, Deleted))
        self.at = due[0]
        name = event.object["metadata"]["name"]
        if isinstance(event, Put):
            self.view[name] = event.object
        else:
            del self.view[name]

    def part(self, event: Part) -> None:
        if event.first:
            self.listed = set()
        for obj in event.items:
            self.listed.add(obj["metadata"]["name"])
            self.view[obj["metadata"]["name"]] = obj
        if event.last:
            self.view = {name: obj for name, obj in self.view.items() if name in self.listed}
            assert self.view == self.server.objects
            self.at = self.server.version


def informer(server: Collection, handler: Follower, waits: list[float], *, parts: bool = False) -> Informer:
    return Informer(
        Kube(server),
        "/api/v1/pods",
        handler,
        name="pods",
        clock=lambda: 0.0,
        rng=random.Random(7),
        wait=waits.append,
        parts=parts,
        page=2,
    )


@settings(max_examples=examples(100), deadline=None)
@given(steps, st.booleans())
def test_no_event_is_lost_and_none_made_up(script: list[tuple[str, Any]], parts: bool) -> None:
    server = Collection()
    follower = Follower(server)
    waits: list[float] = []
    watcher = informer(server, follower, waits, parts=parts)
    for what, detail in script:
        if what == "step":
            server.fault, server.deliver = detail
            watcher.step()
            server.fault = server.deliver = None
        else:
            getattr(server, what)(*([detail] if detail else []))
    # Undisturbed, it needs at most a new list, and the watch that shows what happened since.
    for _ in range(3):
        watcher.step()
    assert follower.view == server.objects
    assert watcher.synced.is_set()
    assert all(0 <= wait <= 30.0 for wait in waits)


def test_a_bookmark_spares_the_relist_after_a_compaction() -> None:
    server = Collection()
    follower = Follower(server)
    watcher = informer(server, follower, [])
    server.put("a")
    watcher.step()
    server.tick()
    server.fault = "bookmark"
    watcher.step()
    server.compact()
    server.put("b")
    watcher.step()
    assert (server.lists, sorted(follower.view)) == (1, ["a", "b"])


def test_without_a_bookmark_the_same_compaction_costs_a_relist() -> None:
    server = Collection()
    follower = Follower(server)
    watcher = informer(server, follower, [])
    server.put("a")
    watcher.step()
    server.tick()
    watcher.step()
    server.compact()
    server.put("b")
    for _ in range(2):
        watcher.step()
    assert (server.lists, sorted(follower.view)) == (2, ["a", "b"])


def test_trim_is_applied_to_listed_and_watched_objects_alike() -> None:
    server = Collection()
    seen: list[Event] = []
    server.put("a")
    watcher = Informer(
        Kube(server),
        "/api/v1/pods",
        seen.append,
        name="pods",
        trim=lambda obj: {"name": obj["metadata"]["name"]},
        wait=lambda seconds: None,
    )
    watcher.step()
    server.put("b")
    server.delete("a")
    watcher.step()
    assert seen == [Replaced([{"name": "a"}]), Put({"name": "b"}), Deleted({"name": "a"})]


def test_a_list_in_parts_that_breaks_off_restarts() -> None:
    server = Collection()
    seen: list[Event] = []

    def handler(event: Event) -> None:
        seen.append(event)
        if len(seen) == 1:
            server.delete("a")
            server.put("d")
            server.compact()  # the token of the next page is void

    for name in "abc":
        server.put(name)
    watcher = Informer(Kube(server), "/api/v1/pods", handler, name="pods", parts=True, page=2)
    watcher.step()
    assert [(_named(event.items), event.first, event.last) for event in seen if isinstance(event, Part)] == [
        (["a", "b"], True, False),
        (["b", "c"], True, False),
        (["d"], False, True),
    ]
    assert watcher.synced.is_set()


def test_a_list_in_parts_ends_where_it_is_stopped() -> None:
    server = Collection()
    seen: list[Event] = []

    def handler(event: Event) -> None:
        seen.append(event)
        watcher.stop()

    for name in "abc":
        server.put(name)
    watcher = Informer(Kube(server), "/api/v1/pods", handler, name="pods", parts=True, page=1)
    watcher.step()
    assert (seen, watcher.synced.is_set()) == ([Part([server.objects["a"]], True, False)], False)


def _named(items: list[dict[str, Any]]) -> list[str]:
    return [obj["metadata"]["name"] for obj in items]


def test_restarts_are_counted_by_reason() -> None:
    server = Collection()
    reasons: list[str] = []
    watcher = Informer(
        Kube(server),
        "/api/v1/pods",
        lambda event: None,
        name="pods",
        wait=lambda seconds: None,
        on_restart=reasons.append,
    )
    for fault in ["Forbidden", None, "lost", "error 410"]:
        server.fault = fault
        watcher.step()
    assert reasons == ["KubeForbidden", "KubeConnectionLost", "KubeGone"]
