"""What follows from an agent's report; a lying agent affects only the pods of its own node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.queue.records import EventRecord, Eviction
from allocator.scheduler.events import InventoryDeleted, PodDeleted, PodsReported, TickPhase
from contract import pods
from contract.encoding.protocol import Placed
from contract.nodes.reports import CODES, EVICTING, PodReport
from contract.reasons.gpunodes import NodeEventReason
from contract.reasons.pods import PodEventReason
from tests.builders import node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

JSON = dict[str, Any]
MIB = 1 << 20
HERE, THERE = "n1", "n2"
OVER = "container main uses 2048 MiB of GPU {}, 1024 MiB more than its share of 1024 MiB"
THEN = "; the pod is evicted as soon as its disruption budgets allow it"


class Reported(SchedulerHarness):
    """Two nodes of one card each, with a pod on each: `here` and `there`."""

    def __init__(self, *, pods_here: int = 1) -> None:
        super().__init__([node(name).gpu(mib=65536) for name in (HERE, THERE)])
        self.gpus = {state.name: state.gpus[0].uuid for state in self.controller.nodes()}
        self.events: list[EventRecord] = []
        self.pods: dict[str, JSON] = {}
        for number in range(pods_here):
            self.run(f"here{number or ''}", HERE)
        self.run("there", THERE)

    def run(self, name: str, on: str) -> None:
        made = (
            pod(name)
            .uid(f"uid-{name}")
            .asks("gpufraction.io/gpu-memory", "1Gi")
            .selects(**{"kubernetes.io/hostname": on})
        )
        answer = self.controller.reserve(question(made))
        assert isinstance(answer, Placed), answer
        assert answer.allocation.node == on
        self.pods[name] = admitted(made.on(on), allocation=answer.allocation)
        self.controller.handle(pod_event(pods.trim(self.pods[name])))

    def report(
        self, node_name: str, name: str, code: PodEventReason = PodEventReason.MEMORY_OVERUSE, **fields: Any
    ) -> PodReport:
        made = PodReport(1_700_000_000, f"uid-{name}", code, 0, self.gpus[node_name], 2048 * MIB)
        return replace(made, **fields)

    def says(self, node_name: str, *reports: PodReport, listed: bool = False) -> None:
        self.controller.handle(PodsReported({node_name: reports}, listed))

    def second(self, seconds: float = 1.0) -> list[str]:
        """The pods to evict now. Events are added to `events`."""
        self.now += seconds
        found = [each for each in self.controller.tick(TickPhase.EVICTIONS) if isinstance(each, Eviction)]
        bindings, reports = self.controller.schedule_pending()
        assert bindings == []
        self.events += [news for news in reports if isinstance(news, EventRecord)]
        return [f"{each.key} {each.uid} {each.cause}" for each in found]

    def recorded(self) -> list[tuple[str, str, str]]:
        return [(each.key, each.code, each.reason) for each in self.events]


def test_a_report_is_recorded_once_and_its_eviction_is_retried_with_pauses() -> None:
    bench = Reported()
    gpu = bench.gpus[HERE]
    bench.says(HERE, bench.report(HERE, "here"))
    assert [bench.second() for _ in range(3)] == [[], [], []]
    assert bench.recorded() == [("default/here", "GPUMemoryOveruse", OVER.format(gpu))]
    bench.says(HERE, bench.report(HERE, "here", evict=True))
    evicted = [at for at in range(100) if bench.second() == ["default/here uid-here overuse"]]
    assert evicted == [0, 10, 30, 70]
    assert bench.recorded()[1:] == [("default/here", "GPUMemoryOveruse", OVER.format(gpu) + THEN)]
    bench.controller.handle(PodDeleted("uid-here"))
    assert [bench.second(400) for _ in range(3)] == [[], [], []]


def test_a_replica_that_does_not_lead_takes_in_and_the_next_leader_acts() -> None:
    bench = Reported()
    bench.leads = False
    bench.says(HERE, bench.report(HERE, "here", evict=True))
    assert bench.second() == []
    bench.leads = True
    assert bench.second() == ["default/here uid-here overuse"]
    [first] = bench.events
    again = Reported()
    again.says(HERE, again.report(HERE, "here", evict=True))
    assert again.second() == ["default/here uid-here overuse"]
    assert [each.once for each in again.events] == [first.once], "both leaders' Events have one name"
    assert first.once


LIES: dict[str, Callable[[Reported], PodReport]] = {
    "a pod of another node": lambda bench: bench.report(HERE, "there", evict=True),
    "another node's pod on its own card": lambda bench: bench.report(THERE, "there", evict=True),
    "a pod that there is none of": lambda bench: bench.report(HERE, "nobody", evict=True),
    "a card that the pod has not": lambda bench: bench.report(THERE, "here", evict=True),
    "a container that the pod has not": lambda bench: bench.report(HERE, "here", container=3, evict=True),
}


def test_an_agents_report_on_others_pods_is_ignored_and_recorded() -> None:
    for lie, make in LIES.items():
        bench = Reported()
        bench.says(HERE, make(bench))
        assert [bench.second() for _ in range(50)] == [[]] * 50, lie
        assert bench.recorded() == [], lie
        bench.second(60)
        assert [(each.kind, each.key, each.code) for each in bench.events] == [
            ("Node", HERE, NodeEventReason.REPORT_IGNORED)
        ], lie
        for _ in range(50):
            bench.second(60)
        assert len(bench.events) == 1, "once an hour"


def test_a_report_that_ends_before_long_is_no_lie() -> None:
    bench = Reported()
    bench.controller.handle(PodDeleted("uid-here"))
    bench.says(HERE, bench.report(HERE, "here"))
    bench.second(30)
    bench.says(HERE)
    assert ([bench.second(60) for _ in range(5)], bench.events) == ([[]] * 5, [])


def test_a_node_and_a_pod_have_so_many_events_whatever_is_reported() -> None:
    bench = Reported(pods_here=20)
    names = [f"here{number or ''}" for number in range(20)]
    for at in range(600):
        flapping = (bench.report(HERE, name, since=1_700_000_000 + at, evict=True) for name in names)
        bench.says(HERE, *flapping)
        bench.second()
    by_pod = {name: sum(each.key == f"default/{name}" for each in bench.events) for name in names}
    assert max(by_pod.values()) <= 6 + 600 / 300
    assert min(by_pod.values()) >= 1, "each pod learns of it"


def test_nodes_take_turns_so_that_one_that_floods_delays_no_other() -> None:
    bench = Reported(pods_here=40)
    names = [f"here{number or ''}" for number in range(40)]
    bench.says(HERE, *(bench.report(HERE, name, code) for name in names for code in CODES))
    bench.second()
    bench.says(THERE, bench.report(THERE, "there"))
    bench.second()
    assert "default/there" in {each.key for each in bench.events}


def test_what_a_node_reports_ends_with_its_gpunode() -> None:
    bench = Reported()
    bench.says(HERE, bench.report(HERE, "here", evict=True))
    bench.controller.handle(PodsReported({THERE: ()}, listed=True))
    bench.controller.handle(InventoryDeleted(HERE))
    assert (bench.second(), bench.events) == ([], [])


def test_a_pod_that_ends_is_neither_reported_nor_evicted_again() -> None:
    bench = Reported()
    ending = bench.pods["here"]
    ending["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    bench.controller.handle(pod_event(pods.trim(ending)))
    bench.says(HERE, bench.report(HERE, "here", evict=True))
    assert (bench.second(), bench.events) == ([], [])


lies = st.builds(
    PodReport,
    since=st.integers(0, 2_000_000_000),
    pod=st.sampled_from(["uid-here", "uid-there", "uid-nobody"]),
    code=st.sampled_from(CODES),
    container=st.integers(0, 2),
    gpu=st.sampled_from(["one", "two", "three"]),
    used=st.integers(0, 1 << 40),
    evict=st.booleans(),
)


@given(st.lists(st.tuples(st.sampled_from([HERE, THERE]), st.lists(lies, max_size=6)), max_size=8))
def test_no_history_of_reports_reaches_a_pod_of_another_node(history: list[tuple[str, list[PodReport]]]) -> None:
    bench = Reported()
    cards = {"one": bench.gpus[HERE], "two": bench.gpus[THERE], "three": "GPU-other"}
    for reporter, reports in history:
        made = tuple(replace(each, gpu=cards[each.gpu]) for each in reports if not each.evict or each.code in EVICTING)
        bench.says(reporter, *made)
        bench.says(THERE if reporter == HERE else HERE)
        before = len(bench.events)
        own = "here" if reporter == HERE else "there"
        assert {line.partition(" ")[0] for line in bench.second()} <= {f"default/{own}"}
        assert {each.key for each in bench.events[before:]} <= {f"default/{own}", reporter}
