"""What the API server refuses to store is reported in its own words, and retried less and less often."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import Binding, StatusUpdate
from allocator.scheduler.events import BindFailed, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.fence import Fencer
from contract import pods
from contract.reasons.pods import PodReason
from runtime.kubernetes.client import Kube
from tests.unit.allocator.harness import SchedulerHarness, fence
from tests.unit.allocator.one_gpu import ONE_GPU, keys, waiting, worker
from tests.wires import Answer, Script, status_body

JSON = dict[str, Any]
WORDS = "patch /api/v1/namespaces/default/pods/a: 403 Forbidden: no placements here,\n  says a policy"
MESSAGE = (
    "waiting: node t4 has room, but the API server rejects the placement: patch /api/v1/namespaces/default/pods"
    "/a: 403 Forbidden: no placements here, says a policy. It is retried with backoff"
)
UPDATE = StatusUpdate("default/a", "uid-a", False, PodReason.REFUSED, MESSAGE, warning=PodReason.REFUSED)


def one() -> tuple[SchedulerHarness, Binding]:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("a", mib=1000))))
    ((binding,), _) = harness.controller.schedule_pending()
    return harness, binding


def test_a_refused_placement_has_the_api_servers_words_and_is_retried() -> None:
    harness, binding = one()
    harness.controller.handle(BindFailed(binding, pod_event(waiting(worker("a", mib=1000))), WORDS, refused=True))
    assert harness.controller.schedule_pending() == ([], [UPDATE])
    tried = []
    for second in range(1, 130):
        harness.now = 100.0 + second
        harness.controller.tick(TickPhase.UPKEEP)
        bindings, _ = harness.controller.schedule_pending()
        for binding in bindings:
            tried.append(second)
            harness.controller.handle(
                BindFailed(binding, pod_event(waiting(worker("a", mib=1000))), WORDS, refused=True)
            )
    assert tried == [1, 2, 4, 8, 16, 32, 64, 124]
    assert harness.controller.look().assumed == 0
    harness.controller.check_invariants()


def test_who_is_refused_keeps_nobody_waiting() -> None:
    harness, binding = one()
    harness.controller.handle(BindFailed(binding, pod_event(waiting(worker("a", mib=1000))), WORDS, refused=True))
    harness.controller.handle(pod_event(waiting(worker("b", mib=15_000))))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/b"]


def test_what_the_api_server_repeatedly_fails_to_store_is_reported() -> None:
    """For example, another webhook is down. Each message says so, and does not say that it will never work."""
    harness, binding = one()
    for failure in range(3):
        harness.controller.handle(
            BindFailed(binding, pod_event(waiting(worker("a", mib=1000))), "500 a webhook failed")
        )
        harness.now += 60.0
        harness.controller.tick(TickPhase.UPKEEP)
        bindings, news = harness.controller.schedule_pending()
        binding = bindings[0]
        codes = [each.code for each in news if isinstance(each, StatusUpdate)]
        assert codes == (["PlacementRefused"] if failure == 2 else [])


def test_long_words_are_cut() -> None:
    harness, binding = one()
    harness.controller.handle(
        BindFailed(binding, pod_event(waiting(worker("a", mib=1000))), "no\n" * 10_000, refused=True)
    )
    (update,) = harness.controller.schedule_pending()[1]
    assert isinstance(update, StatusUpdate)
    assert ("\n" in update.reason, len(update.reason) < 500) == (False, True)


OK = Answer(201, {})
REFUSALS = {"a policy": 403, "not as it is": 422, "too large": 413}


@pytest.mark.parametrize("code", REFUSALS.values(), ids=REFUSALS.keys())
def test_where_the_condition_is_refused_the_event_is_tried(code: int) -> None:
    refused = Answer(code, status_body(code, "Forbidden"))
    transport = Script(refused, refused, OK)
    recorder = EventRecorder(Kube(transport), clock=lambda: datetime(2030, 1, 1, tzinfo=UTC))
    assert recorder.tell(UPDATE, lambda seconds: False)
    assert [each.path.rsplit("/", 1)[-1] for each in transport.sent] == ["status", "status", "events"]
    assert (transport.sent[2].body["type"], transport.sent[2].body["reason"]) == ("Warning", "PlacementRefused")


class Inline:
    """An executor that runs each task at once."""

    def map(self, call: Any, items: Any) -> Any:
        return [call(item) for item in items]


def test_a_pod_that_may_not_be_written_is_reported_and_passed_over() -> None:
    harness = SchedulerHarness([ONE_GPU], elected=True, term=1)
    harness.controller.handle(pods_listed([pods.trim(waiting(worker("a", mib=1000)))], term=1))
    harness.controller.handle(ClaimsListed("elasticgpus", (), term=1))
    refusing = Kube(Script(Answer(403, status_body(403, "Forbidden", "no touching here")), holds=True))
    fencer = Fencer(
        refusing,
        harness.controller,
        word=lambda: "w",
        timeout=1.0,
        writers=Inline(),  # type: ignore[arg-type]
        failed=lambda: None,
    )
    fence(harness.controller, fencer)
    news = harness.controller.schedule_pending()[1]
    assert [(each.code, "no touching here" in each.reason) for each in news] == [("PlacementRefused", True)]
