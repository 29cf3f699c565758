"""Two allocators on one API server: the last decisions of one and the first decisions of the other never collide."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import PodDeleted, Relist, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import LoopCounters, SchedulingLoop
from contract import names, pods
from contract.encoding.protocol import Placed, Wait
from contract.reasons.pods import AnswerReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, relists
from tests.wires import Fate

JSON = dict[str, Any]
ONE_GPU = node("n").gpu(mib=16384)


def worker(name: str) -> PodBuilder:
    return pod(name).asks("gpufraction.io/gpu-memory", "16Gi")


class Replica:
    """A harness with an election, and the real loop with the shared API server."""

    def __init__(self, api: ApiServer, *, term: int | None = None) -> None:
        self.harness = SchedulerHarness([ONE_GPU], elected=True, term=term, leads=term is not None)
        self.controller, self.api = self.harness.controller, api
        self.written: list[str] = []
        self.relists: list[Relist] = []
        kube = Kube(api.wire)
        self.loop = SchedulingLoop(
            kube=kube,
            controller=self.controller,
            recorder=EventRecorder(kube, clock=lambda: datetime.now(UTC)),
            woken=threading.Event(),
            now_ns=lambda: 0,
            relist=self._list_again,
            writers=1,
            counted=LoopCounters(written=self.written.append),
        )

    def _list_again(self, order: Relist) -> None:
        if order.pods:
            self.relists.append(order)

    def watch(self, events: list[tuple[str, JSON]]) -> None:
        for kind, seen in events:
            if kind == "put":
                self.controller.handle(pod_event(pods.trim(seen)))
            else:
                self.controller.handle(PodDeleted(pods.uid(seen)))

    def lead(self, term: int) -> None:
        self.harness.leads, self.harness.term = True, term

    def follow(self) -> None:
        self.harness.leads, self.harness.term = False, None

    def catch_up(self) -> None:
        """The loop writes the barrier, the watch delivers everything until it, and claims are listed."""
        self.loop.carry_out(TickPhase.TAKE_OVER)
        self.watch(list(self.api.events))
        self.controller.handle(ClaimsListed(objects.SHARES, (), term=self.harness.term))
        self.loop.carry_out(TickPhase.TAKE_OVER)

    def relist(self, term: int) -> None:
        self.controller.handle(pods_listed([pods.trim(p) for p in self.api.listed()], term=term))
        self.controller.handle(ClaimsListed(objects.SHARES, (), term=term))
        self.loop.carry_out(TickPhase.TAKE_OVER)


def allocated(api: ApiServer) -> set[str]:
    return {key for key, each in api.pods.items() if pods.allocation_id(each)}


def test_a_new_leader_decides_nothing_before_its_watch_shows_its_own_write() -> None:
    api = ApiServer()
    old, new = Replica(api, term=1), Replica(api)
    old.relist(1)
    for name in ("a", "b"):
        api.create(admitted(worker(name), gated=True))
    created = list(api.events)
    api.events.clear()
    old.watch(created)
    new.watch(created)
    old.loop.once()
    assert allocated(api) == {"default/a"}
    old.follow()
    new.lead(2)
    new.loop.once()
    assert allocated(api) == {"default/a"}, "its watch has not shown yet what the old leader placed"
    answer = new.controller.reserve(question(worker("c")))
    assert isinstance(answer, Wait)
    assert answer.code == AnswerReason.NOT_LEADING
    new.catch_up()
    assert new.relists == [], "pods are not listed"
    new.loop.once()
    assert allocated(api) == {"default/a"}, "the GPU is taken"
    assert new.controller.look().confirmed == 1
    new.controller.check_invariants()


def test_a_list_that_was_requested_in_an_earlier_term_does_not_count() -> None:
    replica = Replica(ApiServer(), term=1)
    replica.relist(1)
    replica.follow()
    replica.lead(3)
    assert relists(replica.controller) == [3]
    replica.relist(1)
    replica.controller.handle(pods_listed([]))
    assert not replica.controller.decides()
    replica.relist(3)
    assert replica.controller.decides()


LOSSES: dict[str, Callable[[Replica], None]] = {
    "another leads": lambda replica: replica.follow(),
    "it leads again, in another tenure": lambda replica: replica.lead(5),
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES.keys())
def test_what_was_decided_in_a_leadership_that_is_over_is_not_written(lose: Callable[[Replica], None]) -> None:
    api = ApiServer()
    replica = Replica(api, term=1)
    replica.relist(1)
    api.create(admitted(worker("a"), gated=True))
    replica.watch(list(api.events))
    ((binding,), _) = replica.controller.schedule_pending()
    lose(replica)
    replica.loop._bind(binding)
    assert (allocated(api), replica.written, replica.harness.forgotten) == (set(), ["fenced"], ["fenced"])
    assert replica.controller.look().assumed == 0
    assert not replica.controller.may_write_in(None), "nor one of no term"


def test_the_same_leader_goes_on() -> None:
    api = ApiServer()
    replica = Replica(api, term=1)
    replica.relist(1)
    api.create(admitted(worker("a"), gated=True))
    replica.watch(list(api.events))
    replica.loop.once()
    assert (allocated(api), replica.written) == ({"default/a"}, ["succeeded"])


def test_the_loop_lists_once_a_term() -> None:
    replica = Replica(ApiServer(), term=7)
    for _ in range(3):
        replica.loop.carry_out(TickPhase.TAKE_OVER)
    replica.lead(8)
    replica.loop.carry_out(TickPhase.TAKE_OVER)
    assert replica.relists == [Relist(7), Relist(8)]


def that_waited(made: JSON) -> JSON:
    """The pod with the condition of a waiting one."""
    condition = {"type": str(names.ALLOCATED_CONDITION), "status": "False", "reason": "Memory", "message": "full"}
    return {**made, "status": {"conditions": [condition]}}


def test_a_follower_keeps_no_news_and_a_new_leader_writes_what_is_missing() -> None:
    api = ApiServer()
    old, new = Replica(api, term=1), Replica(api)
    old.relist(1)
    answer = old.controller.reserve(question(worker("a")))
    assert isinstance(answer, Placed)
    stored = api.create(that_waited(admitted(worker("a").on("n"), allocation=answer.allocation)))
    new.watch(list(api.events))
    assert new.controller.schedule_pending() == ([], [])
    new.lead(2)
    new.relist(2)
    assert [t.key for t in new.controller.schedule_pending()[1]] == ["default/a"]
    conditions = [{"type": str(names.ALLOCATED_CONDITION), "status": "True"}]
    api.change(pods.key(stored), conditions=conditions)
    third = Replica(api, term=3)
    third.relist(3)
    assert third.controller.schedule_pending() == ([], [])


def test_a_leader_whose_term_lapsed_tells_what_came_meanwhile() -> None:
    api = ApiServer()
    replica = Replica(api, term=1)
    replica.relist(1)
    answer = replica.controller.reserve(question(worker("a")))
    assert isinstance(answer, Placed)
    replica.relists.clear()
    replica.follow()
    api.create(that_waited(admitted(worker("a").on("n"), allocation=answer.allocation)))
    replica.watch(list(api.events))
    assert replica.controller.schedule_pending() == ([], [])
    replica.loop.carry_out(TickPhase.TAKE_OVER)
    replica.lead(1)  # nobody wrote the Lease meanwhile, so the term goes on
    replica.loop.carry_out(TickPhase.TAKE_OVER)
    replica.loop._pool.shutdown(wait=True)
    assert replica.relists == [], "it reads the one pod"
    assert [news.key for news in replica.controller.schedule_pending()[1]] == ["default/a"]


def test_a_single_replica_without_an_election_needs_no_second_list() -> None:
    harness = SchedulerHarness([ONE_GPU])
    assert relists(harness.controller) == []
    assert isinstance(harness.controller.reserve(question(worker("a"))), Placed)


def test_a_leader_that_returns_writes_the_conditions_of_pods_again() -> None:
    api = ApiServer()
    replica = Replica(api, term=1)
    replica.relist(1)
    for name in ("a", "b"):
        api.create(that_waited(admitted(worker(name), gated=True)))
    replica.relist(1)
    replica.loop.once()
    replica.watch(list(api.events))
    replica.controller.schedule_pending()
    replica.relist(1)
    assert replica.controller.schedule_pending() == ([], []), "nothing new to tell"
    replica.follow()
    replica.lead(3)
    replica.relist(3)
    _, again = replica.controller.schedule_pending()
    codes = {news.key: news.code for news in again if isinstance(news, StatusUpdate)}
    assert codes == {"default/a": "Allocated", "default/b": "Memory"}
    replica.controller.check_invariants()


class WokenAtTheEnd(threading.Event):
    """The loop is woken just after its wait has timed out; the third wait is the last."""

    def __init__(self, stop: threading.Event) -> None:
        super().__init__()
        self.stop, self.waits = stop, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.waits += 1
        woken = self.is_set()
        if self.waits == 1:
            self.set()
        if self.waits == 3:
            self.stop.set()
        return woken


def test_a_wake_up_that_comes_when_the_wait_is_over_is_not_lost() -> None:
    api = ApiServer()
    api.create(admitted(worker("a"), gated=True))
    replica, stop = Replica(api, term=1), threading.Event()
    replica.relist(1)
    replica.loop._woken = WokenAtTheEnd(stop)
    replica.loop.run(stop)
    assert allocated(api) == {"default/a"}


# -- bindings in doubt when the leadership ended ------------------------------------------------------------------


def in_doubt(fate: Fate) -> tuple[ApiServer, Replica, Replica]:
    """A pod for whose placement the leader has no answer, and which it cannot read. Then another replica leads."""
    api = ApiServer()
    old, new = Replica(api, term=1), Replica(api)
    old.relist(1)
    api.create(admitted(worker("a"), gated=True))
    for replica in (old, new):
        replica.watch(list(api.events))
    api.wire.fates = [fate]
    old.loop.once()
    assert (old.written, old.controller.look().assumed) == (["unknown"], 1)
    old.follow()
    new.lead(2)
    return api, old, new


@pytest.mark.parametrize("fate", ["dropped", "lost"])
def test_who_leads_no_more_finds_out_what_became_of_a_placement_in_doubt(fate: Fate) -> None:
    api, old, new = in_doubt(fate)
    old.loop.carry_out(TickPhase.BINDINGS)
    assert old.controller.look().assumed == 1, "it may still be carried out"
    new.relist(2)
    old.loop.carry_out(TickPhase.BINDINGS)
    assert (old.controller.look().assumed, old.controller.look().confirmed) == (0, 0), "the new leader has touched it"
    new.loop.once()
    api.wire.carry_out_late()
    assert (allocated(api), api.pods["default/a"]["metadata"]["annotations"][names.ALLOCATION]) != (set(), "")
    old.watch(list(api.events))
    assert (old.controller.look().assumed, old.controller.look().confirmed) == (0, 1)
    for replica in (old, new):
        replica.controller.check_invariants()


def test_a_placement_in_doubt_that_took_effect_is_counted_by_who_leads_no_more() -> None:
    api, old, _ = in_doubt("lost")
    api.wire.carry_out_late()
    old.loop.carry_out(TickPhase.BINDINGS)
    assert (old.controller.look().assumed, old.controller.look().confirmed) == (0, 1)
    old.controller.check_invariants()


def test_as_long_as_the_api_server_is_away_it_stays_in_doubt() -> None:
    api, old, _ = in_doubt("lost")
    api.wire.down = "unreachable"
    for _ in range(3):
        old.loop.carry_out(TickPhase.BINDINGS)
    assert old.controller.look().assumed == 1
    api.wire.down = None
    api.delete("default/a")
    old.loop.carry_out(TickPhase.BINDINGS)
    assert old.controller.look().assumed == 0
