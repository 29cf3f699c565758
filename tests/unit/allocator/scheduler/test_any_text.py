"""Whatever text a stored pod contains, conditions, Events, answers and metrics are bounded and safe to show."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.features.metering.hours import CardHours
from allocator.features.metering.meter import Meter, Span
from allocator.queue.records import EventRecord, StatusUpdate
from allocator.scheduler.core import Controller
from allocator.scheduler.events import TickPhase, pods_listed
from allocator.server import metrics as gauges
from contract import names, pods
from contract.dialects import DIALECTS
from contract.encoding.plain import MESSAGE, NAME
from contract.encoding.protocol import Placed
from contract.encoding.quantity import MIB
from contract.metrics import metrics_of
from contract.model import UNKNOWN_DIALECT, Allocation, ContainerAllocation, GpuShare
from runtime.metrics import Metrics
from tests.examples import examples
from tests.odd import ESCAPE, TEXT, is_fit, odd_pods, put
from tests.unit.allocator.harness import SchedulerHarness, question
from tests.unit.allocator.one_gpu import ONE_GPU, running, waiting, worker
from tests.unit.kubectl_gpufraction.objects import by_claim

JSON = dict[str, Any]
SHARE = Allocation("id", "t4", (ContainerAllocation("main", (GpuShare("GPU-t4-0", 0, 10_000 * MIB, 0, 15109 * MIB),)),))
WAITS, HOLDS, CLAIMS = waiting(worker("odd", mib=1000)), running(worker("odd"), SHARE), by_claim("odd", "team")
CONDITION = {"type": str(names.ALLOCATED_CONDITION), "status": "False", "reason": "Memory", "message": "full"}
STUCK = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available"}
for _pod, _condition in ((WAITS, CONDITION), (HOLDS, STUCK), (CLAIMS, CONDITION)):
    _pod["status"] = {**(_pod.get("status") or {}), "conditions": [_condition]}
KEPT: list[tuple[Any, ...]] = [
    ("metadata", "uid"),
    ("metadata", "name"),
    ("metadata", "namespace"),
    ("metadata", "resourceVersion"),
]
KEPT += [("spec", "containers", at, "name") for at in range(2)]


def requesting(pod: JSON, **odd: str) -> JSON:
    """The pod with a request annotation that its author wrote."""
    written = {**json.loads(pod["metadata"]["annotations"][names.REQUEST]), **odd}
    return dict(put(pod, ("metadata", "annotations", names.REQUEST), json.dumps(written)))


PODS = st.sampled_from([WAITS, HOLDS, CLAIMS])
WORDS = st.builds(
    lambda pod, key, text: requesting(pod, **{key: text}), PODS, st.sampled_from(["dialect", "claim"]), TEXT
)
ODD = WORDS | odd_pods([WAITS, HOLDS, CLAIMS], kept=KEPT)


def scraped(controller: Controller, harness: SchedulerHarness) -> str:
    metrics, meter = Metrics(metrics_of("allocator")), Meter(lambda gpu: gpu.usable)
    changes, _ = controller.take_changes()
    meter.advance(changes, Span(None, harness.now))
    meter.advance([], Span(harness.now, harness.now + 10))
    gauges.AllocatorGauges(controller, metrics, lambda: True).refresh()
    CardHours(metrics, meter.counted, new=0.0, clock=lambda: harness.now)
    return metrics.render().decode()


def reported(harness: SchedulerHarness) -> list[StatusUpdate | EventRecord]:
    """Everything that the allocator would write about pods and nodes."""
    found = []
    for _ in range(2):
        found += harness.controller.schedule_pending()[1]
        found += [each for phase in TickPhase for each in harness.controller.tick(phase) if isinstance(each, REPORTS)]
        harness.controller.report_overcommitted()
        harness.controller.preempt()
        harness.now += 700
    return found


REPORTS = (StatusUpdate, EventRecord)


@given(odd=ODD)
@settings(max_examples=examples(80), deadline=None)
def test_messages_and_metrics_are_bounded_whatever_a_pod_says(odd: JSON) -> None:
    harness = SchedulerHarness([ONE_GPU], faults=[])
    try:
        small = pods.trim(odd)
    except Exception:
        small = odd
    harness.controller.handle(pods_listed([small, waiting(worker("a", mib=100)), waiting(worker("z", mib=100))]))
    news = reported(harness)
    assert [each for each in news if not is_fit(each.reason, MESSAGE) or not is_fit(each.code, NAME)] == []
    text = scraped(harness.controller, harness)
    assert text.replace("\n", "").isprintable()
    assert max(map(len, text.splitlines())) < 1_000
    assert len(text) < 100_000
    dialects = {line.partition('dialect="')[2].partition('"')[0] for line in text.splitlines() if 'dialect="' in line}
    assert dialects <= {*(each.name for each in DIALECTS), UNKNOWN_DIALECT, "(others)"}


ODD_SHARES = {
    "half a character as the dialect": (names.REQUEST, {"dialect": "\ud800"}),
    "all that annotations may hold as the dialect": (names.REQUEST, {"dialect": "x" * 250_000}),
    "a number as the dialect": (names.REQUEST, {"dialect": 5}),
    "a dialect of another version": (names.REQUEST, {"dialect": "newer"}),
    "half a character as the allocation's id": (names.ALLOCATION, {"id": "\ud800"}),
    "an escape sequence as the allocation's id": (names.ALLOCATION, {"id": ESCAPE}),
}


@pytest.mark.parametrize(("annotation", "odd"), ODD_SHARES.values(), ids=ODD_SHARES.keys())
def test_a_held_share_counts_whatever_its_texts_are(annotation: str, odd: JSON) -> None:
    annotations = HOLDS["metadata"]["annotations"]
    document = json.dumps({**json.loads(annotations[annotation]), **odd})
    pod = put(HOLDS, ("metadata", "annotations", annotation), document)
    harness = SchedulerHarness([ONE_GPU], faults=[])
    harness.controller.handle(pods_listed([pod]))
    assert [usage.memory for node in harness.controller.nodes() for usage in node.usage] == [10_000 * MIB]
    assert not isinstance(harness.controller.reserve(question(worker("b", mib=6_000))), Placed)
    harness.controller.check_invariants()
    assert harness.faults == []


ODD_WISHES = {"useModels": ["\x1b[2J"], "avoidUuids": ["\ud800" * 1_000]}


def test_a_held_share_counts_whatever_it_wished_for() -> None:
    request = json.loads(HOLDS["metadata"]["annotations"][names.REQUEST])
    request["containers"][0] |= ODD_WISHES
    harness = SchedulerHarness([ONE_GPU], faults=[])
    harness.controller.handle(
        pods_listed([put(HOLDS, ("metadata", "annotations", names.REQUEST), json.dumps(request))])
    )
    assert [usage.memory for node in harness.controller.nodes() for usage in node.usage] == [10_000 * MIB]
    waits = put(WAITS, ("metadata", "annotations", names.REQUEST), json.dumps(request))
    assert pods.admitted(waits) is None, "a pod that waits is not placed by such words"
