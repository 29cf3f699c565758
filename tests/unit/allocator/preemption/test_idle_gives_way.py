"""An idle pod that agreed to it gives way for a waiting one: warned first, and only if it still computes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.queue.records import EventRecord, Eviction, Report, StatusUpdate
from allocator.scheduler.events import (
    BindSucceeded,
    ConsentsListed,
    EvictionAnswered,
    IdlePodWarned,
    IdleSharesReported,
    IdleWarning,
    InventoryDeleted,
    PodDeleted,
    TickPhase,
    WarnIdlePods,
    WarningOutcome,
)
from allocator.settings import Settings
from allocator.workers.evictor import Evictor
from contract import names, pods
from contract.encoding.protocol import Placed
from contract.nodes.idle import IdleReport
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade
from tests.wires import Answer, Script, status_body

JSON = dict[str, Any]
ON = chosen(idle_evict=True, idle_grace=300.0, starvation_timeout=0)
BOTH = chosen(idle_evict=True, preemption=True)
WHY = "its GPU share computes nothing, and a pod of equal or higher priority waits for it"
HOUR = 3600


def worker(name: str, size: str = "8Gi", *, after: str = "", priority: int = 0, second: int = 0) -> PodBuilder:
    made = pod(name).uid(f"uid-{name}").created(f"2030-01-01T00:00:{second:02}Z")
    made = made.asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
    return made.annotated(names.IDLE_AFTER, after) if after else made


class Bench(SchedulerHarness):
    """Nodes with one card of 16 GiB each."""

    def __init__(self, *nodes: str, options: Settings = ON) -> None:
        super().__init__([node(name).gpu(mib=16384) for name in nodes or ("a",)], options=options)
        self.observed = 1_000_000
        self.pods: dict[str, JSON] = {}
        self._told: dict[str, StatusUpdate] = {}
        self._shares: dict[str, dict[str, int]] = {}

    def run(self, builder: PodBuilder) -> str:
        answer = self.controller.reserve(question(builder))
        assert isinstance(answer, Placed), answer
        made = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
        self.put(made)
        return answer.allocation.node

    def put(self, made: JSON) -> None:
        self.pods[pods.uid(made)] = made
        self.controller.handle(pod_event(pods.trim(made)))

    def annotate(self, name: str, value: str) -> None:
        made = self.pods[f"uid-{name}"]
        annotations = {**made["metadata"]["annotations"], str(names.IDLE_AFTER): value}
        self.put({**made, "metadata": {**made["metadata"], "annotations": annotations}})

    def wait(self, builder: PodBuilder) -> None:
        self.controller.handle(pod_event(pods.trim(admitted(builder, gated=True))))
        self.second()

    def end(self, name: str) -> None:
        self.pods.pop(f"uid-{name}")
        self.controller.handle(PodDeleted(f"uid-{name}"))

    def report(self, on: str = "a", /, **lasted: int) -> None:
        """The agent of a node writes who has been idle for how many seconds."""
        self.observed += 1
        shares = {f"uid-{name}": self.observed - seconds for name, seconds in lasted.items()}
        self._shares[on] = shares
        self.controller.handle(IdleSharesReported(on, IdleReport(shares, self.observed)))

    def again(self, on: str = "a", *, listed: bool = False) -> None:
        """The agent of a node writes, some time later, that the same have been idle since."""
        self.observed += 1
        self.controller.handle(IdleSharesReported(on, IdleReport(self._shares[on], self.observed), listed))

    def second(self, seconds: float = 1) -> list[Report]:
        self.now += seconds
        self.controller.tick(TickPhase.UPKEEP)
        bindings, told = self.controller.schedule_pending()
        for binding in bindings:
            made = admitted(remade(binding), allocation=binding.allocation)
            self.pods[binding.pod.uid] = made
            self.controller.handle(BindSucceeded(binding, pod_event(pods.trim(made))))
        self.controller.check_invariants()
        self._told |= {news.uid: news for news in told if isinstance(news, StatusUpdate)}
        return [*told, *(StatusUpdate(c.pod.key, c.pod.uid, True, PodReason.ALLOCATED, "") for c in bindings)]

    def warnings(self, outcome: WarningOutcome = "warned") -> list[str]:
        """Who is to be warned now. What became of each warning is answered."""
        effects = [each for each in self.controller.tick(TickPhase.EVICTIONS) if isinstance(each, WarnIdlePods)]
        found = [warning for each in effects for warning in each.warnings]
        for each in found:
            self.controller.handle(IdlePodWarned(each, outcome))
        return [each.eviction.key.removeprefix("default/") for each in found]

    def plan(self) -> list[str]:
        """A plan is made; who is warned for it."""
        assert self.controller.preempt() == []
        return self.warnings()

    def evicted(self) -> list[str]:
        """Who must go now; each is granted."""
        orders = self.controller.preempt()
        for order in orders:
            self.controller.handle(EvictionAnswered(order, "evicted"))
        return [order.key.removeprefix("default/") for order in orders]

    def told(self, name: str) -> tuple[str, str]:
        """Code and last part of what a waiting pod was last told."""
        found = self._told[f"uid-{name}"]
        return found.code, found.reason.split("; ", 1)[-1]


def idle(*, options: Settings = ON, waiting: PodBuilder | None = None) -> Bench:
    """`old` and `young` fill the card and have been idle for two hours, after one of which they give way."""
    desk = Bench(options=options)
    desk.run(worker("old", after="1h", second=1))
    desk.run(worker("young", after="1h", second=2))
    desk.report(old=2 * HOUR, young=2 * HOUR)
    desk.wait(waiting or worker("next", second=9))
    return desk


def test_the_youngest_is_warned_and_evicted_after_its_grace_and_the_pod_has_its_room() -> None:
    desk = idle()
    assert desk.controller.preempt() == []
    (effect,) = desk.controller.tick(TickPhase.EVICTIONS)
    warning = IdleWarning(
        Eviction("default/young", "uid-young", None, "idle", WHY),
        "the pod's GPU share has computed nothing for 2 h, and a waiting pod of equal or higher priority needs it. By "
        "its annotation gpufraction.io/idle-after the pod gives way after 60 min: it is evicted in 5 min unless it "
        "computes again",
    )
    assert effect == WarnIdlePods((warning,))
    desk.controller.handle(IdlePodWarned(warning, "warned"))
    desk.second()
    assert desk.told("next") == ("IdleGivesWay", "waits for 1 idle pod on node a to give way")
    desk.second(298)
    desk.again()
    assert (desk.evicted(), desk.controller.view().reserved) == ([], ()), "nothing is kept free meanwhile"
    desk.second(1)
    assert desk.evicted() == ["young"]
    said = [each for each in desk.second() if isinstance(each, EventRecord)]
    assert said == [EventRecord("Pod", "default/young", "uid-young", PodEventReason.GAVE_WAY, f"evicted: {WHY}")]
    assert desk.told("next") == ("Preempting", "waits for idle pods on node a, evicted to make room")
    assert [kept.uid for kept in desk.controller.view().reserved] == ["uid-next"]
    desk.end("young")
    assert [news.key for news in desk.second()] == ["default/next"]


def test_a_pod_that_computes_in_its_grace_stays_and_is_warned_anew_another_time() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.second(200)
    desk.report(old=2 * HOUR)
    desk.second()
    assert desk.plan() == ["old"], "the other one is asked"
    desk.report(young=2 * HOUR)
    desk.second(5)
    assert desk.plan() == ["young"], "its first warning does not count any more"
    desk.second(299)
    desk.again()
    assert desk.evicted() == []
    desk.second()
    assert desk.evicted() == ["young"]


def test_a_pod_that_computes_for_a_moment_in_its_grace_stays() -> None:
    """It has been idle for long enough again by its end, and is warned again."""
    desk = idle()
    for name in ("old", "young"):
        desk.annotate(name, "1m")
    assert desk.plan() == ["young"]
    desk.second(200)
    desk.report(young=10)
    desk.second(100)
    desk.report(young=110)
    assert desk.evicted() == []
    desk.second()
    assert desk.plan() == ["young"]


NOT_ASKED = {
    "it is off unless switched on": (chosen(preemption=True), "1h", 2 * HOUR, 0, "8Gi"),
    "a pod that did not agree": (ON, "", 2 * HOUR, 0, "8Gi"),
    "a pod that agreed to nothing": (ON, "0", 2 * HOUR, 0, "8Gi"),
    "a pod that has not been idle for long enough": (ON, "3h", 2 * HOUR, 0, "8Gi"),
    "a pod that computes": (ON, "1h", None, 0, "8Gi"),
    "a waiting pod of lower priority": (ON, "1h", 2 * HOUR, -1, "8Gi"),
    "a waiting pod that would not fit all the same": (ON, "1h", 2 * HOUR, 0, "17Gi"),
}


@pytest.mark.parametrize("case", NOT_ASKED.values(), ids=NOT_ASKED.keys())
def test_nobody_is_asked_to_give_way_for(case: tuple[Settings, str, int | None, int, str]) -> None:
    options, after, lasted, priority, size = case
    desk = Bench(options=options)
    for name in ("one", "two"):
        desk.run(worker(name, after=after))
    desk.report("a", **({} if lasted is None else {"one": lasted, "two": lasted}))
    desk.wait(worker("next", size, priority=priority))
    assert (desk.controller.preempt(), desk.warnings()) == ([], [])


def test_a_word_that_cannot_be_read_is_no_consent_also_where_the_namespace_agrees() -> None:
    desk = idle()
    desk.controller.handle(ConsentsListed({"default": 60}))
    desk.annotate("young", "an hour")
    desk.annotate("old", "an hour")
    assert desk.plan() == []


def test_a_namespace_agrees_for_its_pods_unless_they_say_otherwise() -> None:
    desk = Bench()
    desk.run(worker("silent", second=1))
    desk.run(worker("refuses", after="0", second=2))
    desk.report(silent=2 * HOUR, refuses=2 * HOUR)
    desk.wait(worker("next", second=9))
    assert desk.plan() == []
    desk.controller.handle(ConsentsListed({"default": HOUR, "other": 1}))
    desk.second(16)
    assert desk.controller.preempt() == []
    (effect,) = desk.controller.tick(TickPhase.EVICTIONS)
    assert isinstance(effect, WarnIdlePods)
    (warning,) = effect.warnings
    assert (warning.eviction.uid, "By its namespace's label" in warning.message) == ("uid-silent", True)


def test_who_takes_its_word_back_in_the_grace_stays() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.annotate("young", "0")
    desk.annotate("old", "9h")
    desk.again()
    desk.second(301)
    assert (desk.evicted(), desk.plan()) == ([], [])
    assert desk.told("next")[0] == "Memory"


def test_idle_pods_are_counted_with_consent_and_without() -> None:
    desk = Bench("a", "b")
    for name, after in (("agrees", "9h"), ("silent", "")):
        desk.run(worker(name, "8Gi", after=after))
    desk.report(agrees=60, silent=60, gone=60)
    assert desk.controller.look().idle == (1, 1)
    desk.controller.handle(ConsentsListed({"default": HOUR}))
    assert desk.controller.look().idle == (2, 0)


def test_an_agent_names_pods_of_its_own_node_only() -> None:
    desk = Bench("a", "b")
    homes = {name: desk.run(worker(name, "16Gi", after="1h")) for name in ("one", "two")}
    liar = homes["one"]
    desk.report(liar, one=10, two=2 * HOUR)
    desk.wait(worker("next", second=9))
    assert desk.plan() == []


def test_an_agent_that_is_silent_since_the_warning_is_not_believed() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.second(300)
    assert desk.evicted() == [], "it may have ended, and the pod may compute"
    desk.again()
    assert desk.evicted() == ["young"]


def test_what_a_list_brings_may_have_been_written_before_the_warning() -> None:
    """The watch was broken meanwhile, and the agent may have ended since it wrote."""
    desk = idle()
    assert desk.plan() == ["young"]
    desk.second(300)
    desk.again(listed=True)
    assert desk.evicted() == []
    desk.again()
    assert desk.evicted() == ["young"]


def test_an_agent_that_has_not_written_for_long_calls_nobody_idle() -> None:
    desk = Bench()
    desk.run(worker("one", "16Gi", after="1h"))
    desk.report(one=2 * HOUR)
    desk.second(901)
    desk.wait(worker("next", second=9))
    assert desk.plan() == []
    desk.again()
    desk.second(16)
    assert desk.plan() == ["one"]


def test_where_the_agent_says_nothing_any_more_the_plan_ends() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.second(1201)
    assert desk.told("next")[0] == "Memory"


def test_a_status_that_was_there_before_us_may_be_of_any_age() -> None:
    """It counts by the agent's own two times, and not for the time that it has been there."""
    desk = Bench()
    desk.run(worker("one", "16Gi", after="1h"))
    desk.report(one=HOUR - 60)
    desk.second(120)
    desk.wait(worker("next", second=9))
    assert desk.plan() == []
    desk.report(one=HOUR - 50)
    desk.second(60)
    assert desk.plan() == ["one"]


