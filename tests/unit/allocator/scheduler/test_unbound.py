"""A share that kube-scheduler does not let its pod use is returned, and no late binding ever gets the GPU with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocator.cache.capacities import HeldBeyond
from allocator.cache.podinfo import UnboundPod, pod_event, unbound_pod
from allocator.cache.refusals import LASTS
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.queue.records import Eviction, StatusUpdate
from allocator.scheduler import consistency
from allocator.scheduler.events import HeldBeyondChanged, PodDeleted, TakeShare, TickPhase, pods_listed
from allocator.workers.binder import EventRecorder
from allocator.workers.loop import SchedulingLoop
from contract import names, pods
from contract.encoding import codec
from contract.encoding.protocol import Never, Placed, Wait
from contract.model import Allocation, FractionRequest, PodRequest
from contract.nodes import capacity
from contract.nodes.capacity import Amounts
from contract.options import NO_OPTIONS
from contract.reasons.pods import PodEventReason, PodReason
from runtime.kubernetes.client import Kube
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, request_of
from tests.wires import Fate

JSON = dict[str, Any]
REFUSAL = (
    "0/2 nodes are available: 1 Insufficient example.com/fpga, 1 node(s) didn't match Pod's node affinity/selector. "
    "preemption: none."
)
BACK = (
    "its GPU share on node n was released, since kube-scheduler did not bind the pod there in time "
    f"({REFUSAL}). The pod cannot be placed on another node, and runs without a GPU if it is bound. "
)
ALONE = f"{BACK}Delete the pod and create it again: a pod of its name is not placed on node n for 10 min"
OWNED = f"{BACK}Delete the pod, and its controller creates another, which is not placed on node n for 10 min"
EVICTED = f"{BACK}The pod is evicted, and its controller creates another, which is not placed on node n for 10 min"
LATE = (
    "runs on node n without a GPU: the pod was bound after its share had been released. To get a share, "
    "delete the pod; "
)


class Unbound:
    """Nodes of one GPU each, a pod that is pinned to the node `n`, and the loop that carries effects out."""

    def __init__(self, *, nodes: int = 1, owned: bool = False, unbound: str = "release", leads: bool = True) -> None:
        self.api = ApiServer()
        self.nodes = [node(name).gpu(mib=16384) for name in ("n", "o")[:nodes]]
        self.options = chosen(unbound=unbound)
        self.start(1)
        answer = self.harness.controller.reserve(question(worker("p", owned=owned)))
        assert isinstance(answer, Placed)
        assert (answer.pin, answer.allocation.node) == ("affinity", "n")
        self.api.create(admitted(worker("p", owned=owned), allocation=answer.allocation))
        self.watch()
        assert self.reported() == []
        self.harness.leads, self.harness.term = leads, 1 if leads else None

    def start(self, term: int) -> None:
        """A process begins to lead. It knows only what is on the API server."""
        self.harness = SchedulerHarness(self.nodes, options=self.options, elected=True, term=term, made=100 * term)
        self.harness.controller.handle(pods_listed(map(pods.trim, self.api.listed()), term=term))
        self.harness.controller.handle(ClaimsListed("elasticgpus", (), term=term))
        self.api.events.clear()
        kube = Kube(self.api.wire)
        self.loop = SchedulingLoop(
            kube=kube,
            controller=self.harness.controller,
            recorder=EventRecorder(kube, clock=lambda: datetime.now(UTC)),
            woken=threading.Event(),
            now_ns=lambda: 0,
            writers=1,
        )
        self.loop.carry_out(TickPhase.TAKE_OVER)

    @property
    def pod(self) -> JSON:
        return self.api.pods["default/p"]

    def refuse(self) -> None:
        """kube-scheduler does not bind the pod, and says why."""
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSAL}
        self.api.change("default/p", phase="Pending", conditions=[unscheduled])

    def bind(self) -> None:
        """kube-scheduler binds the pod."""
        self.pod["spec"]["nodeName"] = "n"
        self.api.change("default/p", conditions=[{"type": "PodScheduled", "status": "True"}])

    def watch(self) -> None:
        while self.api.events:
            kind, seen = self.api.events.popleft()
            event = pod_event(pods.trim(seen)) if kind == "put" else PodDeleted(pods.uid(seen))
            self.harness.controller.handle(event)

    def refused_for(self, seconds: float) -> None:
        self.refuse()
        self.watch()
        self.harness.now += seconds

    def turn(self) -> None:
        self.loop.carry_out(TickPhase.UNBOUND_PODS)
        self.watch()

    def carries(self) -> set[str]:
        """Our annotations on the pod, except the request."""
        return set(pods.annotations_of(self.pod)) - {names.REQUEST, names.PLACEMENT}

    def held(self) -> int:
        return self.harness.controller.look().confirmed

    def free(self) -> bool:
        """Whether another pod would get the card."""
        return isinstance(self.harness.controller.reserve(question(worker("other"), dry_run=True)), Placed)

    def reported(self) -> list[tuple[bool, str, str, str | None]]:
        found = self.harness.controller.schedule_pending()[1]
        return [(n.allocated, str(n.code), n.reason, n.warning or "") for n in found if isinstance(n, StatusUpdate)]


def worker(name: str, *, owned: bool = False) -> PodBuilder:
    asks = pod(name).asks("gpufraction.io/gpu-memory", "16Gi").annotated(names.PLACEMENT, "affinity")
    return asks.owned("Job", "j", "job") if owned else asks


@pytest.mark.parametrize(("owned", "text"), [(False, ALONE), (True, OWNED)], ids=["alone", "owned"])
def test_the_share_goes_back_and_the_pod_learns_what_its_owner_can_do(owned: bool, text: str) -> None:
    it = Unbound(owned=owned)
    it.refused_for(299)
    it.turn()
    assert (it.held(), it.free()) == (1, False)
    it.harness.now += 1
    it.turn()
    assert (it.carries(), it.held(), it.free()) == ({names.WITHDRAWN}, 0, True)
    assert it.reported() == [(False, "ShareWithdrawn", text, "GPUShareReturned")]
    assert it.harness.controller.tick(TickPhase.UNBOUND_PODS) == []
    assert it.harness.controller.tick(TickPhase.EVICTIONS) == []
    it.harness.controller.check_invariants()


def test_a_share_is_free_only_when_the_watch_shows_the_pod_without_it() -> None:
    it = Unbound()
    it.refused_for(300)
    it.loop.carry_out(TickPhase.UNBOUND_PODS)
    assert (it.carries(), it.held(), it.free()) == ({names.WITHDRAWN}, 1, False)
    it.watch()
    assert (it.held(), it.free()) == (0, True)


def test_a_pod_that_was_bound_between_our_read_and_our_write_keeps_its_share() -> None:
    it = Unbound()
    it.refused_for(300)
    it.bind()  # the watch has not delivered it yet
    it.turn()
    assert names.ALLOCATION in it.carries()
    it.harness.now += 60
    it.turn()
    assert (names.ALLOCATION in it.carries(), it.held(), it.free()) == (True, 1, False)


def test_what_counts_for_a_pod_without_a_share_is_added_to_its_nodes_capacity() -> None:
    """Otherwise the kubelet would count it against the pods that have the GPU."""
    it = Unbound()
    it.refused_for(300)
    it.turn()
    gpus = it.nodes[0].inventory().gpus
    it.harness.controller.handle(HeldBeyondChanged("n", capacity.to_text(capacity.beyond(capacity.promises(gpus), {}))))
    found = []
    steps: tuple[Callable[[], object], ...] = (it.watch, it.bind, lambda: it.api.change("default/p", phase="Failed"))
    for step in steps:
        step()
        it.watch()
        written = [n for n in it.harness.controller.tick(TickPhase.UPKEEP) if isinstance(n, HeldBeyond)]
        found.append([known.amounts for each in written if (known := capacity.from_text(each.text)) is not None])
        for each in written:
            it.harness.controller.handle(HeldBeyondChanged("n", each.text))
    assert found == [[], [Amounts(16 << 30, 0)], [Amounts()]]


@pytest.mark.parametrize("owned", [False, True])
def test_a_pod_that_is_bound_after_our_write_sees_no_gpu_and_has_a_reason(owned: bool) -> None:
    it = Unbound(owned=owned)
    it.refused_for(300)
    it.turn()
    it.reported()
    it.bind()
    it.watch()
    assert (it.carries(), it.held(), it.free()) == ({names.WITHDRAWN}, 0, True)
    again = "its controller creates another" if owned else "create it again"
    assert it.reported() == [(False, "BoundWithoutShare", f"{LATE}{again}", "GPUShareReturned")]
    it.harness.controller.check_invariants()


UNKNOWN: dict[Fate, bool] = {"lost-and-done": True, "lost": False, "dropped": False, "refused": False}


@pytest.mark.parametrize(("fate", "done"), UNKNOWN.items())
def test_a_write_without_an_answer_frees_nothing_until_it_shows(fate: Fate, done: bool) -> None:
    it = Unbound()
    it.refused_for(300)
    it.api.wire.fates = [fate]
    it.loop.carry_out(TickPhase.UNBOUND_PODS)
    assert (it.held(), it.free()) == (1, False)
    it.watch()
    assert (it.held(), it.free()) == ((0, True) if done else (1, False))
    it.turn()
    assert (it.held(), it.free()) == ((0, True) if done else (1, False)), "not written again at once"
    it.harness.now += 5
    it.turn()
    assert (it.carries(), it.held(), it.free()) == ({names.WITHDRAWN}, 0, True)


def test_a_write_that_arrives_after_the_binding_changes_nothing() -> None:
    it = Unbound()
    it.refused_for(300)
    it.api.wire.fates = ["lost"]
    it.loop.carry_out(TickPhase.UNBOUND_PODS)
    it.bind()
    it.api.wire.carry_out_late()
    it.watch()
    assert (names.ALLOCATION in it.carries(), it.held()) == (True, 1)


@pytest.mark.parametrize("bound", [False, True], ids=["not bound", "bound meanwhile"])
def test_if_a_leader_ends_after_its_write_the_next_goes_by_the_pods(bound: bool) -> None:
    it = Unbound()
    it.refused_for(300)
    it.loop.carry_out(TickPhase.UNBOUND_PODS)
    if bound:
        it.bind()
    it.start(2)
    assert (it.held(), it.free()) == (0, True)
    assert [code for _, code, _, _ in it.reported()] == ["BoundWithoutShare" if bound else "ShareWithdrawn"]
    it.harness.controller.check_invariants()


def test_a_leader_that_ends_before_the_write_leaves_a_share_that_counts() -> None:
    it = Unbound()
    it.refused_for(300)
    it.start(2)
    it.turn()
    assert (it.held(), it.free()) == (1, False)
    it.harness.now += 300
    it.turn()
    assert (it.held(), it.free()) == (0, True)


KEPT: dict[str, Callable[[], Unbound]] = {
    "the administrator keeps shares": lambda: Unbound(unbound="keep"),
    "another replica leads": lambda: Unbound(leads=False),
}


@pytest.mark.parametrize("make", KEPT.values(), ids=KEPT.keys())
def test_the_share_stays(make: Callable[[], Unbound]) -> None:
    it = make()
    it.refused_for(3000)
    it.turn()
    assert (names.ALLOCATION in it.carries(), it.held()) == (True, 1)


def test_with_consent_a_controllers_pod_is_evicted_once_its_share_is_lost() -> None:
    it = Unbound(owned=True, unbound="delete")
    it.refused_for(300)
    it.loop.carry_out(TickPhase.UPKEEP)
    assert it.harness.controller.tick(TickPhase.EVICTIONS) == []
    it.turn()
    version = int(it.pod["metadata"]["resourceVersion"])
    want = Eviction("default/p", pods.uid(it.pod), version, "unbound", EVICTED)
    for seconds, orders in ((0, [want]), (4, []), (1, [want])):  # it may be refused, so it is requested again
        it.harness.now += seconds
        it.harness.controller.tick(TickPhase.UPKEEP)
        assert it.harness.controller.tick(TickPhase.EVICTIONS) == orders
    it.bind()
    it.watch()
    it.harness.now += 60
    it.harness.controller.tick(TickPhase.UPKEEP)
    assert it.harness.controller.tick(TickPhase.EVICTIONS) == [], "it runs"


def test_with_consent_a_pod_that_nobody_would_create_again_stays() -> None:
    it = Unbound(unbound="delete")
    it.refused_for(300)
    it.turn()
    it.harness.controller.tick(TickPhase.UPKEEP)
    assert it.harness.controller.tick(TickPhase.EVICTIONS) == []
    assert [text for *_, text, _ in it.reported()] == [ALONE]


def test_the_replacement_avoids_the_node_and_says_why_until_the_refusal_expires() -> None:
    it = Unbound(nodes=2, owned=True)
    it.refused_for(300)
    it.turn()
    for name, want in (("next", "o"), ("other-owner", "n")):
        answer = it.harness.controller.reserve(question(worker(name, owned=name == "next"), dry_run=True))
        assert isinstance(answer, Placed)
        assert answer.allocation.node == want
    alone = Unbound(owned=True)
    alone.refused_for(300)
    alone.turn()
    answer = alone.harness.controller.reserve(question(worker("next", owned=True)))
    assert isinstance(answer, Wait)
    assert (answer.code, answer.reason) == (
        "RefusedByScheduler",
        "0 of 1 GPU nodes fit: 1 that kube-scheduler refused (1 Insufficient example.com/fpga)",
    )
    alone.api.create(admitted(worker("next", owned=True), gated=True))
    alone.watch()
    assert alone.harness.controller.schedule_pending()[0] == []
    alone.harness.now += LASTS
    alone.harness.controller.tick(TickPhase.UPKEEP)
    [binding] = alone.harness.controller.schedule_pending()[0]
    assert (binding.pod.key, binding.allocation.node) == ("default/next", "n")


def test_in_one_cycle_a_refusal_counts_for_its_own_family_only() -> None:
    it = Unbound(owned=True)
    it.refused_for(300)
    it.turn()
    for name, owned in (("next", True), ("other", False)):
        it.api.create(admitted(worker(name, owned=owned), gated=True))
    it.watch()
    bindings, _ = it.harness.controller.schedule_pending()
    assert [binding.pod.key for binding in bindings] == ["default/other"]


def test_a_new_leader_learns_the_refusal_from_the_pod() -> None:
    it = Unbound(owned=True)
    it.refused_for(300)
    it.turn()
    it.start(2)
    answer = it.harness.controller.reserve(question(worker("next", owned=True)))
    assert not isinstance(answer, Placed | Never)
    assert answer.code == "RefusedByScheduler"


def test_a_pod_whose_share_was_taken_back_is_not_taken_for_one_that_lost_it() -> None:
    it = Unbound()
    it.refused_for(300)
    it.turn()
    options = NO_OPTIONS
    found = consistency.listed(it.pod, options, {"default"})
    assert (found.uncounted, found.known, it.harness.controller.differs(found)) == (
        False,
        it.harness.controller._handlers.tracked(found.uid),
        False,
    )
    damaged = {**it.pod, "metadata": {**it.pod["metadata"], "annotations": {}}}
    damaged["metadata"]["annotations"][names.REQUEST] = pods.annotations_of(it.pod)[names.REQUEST]
    assert consistency.listed(damaged, options, {"default"}).uncounted


def test_a_pod_that_is_deleted_is_forgotten() -> None:
    it = Unbound()
    it.refused_for(300)
    it.turn()
    it.api.delete("default/p")
    it.watch()
    assert it.harness.controller.uids() == frozenset()
    it.harness.controller.check_invariants()


def by_claim(found: Allocation) -> tuple[PodRequest, Allocation]:
    """As an ElasticGPUClaim provides it."""
    request = PodRequest("elastic", tuple(FractionRequest(each.container) for each in found.containers), claim="c")
    return request, replace(found, claim="c")


def by_resource_claim(found: Allocation) -> tuple[PodRequest, Allocation]:
    """As Dynamic Resource Allocation delivers it."""
    containers = (replace(each, shares=tuple(replace(s, dra=True) for s in each.shares)) for each in found.containers)
    return request_of(worker("p").json()), replace(found, containers=tuple(containers))


@pytest.mark.parametrize("given", [by_claim, by_resource_claim])
def test_a_share_that_comes_by_a_claim_stays(given: Callable[[Allocation], tuple[PodRequest, Allocation]]) -> None:
    it = Unbound()
    request, allocation = given(codec.allocation_from_text(pods.annotations_of(it.pod)[names.ALLOCATION]))
    annotations, (container,) = it.pod["metadata"]["annotations"], it.pod["spec"]["containers"]
    annotations.update(
        {names.REQUEST: codec.request_to_text(request), names.ALLOCATION: codec.allocation_to_text(allocation)}
    )
    if request.claim:
        container["resources"] = {}
    it.refused_for(10)
    assert it.held() == 1
    it.harness.controller.tick(TickPhase.UPKEEP)
    [(_, code, text, _)] = it.reported()
    assert (code, text.rpartition(" or ")[2]) == ("NotScheduled", "delete the pod to release the share")
    it.harness.now += 3000
    assert it.harness.controller.tick(TickPhase.UNBOUND_PODS) == []


def test_pods_that_others_judge_are_counted_by_what_they_are_judged_by() -> None:
    it = Unbound()
    assert it.harness.controller.not_evaluated() == {}
    it.refused_for(10)
    assert it.harness.controller.not_evaluated() == {"unknown": 1}
    it.pod["spec"].update(schedulerName="volcano", resourceClaims=[{"name": "nic"}])
    it.refused_for(10)
    assert it.harness.controller.not_evaluated() == {"scheduler": 1, "claims": 1}
    it.harness.controller.tick(TickPhase.UPKEEP)
    assert [text.partition(": ")[2].partition(" does")[0] for *_, text, _ in it.reported()] == ["the scheduler volcano"]
    it.api.delete("default/p")
    it.watch()
    assert it.harness.controller.not_evaluated() == {}


def test_a_bounded_number_of_shares_goes_back_in_one_turn() -> None:
    harness = SchedulerHarness([node("n").gpus(20, mib=16384)])
    for number in range(20):
        answer = harness.controller.reserve(question(worker(f"p{number}").uid(f"u{number}")))
        assert isinstance(answer, Placed)
        made = admitted(worker(f"p{number}").uid(f"u{number}"), allocation=answer.allocation)
        made["metadata"]["resourceVersion"] = str(number + 1)
        unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REFUSAL}
        made["status"] = {"conditions": [unscheduled]}
        harness.controller.handle(pod_event(made))
    harness.now += 300
    turns = [harness.controller.tick(TickPhase.UNBOUND_PODS) for _ in range(4)]
    taken = [each.uid for effects in turns for each in effects if isinstance(each, TakeShare)]
    assert ([len(each) for each in turns], sorted(taken)) == ([8, 8, 4, 0], sorted(f"u{n}" for n in range(20)))


class BindingRace(RuleBasedStateMachine):
    """
    kube-scheduler binds at any time, writes are lost and late, and leaders end. The card becomes free for another pod
    only once the first one can never see it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.it, self.term, self.bound_with_share = Unbound(), 1, False

    @precondition(lambda self: not self.it.pod["spec"].get("nodeName"))
    @rule()
    def kube_scheduler_refuses_for_long(self) -> None:
        self.it.refused_for(300)

    @precondition(lambda self: not self.it.pod["spec"].get("nodeName"))
    @rule()
    def kube_scheduler_binds(self) -> None:
        self.it.bind()
        self.bound_with_share = names.ALLOCATION in self.it.carries()

    @rule(fate=st.sampled_from(("answered", "answered", "lost-and-done", "lost")))
    def a_turn(self, fate: Fate) -> None:
        self.it.api.wire.fates = [fate]
        self.it.loop.carry_out(TickPhase.UNBOUND_PODS)
        self.it.loop.carry_out(TickPhase.UPKEEP)
        self.it.api.wire.fates = []

    @rule(late=st.booleans())
    def all_is_seen(self, late: bool) -> None:
        if late:
            self.it.api.wire.carry_out_late()
        self.it.watch()

    @rule()
    def another_process_leads(self) -> None:
        self.term += 1
        self.it.start(self.term)

    @invariant()
    def the_card_is_free_only_where_the_pod_cannot_see_it(self) -> None:
        carries = self.it.carries()
        sees = any(key.startswith(names.DEVICES_PREFIX) for key in carries)
        assert not (self.it.free() and sees)
        assert names.ALLOCATION in carries or not (self.bound_with_share or sees)
        self.it.harness.controller.check_invariants()

    def teardown(self) -> None:
        self.it.api.wire.carry_out_late()
        self.it.watch()
        holds = names.ALLOCATION in self.it.carries()
        assert (self.it.held(), self.it.free()) == ((1, False) if holds else (0, True))


