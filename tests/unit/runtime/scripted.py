"""A transport for tests with a small collection that has a history: list, watch, compaction, and faults on request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from runtime.kubernetes.errors import KubeConnectionLost, KubeError
from tests.wires import Answer, Sent, Transport, status_body

JSON = dict[str, Any]


def line(kind: str, obj: JSON) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


class Collection(Transport):
    """
    Objects with a history.

    `fault` names what happens to the next request, which uses it up; `deliver` is how many events the next watch gets
    before that.
    """

    def __init__(self) -> None:
        self.version = 1
        self.objects: dict[str, JSON] = {}
        self.history: list[tuple[int, str, JSON]] = []
        self.floor = 1
        self.fault: str | None = None
        self.deliver: int | None = None
        self.lists = 0
        self.during_list: Callable[[], None] | None = None

    def put(self, name: str) -> None:
        self.version += 1
        kind = "MODIFIED" if name in self.objects else "ADDED"
        self.objects[name] = {"metadata": {"name": name, "resourceVersion": str(self.version)}}
        self.history.append((self.version, kind, self.objects[name]))

    def delete(self, name: str) -> None:
        if name not in self.objects:
            return
        self.version += 1
        del self.objects[name]
        last = {"metadata": {"name": name, "resourceVersion": str(self.version)}}
        self.history.append((self.version, "DELETED", last))

    def tick(self) -> None:
        """Something else in the cluster changes: the version increases, and this collection stays the same."""
        self.version += 1

    def compact(self) -> None:
        self.floor = self.version

    def answer(self, sent: Sent) -> Answer:
        fault, self.fault = self.fault, None
        deliver, self.deliver = self.deliver, None
        if fault == "unreachable":
            raise KubeConnectionLost("GET: connection lost")
        if fault in _REFUSALS:
            return Answer(_REFUSALS[fault], status_body(_REFUSALS[fault], fault))
        return self._watch(sent.query, fault, deliver) if sent.query.get("watch") else self._list(sent.query, fault)

    def _list(self, query: Mapping[str, str], fault: str | None) -> Answer:
        self.lists += 1
        if fault == "garbage":
            return Answer(body=b'{"items": [')
        # The real server serves all pages of a list from the version of the first.
        at, _, start = query.get("continue", "").partition(":")
        if at and int(at) < self.floor:
            return Answer(410, status_body(410, "Expired"))
        held, version = self._as_of(int(at)) if at else (list(self.objects.values()), self.version)
        first, size = int(start or 0), int(query.get("limit", 1_000_000))
        meta = {"resourceVersion": str(version)}
        if first + size < len(held):
            meta["continue"] = f"{version}:{first + size}"
        return Answer(body={"kind": "List", "metadata": meta, "items": held[first : first + size]})

    def _as_of(self, version: int) -> tuple[list[JSON], int]:
        objects: dict[str, JSON] = {}
        for at, kind, obj in self.history:
            if at > version:
                break
            if kind == "DELETED":
                objects.pop(obj["metadata"]["name"], None)
            else:
                objects[obj["metadata"]["name"]] = obj
        return list(objects.values()), version

    def _watch(self, query: Mapping[str, str], fault: str | None, deliver: int | None) -> Answer:
        since = int(query["resourceVersion"])
        if since < self.floor:
            return Answer(body=[line("ERROR", status_body(410, "Expired", "too old resource version"))])
        events = [line(kind, obj) for at, kind, obj in self.history if at > since]
        cut = len(events) if deliver is None else min(deliver, len(events))
        rest, events = events[cut:], events[:cut]
        ends: dict[str | None, tuple[list[bytes], KubeError | None]] = {
            "bookmark": ([] if rest else [self._bookmark()], None),
            "lost": ([], KubeConnectionLost("watch: connection lost")),
            "half": ([event[:-7] for event in rest[:1]], KubeConnectionLost("watch: connection lost")),
            "garbage": ([b"}{\n"], None),
            "error 500": ([line("ERROR", status_body(500, "InternalError"))], None),
            "error 410": ([line("ERROR", status_body(410, "Expired"))], None),
        }
        tail, breaks = ends.get(fault, ([], None))
        whole = b"".join(events + tail)
        pieces = [whole[at : at + 29] for at in range(0, len(whole), 29)]
        return Answer(body=pieces, breaks=breaks)

    def _bookmark(self) -> bytes:
        return line("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(self.version)}})


_REFUSALS = {"Forbidden": 403, "NotFound": 404, "Expired": 410, "TooManyRequests": 429, "InternalError": 500}
FAULTS = [
    None,
    "unreachable",
    *_REFUSALS,
    "bookmark",
    "lost",
    "half",
    "garbage",
    "error 500",
    "error 410",
]
