"""A condition that was overwritten, removed or lost in transit is written again, less and less often."""

from __future__ import annotations

import itertools
from typing import Any

from allocator.cache.podinfo import LastReported, pod_event
from allocator.queue.queue import QueuedPodInfo
from allocator.queue.records import PAUSE, PAUSE_CAP, Binding, PodRecords, StatusUpdate
from allocator.scheduler.events import PodDeleted, TickPhase
from contract import names
from contract.model import Allocation, Compute, PodRequest
from contract.reasons.nodes import Code
from contract.reasons.pods import PodReason
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.allocator.one_gpu import FULL, occupied, running, waiting, worker

JSON = dict[str, Any]
ASK = SchedulingRequest(PodRequest("any", ()), PodNeeds(compute=Compute()))
VERSIONS = itertools.count(1_000)


def saying(pod: JSON, status: str | None, reason: str = "", message: str = "") -> JSON:
    """The pod with this condition, or without any, in a newer version than any before."""
    condition = {"type": str(names.ALLOCATED_CONDITION), "status": status, "reason": reason, "message": message}
    metadata = {**pod["metadata"], "resourceVersion": str(next(VERSIONS))}
    status_of = {**(pod.get("status") or {}), "conditions": [condition] if status is not None else []}
    return {**pod, "metadata": metadata, "status": status_of}


def after(harness: SchedulerHarness, seconds: float) -> list[Any]:
    """The conditions of pods to write this many seconds later."""
    harness.now += seconds
    return [each for each in harness.controller.tick(TickPhase.UPKEEP) if isinstance(each, StatusUpdate)]


def settled() -> tuple[SchedulerHarness, JSON, JSON, StatusUpdate, StatusUpdate]:
    """A running pod and a waiting one, both with their conditions."""
    harness, allocation = occupied()
    there, second = running(worker("first"), allocation), waiting(worker("second"))
    harness.controller.handle(pod_event(second))
    reported = {each.uid: each for each in harness.controller.schedule_pending()[1] if isinstance(each, StatusUpdate)}
    first = reported.get("uid-first") or StatusUpdate(
        "default/first", "uid-first", True, PodReason.ALLOCATED, "10000 MiB of GPU 0 (Tesla T4) on t4"
    )
    last = reported["uid-second"]
    assert (last.code, last.reason) == ("Memory", FULL)
    harness.controller.handle(pod_event(saying(there, "True", first.code, first.reason)))
    harness.controller.handle(pod_event(saying(second, "False", last.code, last.reason)))
    assert after(harness, 2 * PAUSE_CAP) == []
    return harness, there, second, first, last


def once_more(reported: StatusUpdate, *, turned: bool) -> StatusUpdate:
    return StatusUpdate(
        reported.key,
        reported.uid,
        reported.allocated,
        reported.code,
        reported.reason,
        turned=turned,
        event=False,
        gated=False,
    )


def test_what_somebody_overwrites_is_written_again_without_an_event() -> None:
    harness, there, second, first, last = settled()
    harness.controller.handle(pod_event(saying(there, "False", "Memory", "waiting: stale")))
    harness.controller.handle(pod_event(saying(second, None)))
    assert after(harness, PAUSE / 2) == []
    found = after(harness, PAUSE)
    assert sorted(found, key=lambda each: each.uid) == [once_more(first, turned=True), once_more(last, turned=True)]


def test_another_text_of_the_same_status_is_overwritten_without_a_transition() -> None:
    harness, _, second, _, last = settled()
    harness.controller.handle(pod_event(saying(second, "False", "Cores", "waiting: for something else")))
    assert after(harness, PAUSE) == [once_more(last, turned=False)]


def test_two_writers_who_do_not_agree_write_less_and_less_often() -> None:
    harness, there, _, first, _ = settled()
    harness.controller.handle(pod_event(saying(there, "False", "Memory", "stale")))
    repairs, start = [], harness.now
    while harness.now - start < 3600:
        for _ in after(harness, 1.0):
            repairs.append(harness.now - start)
            harness.controller.handle(pod_event(saying(there, "True", first.code, first.reason)))
            harness.controller.handle(pod_event(saying(there, "False", "Memory", "stale")))
    gaps = [later - earlier for earlier, later in itertools.pairwise(repairs)]
    assert gaps[:4] == [2 * PAUSE, 4 * PAUSE, 8 * PAUSE, 16 * PAUSE]
    assert max(gaps) == PAUSE_CAP
    assert len(repairs) < 20


def test_what_is_right_again_is_left_alone() -> None:
    harness, there, _, first, _ = settled()
    harness.controller.handle(pod_event(saying(there, "False", "Memory", "stale")))
    harness.controller.handle(pod_event(saying(there, "True", first.code, first.reason)))
    assert after(harness, 10 * PAUSE) == []


def test_a_deleted_pod_gets_no_more_conditions() -> None:
    harness, there, second, _, _ = settled()
    harness.controller.handle(pod_event(saying(there, "False", "Memory", "stale")))
    harness.controller.handle(pod_event(saying(second, None)))
    harness.controller.handle(PodDeleted("uid-first"))
    harness.controller.handle(PodDeleted("uid-second"))
    assert after(harness, 10 * PAUSE) == []
    harness.controller.check_invariants()


def test_the_records_of_one_pod() -> None:
    records, reported = PodRecords(), StatusUpdate("team/a", "a", False, Code.MEMORY.word, "full")
    right, wrong = LastReported(False, "Memory", "full"), LastReported(False, "Memory", "stale")
    again, wrong_text = once_more(reported, turned=True), once_more(reported, turned=False)
    placed = Binding(QueuedPodInfo("a", "team/a", ASK, 0, 0.0, {}), Allocation("id", "t4", ()))
    records.tell(reported, 0.0)
    assert records.repeat_overwritten(PAUSE - 1) == []
    records.begin(placed)
    assert records.repeat_overwritten(PAUSE) == [], "its placement is being written"
    records.done("a")
    assert records.repeat_overwritten(PAUSE) == [again]
    records.shows("a", "team/a", right, PAUSE)
    assert (records.repeat_overwritten(9999.0), records.noted()) == ([], frozenset({"a"}))
    records.shows("a", "team/a", wrong, 5000.0)
    assert records.repeat_overwritten(5000.0 + PAUSE - 1) == []
    assert records.repeat_overwritten(5000.0 + PAUSE) == [wrong_text], "after a quiet while at once"
    records.forget_reports()
    assert records.repeat_overwritten(9999.0) == []
    assert records.noted() == frozenset({"a"}), "how often it was repaired"
    records.drop("a")
    assert records.noted() == frozenset()


def test_a_record_ends_with_what_is_noted_in_it() -> None:
    records = PodRecords()
    placed = Binding(QueuedPodInfo("a", "team/a", ASK, 0, 0.0, {}), Allocation("id", "t4", ()))
    records.begin(placed)
    assert (records.failed("a", 0.0), records.busy("a", 0.0), records.busy("a", 1.0)) == (1, "pausing", "")
    assert (records.resume(0.1), records.resume(1.0), records.resume(1.0)) == (False, True, False)
    records.begin(placed)
    records.drop("a")
    assert (records.is_writing("a"), records.writing(), records.noted()) == (True, frozenset({"id"}), frozenset())
    records.done("a", 8)
    assert (records.outdated("a", 7), records.outdated("a", 8), records.outdated("a", 7)) == (True, False, False)
    assert (records.is_writing("a"), records.noted()) == (False, frozenset())
