"""An idle pod that agreed to it gives way to a waiting one: first warned, then evicted if it still computes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.idle.part import ConsentsListed, IdlePodWarned, IdleWarning, WarnIdlePods, WarningOutcome
from allocator.features.idle.settings import IdleSettings
from allocator.features.idle.warner import Warner
from allocator.queue.records import EventRecord, Eviction, Report, StatusUpdate
from allocator.scheduler.events import (
    BindSucceeded,
    EvictionAnswered,
    IdleSharesReported,
    InventoryDeleted,
    NamespacesLabelled,
    PodDeleted,
    TickPhase,
)
from allocator.settings import Settings
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
ON = chosen(starvation_timeout=0)
BOTH = chosen(preemption=True)
WHY = "its GPU share is idle, and a pod of equal or higher priority waits for it"
HOUR = 3600


def worker(name: str, size: str = "8Gi", *, after: str = "", priority: int = 0, second: int = 0) -> PodBuilder:
    made = pod(name).uid(f"uid-{name}").created(f"2030-01-01T00:00:{second:02}Z")
    made = made.asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
    return made.annotated(names.IDLE_AFTER, after) if after else made


class Bench(SchedulerHarness):
    """Nodes with one card of 16 GiB each."""

    def __init__(self, *nodes: str, options: Settings = ON, evict: bool = True, grace: float = 300.0) -> None:
        made = [node(name).gpu(mib=16384) for name in nodes or ("a",)]
        super().__init__(made, options=options, idling=IdleSettings(evict, grace=grace))
        self.observed = 1_000_000
        self.pods: dict[str, JSON] = {}
        self._reported: dict[str, StatusUpdate] = {}
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
        """A node's agent writes which pods have been idle for how many seconds."""
        self.observed += 1
        shares = {f"uid-{name}": self.observed - seconds for name, seconds in lasted.items()}
        self._shares[on] = shares
        self.controller.handle(IdleSharesReported(on, IdleReport(shares, self.observed)))

    def again(self, on: str = "a", *, listed: bool = False) -> None:
        """A node's agent writes later that the same pods have been idle since then."""
        self.observed += 1
        self.controller.handle(IdleSharesReported(on, IdleReport(self._shares[on], self.observed), listed))

    def second(self, seconds: float = 1) -> list[Report]:
        self.now += seconds
        self.controller.tick(TickPhase.UPKEEP)
        bindings, reports = self.controller.schedule_pending()
        for binding in bindings:
            made = admitted(remade(binding), allocation=binding.allocation)
            self.pods[binding.pod.uid] = made
            self.controller.handle(BindSucceeded(binding, pod_event(pods.trim(made))))
        self.controller.check_invariants()
        self._reported |= {news.uid: news for news in reports if isinstance(news, StatusUpdate)}
        return [*reports, *(StatusUpdate(c.pod.key, c.pod.uid, True, PodReason.ALLOCATED, "") for c in bindings)]

    def warnings(self, outcome: WarningOutcome = "warned") -> list[str]:
        """The pods to warn now. Each warning's result is reported back."""
        effects = [each for each in self.controller.tick(TickPhase.EVICTIONS) if isinstance(each, WarnIdlePods)]
        found = [warning for each in effects for warning in each.warnings]
        for each in found:
            self.controller.handle(IdlePodWarned(each, outcome))
        return [each.eviction.key.removeprefix("default/") for each in found]

    def plan(self) -> list[str]:
        """Make a plan. Returns the pods that it warns."""
        assert self.controller.preempt() == []
        return self.warnings()

    def evicted(self) -> list[str]:
        """The pods to evict now. Each eviction is granted."""
        orders = self.controller.preempt()
        for order in orders:
            self.controller.handle(EvictionAnswered(order, "evicted"))
        return [order.key.removeprefix("default/") for order in orders]

    def reported(self, name: str) -> tuple[str, str]:
        """Code and last part of the last message to a waiting pod."""
        found = self._reported[f"uid-{name}"]
        return found.code, found.reason.split("; ", 1)[-1]


