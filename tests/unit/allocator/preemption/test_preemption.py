"""
Room is made for a pod of higher priority: evictions are requested once, the room is kept until the pod is placed, and
none is evicted without effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.preemption import tracker
from allocator.queue.records import EventRecord, Eviction, Report, StatusUpdate
from allocator.scheduler.events import BindSucceeded, EvictionAnswered, PodDeleted, TickPhase, pods_listed
from allocator.server import debug
from allocator.settings import Settings
from allocator.workers.evictor import Evictor
from contract import pods
from contract.encoding.protocol import Placed, Wait
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade
from tests.wires import Answer, Script, status_body

JSON = dict[str, Any]
ON = chosen(preemption=True)
WHY = "a pod of higher priority waits for a GPU share, and node a requires the fewest evictions"


def worker(name: str, size: str = "8Gi", *, priority: int = 0, at: str = "2030-01-01T00:00:00Z") -> PodBuilder:
    made = pod(name).uid(f"uid-{name}").created(at).asks("gpufraction.io/gpu-memory", size)
    return made.spec(priority=priority)


class Bench(SchedulerHarness):
    """One card of 16 GiB on node `a`, occupied by `old` and `young`, and the pod `vip` that waits for all of it."""

    def run(self, builder: PodBuilder) -> JSON:
        answer = self.controller.reserve(question(builder))
        assert isinstance(answer, Placed), answer
        made = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
        self.controller.handle(pod_event(pods.trim(made)))
        return made

    def wait(self, builder: PodBuilder) -> None:
        self.controller.handle(pod_event(pods.trim(admitted(builder, gated=True))))
        self.controller.schedule_pending()

    def placed(self) -> list[str]:
        """The pods that get their share within the next second."""
        updates = [each for each in self.second() if isinstance(each, StatusUpdate)]
        return [each.key for each in updates if each.event and each.code == PodReason.ALLOCATED]

    def second(self) -> list[Report]:
        """A second passes, and the queue is tried if that was requested."""
        self.now += 1
        self.controller.tick(TickPhase.UPKEEP)
        bindings, reports = self.controller.schedule_pending()
        for binding in bindings:
            self.controller.handle(
                BindSucceeded(binding, pod_event(pods.trim(admitted(remade(binding), allocation=binding.allocation))))
            )
        self.controller.check_invariants()
        return [*reports, *(StatusUpdate(c.pod.key, c.pod.uid, True, PodReason.ALLOCATED, "") for c in bindings)]

    @property
    def kept(self) -> str:
        return ", ".join(f"{kept.node} for {kept.uid}" for kept in self.controller.view().reserved)

    def end(self, made: JSON) -> None:
        ending = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}}
        self.controller.handle(pod_event(pods.trim(ending)))


def placed(news: Iterable[Report]) -> list[str]:
    """The pods whose placement is reported now."""
    return [each.key for each in news if isinstance(each, StatusUpdate) and each.allocated and each.event]


def full(options: Settings = ON, *, vip: PodBuilder | None = None) -> tuple[Bench, JSON, JSON]:
    harness = Bench([node("a").gpu(mib=16384)], options=options)
    old = harness.run(worker("old", at="2030-01-01T00:00:01Z"))
    young = harness.run(worker("young", at="2030-01-01T00:00:02Z"))
    harness.wait(vip or worker("vip", priority=10))
    return harness, old, young


def evict(name: str) -> Eviction:
    return Eviction(f"default/{name}", f"uid-{name}", None, "preemption", WHY)


def test_the_youngest_goes_and_the_pod_is_placed_in_its_room() -> None:
    harness, _, young = full()
    assert harness.controller.preempt() == [evict("young")]
    harness.controller.handle(EvictionAnswered(evict("young"), "evicted"))
    summary = "waiting: 0 of 1 GPU nodes fit: 1 short of memory (largest free 0 MiB, wanted 8192)"
    more = "waits for pods of lower priority on node a, evicted to make room"
    assert harness.second() == [
        EventRecord("Pod", "default/young", "uid-young", PodEventReason.PREEMPTED, f"evicted: {WHY}"),
        StatusUpdate("default/vip", "uid-vip", False, PodReason.PREEMPTING, f"{summary}; {more}", turned=False),
    ]
    assert harness.kept == "a for uid-vip"
    harness.end(young)
    assert harness.controller.preempt() == [], "one whose victims are on their way asks for no more"
    harness.controller.handle(PodDeleted("uid-young"))
    assert [news.key for news in harness.second()] == ["default/vip"]
    harness.second()
    assert (harness.kept, harness.controller.look().waiting) == ("", 0)


def test_what_came_free_is_kept_from_everybody_of_the_same_or_lower_priority() -> None:
    harness, _, _ = full()
    harness.controller.preempt()
    harness.controller.handle(PodDeleted("uid-young"))
    answers = [harness.controller.reserve(question(worker(f"p{i}", "1Gi", priority=i))) for i in (0, 10)]
    assert [type(answer) for answer in answers] == [Wait, Wait]
    assert "default/vip" in [news.key for news in harness.second()]


def test_a_pod_of_yet_higher_priority_goes_before_it() -> None:
    harness, _, _ = full()
    harness.controller.preempt()
    harness.controller.handle(PodDeleted("uid-young"))
    assert isinstance(harness.controller.reserve(question(worker("urgent", "1Gi", priority=11))), Placed)


NOBODY_GOES = {
    "it is off unless switched on": (chosen(), worker("vip", priority=10)),
    "the same priority never preempts": (ON, worker("vip", priority=0)),
    "a pod that must not preempt": (ON, worker("vip", priority=10).spec(preemptionPolicy="Never")),
    "a pod that waits for something else first": (ON, worker("vip", priority=10).spec(schedulingGates=[])),
    "room for it would not be enough": (ON, worker("vip", "17Gi", priority=10)),
}


@pytest.mark.parametrize("case", NOBODY_GOES.values(), ids=NOBODY_GOES.keys())
def test_nobody_goes_where(case: tuple[Settings, PodBuilder]) -> None:
    options, vip = case
    harness = full(options, vip=worker("other"))[0]
    harness.controller.handle(PodDeleted("uid-other"))
    made = admitted(vip, gated=True)
    if not vip.json()["spec"].get("schedulingGates", [0]):
        made["spec"]["schedulingGates"].append({"name": "example.com/hold"})
    harness.controller.handle(pod_event(pods.trim(made)))
    harness.controller.schedule_pending()
    assert (harness.controller.preempt(), harness.kept) == ([], "")


def test_a_pod_whose_disruption_budget_forbids_it_is_spared_and_another_goes() -> None:
    harness, _, _ = full()
    assert harness.controller.preempt() == [evict("young")]
    harness.controller.handle(EvictionAnswered(evict("young"), "budget"))
    harness.second()
    assert harness.controller.preempt() == [evict("old")]


def test_where_budgets_forbid_all_evictions_the_pod_waits_and_is_retried() -> None:
    harness, _, _ = full()
    for name in ("young", "old"):
        assert harness.controller.preempt() == [evict(name)]
        harness.controller.handle(EvictionAnswered(evict(name), "budget"))
        harness.second()
    assert harness.controller.preempt() == []
    (update,) = [news for news in harness.second() if isinstance(news, StatusUpdate)]
    assert (update.code, update.reason.split("; ")[1]) == (
        "PreemptionBlocked",
        "evicting 1 pod of lower priority would make room, but disruption budgets do not allow it now",
    )
    assert harness.kept == ""
    harness.now += 30
    harness.second()
    for name in ("young", "old"):
        assert harness.controller.preempt() == [evict(name)]
        harness.controller.handle(EvictionAnswered(evict(name), "budget"))
        assert harness.second() == [], "it is not told again what it was told before"
    assert harness.controller.preempt() == []
    assert harness.second() == []


def test_an_eviction_that_fails_is_tried_again_after_pauses_that_grow() -> None:
    harness, _, _ = full()
    requested = []
    for _ in range(200):
        if harness.controller.preempt():
            requested.append(harness.now - 100)
            harness.controller.handle(EvictionAnswered(evict("young"), "failed"))
        harness.second()
    assert requested == [0, 30, 90]


def test_room_that_somebody_else_took_is_made_again_only_after_a_pause() -> None:
    harness, _, _ = full()
    harness.controller.preempt()
    harness.wait(worker("first", priority=20))
    harness.controller.handle(PodDeleted("uid-young"))
    assert "default/first" in [news.key for news in harness.second()]
    harness.second()
    assert (harness.controller.preempt(), harness.kept) == ([], "")
    harness.now += 30
    harness.second()
    assert harness.controller.preempt() == [evict("old")]


def test_whoever_leads_next_waits_for_those_who_end_already() -> None:
    first, old, young = full()
    first.controller.preempt()
    ending = {**young, "metadata": {**young["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}}
    then = Bench([node("a").gpu(mib=16384)], options=ON)
    then.controller.handle(pods_listed(map(pods.trim, (old, ending, admitted(worker("vip", priority=10), gated=True)))))
    then.controller.schedule_pending()
    assert (then.controller.preempt(), then.kept) == ([], "a for uid-vip")
    then.controller.handle(PodDeleted("uid-young"))
    assert "default/vip" in [news.key for news in then.second()]


LEAVES = {
    "is deleted": lambda harness: harness.controller.handle(PodDeleted("uid-vip")),
    "is no longer ours to decide": lambda harness: setattr(harness, "leads", False),
}


@pytest.mark.parametrize("leave", LEAVES.values(), ids=LEAVES.keys())
def test_nothing_is_kept_for_a_pod_that(leave: Any) -> None:
    harness, _, _ = full()
    harness.controller.preempt()
    assert harness.kept == "a for uid-vip"
    leave(harness)
    harness.second()
    harness.now += 5
    harness.second()
    assert harness.kept == ""


def test_a_victim_that_never_ends_is_not_counted_on_for_ever() -> None:
    harness, _, young = full(chosen(preemption=True, starvation_timeout=0))
    harness.controller.preempt()
    harness.end(young)
    harness.now += 601
    harness.second()
    assert harness.kept == ""
    harness.now += 30
    harness.second()
    assert harness.controller.preempt() == [evict("old")]


def test_a_node_that_is_kept_for_a_pod_of_higher_priority_is_let_alone() -> None:
    harness = Bench([node("a").gpu(mib=16384)], options=chosen(preemption=True, starvation_timeout=60.0))
    harness.run(worker("low"))
    harness.run(worker("high", priority=30))
    harness.wait(worker("large", "16Gi", priority=20))
    harness.now += 60
    harness.second()
    assert harness.kept == "a for uid-large"
    harness.wait(worker("vip", priority=10))
    assert (harness.controller.preempt(), harness.kept) == ([], "a for uid-large")


# -- several at the same time -------------------------------------------------------------------------------------


def crowd(*cards: int, vips: int) -> Bench:
    """Nodes with this many cards, on each two pods of no priority; pods of high priority wait for half a card."""
    harness = Bench([node(f"n{i}").gpus(count, mib=16384) for i, count in enumerate(cards)], options=ON)
    for number in range(2 * sum(cards)):
        harness.run(worker(f"low-{number}", at=f"2030-01-01T00:00:{number:02}Z"))
    for number in range(vips):
        harness.wait(worker(f"vip-{number}", priority=10, at=f"2030-01-01T00:01:{number:02}Z"))
    return harness


def all_plans(harness: Bench) -> list[list[str]]:
    """The victims of every plan that starts now. Their evictions are granted."""
    found = []
    while orders := harness.controller.preempt():
        found.append([order.uid for order in orders])
        for order in orders:
            harness.controller.handle(EvictionAnswered(order, "evicted"))
        harness.second()
    return found


def test_a_line_of_pods_does_not_wait_for_one_grace_period_after_the_other() -> None:
    harness = crowd(1, 2, vips=5)
    plans = all_plans(harness)
    victims = [uid for plan in plans for uid in plan]
    assert ([len(plan) for plan in plans], len(set(victims))) == ([1] * 5, 5)
    for uid in victims:
        harness.controller.handle(PodDeleted(uid))
    assert {
        news.key
        for news in harness.second()
        if (getattr(news, "code", ""), getattr(news, "event", False)) == ("Allocated", True)
    } == {f"default/vip-{number}" for number in range(5)}
    harness.second()
    assert (harness.kept, harness.controller.look().waiting) == ("", 0)


def test_what_is_made_free_for_one_is_left_alone_by_another_on_the_same_node() -> None:
    harness = Bench([node("a").gpus(2, mib=16384)], options=ON)
    for number in range(4):
        harness.run(worker(f"low-{number}", at=f"2030-01-01T00:00:{number:02}Z"))
    harness.wait(worker("large", "16Gi", priority=10, at="2030-01-01T00:01:00Z"))
    harness.wait(worker("small", "8Gi", priority=10, at="2030-01-01T00:01:01Z"))
    for_large, for_small = all_plans(harness)
    assert (len(for_large), len(for_small)) == (2, 1)
    harness.controller.handle(PodDeleted(for_large[0]))
    assert harness.placed() == [], "half of it is for the large one"
    harness.controller.handle(PodDeleted(for_small[0]))
    assert harness.placed() == ["default/small"]
    harness.controller.handle(PodDeleted(for_large[1]))
    assert harness.placed() == ["default/large"]


def test_what_one_gives_back_too_much_counts_for_the_next() -> None:
    harness = Bench([node("a").gpu(mib=16384)], options=ON)
    harness.run(worker("low", "16Gi"))
    for number in range(2):
        harness.wait(worker(f"vip-{number}", "8Gi", priority=10))
    assert [order.uid for order in harness.controller.preempt()] == ["uid-low"]
    harness.second()
    assert harness.controller.preempt() == [], "the same one goes for both"
    assert harness.kept == "a for uid-vip-0, a for uid-vip-1"
    harness.controller.handle(PodDeleted("uid-low"))
    assert len(placed(harness.second())) == 2


def test_a_plan_that_a_budget_forbids_ends_and_no_other() -> None:
    harness = crowd(1, 1, vips=2)
    first = harness.controller.preempt()
    harness.controller.handle(EvictionAnswered(first[0], "evicted"))
    harness.second()
    second = harness.controller.preempt()
    harness.controller.handle(EvictionAnswered(second[0], "budget"))
    assert harness.kept.endswith("for uid-vip-0")
    assert ", " not in harness.kept


def test_no_more_than_so_many_are_under_way() -> None:
    harness = crowd(10, 10, vips=20)
    assert len(all_plans(harness)) == tracker.MOST


def test_a_snapshot_with_several_kept_nodes_is_replayed_as_it_was_decided() -> None:
    harness = Bench([node("a").gpus(2, mib=16384)], options=ON)
    for number in range(4):
        harness.run(worker(f"low-{number}", at=f"2030-01-01T00:00:{number:02}Z"))
    harness.wait(worker("large", "16Gi", priority=10, at="2030-01-01T00:01:00Z"))
    harness.wait(worker("small", "8Gi", priority=10, at="2030-01-01T00:01:01Z"))
    for_large, _ = all_plans(harness)
    harness.controller.handle(PodDeleted(for_large[0]))
    view = debug.from_json(json.loads(json.dumps(debug.to_json(harness.controller.view()))))
    assert view == harness.controller.view()
    assert [outcome.code for outcome in debug.one_cycle(view)] == ["Memory", "Memory"]


# -- writing ------------------------------------------------------------------------------------------------------


DONE, BUDGET = Answer(201, {}), Answer(429, status_body(429, "TooManyRequests"))
FORBIDDEN, GONE = Answer(403, status_body(403, "Forbidden")), Answer(404, status_body(404, "NotFound"))
WRITTEN: dict[str, tuple[list[Answer], list[str], list[str]]] = {
    "each is asked about before any goes": ([DONE] * 4, ["try", "try", "do", "do"], ["evicted", "evicted"]),
    "a budget that forbids one spares all": ([DONE, BUDGET], ["try", "try"], ["budget"]),
    "one that forbids the second at last ends it": (
        [DONE, DONE, DONE, BUDGET],
        ["try", "try", "do", "do"],
        ["evicted", "budget"],
    ),
    "the right is missing": ([FORBIDDEN], ["try"], ["failed"]),
    "somebody is gone already": ([GONE, DONE, GONE, DONE], ["try", "try", "do", "do"], ["gone", "evicted"]),
}


@pytest.mark.parametrize("case", WRITTEN.values(), ids=WRITTEN.keys())
def test_evictions_for_room(case: tuple[list[Answer], list[str], list[str]]) -> None:
    answers, requested, outcomes = case
    harness = full(vip=worker("vip", "16Gi", priority=10))[0]
    script, counted = Script(*answers), list[tuple[str, str]]()
    Evictor(Kube(script), harness.controller, lambda cause, outcome: counted.append((cause, outcome))).preempt()
    assert ["try" if sent.query == {"dryRun": "All"} else "do" for sent in script.sent] == requested
    assert counted == [("preemption", outcome) for outcome in outcomes]
