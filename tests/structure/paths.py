"""
The modules whose code runs for one event, found by running it: imports alone would count modules that nothing calls.

Production code runs unchanged, except that a function replaces the socket between the webhook and the allocator.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from allocator.cache.podinfo import pod_event
from allocator.server import http
from allocator.workers.binder import operations
from contract import pods
from contract.metrics import metrics_of
from runtime.metrics import Metrics
from tests.serving import RoutesClient
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.unit.allocator.one_gpu import ONE_GPU, worker
from tests.unit.webhook.builders import container, pod, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import allocator
from webhook.serving.health import Health

_TOP = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Walked:
    """The modules that each event passes through, by name, sorted."""

    review: tuple[str, ...]
    event: tuple[str, ...]
    placement: tuple[str, ...]


def walked() -> Walked:
    """
    Runs one AdmissionReview that is placed, one pod that arrives on the watch, and one waiting pod that is placed.
    """
    harness = SchedulerHarness([ONE_GPU])
    routes = http.socket_routes(harness.controller, Metrics(metrics_of("allocator")))

    client = create_app(
        Configuration,
        allocator(RoutesClient(routes)),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    ).test_client()
    body = json.dumps(review(pod(container(gpufraction_io__gpu_memory="5Gi"))))
    answers: list[Any] = []
    passed = modules_of(lambda: answers.append(client.post("/mutate", data=body)))
    assert answers[0].get_json()["response"]["allowed"] is True
    waits = SchedulerHarness([ONE_GPU])
    gated = admitted(worker("waits"), gated=True)
    event = modules_of(lambda: waits.controller.handle(pod_event(pods.trim(gated))))
    placement = modules_of(lambda: _place(waits))
    return Walked(passed, event, placement)


def _place(harness: SchedulerHarness) -> None:
    bindings, _ = harness.controller.schedule_pending()
    assert [binding.pod.key for binding in bindings] == ["default/waits"]
    operations(bindings[0], 0)


def modules_of(act: Callable[[], object]) -> tuple[str, ...]:
    """Our modules, without tests, in which a function was called while `act` ran on this thread."""
    files: set[str] = set()

    def on(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(on)
    try:
        act()
    finally:
        sys.setprofile(before)
    ours = (Path(file) for file in files if file.startswith(str(_TOP)))
    found = {".".join(file.relative_to(_TOP).with_suffix("").parts).removesuffix(".__init__") for file in ours}
    return tuple(sorted(each for each in found if not each.startswith(("tests", ".venv"))))