def idle(*, options: Settings = ON, waiting: PodBuilder | None = None) -> Bench:
    """`old` and `young` fill the card and have been idle for two hours; they give way after one hour."""
    harness = Bench(options=options)
    harness.run(worker("old", after="1h", second=1))
    harness.run(worker("young", after="1h", second=2))
    harness.report(old=2 * HOUR, young=2 * HOUR)
    harness.wait(waiting or worker("next", second=9))
    return harness


def test_the_youngest_is_warned_and_evicted_after_grace_and_makes_room() -> None:
    harness = idle()
    assert harness.controller.preempt() == []
    (effect,) = harness.controller.tick(TickPhase.EVICTIONS)
    warning = IdleWarning(
        Eviction("default/young", "uid-young", None, "idle", WHY),
        "the pod's GPU share has been idle for 2 h, and a waiting pod of equal or higher priority needs it. Its "
        "annotation gpufraction.io/idle-after allows the eviction after 60 min: the pod is evicted in 5 min unless it "
        "uses the GPU again",
    )
    assert effect == WarnIdlePods((warning,))
    harness.controller.handle(IdlePodWarned(warning, "warned"))
    harness.second()
    assert harness.reported("next") == ("IdleGivesWay", "waits for 1 idle pod on node a to be evicted")
    harness.second(298)
    harness.again()
    assert (harness.evicted(), harness.controller.view().reserved) == ([], ()), "nothing is kept free meanwhile"
    harness.second(1)
    assert harness.evicted() == ["young"]
    recorded = [each for each in harness.second() if isinstance(each, EventRecord)]
    assert recorded == [EventRecord("Pod", "default/young", "uid-young", PodEventReason.GAVE_WAY, f"evicted: {WHY}")]
    assert harness.reported("next") == ("Preempting", "waits for idle pods on node a, evicted to make room")
    assert [kept.uid for kept in harness.controller.view().reserved] == ["uid-next"]
    harness.end("young")
    assert [news.key for news in harness.second()] == ["default/next"]


def test_a_pod_that_computes_in_its_grace_stays_and_is_warned_another_time() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.second(200)
    harness.report(old=2 * HOUR)
    harness.second()
    assert harness.plan() == ["old"], "the other one is asked"
    harness.report(young=2 * HOUR)
    harness.second(5)
    assert harness.plan() == ["young"], "its first warning does not count any more"
    harness.second(299)
    harness.again()
    assert harness.evicted() == []
    harness.second()
    assert harness.evicted() == ["young"]


def test_a_pod_that_computes_for_a_moment_in_its_grace_stays() -> None:
    """By the end of the grace it has been idle for long enough again, and is warned again."""
    harness = idle()
    for name in ("old", "young"):
        harness.annotate(name, "1m")
    assert harness.plan() == ["young"]
    harness.second(200)
    harness.report(young=10)
    harness.second(100)
    harness.report(young=110)
    assert harness.evicted() == []
    harness.second()
    assert harness.plan() == ["young"]


NOT_ASKED = {
    "it is off unless switched on": (False, "1h", 2 * HOUR, 0, "8Gi"),
    "a pod that did not agree": (True, "", 2 * HOUR, 0, "8Gi"),
    "a pod that agreed to nothing": (True, "0", 2 * HOUR, 0, "8Gi"),
    "a pod that has not been idle for long enough": (True, "3h", 2 * HOUR, 0, "8Gi"),
    "a pod that computes": (True, "1h", None, 0, "8Gi"),
    "a waiting pod of lower priority": (True, "1h", 2 * HOUR, -1, "8Gi"),
    "a waiting pod that would not fit all the same": (True, "1h", 2 * HOUR, 0, "17Gi"),
}


@pytest.mark.parametrize("case", NOT_ASKED.values(), ids=NOT_ASKED.keys())
def test_no_idle_pod_gives_way_for(case: tuple[bool, str, int | None, int, str]) -> None:
    evict, after, lasted, priority, size = case
    harness = Bench(options=ON if evict else BOTH, evict=evict)
    for name in ("one", "two"):
        harness.run(worker(name, after=after))
    harness.report("a", **({} if lasted is None else {"one": lasted, "two": lasted}))
    harness.wait(worker("next", size, priority=priority))
    assert (harness.controller.preempt(), harness.warnings()) == ([], [])


