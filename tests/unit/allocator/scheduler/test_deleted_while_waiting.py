"""A gated pod that is deleted and kept by a finalizer: whenever that comes, it waits no longer and gets nothing."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.queue.records import Binding
from allocator.scheduler.consistency import listed
from allocator.scheduler.events import BindFailed, BindSucceeded, BindUnknown, TickPhase, pods_listed
from contract import names, pods
from contract.options import NO_OPTIONS
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted

JSON = dict[str, Any]
NODE = node("n").gpu(mib=16384)
AT = "2030-01-01T01:00:00Z"


def gated(name: str, size: str = "16Gi", second: int = 0) -> JSON:
    """A pod behind our gate, kept by a finalizer as a Job's is."""
    asked = pod(name).uid(name).created(f"2030-01-01T00:00:{second:02}Z").asks("gpufraction.io/gpu-memory", size)
    made = admitted(asked, gated=True)
    made["metadata"] |= {"resourceVersion": "1", "finalizers": ["batch.kubernetes.io/job-tracking"]}
    return made


def deleted(found: JSON, version: int = 2) -> JSON:
    made = copy.deepcopy(found)
    made["metadata"] |= {"deletionTimestamp": AT, "resourceVersion": str(version)}
    return made


def see(desk: SchedulerHarness, *found: JSON) -> None:
    for each in found:
        desk.controller.handle(pod_event(each, pods.trim))


def decided(desk: SchedulerHarness) -> list[Binding]:
    return desk.controller.schedule_pending()[0]


def waits(desk: SchedulerHarness) -> list[str]:
    return [entry.uid for entry in desk.controller.view().queue]


FIRST, NEXT = gated("first"), gated("next", second=1)


def test_before_a_decision_the_next_in_the_queue_gets_the_card() -> None:
    desk = SchedulerHarness([NODE])
    see(desk, FIRST, NEXT, deleted(FIRST))
    assert waits(desk) == ["next"]
    assert [binding.pod.uid for binding in decided(desk)] == ["next"]


def test_a_new_leader_that_lists_it_never_has_it_in_the_queue() -> None:
    desk = SchedulerHarness([NODE])
    desk.controller.handle(pods_listed(pods.trim(each) for each in (deleted(FIRST), NEXT)))
    assert waits(desk) == ["next"]
    assert not desk.controller.known("first")
    assert [binding.pod.uid for binding in decided(desk)] == ["next"]


@pytest.mark.parametrize("seen_first", [True, False], ids=["watch before answer", "answer before watch"])
@pytest.mark.parametrize("outcome", ["failed", "unknown, then failed"])
def test_while_the_decision_is_written_its_card_goes_to_the_next(seen_first: bool, outcome: str) -> None:
    desk = SchedulerHarness([NODE])
    see(desk, FIRST, NEXT)
    [binding] = decided(desk)
    assert binding.pod.uid == "first"
    gone = deleted(FIRST)
    if seen_first:
        see(desk, gone)
        assert waits(desk) == ["next"]
        assert decided(desk) == [], "the write may still take effect"
    if outcome != "failed":
        desk.controller.handle(BindUnknown(binding, "no answer"))
        assert decided(desk) == []
    desk.controller.handle(BindFailed(binding, pod_event(gone, pods.trim), "the version has moved on"))
    assert waits(desk) == ["next"]
    assert [each.pod.uid for each in decided(desk)] == ["next"]
    assert desk.controller.look().assumed == 1
    desk.controller.check_invariants()


def test_a_write_that_was_before_the_deletion_holds_until_the_pod_is_gone() -> None:
    desk = SchedulerHarness([NODE])
    see(desk, FIRST, NEXT)
    [binding] = decided(desk)
    asked = pod("first").uid("first").asks("gpufraction.io/gpu-memory", "16Gi")
    placed = admitted(asked, allocation=binding.allocation)
    placed["metadata"]["resourceVersion"] = "2"
    desk.controller.handle(BindSucceeded(binding, pod_event(placed, pods.trim)))
    see(desk, deleted(placed, 3))
    assert (decided(desk), desk.controller.look().confirmed) == ([], 1)


def test_nothing_is_kept_wanted_or_evicted_for_it() -> None:
    desk = SchedulerHarness([NODE])
    see(desk, gated("small", "1Gi"), FIRST, deleted(FIRST))
    assert desk.controller.asks(["first", "small"]).keys() == {"small"}
    assert desk.controller.look().reserved == 0
    desk.now += 10_000
    desk.controller.tick(TickPhase.UPKEEP)
    assert desk.controller.preempt() == []
    assert [each.uid for each in desk.unserved(0.0) or ()] in ([], ["small"])


def test_one_that_cannot_be_read_is_forgotten_too() -> None:
    desk = SchedulerHarness([NODE])
    odd = gated("odd")
    odd["metadata"]["annotations"][names.REQUEST] = "{}"
    see(desk, odd)
    assert desk.controller.known("odd")
    see(desk, deleted(odd))
    assert not desk.controller.known("odd")


@given(
    is_gated=st.booleans(),
    is_deleted=st.booleans(),
    foreign=st.booleans(),
    phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    bound=st.booleans(),
)
def test_a_fresh_list_never_differs_from_what_the_watch_brought(
    is_gated: bool, is_deleted: bool, foreign: bool, phase: str, bound: bool
) -> None:
    made = gated("p", "1Gi")
    gates = [*(["example.com/other"] if foreign else []), *([str(names.GATE)] if is_gated else [])]
    made["spec"]["schedulingGates"] = [{"name": gate} for gate in gates]
    made["status"] = {"phase": phase}
    if bound:
        made["spec"]["nodeName"] = "n"
    if is_deleted:
        made = deleted(made)
    desk = SchedulerHarness([NODE])
    see(desk, made)
    assert not desk.controller.differs(listed(pods.trim(made), NO_OPTIONS))
    assert (waits(desk) == ["p"]) == (is_gated and not is_deleted and phase in ("Pending", "Running"))
