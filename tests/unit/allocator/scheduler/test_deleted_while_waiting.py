"""A gated pod is deleted and kept by a finalizer: it stops waiting at any moment of that, and gets nothing."""

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
    """A pod behind our gate that a finalizer keeps, like a Job's pod."""
    builder = pod(name).uid(name).created(f"2030-01-01T00:00:{second:02}Z").asks("gpufraction.io/gpu-memory", size)
    made = admitted(builder, gated=True)
    made["metadata"] |= {"resourceVersion": "1", "finalizers": ["batch.kubernetes.io/job-tracking"]}
    return made


def deleted(found: JSON, version: int = 2) -> JSON:
    made = copy.deepcopy(found)
    made["metadata"] |= {"deletionTimestamp": AT, "resourceVersion": str(version)}
    return made


def see(harness: SchedulerHarness, *found: JSON) -> None:
    for each in found:
        harness.controller.handle(pod_event(each, pods.trim))


def decided(harness: SchedulerHarness) -> list[Binding]:
    return harness.controller.schedule_pending()[0]


def waits(harness: SchedulerHarness) -> list[str]:
    return [entry.uid for entry in harness.controller.view().queue]


FIRST, NEXT = gated("first"), gated("next", second=1)


def test_before_a_decision_the_next_in_the_queue_gets_the_card() -> None:
    harness = SchedulerHarness([NODE])
    see(harness, FIRST, NEXT, deleted(FIRST))
    assert waits(harness) == ["next"]
    assert [binding.pod.uid for binding in decided(harness)] == ["next"]


def test_a_new_leader_that_lists_it_never_has_it_in_the_queue() -> None:
    harness = SchedulerHarness([NODE])
    harness.controller.handle(pods_listed(pods.trim(each) for each in (deleted(FIRST), NEXT)))
    assert waits(harness) == ["next"]
    assert not harness.controller.known("first")
    assert [binding.pod.uid for binding in decided(harness)] == ["next"]


@pytest.mark.parametrize("seen_first", [True, False], ids=["watch before answer", "answer before watch"])
@pytest.mark.parametrize("outcome", ["failed", "unknown, then failed"])
def test_while_the_decision_is_written_its_card_goes_to_the_next(seen_first: bool, outcome: str) -> None:
    harness = SchedulerHarness([NODE])
    see(harness, FIRST, NEXT)
    [binding] = decided(harness)
    assert binding.pod.uid == "first"
    removed_pod = deleted(FIRST)
    if seen_first:
        see(harness, removed_pod)
        assert waits(harness) == ["next"]
        assert decided(harness) == [], "the write may still take effect"
    if outcome != "failed":
        harness.controller.handle(BindUnknown(binding, "no answer"))
        assert decided(harness) == []
    harness.controller.handle(BindFailed(binding, pod_event(removed_pod, pods.trim), "the version has moved on"))
    assert waits(harness) == ["next"]
    assert [each.pod.uid for each in decided(harness)] == ["next"]
    assert harness.controller.look().assumed == 1
    harness.controller.check_invariants()


def test_a_write_before_the_deletion_holds_until_the_pod_is_removed() -> None:
    harness = SchedulerHarness([NODE])
    see(harness, FIRST, NEXT)
    [binding] = decided(harness)
    builder = pod("first").uid("first").asks("gpufraction.io/gpu-memory", "16Gi")
    placed = admitted(builder, allocation=binding.allocation)
    placed["metadata"]["resourceVersion"] = "2"
    harness.controller.handle(BindSucceeded(binding, pod_event(placed, pods.trim)))
    see(harness, deleted(placed, 3))
    assert (decided(harness), harness.controller.look().confirmed) == ([], 1)


def test_nothing_is_kept_wanted_or_evicted_for_it() -> None:
    harness = SchedulerHarness([NODE])
    see(harness, gated("small", "1Gi"), FIRST, deleted(FIRST))
    assert harness.controller.asks(["first", "small"]).keys() == {"small"}
    assert harness.controller.look().reserved == 0
    harness.now += 10_000
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.preempt() == []
    assert [each.uid for each in harness.unserved(0.0) or ()] in ([], ["small"])


def test_one_that_cannot_be_read_is_forgotten_too() -> None:
    harness = SchedulerHarness([NODE])
    odd = gated("odd")
    odd["metadata"]["annotations"][names.REQUEST] = "{}"
    see(harness, odd)
    assert harness.controller.known("odd")
    see(harness, deleted(odd))
    assert not harness.controller.known("odd")


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
    harness = SchedulerHarness([NODE])
    see(harness, made)
    assert not harness.controller.differs(listed(pods.trim(made), NO_OPTIONS))
    assert (waits(harness) == ["p"]) == (is_gated and not is_deleted and phase in ("Pending", "Running"))
