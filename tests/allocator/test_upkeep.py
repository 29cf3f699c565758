"""The older systems' annotations that change while a pod lives: who writes them, when, and what may go wrong."""

from __future__ import annotations

import json
import threading
from typing import Any

from allocator.upkeep import Upkeep
from runtime.kube import Kube
from tests.builders import pod
from tests.runtime.scripted import Answer

ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
PLACED = pod("binpack-1").uid("u1").annotated("gpufraction.io/allocation", "{}").annotated(ASSIGNED, "false")


class ApiServer:
    """Answers with these statuses in turn and keeps what it was sent; after the last it ends the writer."""

    def __init__(self, stop: threading.Event, *statuses: int) -> None:
        self.sent: list[tuple[str, str, Any]] = []
        self._stop, self._statuses = stop, list(statuses)

    def request(self, method: str, path: str, query: Any, headers: Any, body: Any, timeout: float, stream: bool) -> Any:
        self.sent.append((method, path, json.loads(body)))
        status = self._statuses.pop(0)
        if not self._statuses:
            self._stop.set()
        return Answer(status)


PATCH = (
    "PATCH",
    "/api/v1/namespaces/default/pods/binpack-1",
    {"metadata": {"uid": "u1", "annotations": {ASSIGNED: "true"}}},
)


def test_a_pod_whose_containers_run_is_assigned() -> None:
    stop = threading.Event()
    server = ApiServer(stop, 200)
    upkeep = Upkeep(Kube(server), leading=lambda: True)
    upkeep.seen(PLACED.phase("Pending").json())
    upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert server.sent == [PATCH]


def test_a_failed_write_stops_nothing() -> None:
    stop = threading.Event()
    server = ApiServer(stop, 404, 409, 500, 200)
    upkeep = Upkeep(Kube(server), leading=lambda: True)
    for _ in range(4):
        upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert server.sent == [PATCH] * 4


def test_who_does_not_lead_writes_nothing_and_a_full_queue_keeps_nobody_waiting() -> None:
    stop = threading.Event()
    server = ApiServer(stop, 200)
    leads = False
    upkeep = Upkeep(Kube(server), leading=lambda: leads, size=1)
    upkeep.seen(PLACED.phase("Running").json())
    leads = True
    for _ in range(3):
        upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert server.sent == [PATCH]
