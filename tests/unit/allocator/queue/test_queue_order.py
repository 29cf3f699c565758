"""Waiting pods: their order, what starts them, their conditions, and what happens to a write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from allocator.cache.podinfo import pod_event, read_pod
from allocator.queue.queue import SchedulingQueue
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import (
    AssumedChecked,
    BindFailed,
    BindSucceeded,
    BindUnknown,
    InventoriesListed,
    InventoryChanged,
    NodeChanged,
    NodesListed,
    PodDeleted,
    TickPhase,
    pods_listed,
)
from allocator.settings import Settings
from contract import names
from contract.encoding.protocol import Placed, Wait
from contract.nodes.attributes import facts
from contract.pods import trim
from contract.reasons.nodes import Code
from contract.reasons.pods import PodReason
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, overdue, question
from tests.unit.allocator.one_gpu import FULL, ONE_GPU, keys, occupied, running, waiting, worker


def test_a_waiting_pod_has_one_reason_and_starts_when_a_share_is_freed() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    reported = StatusUpdate("default/second", "uid-second", False, Code.MEMORY.word, FULL)
    assert harness.controller.schedule_pending() == ([], [reported])
    assert harness.controller.schedule_pending() == ([], []), "nothing new to tell"
    woken = harness.woken
    harness.controller.handle(PodDeleted("uid-first"))
    assert harness.woken > woken
    bindings, _ = harness.controller.schedule_pending()
    assert keys(bindings) == ["default/second"]
    harness.controller.handle(BindSucceeded(bindings[0], pod_event(running(worker("second"), bindings[0].allocation))))
    assert (harness.controller.look().confirmed, harness.controller.look().waiting) == (1, 0)
    harness.controller.check_invariants()


def test_deleting_one_starts_exactly_one() -> None:
    harness, _ = occupied()
    for name in ("b", "a", "c"):
        harness.controller.handle(pod_event(waiting(worker(name))))
    harness.controller.handle(PodDeleted("uid-first"))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/b"], "who was seen first, of the same second"


def test_the_line_is_by_priority_then_age() -> None:
    harness, _ = occupied()
    for name, created, priority in (
        ("old", "2029-01-01T00:00:00Z", 0),
        ("young", "2031-01-01T00:00:00Z", 0),
        ("urgent", "2032-01-01T00:00:00Z", 10),
    ):
        harness.controller.handle(pod_event(waiting(worker(name, created=created, mib=5000).spec(priority=priority))))
    harness.controller.handle(PodDeleted("uid-first"))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/urgent", "default/old", "default/young"]


def test_a_dialects_priority_counts_among_pods_of_one_class() -> None:
    harness, _ = occupied()
    for name, created, urgency in (("low", "2029-01-01T00:00:00Z", 1), ("high", "2031-01-01T00:00:00Z", 0)):
        made = pod(name).uid(f"uid-{name}").created(created).asks("nvidia.com/gpumem", 5000)
        harness.controller.handle(pod_event(waiting(made.asks("nvidia.com/priority", urgency))))
    harness.controller.handle(
        pod_event(waiting(worker("classy", created="2032-01-01T00:00:00Z", mib=5000).spec(priority=1)))
    )
    harness.controller.handle(PodDeleted("uid-first"))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/classy", "default/high", "default/low"]


def test_a_dialects_priority_passes_no_pod_of_another_namespace() -> None:
    harness, _ = occupied()
    for key, created, urgency in (
        ("a/low", "2028-01-01T00:00:00Z", 1),
        ("b/plain", "2029-01-01T00:00:00Z", 1),
        ("a/high", "2031-01-01T00:00:00Z", 0),
    ):
        namespace, name = key.split("/")
        made = pod(name, namespace).uid(f"uid-{name}").created(created).asks("nvidia.com/gpumem", 5000)
        harness.controller.handle(pod_event(waiting(made.asks("nvidia.com/priority", urgency))))
    harness.controller.handle(PodDeleted("uid-first"))
    assert keys(harness.controller.schedule_pending()[0]) == ["b/plain", "a/high", "a/low"]


def test_a_small_pod_behind_a_large_one_that_does_not_fit_is_placed() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("large", created="2029-01-01T00:00:00Z"))))
    harness.controller.handle(pod_event(waiting(worker("small", created="2030-01-01T00:00:00Z", mib=1000))))
    bindings, reported = harness.controller.schedule_pending()
    assert (keys(bindings), [t.key for t in reported]) == (["default/small"], ["default/large"])


def test_a_terminating_pod_still_holds_its_share_and_a_finished_one_does_not() -> None:
    harness, allocation = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    ending = running(worker("first"), allocation)
    ending["metadata"]["deletionTimestamp"] = "2030-01-01T00:01:00Z"
    harness.controller.handle(pod_event(ending))
    assert harness.controller.schedule_pending()[0] == []
    ending["status"] = {"phase": "Succeeded"}
    harness.controller.handle(pod_event(ending))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/second"]


def test_a_pod_that_its_kubelet_refused_gives_its_share_back() -> None:
    harness, allocation = occupied()
    refused = running(worker("first"), allocation)
    refused["status"] = {"phase": "Failed", "reason": "OutOfcpu"}
    harness.controller.handle(pod_event(refused))
    assert harness.controller.look().confirmed == 0


def test_a_new_node_starts_a_waiting_pod() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    harness.controller.schedule_pending()
    woken, more = harness.woken, node("late").gpus(1)
    harness.controller.handle(InventoryChanged(more.inventory()))
    harness.controller.handle(NodeChanged(_facts(more)))
    assert harness.woken > woken
    bindings, _ = harness.controller.schedule_pending()
    assert [c.allocation.node for c in bindings] == ["late"]


def _facts(builder: Any) -> Any:

    return facts(builder.json())


def test_a_reservation_whose_pod_never_came_is_given_to_the_next() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.reserve(question(worker("refused-by-quota")))
    harness.controller.handle(pod_event(waiting(worker("second"))))
    assert harness.controller.schedule_pending()[0] == []
    harness.now += 39
    harness.controller.handle(AssumedChecked(overdue(harness.controller), ()))
    assert harness.controller.schedule_pending()[0] == []
    harness.now += 2
    harness.controller.handle(AssumedChecked(overdue(harness.controller), ()))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/second"]


def test_a_reservation_whose_pod_exists_and_was_not_seen_is_kept() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.reserve(question(worker("behind-the-watch")))
    harness.now += 66
    (late,) = overdue(harness.controller)
    harness.controller.handle(AssumedChecked((late,), {late.key}))
    assert (harness.controller.look().assumed, overdue(harness.controller)) == (1, ())


def test_a_write_that_failed_is_forgotten_and_tried_again_after_a_growing_pause() -> None:
    harness = SchedulerHarness([ONE_GPU])
    pod_ = waiting(worker("p"))
    harness.controller.handle(pod_event(pod_))
    for pause in (0.5, 1.0, 2.0):
        bindings, _ = harness.controller.schedule_pending()
        assert keys(bindings) == ["default/p"]
        assert harness.controller.schedule_pending()[0] == [], "it is being written"
        harness.controller.handle(BindFailed(bindings[0], pod_event(pod_)))
        assert harness.controller.look().assumed == 0
        harness.now += pause - 0.1
        harness.controller.tick(TickPhase.UPKEEP)
        assert harness.controller.schedule_pending()[0] == []
        harness.now += 0.2
        harness.controller.tick(TickPhase.UPKEEP)
    harness.controller.check_invariants()


def test_a_pod_deleted_while_it_was_written_takes_nothing() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    bindings, _ = harness.controller.schedule_pending()
    harness.controller.handle(BindFailed(bindings[0], None))
    assert (harness.controller.look().assumed, harness.controller.look().waiting) == (0, 0)


def test_an_unknown_write_keeps_its_share_until_it_is_known() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    bindings, _ = harness.controller.schedule_pending()
    harness.controller.handle(BindUnknown(bindings[0]))
    harness.controller.handle(pod_event(waiting(worker("other"))))
    harness.now += 3600
    assert overdue(harness.controller) == ()
    assert harness.controller.schedule_pending()[0] == [], "the share may be the pod's by now"
    assert harness.controller.tick(TickPhase.BINDINGS) == [replace(each, again=True) for each in bindings]
    assert harness.controller.tick(TickPhase.BINDINGS) == [], "it is being written once more"
    harness.controller.handle(BindFailed(bindings[0], None))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/other"]


def test_an_answer_that_the_watch_has_overtaken_brings_nothing_back() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    ((binding,), _) = harness.controller.schedule_pending()
    harness.controller.handle(PodDeleted("uid-p"))
    harness.controller.handle(BindSucceeded(binding, pod_event(running(worker("p"), binding.allocation))))
    assert (harness.controller.look().assumed, harness.controller.look().confirmed) == (0, 0)


def test_a_list_from_before_our_own_commit_takes_nothing_away() -> None:
    harness = SchedulerHarness([ONE_GPU])
    before, after = waiting(worker("p")), waiting(worker("p"))
    before["metadata"]["resourceVersion"] = "7"
    harness.controller.handle(pod_event(before))
    ((binding,), _) = harness.controller.schedule_pending()
    after = running(worker("p"), binding.allocation)
    after["metadata"]["resourceVersion"] = "10"
    harness.controller.handle(BindSucceeded(binding, pod_event(after)))
    harness.controller.handle(pods_listed([before]))
    assert harness.controller.look().confirmed == 1
    harness.controller.handle(pod_event(after))
    harness.controller.handle(pods_listed([]))
    assert harness.controller.look().confirmed == 0


def test_an_unknown_write_that_took_effect_is_confirmed_by_the_watch() -> None:
    harness = SchedulerHarness([ONE_GPU])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    bindings, _ = harness.controller.schedule_pending()
    harness.controller.handle(BindUnknown(bindings[0]))
    harness.controller.handle(pod_event(running(worker("p"), bindings[0].allocation)))
    harness.now += 60
    harness.controller.tick(TickPhase.UPKEEP)
    assert harness.controller.look().confirmed == 1


def test_a_pod_waits_for_another_systems_gate_first() -> None:
    harness = SchedulerHarness([ONE_GPU])
    held = waiting(worker("p"))
    held["spec"]["schedulingGates"].insert(0, {"name": "kueue.x-k8s.io/admission"})
    harness.controller.handle(pod_event(held))
    bindings, reported = harness.controller.schedule_pending()
    assert (bindings, [t.code for t in reported]) == ([], ["ForeignGate"])
    harness.controller.handle(pod_event(waiting(worker("p"))))
    assert keys(harness.controller.schedule_pending()[0]) == ["default/p"]


def test_a_forged_allocation_on_a_waiting_pod_holds_nothing() -> None:
    harness, allocation = occupied()
    forged = admitted(worker("thief"), allocation=allocation, gated=True)
    harness.controller.handle(pod_event(forged))
    assert harness.controller.look().confirmed == 1


def test_an_allocation_without_the_accounting_resources_holds_nothing() -> None:
    harness, allocation = occupied()
    forged = admitted(worker("thief"), allocation=allocation)
    forged["spec"]["containers"][0]["resources"] = {}
    harness.controller.handle(pod_event(forged))
    assert harness.controller.look().confirmed == 1


def test_a_gated_pod_whose_request_disagrees_is_counted_and_left() -> None:
    harness = SchedulerHarness([ONE_GPU])
    odd = waiting(worker("p"))
    odd["metadata"]["annotations"][names.REQUEST] = "{}"
    harness.controller.handle(pod_event(odd))
    text = (
        "waiting: metadata.annotations[gpufraction.io/request]: found no value that agrees with the containers' "
        "resources; create the pod again, so that admission writes it"
    )
    assert harness.controller.schedule_pending() == (
        [],
        [StatusUpdate("default/p", "uid-p", False, PodReason.UNREADABLE, text)],
    )
    harness.controller.handle(pod_event(odd))
    assert harness.controller.schedule_pending() == ([], []), "nothing new to tell"
    assert harness.controller.look().unreadable == 1
    harness.controller.check_invariants()


def test_a_gated_pod_that_is_too_large_waits_until_it_is_smaller() -> None:
    harness = SchedulerHarness([ONE_GPU])
    large = waiting(worker("p").affinity({"matchExpressions": [{"key": "k", "operator": "Exists"}] * 8_000}))
    harness.controller.handle(pod_event(trim(large)))
    text = (
        "waiting: spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution: "
        "found 8000 expressions and values; a pod with a GPU share has at most 1000"
    )
    assert harness.controller.schedule_pending() == (
        [],
        [StatusUpdate("default/p", "uid-p", False, PodReason.UNREADABLE, text)],
    )
    assert harness.controller.look().unreadable == 1
    harness.controller.handle(pod_event(trim(waiting(worker("p")))))
    bindings, _ = harness.controller.schedule_pending()
    assert (keys(bindings), harness.controller.look().unreadable) == (["default/p"], 0)
    harness.controller.check_invariants()


def test_pods_that_need_the_same_of_their_nodes_share_what_is_kept_of_it() -> None:
    queue = SchedulingQueue()
    for name in ("a", "b"):
        queue.put(read_pod(trim(waiting(worker(name).selects(pool="gpu")))))
    first, second = queue.in_order()
    assert first.ask.needs is second.ask.needs
    queue.put(read_pod(trim(waiting(worker("a").selects(pool="other")))))
    changed = queue.pod("uid-a")
    assert changed is not None
    assert dict(changed.ask.needs.node_selector) == {"pool": "other"}
    for name in ("a", "b"):
        queue.drop(f"uid-{name}")
    assert len(queue._asks) == 0


def test_the_queue_knows_for_how_many_whole_cards_pods_wait() -> None:
    queue, found = SchedulingQueue(), list[list[int]]()
    four = pod("four").uid("four").asks("gpufraction.io/gpu-count", 4)
    both = pod("both").uid("both").asks("nvidia.com/gpu", 3).container("other").asks("nvidia.com/gpu", 3)
    share = pod("share").uid("share").asks("gpufraction.io/gpu-memory", "4Gi").asks("gpufraction.io/gpu-count", 8)
    for builder in (share, four, both):
        queue.put(read_pod(trim(waiting(builder))))
        found.append(sorted(queue.cards()))
    behind = waiting(both)
    behind["spec"]["schedulingGates"].append({"name": "kueue.x-k8s.io/admission"})
    queue.put(read_pod(trim(behind)))
    found.append(sorted(queue.cards()))
    for uid in ("four", "four", "both", "share"):
        queue.drop(uid)
        found.append(sorted(queue.cards()))
    assert found == [[], [4], [4, 6], [4], [], [], [], []]


def test_after_a_restart_the_pods_alone_give_the_same_state() -> None:
    harness, allocation = occupied()
    pods_there = [running(worker("first"), allocation), waiting(worker("second"))]
    again = SchedulerHarness([ONE_GPU], synced=False)
    again.sync(pods_there)
    harness.controller.handle(pod_event(pods_there[1]))
    assert again.controller.look() == harness.controller.look()
    again.controller.handle(PodDeleted("uid-first"))
    assert keys(again.controller.schedule_pending()[0]) == ["default/second"]


def test_a_pod_that_finished_before_it_was_seen_gives_its_reservation_back() -> None:
    harness = SchedulerHarness([ONE_GPU])
    answer = harness.controller.reserve(question(worker("short")))
    assert isinstance(answer, Placed)
    harness.controller.handle(
        pod_event({**running(worker("short"), answer.allocation), "status": {"phase": "Succeeded"}})
    )
    assert harness.controller.look().assumed == 0


def test_a_relist_drops_what_is_not_on_it() -> None:
    harness, _ = occupied()
    harness.controller.handle(pods_listed([]))
    assert harness.controller.look().confirmed == 0
    harness.controller.handle(InventoriesListed(()))
    harness.controller.handle(NodesListed(()))
    harness.controller.check_invariants()


def test_a_newcomer_does_not_take_what_came_back_before_the_line_was_tried() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    harness.controller.schedule_pending()
    harness.controller.handle(PodDeleted("uid-first"))
    answer = harness.controller.reserve(question(worker("newcomer")))
    assert isinstance(answer, Wait)
    assert (answer.code, answer.reason) == (
        "Queued",
        "the pods ahead in the queue are placed first",
    )
    assert keys(harness.controller.schedule_pending()[0]) == ["default/second"]


def test_a_newcomer_of_higher_priority_would_be_before_them_in_line_too() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("second"))))
    harness.controller.handle(PodDeleted("uid-first"))
    urgent = question(worker("urgent").spec(priority=10))
    assert isinstance(harness.controller.reserve(urgent), Placed)


def test_a_newcomer_is_placed_at_once_where_the_line_was_tried_in_vain() -> None:
    harness, _ = occupied()
    harness.controller.handle(pod_event(waiting(worker("large"))))
    harness.controller.schedule_pending()
    assert isinstance(harness.controller.reserve(question(worker("small", mib=1000))), Placed)


def test_of_a_pod_that_has_finished_nothing_is_kept_though_its_end_be_missed() -> None:
    harness, allocation = occupied()
    finished = {**running(worker("first"), allocation), "status": {"phase": "Succeeded"}}
    harness.controller.handle(pod_event(finished))
    harness.controller.check_invariants()
    harness.controller.handle(pod_event(waiting(worker("second", mib=20_000))))
    harness.controller.schedule_pending()
    harness.controller.handle(pod_event(worker("second", mib=20_000).json()))
    harness.controller.check_invariants()


def test_a_reservation_outlives_the_longest_creation() -> None:
    """
    kube-apiserver's `requestTimeoutUpperBound`, the time for which other webhooks may delay a creation after ours.
    """
    longest_creation = 34.0
    assert Settings().assume_ttl > longest_creation