def test_a_new_leader_warns_before_it_evicts() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.second(299)
    desk.leads = False
    desk.second()
    desk.leads = True
    desk.again()
    desk.second(60)
    assert desk.evicted() == []
    assert desk.warnings() == ["young"]
    desk.second(299)
    desk.again()
    assert desk.evicted() == []
    desk.second()
    assert desk.evicted() == ["young"]


OUTCOMES: dict[str, tuple[WarningOutcome, tuple[str, str]]] = {
    "a budget forbids the eviction": (
        "budget",
        ("PreemptionBlocked", "2 idle pods could make room, but disruption budgets do not allow it now"),
    ),
    "the right to evict is missing": (
        "failed",
        ("PreemptionFailed", "idle pods could make room, but evicting them failed; the allocator's log says why"),
    ),
}


@pytest.mark.parametrize("case", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_nobody_is_warned_whose_eviction_would_be_refused(case: tuple[WarningOutcome, tuple[str, str]]) -> None:
    outcome, told = case
    desk = idle(waiting=worker("next", "16Gi", second=9))
    desk.controller.preempt()
    assert sorted(desk.warnings(outcome)) == ["old", "young"]
    desk.second()
    assert (desk.controller.preempt(), desk.warnings()) == ([], [])
    desk.second()
    assert desk.told("next") == told
    desk.again()
    desk.second(31)
    desk.second()
    assert sorted(desk.plan()) == ["old", "young"], "it is tried again"


def test_a_budget_that_forbids_it_in_the_end_keeps_all_of_them() -> None:
    desk = idle(waiting=worker("next", "16Gi", second=9))
    assert sorted(desk.plan()) == ["old", "young"]
    desk.second(300)
    desk.again()
    orders = desk.controller.preempt()
    assert sorted(order.uid for order in orders) == ["uid-old", "uid-young"]
    desk.controller.handle(EvictionAnswered(orders[0], "budget"))
    desk.second()
    assert (desk.evicted(), desk.controller.view().reserved) == ([], ())


def test_room_that_came_free_by_itself_saves_the_idle_ones() -> None:
    desk = Bench()
    desk.run(worker("idle", after="1h"))
    desk.run(worker("busy"))
    desk.report(idle=2 * HOUR)
    desk.wait(worker("next", second=9))
    assert desk.plan() == ["idle"]
    desk.end("busy")
    assert [news.key for news in desk.second()] == ["default/next"]
    desk.again()
    desk.second(300)
    assert desk.evicted() == []


def test_a_node_that_is_reserved_for_a_starving_pod_meanwhile_is_let_alone() -> None:
    desk = Bench(options=chosen(idle_evict=True, starvation_timeout=200.0))
    desk.run(worker("idle", after="1h"))
    desk.run(worker("busy"))
    desk.report(idle=2 * HOUR)
    desk.wait(worker("large", "16Gi", second=3))
    desk.wait(worker("next", second=9))
    assert desk.plan() == ["idle"]
    desk.second(301)
    assert [kept.uid for kept in desk.controller.view().reserved] == ["uid-large"]
    desk.again()
    assert desk.evicted() == []


def test_pods_that_end_anyway_make_room_before_idle_ones() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    ending = desk.pods["uid-old"]
    desk.put({**ending, "metadata": {**ending["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}})
    desk.again()
    desk.second(300)
    assert desk.evicted() == []


def test_each_waiting_pod_has_its_own_and_none_is_asked_for_two() -> None:
    desk = Bench("a", "b")
    for number in range(4):
        desk.run(worker(f"idle-{number}", after="1h", second=number))
    for on in ("a", "b"):
        desk.report(on, **{f"idle-{number}": 2 * HOUR for number in range(4)})
    for number in range(5):
        desk.wait(worker(f"next-{number}", second=10 + number))
    warned = [name for _ in range(8) for name in desk.plan() if not desk.second() or True]
    assert sorted(warned) == ["idle-0", "idle-1", "idle-2", "idle-3"]


def test_a_large_idle_pod_gives_way_for_two_once() -> None:
    desk = Bench()
    desk.run(worker("large", "16Gi", after="1h"))
    desk.report(large=2 * HOUR)
    desk.wait(worker("one", second=8))
    desk.wait(worker("two", second=9))
    assert (desk.plan(), desk.plan()) == (["large"], [])
    desk.second(300)
    desk.again()
    assert desk.evicted() == ["large"]
    desk.end("large")
    placed = [
        news.key
        for news in [*desk.second(), *desk.second()]
        if isinstance(news, StatusUpdate) and news.code == "Allocated" and news.event
    ]
    assert sorted(placed) == ["default/one", "default/two"]


def test_pods_of_lower_priority_go_first_since_they_go_at_once() -> None:
    desk = Bench(options=BOTH)
    desk.run(worker("idle", after="1h", priority=5))
    desk.run(worker("low"))
    desk.report(idle=2 * HOUR)
    desk.wait(worker("next", priority=5, second=9))
    assert (desk.evicted(), desk.warnings()) == (["low"], [])


def test_idle_ones_are_asked_where_nobody_of_lower_priority_helps() -> None:
    desk = Bench(options=BOTH)
    desk.run(worker("idle", "12Gi", after="1h", priority=5))
    desk.run(worker("low", "4Gi"))
    desk.report(idle=2 * HOUR)
    desk.wait(worker("next", "8Gi", priority=5, second=9))
    assert (desk.plan(), desk.plan()) == (["idle"], [])
    desk.second(300)
    desk.again()
    assert desk.evicted() == ["idle"]


def test_a_pod_on_a_node_that_lost_its_gpunode_is_left_alone() -> None:
    desk = idle()
    assert desk.plan() == ["young"]
    desk.controller.handle(InventoryDeleted("a"))
    desk.second(300)
    assert desk.evicted() == []


def test_a_pod_that_must_not_preempt_asks_nobody() -> None:
    desk = idle(waiting=worker("next", second=9).spec(preemptionPolicy="Never"))
    assert desk.plan() == []


GRANTED, NO_BUDGET, NO_RIGHT = Answer(201), Answer(429, status_body(429, "TooManyRequests")), Answer(403)
GIVEN = Answer(201)
WARNING_ANSWERS: dict[str, tuple[list[Answer], list[str], list[str]]] = {
    "all are warned whose eviction would be granted": (
        [GRANTED, GRANTED, GIVEN, GIVEN],
        ["try", "try", "Event", "Event"],
        ["warned", "warned"],
    ),
    "nobody is, where a budget forbids one": ([GRANTED, NO_BUDGET], ["try", "try"], ["budget"]),
    "nobody is, without the right to evict": ([NO_RIGHT], ["try"], ["failed"]),
    "an Event that is not taken is no warning": (
        [GRANTED, GRANTED, NO_RIGHT, GIVEN],
        ["try", "try", "Event", "Event"],
        ["failed", "warned"],
    ),
}


@pytest.mark.parametrize("case", WARNING_ANSWERS.values(), ids=WARNING_ANSWERS.keys())
def test_what_becomes_of_warnings(case: tuple[list[Answer], list[str], list[str]]) -> None:
    answers, asked, outcomes = case
    desk = idle(waiting=worker("next", "16Gi", second=9))
    desk.controller.preempt()
    (effect,) = desk.controller.tick(TickPhase.EVICTIONS)
    assert isinstance(effect, WarnIdlePods)
    script, counted = Script(*answers), list[str]()
    Evictor(Kube(script), desk.controller, lambda cause, outcome: None, warned=counted.append).warn(effect)
    sent = ["try" if each.query == {"dryRun": "All"} else str(each.body.get("kind", "Event")) for each in script.sent]
    assert (sent, counted) == (asked, outcomes)
    desk.again()
    desk.second(301)
    desk.again()
    assert bool(desk.evicted()) == (set(outcomes) == {"warned"})
