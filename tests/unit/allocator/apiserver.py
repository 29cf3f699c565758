"""
A small API server for tests of histories: versioned pods and JSON patches.

Its changes can be read as watch events, in order, later than they happened.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

import jsonpatch

from tests.wires import Wire, status_body

JSON = dict[str, Any]


class ApiServer:
    """Pods by `namespace/name`. The allocator sends its requests over the `wire`."""

    def __init__(self) -> None:
        self.pods: dict[str, JSON] = {}
        self.events: deque[tuple[str, JSON]] = deque()
        self.wire = Wire(self, spares_reads=True)
        self.lists = 0
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

    def end_what_is_past_its_deadline(self) -> None:
        """What kubelets do to pods that are past their deadline."""
        for key, each in list(self.pods.items()):
            if "activeDeadlineSeconds" in each["spec"] and (each.get("status") or {}).get("phase") != "Failed":
                self.change(key, phase="Failed", reason="DeadlineExceeded")

    def delete(self, key: str) -> None:
        self._version += 1
        removed = self.pods.pop(key)
        self.events.append(("gone", removed))

    def listed(self) -> list[JSON]:
        return copy.deepcopy(list(self.pods.values()))

    # -- what the allocator asks ----------------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
    ) -> tuple[int, JSON]:
        if path.endswith("/pods"):
            self.lists += 1
            return 200, {"items": self.listed(), "metadata": {"resourceVersion": str(self._version)}}
        if path.endswith("/namespaces"):
            assert (query or {})["labelSelector"] == "gpufraction.io/inject=enabled"
            return 200, {"items": [{"metadata": {"name": name}} for name in self.served], "metadata": {}}
        *_, namespace, _, name = path.split("/")
        key = f"{namespace}/{name}"
        if method == "GET":
            return self._answer(self.pods.get(key))
        if isinstance(body, dict):
            return self._merge(key, body)
        return self._patch(key, body or [])

    def _patch(self, key: str, operations: list[JSON]) -> tuple[int, JSON]:
        pod = self.pods.get(key)
        if pod is None:
            return _status(404, "NotFound")
        try:
            patched = jsonpatch.apply_patch(pod, operations)
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            return _status(422, "Invalid")
        return self._answer(self._store(patched, "put"))

    def _merge(self, key: str, patch: JSON) -> tuple[int, JSON]:
        """A merge patch of annotations and spec, for the pod with the uid that the patch names."""
        pod = copy.deepcopy(self.pods.get(key))
        if pod is None:
            return _status(404, "NotFound")
        for field in ("uid", "resourceVersion"):
            if patch["metadata"].get(field, pod["metadata"][field]) != pod["metadata"][field]:
                return _status(409, "Conflict")
        annotations = pod["metadata"].setdefault("annotations", {}) | patch["metadata"].get("annotations", {})
        pod["metadata"]["annotations"] = {key: text for key, text in annotations.items() if text is not None}
        pod["spec"].update(patch.get("spec", {}))
        return self._answer(self._store(pod, "put"))

    def _store(self, pod: JSON, event: str) -> JSON:
        self._version += 1
        pod["metadata"]["resourceVersion"] = str(self._version)
        self.pods[f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"] = pod
        self.events.append((event, copy.deepcopy(pod)))
        return pod

    def _answer(self, pod: JSON | None) -> tuple[int, JSON]:
        return _status(404, "NotFound") if pod is None else (200, copy.deepcopy(pod))


def _status(code: int, reason: str) -> tuple[int, JSON]:
    return code, status_body(code, reason)