def test_an_unreadable_annotation_is_no_consent_even_if_the_namespace_agrees() -> None:
    harness = idle()
    harness.controller.handle(ConsentsListed({"default": 60}))
    harness.annotate("young", "an hour")
    harness.annotate("old", "an hour")
    assert harness.plan() == []


def test_a_namespace_agrees_for_its_pods_unless_they_say_otherwise() -> None:
    harness = Bench()
    harness.run(worker("silent", second=1))
    harness.run(worker("refuses", after="0", second=2))
    harness.report(silent=2 * HOUR, refuses=2 * HOUR)
    harness.wait(worker("next", second=9))
    assert harness.plan() == []
    harness.controller.handle(ConsentsListed({"default": HOUR, "other": 1}))
    harness.second(16)
    assert harness.controller.preempt() == []
    (effect,) = harness.controller.tick(TickPhase.EVICTIONS)
    assert isinstance(effect, WarnIdlePods)
    (warning,) = effect.warnings
    assert (warning.eviction.uid, "Its namespace's label" in warning.message) == ("uid-silent", True)


def test_who_takes_its_word_back_in_the_grace_stays() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.annotate("young", "0")
    harness.annotate("old", "9h")
    harness.again()
    harness.second(301)
    assert (harness.evicted(), harness.plan()) == ([], [])
    assert harness.reported("next")[0] == "Memory"


def test_idle_pods_are_counted_with_consent_and_without() -> None:
    harness = Bench("a", "b")
    for name, after in (("agrees", "9h"), ("silent", "")):
        harness.run(worker(name, "8Gi", after=after))
    harness.report(agrees=60, silent=60, gone=60)
    assert harness.idle.counts() == (1, 1)
    harness.controller.handle(ConsentsListed({"default": HOUR}))
    assert harness.idle.counts() == (2, 0)


def test_an_agent_names_pods_of_its_own_node_only() -> None:
    harness = Bench("a", "b")
    homes = {name: harness.run(worker(name, "16Gi", after="1h")) for name in ("one", "two")}
    liar = homes["one"]
    harness.report(liar, one=10, two=2 * HOUR)
    harness.wait(worker("next", second=9))
    assert harness.plan() == []


def test_an_agent_that_is_silent_since_the_warning_is_not_believed() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.second(300)
    assert harness.evicted() == [], "it may have ended, and the pod may compute"
    harness.again()
    assert harness.evicted() == ["young"]


def test_what_a_list_brings_may_have_been_written_before_the_warning() -> None:
    """The watch was broken meanwhile, and the agent may have ended after its write."""
    harness = idle()
    assert harness.plan() == ["young"]
    harness.second(300)
    harness.again(listed=True)
    assert harness.evicted() == []
    harness.again()
    assert harness.evicted() == ["young"]


def test_an_agent_that_has_not_written_for_long_calls_nobody_idle() -> None:
    harness = Bench()
    harness.run(worker("one", "16Gi", after="1h"))
    harness.report(one=2 * HOUR)
    harness.second(901)
    harness.wait(worker("next", second=9))
    assert harness.plan() == []
    harness.again()
    harness.second(16)
    assert harness.plan() == ["one"]


def test_where_the_agent_says_nothing_any_more_the_plan_ends() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.second(1201)
    assert harness.reported("next")[0] == "Memory"


def test_a_status_that_was_there_before_us_may_be_of_any_age() -> None:
    """It counts by the agent's own two times, and not by the time since the allocator first saw it."""
    harness = Bench()
    harness.run(worker("one", "16Gi", after="1h"))
    harness.report(one=HOUR - 60)
    harness.second(120)
    harness.wait(worker("next", second=9))
    assert harness.plan() == []
    harness.report(one=HOUR - 50)
    harness.second(60)
    assert harness.plan() == ["one"]


