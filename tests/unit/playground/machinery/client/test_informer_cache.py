"""The cache with any interleaving of the watch and the answers to our own writes."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from playground.api.kinds.values import JSON
from playground.machinery.client.informer import Cache

OWNED = "owner"


def thing(name: str, uid: int, version: int, owner: str) -> JSON:
    metadata = {"namespace": "ns", "name": name, "uid": f"u{uid}", "resourceVersion": str(version), "owner": owner}
    return {"metadata": metadata}


@st.composite
def histories(draw: st.DrawFn) -> list[JSON]:
    """Watch events as a server sends them: one order for all, and a deleted name comes back with another uid."""
    events: list[JSON] = []
    alive: dict[str, int] = {}
    for version in range(1, draw(st.integers(1, 15)) + 1):
        name, owner = draw(st.sampled_from("ab")), draw(st.sampled_from("xy"))
        if name not in alive:
            alive[name] = version
            kind = "ADDED"
        else:
            kind = draw(st.sampled_from(["MODIFIED", "DELETED"]))
        events.append({"type": kind, "object": thing(name, alive[name], version, owner)})
        if kind == "DELETED":
            del alive[name]
    return events


def cache() -> Cache:
    return Cache({OWNED: lambda value: [value["metadata"]["owner"]]})


def state(events: list[JSON]) -> dict[str, JSON]:
    held: dict[str, JSON] = {}
    for event in events:
        name = event["object"]["metadata"]["name"]
        if event["type"] == "DELETED":
            held.pop(name, None)
        else:
            held[name] = event["object"]
    return held


@given(histories(), st.data())
def test_what_the_cache_holds_is_the_servers_state(events: list[JSON], data: Any) -> None:
    """Answers may be taken in before the watch reports them, or long after; handlers see the same objects."""
    known, handled = cache(), dict[str, JSON]()

    def handler(old: JSON | None, new: JSON | None) -> None:
        name = (new or old or {})["metadata"]["name"]
        assert handled.get(name) == old
        if new is None:
            del handled[name]
        else:
            handled[name] = new

    known.on_change(handler)
    for position, event in enumerate(events):
        early = data.draw(st.lists(st.sampled_from(events[: position + 3]), max_size=3))
        for answered in early:
            if answered["type"] != "DELETED":
                known.observe(answered["object"])
        known.applied(event)
    want = state(events)
    assert {value["metadata"]["name"]: value for value in known.all()} == want == handled
    for owner in "xy":
        filed = {value["metadata"]["name"] for value in known.find(OWNED, owner)}
        assert filed == {name for name, value in want.items() if value["metadata"]["owner"] == owner}


@given(histories(), st.data())
def test_a_new_list_replaces_everything(events: list[JSON], data: Any) -> None:
    known, seen = cache(), data.draw(st.integers(0, len(events)))
    for event in events[:seen]:
        known.applied(event)
    want = state(events)
    known.replaced(want.values(), len(events))
    assert {value["metadata"]["name"]: value for value in known.all()} == want
