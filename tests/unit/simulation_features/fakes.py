"""A run without a cluster: the objects that goals and invariants read, as values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from playground.api.store.store import Change

JSON = dict[str, Any]


class FakeStore:
    """Objects by resource, such as `pods`."""

    def __init__(self, **objects: Iterable[JSON]) -> None:
        self.objects = {key.replace("__", "."): list(found) for key, found in objects.items()}

    def scan(self, resource: str, namespace: str = "") -> Iterator[JSON]:
        """See `Store`."""
        for each in self.objects.get(resource, ()):
            if not namespace or each["metadata"].get("namespace") == namespace:
                yield each

    def has_uid(self, uid: str) -> bool:
        """See `Store`."""
        return any(each["metadata"].get("uid") == uid for found in self.objects.values() for each in found)

    def get(self, resource: str, key: tuple[str, str]) -> JSON | None:
        """See `Store`."""
        found = (each for each in self.scan(resource, key[0]) if each["metadata"]["name"] == key[1])
        return next(found, None)


def run(store: FakeStore | None = None, **programs: Any) -> Any:
    """A `Run` with this store. `programs` are allocators' controllers by name; the first one leads."""
    allocators = [_program(name.replace("_", "-"), controller) for name, controller in programs.items()]
    world = SimpleNamespace(
        api=SimpleNamespace(store=store or FakeStore()),
        allocators=allocators,
        reviewed=[],
        leader=lambda: next(iter(allocators), None),
    )
    return SimpleNamespace(
        world=world,
        plan=SimpleNamespace(shape={}, steps=()),
        kernel=SimpleNamespace(seconds=lambda: 100.0),
        heard=[],
        notes={},
        was_suspended=lambda name: False,
        uids=set(),
    )


def _program(name: str, controller: Any) -> Any:
    return SimpleNamespace(
        name=name, alive=True, running=SimpleNamespace(allocator=SimpleNamespace(controller=controller))
    )


def change(resource: str, document: JSON, kind: str = "MODIFIED", previous: JSON | None = None) -> Change:
    """A commit of the store."""
    return Change(kind, resource, 1, document, previous)
