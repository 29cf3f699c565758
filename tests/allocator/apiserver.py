"""
An API server in miniature, for histories: pods under versions, JSON patches, and writes whose answer gets lost.

It is a transport, so that the allocator's real writer speaks to it. What it did can be taken as watch events, in order,
later than it happened.
"""

from __future__ import annotations

import copy
import json
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import jsonpatch

from runtime.kubeerrors import KubeTimeout

JSON = dict[str, Any]
Fate = Literal["answered", "lost-and-done", "lost", "refused"]
"""What becomes of the next write: answered, carried out or not with its answer lost, or refused by a policy."""


@dataclass
class Answer:
    """What a `Transport` gives."""

    status: int
    document: JSON
    headers: Mapping[str, str] = field(default_factory=dict)

    def read(self) -> bytes:
        return json.dumps(self.document).encode()

    def chunks(self) -> Iterator[bytes]:
        yield self.read()

    def close(self) -> None:
        pass


class ApiServer:
    """Pods by `namespace/name`. `late` are writes that got no answer and may still be carried out."""

    def __init__(self) -> None:
        self.pods: dict[str, JSON] = {}
        self.events: deque[tuple[str, JSON]] = deque()
        self.fate: Fate = "answered"
        self.reachable = True
        self.lists = 0
        self.late: list[tuple[str, list[JSON]]] = []
        self.served = ["default"]
        self._version = 100
        self._made = 0

    # -- what the cluster does ------------------------------------------------------------------------------------

    def create(self, pod: JSON) -> JSON:
        self._made += 1
        made = copy.deepcopy(pod)
        made["metadata"]["uid"] = f"uid-{self._made}"
        made["metadata"]["creationTimestamp"] = f"2030-01-01T00:{self._made // 60:02}:{self._made % 60:02}Z"
        return self._store(made, "put")

    def change(self, key: str, **status: Any) -> None:
        changed = copy.deepcopy(self.pods[key])
        changed.setdefault("status", {}).update(status)
        self._store(changed, "put")

    def delete(self, key: str) -> None:
        self._version += 1
        gone = self.pods.pop(key)
        self.events.append(("gone", gone))

    def listed(self) -> list[JSON]:
        return copy.deepcopy(list(self.pods.values()))

    def carry_out_late(self) -> None:
        """Writes whose answers were lost take effect now, where the version that they name is still there."""
        late, self.late = self.late, []
        for key, operations in late:
            self._patch(key, operations)

    # -- what the allocator asks ----------------------------------------------------------------------------------

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: bytes | None,
        timeout: float,
        stream: bool,
    ) -> Answer:
        if not self.reachable:
            raise KubeTimeout(f"{method} {path}: no answer")
        if path.endswith("/pods"):
            self.lists += 1
            return Answer(200, {"items": self.listed(), "metadata": {"resourceVersion": str(self._version)}})
        if path.endswith("/namespaces"):
            assert query["labelSelector"] == "gpufraction.io/inject=enabled"
            return Answer(200, {"items": [{"metadata": {"name": name}} for name in self.served], "metadata": {}})
        *_, namespace, _, name = path.split("/")
        key = f"{namespace}/{name}"
        if method == "GET":
            return self._answer(self.pods.get(key))
        fate, self.fate = self.fate, "answered"
        operations = json.loads(body or b"[]")
        if fate == "refused":
            return _status(403, "Forbidden")
        if fate == "lost":
            self.late.append((key, operations))
        if fate in ("lost", "lost-and-done"):
            if fate == "lost-and-done":
                self._patch(key, operations)
            raise KubeTimeout(f"{method} {path}: no answer")
        return self._patch(key, operations)

    def _patch(self, key: str, operations: list[JSON]) -> Answer:
        pod = self.pods.get(key)
        if pod is None:
            return _status(404, "NotFound")
        try:
            patched = jsonpatch.apply_patch(pod, operations)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            return _status(422, "Invalid")
        return self._answer(self._store(patched, "put"))

    def _store(self, pod: JSON, event: str) -> JSON:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.pods[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = pod
        self.events.append((event, copy.deepcopy(pod)))
        return pod

    def _answer(self, pod: JSON | None) -> Answer:
        return _status(404, "NotFound") if pod is None else Answer(200, copy.deepcopy(pod))


def _status(code: int, reason: str) -> Answer:
    return Answer(code, {"kind": "Status", "status": "Failure", "code": code, "reason": reason})