def test_a_new_leader_warns_before_it_evicts() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.second(299)
    harness.leads = False
    harness.second()
    harness.leads = True
    harness.again()
    harness.second(60)
    assert harness.evicted() == []
    assert harness.warnings() == ["young"]
    harness.second(299)
    harness.again()
    assert harness.evicted() == []
    harness.second()
    assert harness.evicted() == ["young"]


OUTCOMES: dict[str, tuple[WarningOutcome, tuple[str, str]]] = {
    "a budget forbids the eviction": (
        "budget",
        ("PreemptionBlocked", "evicting 2 idle pods would make room, but disruption budgets do not allow it now"),
    ),
    "the right to evict is missing": (
        "failed",
        (
            "PreemptionFailed",
            "evicting idle pods would make room, but the evictions failed; the allocator's log says why",
        ),
    ),
}


@pytest.mark.parametrize("case", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_nobody_is_warned_whose_eviction_would_be_refused(case: tuple[WarningOutcome, tuple[str, str]]) -> None:
    outcome, reported = case
    harness = idle(waiting=worker("next", "16Gi", second=9))
    harness.controller.preempt()
    assert sorted(harness.warnings(outcome)) == ["old", "young"]
    harness.second()
    assert (harness.controller.preempt(), harness.warnings()) == ([], [])
    harness.second()
    assert harness.reported("next") == reported
    harness.again()
    harness.second(31)
    harness.second()
    assert sorted(harness.plan()) == ["old", "young"], "it is tried again"


def test_a_budget_that_forbids_it_in_the_end_keeps_all_of_them() -> None:
    harness = idle(waiting=worker("next", "16Gi", second=9))
    assert sorted(harness.plan()) == ["old", "young"]
    harness.second(300)
    harness.again()
    orders = harness.controller.preempt()
    assert sorted(order.uid for order in orders) == ["uid-old", "uid-young"]
    harness.controller.handle(EvictionAnswered(orders[0], "budget"))
    harness.second()
    assert (harness.evicted(), harness.controller.view().reserved) == ([], ())


def test_room_that_came_free_by_itself_saves_the_idle_ones() -> None:
    harness = Bench()
    harness.run(worker("idle", after="1h"))
    harness.run(worker("busy"))
    harness.report(idle=2 * HOUR)
    harness.wait(worker("next", second=9))
    assert harness.plan() == ["idle"]
    harness.end("busy")
    assert [news.key for news in harness.second()] == ["default/next"]
    harness.again()
    harness.second(300)
    assert harness.evicted() == []


def test_a_node_that_is_reserved_for_a_starving_pod_meanwhile_is_let_alone() -> None:
    harness = Bench(options=chosen(starvation_timeout=200.0))
    harness.run(worker("idle", after="1h"))
    harness.run(worker("busy"))
    harness.report(idle=2 * HOUR)
    harness.wait(worker("large", "16Gi", second=3))
    harness.wait(worker("next", second=9))
    assert harness.plan() == ["idle"]
    harness.second(301)
    assert [kept.uid for kept in harness.controller.view().reserved] == ["uid-large"]
    harness.again()
    assert harness.evicted() == []


def test_pods_that_end_anyway_make_room_before_idle_ones() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    ending = harness.pods["uid-old"]
    harness.put({**ending, "metadata": {**ending["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}})
    harness.again()
    harness.second(300)
    assert harness.evicted() == []


def test_each_waiting_pod_has_its_own_and_none_gives_way_for_two() -> None:
    harness = Bench("a", "b")
    for number in range(4):
        harness.run(worker(f"idle-{number}", after="1h", second=number))
    for on in ("a", "b"):
        harness.report(on, **{f"idle-{number}": 2 * HOUR for number in range(4)})
    for number in range(5):
        harness.wait(worker(f"next-{number}", second=10 + number))
    warned = [name for _ in range(8) for name in harness.plan() if not harness.second() or True]
    assert sorted(warned) == ["idle-0", "idle-1", "idle-2", "idle-3"]


def test_a_large_idle_pod_gives_way_for_two_once() -> None:
    harness = Bench()
    harness.run(worker("large", "16Gi", after="1h"))
    harness.report(large=2 * HOUR)
    harness.wait(worker("one", second=8))
    harness.wait(worker("two", second=9))
    assert (harness.plan(), harness.plan()) == (["large"], [])
    harness.second(300)
    harness.again()
    assert harness.evicted() == ["large"]
    harness.end("large")
    placed = [
        news.key
        for news in [*harness.second(), *harness.second()]
        if isinstance(news, StatusUpdate) and news.code == "Allocated" and news.event
    ]
    assert sorted(placed) == ["default/one", "default/two"]


def test_pods_of_lower_priority_go_first_since_they_go_at_once() -> None:
    harness = Bench(options=BOTH)
    harness.run(worker("idle", after="1h", priority=5))
    harness.run(worker("low"))
    harness.report(idle=2 * HOUR)
    harness.wait(worker("next", priority=5, second=9))
    assert (harness.evicted(), harness.warnings()) == (["low"], [])


def test_idle_pods_give_way_where_no_pod_of_lower_priority_helps() -> None:
    harness = Bench(options=BOTH)
    harness.run(worker("idle", "12Gi", after="1h", priority=5))
    harness.run(worker("low", "4Gi"))
    harness.report(idle=2 * HOUR)
    harness.wait(worker("next", "8Gi", priority=5, second=9))
    assert (harness.plan(), harness.plan()) == (["idle"], [])
    harness.second(300)
    harness.again()
    assert harness.evicted() == ["idle"]


@pytest.mark.parametrize("grace", [3.0, 9.0, 300.0])
def test_that_no_lower_priority_helps_keeps_no_idle_pod_back(grace: float) -> None:
    """The pause after a search for pods of lower priority may be longer than the grace, and than the rest of it."""
    harness = Bench(options=BOTH, grace=grace)
    harness.run(worker("idle", "12Gi", after="1h", priority=5))
    harness.run(worker("low", "4Gi"))
    harness.report(idle=2 * HOUR)
    harness.wait(worker("next", "8Gi", priority=5, second=9))
    assert harness.plan() == ["idle"]
    harness.second(grace)
    harness.again()
    assert harness.evicted() == ["idle"]


@pytest.mark.parametrize("priority", [0, 5])
def test_nobody_goes_from_a_namespace_in_which_we_may_not_evict(priority: int) -> None:
    """The policy gpufraction-evictions refuses it, so a plan with such a pod would fail repeatedly."""
    harness = Bench(options=BOTH)
    harness.run(worker("idle", "12Gi", after="1h", priority=priority))
    harness.report(idle=2 * HOUR)
    harness.controller.handle(NamespacesLabelled({"default": {}}))
    harness.wait(worker("next", "8Gi", priority=5, second=9))
    assert (harness.evicted(), harness.warnings()) == ([], [])
    harness.controller.handle(NamespacesLabelled({"default": {names.INJECT_LABEL: names.INJECT_ENABLED}}))
    harness.second(60)
    assert (harness.evicted(), harness.warnings()) == ((["idle"], []) if priority < 5 else ([], ["idle"]))


def test_a_pod_on_a_node_that_lost_its_gpunode_is_left_alone() -> None:
    harness = idle()
    assert harness.plan() == ["young"]
    harness.controller.handle(InventoryDeleted("a"))
    harness.second(300)
    assert harness.evicted() == []


def test_a_pod_that_must_not_preempt_asks_nobody() -> None:
    harness = idle(waiting=worker("next", second=9).spec(preemptionPolicy="Never"))
    assert harness.plan() == []


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
    answers, requested, outcomes = case
    harness = idle(waiting=worker("next", "16Gi", second=9))
    harness.controller.preempt()
    (effect,) = harness.controller.tick(TickPhase.EVICTIONS)
    assert isinstance(effect, WarnIdlePods)
    script, counted = Script(*answers), list[str]()
    Warner(Kube(script), harness.controller, counted=counted.append).warn(effect)
    sent = ["try" if each.query == {"dryRun": "All"} else str(each.body.get("kind", "Event")) for each in script.sent]
    assert (sent, counted) == (requested, outcomes)
    harness.again()
    harness.second(301)
    harness.again()
    assert bool(harness.evicted()) == (set(outcomes) == {"warned"})
