"""What the watch has lost is repaired; only GPUs allocated twice and pods that are not counted are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.queue.records import EventRecord, Eviction
from allocator.scheduler import consistency
from allocator.scheduler.events import PodDeleted, TickPhase, pods_listed
from allocator.settings import Settings
from allocator.workers.resync import Resync, ResyncCounters
from contract import names, pods
from contract.encoding.quantity import MIB
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.options import NO_OPTIONS, pool_options
from contract.reasons.gpunodes import NodeEventReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, relists

JSON = dict[str, Any]
CARD = 16384


def worker(name: str, mib: int = 1024) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", f"{mib}Mi")


def placed(name: str, mib: int = 1024) -> JSON:
    share = GpuShare("GPU-a-0", 0, mib * MIB, 0, CARD * MIB)
    allocation = Allocation(f"id-{name}", "a", (ContainerAllocation("main", (share,)),))
    return admitted(worker(name, mib).on("a"), allocation=allocation)


def gated(name: str) -> JSON:
    return admitted(worker(name), gated=True)


@dataclass
class Bench:
    """A controller, an API server whose events reach it or are lost, and the repair of the difference."""

    options: Settings = field(default_factory=chosen)
    every: float = 300.0
    passes: list[str] = field(default_factory=list)
    drift: list[tuple[str, int]] = field(default_factory=list)
    uncounted: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api, self.harness = ApiServer(), SchedulerHarness([node("a").gpu(mib=CARD)], options=self.options)
        found = ResyncCounters(
            self.passes.append, lambda kind, count: self.drift.append((kind, count)), self.uncounted.append
        )
        self.repair = Resync(
            kube=Kube(self.api.wire),
            controller=self.harness.controller,
            clock=lambda: self.harness.now,
            every=self.every,
            found=found,
        )

    def watch(self) -> None:
        while self.api.events:
            kind, seen = self.api.events.popleft()
            if kind == "put":
                self.harness.controller.handle(pod_event(pods.trim(seen)))
            else:
                self.harness.controller.handle(PodDeleted(pods.uid(seen)))

    def lose(self) -> None:
        self.api.events.clear()

    def tick(self, seconds: float = 0.0) -> None:
        self.harness.now += seconds
        self.repair.tick()

    def relist(self) -> bool:
        """Do what the loop does when it is told to list again."""
        wanted = bool(relists(self.harness.controller))
        if wanted:
            self.harness.controller.handle(pods_listed(map(pods.trim, self.api.listed())))
        return wanted

    def news(self) -> list[Any]:
        return [news for news in self.harness.controller.schedule_pending()[1] if isinstance(news, EventRecord)]


def full() -> Bench:
    bench = Bench()
    bench.api.create(placed("p"))
    bench.api.create(gated("q"))
    bench.watch()
    return bench


def finish(bench: Bench) -> None:
    bench.api.change("default/p", phase="Succeeded")


def ungate(bench: Bench) -> None:
    bench.api.delete("default/q")
    bench.api.create(placed("q"))


Lost = tuple[Callable[[Bench], object], list[tuple[str, int]]]
LOST: dict[str, Lost] = {
    "the end of a pod": (lambda bench: bench.api.delete("default/p"), [("gone", 1), ("changed", 0)]),
    "the end of one that waits": (lambda bench: bench.api.delete("default/q"), [("gone", 1), ("changed", 0)]),
    "a new pod": (lambda bench: bench.api.create(placed("r")), [("gone", 0), ("changed", 1)]),
    "a new pod that waits": (lambda bench: bench.api.create(gated("r")), [("gone", 0), ("changed", 1)]),
    "a pod that finished": (finish, [("gone", 0), ("changed", 1)]),
    "one in the place of another": (ungate, [("gone", 1), ("changed", 1)]),
}


@pytest.mark.parametrize("case", LOST.values(), ids=LOST.keys())
def test_what_the_watch_has_lost_is_found_counted_and_mended(
    case: tuple[Callable[[Bench], object], list[tuple[str, int]]],
) -> None:
    lose, want = case
    bench = full()
    lose(bench)
    bench.lose()
    bench.tick()
    assert not bench.relist(), "one look proves nothing"
    bench.tick(5)
    assert (bench.passes, bench.drift, bench.relist()) == (["mended"], want, True)
    bench.tick(300)
    assert bench.passes == ["mended", "clean"]


def test_passes_in_quick_succession_still_look_twice() -> None:
    bench = Bench(every=1.0)
    bench.api.create(placed("p"))
    bench.lose()
    for _ in range(7):
        bench.tick(1)
    assert (bench.passes, bench.drift[1], bench.relist()) == (["mended"], ("changed", 1), True)


def test_what_the_watch_is_only_late_with_is_no_drift() -> None:
    bench = full()
    for lose, _ in LOST.values():
        bench.tick(300)
        if "default/p" in bench.api.pods and "default/q" in bench.api.pods:
            lose(bench)
        bench.tick(1)
        bench.watch()
        bench.tick(5)
    assert bench.drift == []
    assert set(bench.passes) == {"clean"}


def test_a_pod_that_changed_or_went_after_the_list_is_no_drift() -> None:
    bench = full()
    bench.api.create(placed("r"))
    bench.api.create(placed("s"))
    bench.tick()
    bench.api.change("default/r", phase="Running")
    bench.api.delete("default/s")
    bench.tick(5)
    assert (bench.passes, bench.relist()) == (["clean"], False)


def test_it_lists_when_its_term_begins_and_every_few_minutes_of_it() -> None:
    bench = full()
    bench.harness.leads = False
    bench.tick()
    lists = [bench.api.lists]
    bench.harness.leads = True
    for seconds in (1, 299, 1, 10):
        bench.tick(seconds)
        lists.append(bench.api.lists)
    bench.harness.leads = False
    bench.tick(1)
    bench.harness.leads = True
    bench.tick(1)
    lists.append(bench.api.lists)
    assert lists == [0, 1, 1, 2, 2, 3]


def test_whoever_leads_no_more_does_not_count_any_more() -> None:
    bench = full()
    bench.api.create(worker("slipped").json())
    bench.watch()
    bench.tick()
    bench.harness.leads = False
    bench.tick(1)
    bench.tick(1)
    assert bench.uncounted == [1, 0]


def test_an_api_server_that_is_away_changes_nothing_and_is_retried_soon() -> None:
    bench = full()
    look = bench.harness.controller.look()
    bench.api.wire.down = "dropped"
    bench.tick()
    bench.api.wire.down = None
    bench.tick(30)
    assert (bench.passes, bench.harness.controller.look()) == (["failed", "clean"], look)


STEP = st.tuples(st.sampled_from(("place", "gate", "delete", "finish")), st.sampled_from("xyz"), st.booleans())


@given(steps=st.lists(STEP, max_size=12))
@settings(max_examples=examples(40), deadline=None)
def test_whatever_is_lost_the_state_is_that_of_the_pods_again(steps: list[tuple[str, str, bool]]) -> None:
    bench = Bench()
    for what, name, is_lost in steps:
        key = f"default/{name}"
        match what, key in bench.api.pods:
            case "place" | "gate", False:
                bench.api.create(placed(name) if what == "place" else gated(name))
            case "delete", True:
                bench.api.delete(key)
            case "finish", True:
                bench.api.change(key, phase="Failed")
        if is_lost:
            bench.lose()
        bench.watch()
    bench.tick()
    bench.tick(5)
    bench.relist()
    again = SchedulerHarness([node("a").gpu(mib=CARD)])
    again.controller.handle(pods_listed(map(pods.trim, bench.api.listed())))
    assert bench.harness.controller.look() == again.controller.look()
    assert bench.harness.controller.nodes() == again.controller.nodes()
    bench.harness.controller.check_invariants()


# -- GPUs that are allocated beyond what they have ----------------------------------------------------------------

WHAT = "GPU 0 of node a: more is allocated than the GPU has: 20480 of 16384 MiB"
YOUNGEST = f"{WHAT}. This pod is the youngest that holds a share of it: "


def twice_over(repair: str = "report") -> Bench:
    bench = Bench(chosen(repair=repair))
    for name in ("first", "second"):
        bench.api.create(placed(name, 10240))
    bench.watch()
    return bench


def test_a_gpu_promised_twice_is_reported_once_on_node_and_youngest_pod() -> None:
    bench = twice_over()
    bench.tick()
    assert bench.news() == [], "a list that is read anew may look like this for a moment"
    bench.tick(3)
    assert bench.news() == [
        EventRecord("Node", "a", "a", NodeEventReason.OVERCOMMITTED, WHAT),
        EventRecord(
            "Pod",
            "default/second",
            "uid-2",
            NodeEventReason.OVERCOMMITTED,
            YOUNGEST + "delete it, so that it is placed again",
        ),
    ]
    bench.tick(300)
    assert (bench.news(), bench.harness.controller.tick(TickPhase.EVICTIONS)) == ([], [])
    bench.api.delete("default/second")
    bench.watch()
    bench.tick(300)
    bench.api.create(placed("third", 10240))
    bench.watch()
    bench.tick(300)
    bench.tick(3)
    assert [news.key for news in bench.news()] == ["a", "default/third"], "a new fault is said anew"


def test_where_the_administrator_says_so_the_youngest_is_evicted_until_it_goes() -> None:
    bench = twice_over("evict")
    bench.tick()
    bench.tick(3)
    order = Eviction("default/second", "uid-2", None, "repair", YOUNGEST + "it is evicted")
    assert bench.harness.controller.tick(TickPhase.EVICTIONS) == [order]
    bench.tick(59)
    assert bench.harness.controller.tick(TickPhase.EVICTIONS) == []
    bench.tick(1)
    assert bench.harness.controller.tick(TickPhase.EVICTIONS) == [order], "a disruption budget may have forbidden it"
    bench.api.pods["default/second"]["metadata"]["deletionTimestamp"] = "2030-01-01T01:00:00Z"
    bench.api.change("default/second")
    bench.watch()
    bench.tick(300)
    assert bench.harness.controller.tick(TickPhase.EVICTIONS) == [], "it goes, and nobody else must"


# -- pods that are not counted ------------------------------------------------------------------------------------


def bare(made: JSON) -> JSON:
    """The pod as if the webhook had never seen it."""
    for key in [*made["metadata"].get("annotations", {})]:
        del made["metadata"]["annotations"][key]
    return made


UNCOUNTED: dict[str, tuple[JSON, bool]] = {
    "asks in our own words": (worker("p").json(), True),
    "asks in an older system's": (pod("p").asks("aliyun.com/gpu-mem", 5).json(), True),
    "asks for a whole GPU": (pod("p").asks("nvidia.com/gpu", 1).json(), True),
    "runs already": (worker("p").on("a").json(), True),
    "its annotations are gone": (bare(placed("p")), True),
    "its request remains and its allocation is gone": (admitted(worker("p")), True),
    "asks for nothing": (pod("p").container("main").json(), False),
    "has its share": (placed("p"), False),
    "waits": (gated("p"), False),
    "is over": (worker("p").phase("Succeeded").json(), False),
    "is a static pod": (worker("p").annotated("kubernetes.io/config.mirror", "x").json(), False),
    "is in a namespace that is not served": ({**worker("p", 1).json()}, False),
    "is in a namespace that is never served": (pod("p", "kube-system").asks("nvidia.com/gpu", 1).json(), False),
}


@pytest.mark.parametrize("name", UNCOUNTED)
def test_a_pod_is_reported_that(name: str) -> None:
    made, want = UNCOUNTED[name]
    bench = Bench()
    bench.api.served = ["elsewhere"] if name.endswith("not served") else ["default", "kube-system"]
    bench.api.create(made)
    bench.watch()
    bench.tick()
    reported = [(news.key, news.code) for news in bench.news()]
    assert reported == ([("default/p", "GPUShareUncounted")] if want else [])
    assert bench.uncounted == [int(want)]
    bench.tick(300)
    assert bench.news() == [], "it is said once"


def test_whole_gpus_that_are_the_vendors_plugins_are_not_missed() -> None:
    whole = pod("p").uid("u").asks("nvidia.com/gpu", 1).json()
    assert consistency.listed(whole, NO_OPTIONS, ["default"]).uncounted
    assert not consistency.listed(whole, pool_options({"wholeGPUs": "vendor"}), ["default"]).uncounted


def test_a_fresh_look_says_what_the_watch_would() -> None:
    harness = SchedulerHarness([node("a").gpu(mib=CARD)])
    api = ApiServer()
    for made in (placed("p"), gated("q"), worker("r").on("a").json(), placed("s") | {"status": {"phase": "Failed"}}):
        api.create(made)
    listed = [consistency.listed(made, NO_OPTIONS) for made in api.listed()]
    harness.controller.handle(pods_listed(map(pods.trim, api.listed())))
    assert [each for each in listed if harness.controller.differs(each)] == []
    assert [each.known.waits for each in listed] == [False, True, False, False]
    assert names.GATE in pods.gates(api.listed()[1])