TestBindingRace = BindingRace.TestCase
TestBindingRace.settings = settings(max_examples=examples(20), stateful_step_count=12, deadline=None)


def hindered(it: Unbound, message: str = "its ResourceClaim c is being deleted") -> UnboundPod:
    return unbound_pod(pod_event(pods.trim(it.pod)).read(), "n", message)


def test_a_pod_that_kube_scheduler_does_not_try_gives_its_share_back() -> None:
    it = Unbound()
    allocated = it.harness.controller._cache.allocated
    allocated.hinder([hindered(it)], it.harness.now)
    it.harness.now += 10
    it.harness.controller.tick(TickPhase.UPKEEP)
    [(_, code, message, warning)] = it.reported()
    assert (code, warning) == (PodReason.NOT_SCHEDULED, PodEventReason.SHARE_UNUSED)
    assert "kube-scheduler does not bind the pod there (its ResourceClaim c is being deleted)" in message
    it.harness.now += it.options.unbound_after
    it.turn()
    assert names.ALLOCATION not in it.carries()
    assert it.free()


ENDS = {
    "it is bound": lambda it: it.bind(),
    "the claim is back": lambda it: it.harness.controller._cache.allocated.hinder([], it.harness.now),
    "it is deleted": lambda it: it.harness.controller.handle(PodDeleted(pods.uid(it.pod))),
}


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
def test_a_pod_that_is_not_hindered_any_more_keeps_its_share(ends: Callable[[Unbound], object]) -> None:
    it = Unbound()
    allocated = it.harness.controller._cache.allocated
    allocated.hinder([hindered(it)], it.harness.now)
    ends(it)
    it.watch()
    assert allocated.unbound_for(it.harness.now, 0) == []
    assert allocated._hindered == {}


def test_what_kube_scheduler_says_goes_before_what_we_know() -> None:
    it = Unbound()
    allocated = it.harness.controller._cache.allocated
    it.refused_for(1)
    allocated.hinder([hindered(it)], it.harness.now)
    [said] = allocated.unbound_for(it.harness.now, 0)
    assert said.message == REFUSAL
    allocated.hinder([], it.harness.now)
    assert allocated.unbound_for(it.harness.now, 0) == [said]
