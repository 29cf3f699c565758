"""The older systems' annotations that change while a pod runs: what writes them, when, and what can go wrong."""

from __future__ import annotations

import threading
from typing import Any

from allocator.workers.recorder import Upkeep
from runtime.kubernetes.client import Kube
from tests.builders import pod
from tests.wires import Answer, Script

ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"
PLACED = pod("binpack-1").uid("u1").annotated("gpufraction.io/allocation", "{}").annotated(ASSIGNED, "false")


def server(stop: threading.Event, *statuses: int) -> Script:
    """Answers with these statuses in turn. The last one ends the writer."""
    return Script(*map(Answer, statuses), on_last=stop.set)


def sent(script: Script) -> list[tuple[str, str, Any]]:
    return [(each.method, each.path, each.body) for each in script.sent]


PATCH = (
    "PATCH",
    "/api/v1/namespaces/default/pods/binpack-1",
    {"metadata": {"uid": "u1", "annotations": {ASSIGNED: "true"}}},
)


def test_a_pod_whose_containers_run_is_assigned() -> None:
    stop = threading.Event()
    script = server(stop, 200)
    upkeep = Upkeep(Kube(script), leading=lambda: True)
    upkeep.seen(PLACED.phase("Pending").json())
    upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert sent(script) == [PATCH]


def test_a_failed_write_stops_nothing() -> None:
    stop = threading.Event()
    script = server(stop, 404, 409, 500, 200)
    upkeep = Upkeep(Kube(script), leading=lambda: True)
    for _ in range(4):
        upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert sent(script) == [PATCH] * 4


def test_who_does_not_lead_writes_nothing_and_a_full_queue_keeps_nobody_waiting() -> None:
    stop = threading.Event()
    script = server(stop, 200)
    leads = False
    upkeep = Upkeep(Kube(script), leading=lambda: leads, size=1)
    upkeep.seen(PLACED.phase("Running").json())
    leads = True
    for _ in range(3):
        upkeep.seen(PLACED.phase("Running").json())
    upkeep.run(stop)
    assert sent(script) == [PATCH]
