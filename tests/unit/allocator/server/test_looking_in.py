"""What the person on call sees: the gauges at a scrape, and the queue and the snapshot on the socket."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

from allocator import commands
from allocator.cache.podinfo import pod_event
from allocator.scheduler.core import Controller
from allocator.scheduler.events import AssumedChecked, BindFailed, InventoryDeleted, TickPhase
from allocator.server import debug, http
from allocator.server import metrics as gauges
from contract.encoding.protocol import Placed
from contract.metrics import metrics_of
from runtime.httpserver import Request, serve_http
from runtime.metrics import Metrics
from runtime.process import HealthChecks, health_routes
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, overdue, question


def worker(name: str, size: str = "8Gi") -> PodBuilder:
    return pod(name).uid(name).asks("gpufraction.io/gpu-memory", size).asks("gpufraction.io/gpu-cores", 25)


def scrape(controller: Controller, shows: Callable[[Metrics], None] = lambda metrics: None) -> dict[str, float]:
    """The result of a scrape; `shows` adds the figures of a feature."""
    metrics = Metrics(metrics_of("allocator"))
    shows(metrics)
    figures = gauges.AllocatorGauges(controller, metrics, lambda: True)
    routes = gauges.scraped(health_routes(metrics, ready=HealthChecks()), figures.refresh)
    text = routes["GET", "/metrics"](Request("GET", "/metrics", "", {}, b"")).body.decode()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def test_every_gpu_shows_what_is_held_and_a_node_that_left_shows_nothing() -> None:
    harness = SchedulerHarness([node("n").gpus(2, mib=16384)])
    answer = harness.controller.reserve(question(worker("a")))
    assert isinstance(answer, Placed)
    harness.controller.handle(pod_event(admitted(worker("a").on("n"), allocation=answer.allocation)))
    harness.controller.reserve(question(worker("b", "4Gi")))
    harness.controller.handle(pod_event(admitted(worker("c", "15Gi"), gated=True)))
    harness.controller.handle(pod_event(admitted(worker("d", "15Gi"), gated=True)))
    found = scrape(harness.controller)
    gpu = '{node="n",gpu="GPU-n-0"}'
    assert found[f"gpufraction_gpu_memory_allocated_bytes{gpu}"] == 12 << 30
    assert found[f"gpufraction_gpu_cores_allocated_ratio{gpu}"] == 0.5
    assert found[f"gpufraction_gpu_sharers{gpu}"] == 2
    assert found['gpufraction_gpu_sharers{node="n",gpu="GPU-n-1"}'] == 0
    assert found['gpufraction_reservations{state="assumed"}'] == 1
    assert found['gpufraction_reservations{state="confirmed"}'] == 1
    assert (found["gpufraction_waiting_pods"], found["gpufraction_overcommitted_gpus"]) == (2, 0)
    harness.controller.handle(InventoryDeleted("n"))
    assert not [name for name in scrape(harness.controller) if "GPU-n" in name]


def test_overcommitted_gpus_and_unreadable_pods_are_counted() -> None:
    harness = SchedulerHarness([node("n").gpus(1, mib=16384)])
    answer = harness.controller.reserve(question(worker("a", "10Gi")))
    assert isinstance(answer, Placed)
    for name in ("a", "copy"):
        harness.controller.handle(pod_event(admitted(worker(name, "10Gi").on("n"), allocation=answer.allocation)))
    odd = admitted(worker("odd"), gated=True)
    odd["spec"]["containers"][0]["resources"] = {}
    harness.controller.handle(pod_event(odd))
    found = scrape(harness.controller)
    assert (found["gpufraction_overcommitted_gpus"], found["gpufraction_unreadable_pods"]) == (1, 1)


def test_why_reservations_were_given_back_is_counted() -> None:
    harness = SchedulerHarness([node("n").gpus(1, mib=16384)])
    harness.controller.reserve(question(worker("never-came")))
    harness.now += 66
    harness.controller.handle(AssumedChecked(overdue(harness.controller), ()))
    seen = {**admitted(worker("p"), gated=True)}
    seen["metadata"]["resourceVersion"] = "5"
    moved = {**seen, "metadata": {**seen["metadata"], "resourceVersion": "6"}}
    for after in (seen, moved, None):
        harness.controller.handle(pod_event(seen))
        harness.now += 60
        harness.controller.tick(TickPhase.UPKEEP)
        ((binding,), _) = harness.controller.schedule_pending()
        harness.controller.handle(BindFailed(binding, pod_event(after) if after is not None else None))
    assert harness.forgotten == ["expired", "refused", "conflict", "deleted"]


def test_the_socket_shows_the_line_and_a_snapshot_that_can_be_replayed(tmp_path: Path) -> None:
    harness = SchedulerHarness([node("n").gpus(1, mib=16384)])
    for name, size in (("first", "10Gi"), ("second", "8Gi")):
        harness.controller.handle(pod_event(admitted(worker(name, size), gated=True)))
    routes = http.socket_routes(harness.controller, Metrics(metrics_of("allocator")))
    server = serve_http(routes, tmp_path / "a.sock", name="socket")
    try:
        line, snapshot = StringIO(), StringIO()
        assert commands.run(["waiting", "--socket", str(tmp_path / "a.sock")], out=line) == 0
        assert commands.run(["snapshot", "--socket", str(tmp_path / "a.sock")], out=snapshot) == 0
    finally:
        server.close()
    assert line.getvalue() == (
        "   1  default/first  placed on node n (main: GPU-n-0)\n"
        "   2  default/second  waiting: 0 of 1 GPU nodes fit: "
        "1 short of memory (largest free 6144 MiB, wanted 8192)\n"
    )
    assert debug.from_json(json.loads(snapshot.getvalue())) == harness.controller.view()
