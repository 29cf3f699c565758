"""
These promises hold for any history of admissions, writes, watch delays, failures and restarts.

1. Our own decisions never put more on a GPU than it has.
2. Once all is quiet, the ledger equals what the pods on the API server say.
3. Every pod with a request is placed, waits with a reason, or was denied with a reason.
4. A restart at that point gives the same state.
5. Only pods with a lower priority than a waiting one are evicted, and each only once.

6. A write that a former leader had in progress changes nothing, whenever it arrives.
7. An admitted pod that is stored after its share was given away is failed once it is seen, and no other pod is failed.
8. The held and free time that all leaders counted adds up to the cards' time.
9. A pod that was deleted while it waited, and that a finalizer keeps, never gets a share and no longer waits.
10. A pod that kube-scheduler binds has its share, or its containers see no GPU. A share is taken back only before a
    binding.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.cache.podinfo import pod_event
from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.changes import ClaimsListed
from allocator.features.metering.meter import Counted, Meter, Span
from allocator.queue.records import Binding
from allocator.scheduler.events import (
    AssumedChecked,
    BindFailed,
    BindSucceeded,
    BindUnknown,
    EvictionAnswered,
    EvictionOutcome,
    PodDeleted,
    PoolsDeclared,
    TakeShare,
    TickPhase,
    pods_listed,
)
from allocator.workers import binder
from allocator.workers.fence import Fencer
from contract import names, pods
from contract.encoding.protocol import Never, Placed, Wait
from contract.model import Allocation, NodeState, PodRequest, PoolSharing
from contract.reasons.pods import PodReason
from contract.scheduling.demand import demands
from runtime.kubernetes.client import Kube, KubeError
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, fail_late, fence, overdue, question, unresolved
from tests.wires import Fate, Wire

JSON = dict[str, Any]
NODES = (node("a").gpu(mib=16384, sharing=PoolSharing(limit_ratio=2.0)).isolating("preload"),)
LARGER = node("pool").gpu(mib=32768).state()
"""An empty node of a declared pool; no such node ever joins."""
SIZES = st.sampled_from(("8Gi", "16Gi", "16Gi", "20Gi"))
MEMORY_LIMITS = st.sampled_from(("", "", "10Gi", "16Gi"))
"""A limit within the option's multiple of a request of 8 GiB."""
NAMES = st.sampled_from(("x", "y", "z"))
PREEMPTION = (PodReason.PREEMPTING, PodReason.BLOCKED, PodReason.PREEMPTION_FAILED)
FATES: tuple[Fate, ...] = ("answered", "answered", "lost-and-done", "lost", "refused")


@dataclass
class Admission:
    """A pod that the webhook let through and that the API server has not stored yet."""

    pod: JSON
    since: float


class History(RuleBasedStateMachine):
    """Histories with the order by age, in one namespace."""

    order = "age"
    namespaces: Mapping[str, str] = {}
    """The namespace by a pod's name, if it is not default."""

    def __init__(self) -> None:
        super().__init__()
        self.api = ApiServer()
        self.kube = Kube(self.api.wire)
        self.admissions: list[Admission] = []
        self.bindings: list[Binding] = []
        self.written: list[BindSucceeded | BindFailed | BindUnknown] = []
        self.orphans: list[Binding] = []
        """Commits of former leaders that are delayed in transit."""
        self.takes: list[TakeShare] = []
        """Shares to take back from pods that kube-scheduler does not bind, decided by this leader or a former one."""
        self.bound_with_share: set[str] = set()
        """Pods that kube-scheduler bound while they had a share."""
        self.evicted: set[str] = set()
        """Pods whose eviction was granted."""
        self.strays: set[str] = set()
        """Pods that were stored when no leader could know about them, and that the leader has not seen yet."""
        self.deleted_waiting: set[str] = set()
        """Pods that were deleted while they waited, and that a finalizer keeps."""
        self.reported: dict[str, str] = {}
        self.listing: list[JSON] | None = None
        self.begun = False
        self.generation = 0
        self.now = 100.0
        self.counted_by = 0
        self.counted_from = self.counted_until = self.now
        self.meter = Meter(lambda gpu: gpu.usable)
        self.card_time = 0.0
        """Held and free time that former leaders counted."""

    @initialize(
        sizes=st.tuples(SIZES, SIZES, SIZES),
        appear=st.tuples(st.booleans(), st.booleans(), st.booleans()),
        crowded=st.booleans(),
        refused=st.booleans(),
    )
    def begin(self, sizes: tuple[str, ...], appear: tuple[bool, ...], crowded: bool, refused: bool) -> None:
        self._start()
        if crowded:  # two pods of no priority have the card when one of the highest arrives
            sizes, appear = ("8Gi", "8Gi", sizes[2]), (True, True, True)
        if refused:  # kube-scheduler does not bind the first one, and its share may be taken back
            sizes, appear = ("8Gi", *sizes[1:]), (True, *appear[1:])
        for name, size, appears in zip("xyz", sizes, appear, strict=True):
            pin = "affinity" if refused else "auto"
            self.admit(name, size, "", 2 if crowded and name == "z" else 0, False, appears, pin)
        if refused:
            self._judge("default/x", "refuses for long")
        if crowded:
            self.watch(4, False)
            self.decide()

    def _start(self) -> None:
        self.card_time += sum(_counted(self.meter.counted()))
        self.meter = Meter(lambda gpu: gpu.usable)
        self.generation += 1
        options = chosen(
            assume_ttl=30.0, starvation_timeout=20.0, preemption=True, queue_order=self.order, unbound_after=20.0
        )
        term = self.generation
        self.harness = SchedulerHarness(NODES, options=options, now=self.now, made=1000 * term, elected=True, term=term)
        self.harness.controller.handle(pods_listed(map(pods.trim, self.api.listed()), term=term))
        self.harness.controller.handle(ClaimsListed(objects.SHARES, (), term=term))
        self.api.events.clear()
        self.strays.clear()
        self.bindings, self.written, self.reported = [], [], {}
        self.listing = None
        with ThreadPoolExecutor(1) as writers:
            self.fencer = Fencer(
                Kube(Wire(self.api)),
                self.harness.controller,
                word=lambda: f"word-{term}",
                timeout=1,
                writers=writers,
                failed=lambda: None,
            )
            fence(self.harness.controller, self.fencer)

    @rule(pools=st.sampled_from(((), (LARGER,))))
    def the_options_change(self, pools: tuple[NodeState, ...]) -> None:
        self.harness.controller.handle(PoolsDeclared(pools))

    # -- tenants --------------------------------------------------------------------------------------------------

    @rule(
        name=NAMES,
        size=SIZES,
        limit=MEMORY_LIMITS,
        priority=st.integers(0, 2),
        twice=st.booleans(),
        appears=st.booleans(),
        pin=st.sampled_from(("affinity", "auto")),
    )
    def admit(
        self, name: str, size: str, limit: str, priority: int, twice: bool, appears: bool, pin: str = "auto"
    ) -> None:
        namespace = self.namespaces.get(name, "default")
        if f"{namespace}/{name}" in self.api.pods:
            return
        builder = pod(name, namespace).asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
        builder = builder.annotated(names.PLACEMENT, pin)
        if limit and size == "8Gi":
            builder = builder.asks("gpufraction.io/gpu-memory-limit", limit)
        if twice:  # the API server gave up on the first answer and asked again
            self.harness.controller.reserve(question(builder))
        made = self._admitted(builder)
        if made is not None and appears:
            self._store(Admission(made, self.now))
        elif made is not None:
            self.admissions.append(Admission(made, self.now))

    def _admitted(self, builder: PodBuilder) -> JSON | None:
        match self.harness.controller.reserve(question(builder)):
            case Placed(allocation, pin):
                placed = builder.on(allocation.node) if pin == "nodeName" else builder
                return admitted(placed, allocation=allocation)
            case Wait(_, reason, _):
                assert reason
                return admitted(builder, gated=True)
            case Never(_, reason):
                assert "20480" in reason, "only what is larger than any card is denied"
                return None

    @precondition(lambda self: self.admissions)
    @rule(data=st.data(), refused=st.booleans())
    def admission_ends(self, data: st.DataObject, refused: bool) -> None:
        admission = self.admissions.pop(data.draw(st.integers(0, len(self.admissions) - 1)))
        if not refused:
            self._store(admission)

    def _store(self, admission: Admission) -> None:
        if pods.key(admission.pod) in self.api.pods:
            return  # another creation with this name was first
        made = self.api.create(admission.pod)
        if not self._held(admission):
            self.strays.add(pods.uid(made))

    def _held(self, admission: Admission) -> bool:
        return self.harness.controller.holds(pods.allocation_id(admission.pod))

    @precondition(lambda self: self.api.pods)
    @rule(data=st.data(), how=st.sampled_from(("delete", "delete", "Succeeded", "Failed", "touched", "terminating")))
    def pod_moves_on(self, data: st.DataObject, how: str) -> None:
        key = data.draw(st.sampled_from(sorted(self.api.pods)))
        running = names.GATE not in pods.gates(self.api.pods[key])
        if how == "delete":
            self.api.delete(key)
        elif how == "terminating":
            if not running:
                self.deleted_waiting.add(pods.uid(self.api.pods[key]))
            self.api.pods[key]["metadata"]["deletionTimestamp"] = "2030-01-01T01:00:00Z"
            self.api.change(key)
        elif how == "touched" or running:
            self.api.change(key, **({"phase": how} if how != "touched" else {"touched": str(self.now)}))

    # -- kube-scheduler -------------------------------------------------------------------------------------------

    def _to_be_bound(self) -> list[str]:
        found = self.api.pods.items()
        return sorted(key for key, each in found if not (pods.gates(each) or pods.finished(each) or _bound(each)))

    @precondition(lambda self: self._to_be_bound())
    @rule(data=st.data(), how=st.sampled_from(("refuses", "refuses for long", "binds")))
    def kube_scheduler_judges(self, data: st.DataObject, how: str) -> None:
        self._judge(data.draw(st.sampled_from(self._to_be_bound())), how)

    def _judge(self, key: str, how: str) -> None:
        if how != "binds":
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": "a licence is missing",
            }
            self.api.change(key, conditions=[condition])
            if how == "refuses for long" and self.listing is None:
                self.watch(len(self.api.events), False)
                self.time_passes(21)
            return
        self.api.pods[key]["spec"]["nodeName"] = "a"
        self.api.change(key, conditions=[{"type": "PodScheduled", "status": "True"}])
        if names.ALLOCATION in pods.annotations_of(self.api.pods[key]):
            self.bound_with_share.add(pods.uid(self.api.pods[key]))

    @precondition(lambda self: self.takes)
    @rule(data=st.data(), fate=st.sampled_from(FATES))
    def a_share_is_taken_back(self, data: st.DataObject, fate: Fate) -> None:
        self._take(self.takes.pop(data.draw(st.integers(0, len(self.takes) - 1))), fate)

    def _take(self, take: TakeShare, fate: Fate) -> None:
        self.api.wire.fates = [fate]
        with contextlib.suppress(KubeError):
            binder.take_share(self.kube, take)
        self.api.wire.fates = []

    @invariant()
    def who_is_bound_has_the_share_or_sees_no_gpu(self) -> None:
        for each in self.api.pods.values():
            annotations = pods.annotations_of(each)
            seen = any(key.startswith(names.DEVICES_PREFIX) for key in annotations)
            assert not (names.WITHDRAWN in annotations and (seen or names.ALLOCATION in annotations))
            assert pods.uid(each) not in self.bound_with_share or names.ALLOCATION in annotations

    # -- the allocator --------------------------------------------------------------------------------------------

    @rule()
    def decide(self) -> None:
        bindings, reported = self.harness.controller.schedule_pending()
        self.bindings += bindings
        self.reported.update({news.uid: news.code for news in reported})

    @rule(fate=st.sampled_from(("evicted", "evicted", "evicted", "budget", "failed", "gone")))
    def make_room(self, fate: EvictionOutcome) -> None:
        line = self.harness.controller.view().queue
        orders = self.harness.controller.preempt()
        assert self.evicted.isdisjoint(order.uid for order in orders), "nobody goes twice, or for two"
        for order in orders:
            victim = self.api.pods.get(order.key)
            if victim is None or pods.uid(victim) != order.uid:
                fate = "gone"  # the watch has not reported it yet
            elif fate == "evicted":
                assert any(pods.priority(victim) < each.priority for each in line)
                self.evicted.add(order.uid)
                victim["metadata"]["deletionTimestamp"] = "2030-01-01T01:00:00Z"
                self.api.change(order.key)
            self.harness.controller.handle(EvictionAnswered(order, fate))

    @precondition(lambda self: self.bindings)
    @rule(data=st.data(), fate=st.sampled_from(FATES), reachable=st.sampled_from((True, True, False)))
    def write(self, data: st.DataObject, fate: Fate, reachable: bool) -> None:
        binding = self.bindings.pop(data.draw(st.integers(0, len(self.bindings) - 1)))
        self._write(binding, fate, reachable)

    def _write(self, binding: Binding, fate: Fate, reachable: bool = True) -> None:
        self.api.wire.fates, self.api.wire.down = [fate], None if reachable else "dropped"
        self.written.append(binder.write(self.kube, binding, 0))
        self.api.wire.fates, self.api.wire.down = [], None

    @precondition(lambda self: self.written)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self.harness.controller.handle(self.written.pop(data.draw(st.integers(0, len(self.written) - 1))))

    @precondition(lambda self: self.api.wire.late)
    @rule()
    def late_writes_land(self) -> None:
        self.api.wire.carry_out_late()

    # -- time and the watch ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.api.events and self.listing is None)
    @rule(count=st.integers(1, 4), twice=st.booleans())
    def watch(self, count: int, twice: bool) -> None:
        for _ in range(min(count, len(self.api.events))):
            kind, seen = self.api.events.popleft()
            for _ in range(1 + twice):
                if kind == "put":
                    self.harness.controller.handle(pod_event(pods.trim(seen)))
                else:
                    self.harness.controller.handle(PodDeleted(pods.uid(seen)))
        self._fail_those_that_came_late()

    def _fail_those_that_came_late(self) -> None:
        fail_late(self.harness.controller, self.fencer)
        self.api.end_what_is_past_its_deadline()
        if self.listing is None:
            self.strays &= {pods.uid(seen) for _, seen in self.api.events}

    @precondition(lambda self: self.listing is None)
    @rule()
    def list_is_read(self) -> None:
        """The watch broke: a list replaces everything that it still had to deliver, and is taken in some time later."""
        self.listing, self.begun = list(map(pods.trim, self.api.listed())), False
        self.api.events.clear()

    @precondition(lambda self: self.listing is not None)
    @rule(count=st.integers(0, 3))
    def part_of_the_list_is_taken_in(self, count: int) -> None:
        held = self.listing or []
        part, rest = held[:count], held[count:]
        self.harness.controller.handle(pods_listed(part, first=not self.begun, last=not rest))
        self.listing, self.begun = rest or None, True
        self._fail_those_that_came_late()

    @precondition(lambda self: self.listing is not None)
    @rule()
    def list_breaks_off_and_restarts(self) -> None:
        self.list_is_read()

    @rule(seconds=st.sampled_from((1, 10, 41, 41)))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.harness.now = self.now
        self.harness.controller.tick(TickPhase.UPKEEP)
        self.bindings += unresolved(self.harness.controller)
        taken = self.harness.controller.tick(TickPhase.UNBOUND_PODS)
        self.takes += [each for each in taken if isinstance(each, TakeShare)]
        exist = {pods.allocation_id(each) for each in self.api.pods.values() if not pods.finished(each)}
        self.harness.controller.handle(AssumedChecked(overdue(self.harness.controller), exist))

    @rule(land=st.booleans())
    def restart(self, land: bool) -> None:
        if land:
            for admission in self.admissions:
                # A pod whose share was returned comes after a change of leader only through `admission_ends`: the next
                # leader would find its card allocated twice in its list, and report it.
                if names.GATE in pods.gates(admission.pod) or self._held(admission):
                    self._store(admission)
            self.admissions = []
            for binding in self.bindings:
                binder.write(self.kube, binding, 0)
            self.api.wire.carry_out_late()
        else:  # the next one leads before any of these exist
            self.orphans += self.bindings
        self._start()

    @precondition(lambda self: self.orphans)
    @rule(data=st.data())
    def what_a_leader_before_has_written_arrives(self, data: st.DataObject) -> None:
        binding = self.orphans.pop(data.draw(st.integers(0, len(self.orphans) - 1)))
        assert isinstance(binder.write(Kube(Wire(self.api)), binding, 0), BindFailed)

    # -- what is counted ------------------------------------------------------------------------------------------

    @invariant()
    def held_and_free_time_of_all_leaders_is_the_cards_time(self) -> None:
        if self.generation:
            self._count()
            cards = sum(len(node.inventory().gpus) for node in NODES)
            total = self.card_time + sum(_counted(self.meter.counted()))
            assert total == pytest.approx(cards * (self.now - 100.0), abs=1e-3)

    def _count(self) -> None:
        """Count as the worker does: each leader counts from where the previous one stopped."""
        changes, settled = self.harness.controller.take_changes()
        assert settled
        if self.generation != self.counted_by:
            self.counted_by, self.counted_from = self.generation, self.counted_until
        self.meter.advance(changes, Span(self.counted_from, self.now))
        self.counted_until = self.now

    # -- promises -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_on_a_gpu_twice_over(self) -> None:
        taken: dict[str, int] = {}
        limits: dict[str, int] = {}
        for request, allocation in self._carried().values():
            for uuid, demand in demands(request, allocation).items():
                taken[uuid] = taken.get(uuid, 0) + demand.memory
                limits[uuid] = limits.get(uuid, 0) + demand.memory + demand.burst
        sizes = {gpu.uuid: gpu.usable for each in NODES for gpu in each.inventory().gpus}
        assert all(taken[uuid] <= sizes[uuid] for uuid in taken), taken
        assert all(limits[uuid] <= sizes[uuid] * 2 for uuid in limits), limits
        self.harness.controller.check_invariants()

    @invariant()
    def who_was_deleted_while_he_waited_is_given_nothing(self) -> None:
        for each in self.api.pods.values():
            if pods.uid(each) in self.deleted_waiting:
                assert names.GATE in pods.gates(each)
                assert pods.uid(each) not in self._carried()

    def _carried(self) -> dict[str, tuple[PodRequest, Allocation]]:
        found = {}
        for each in self.api.pods.values():
            request = pods.admitted(each)
            assert request is not None
            allocation = pods.allocation_of(each, request)
            if allocation is not None and not pods.finished(each) and pods.uid(each) not in self.strays:
                found[pods.uid(each)] = (request, allocation)
        return found

    def teardown(self) -> None:
        if self.generation:
            self._become_quiet()
            self._check_quiet()

    def _become_quiet(self) -> None:
        self.admissions = []
        while self.orphans:
            assert isinstance(binder.write(Kube(Wire(self.api)), self.orphans.pop(), 0), BindFailed)
        for _ in range(50):
            self.api.wire.carry_out_late()
            for binding in self.bindings:
                self._write(binding, "answered")
            self.bindings = []
            while self.takes:
                self._take(self.takes.pop(), "answered")
            while self.written:
                self.harness.controller.handle(self.written.pop())
            while self.listing is not None:
                self.part_of_the_list_is_taken_in(3)
            while self.api.events:
                self.watch(4, False)
            self.time_passes(61)
            self.decide()
            if not (self.bindings or self.api.events or self.takes or self.harness.controller.look().unbound):
                return
        raise AssertionError("it never becomes quiet")

    def _check_quiet(self) -> None:
        carried = self._carried()
        look = self.harness.controller.look()
        assert (look.assumed, look.confirmed, look.overcommitted) == (0, len(carried), 0)
        again = SchedulerHarness(NODES, now=self.now, options=chosen(queue_order=self.order))
        again.controller.handle(pods_listed(map(pods.trim, self.api.listed())))
        assert again.controller.look() == replace(look, reserved=0), "how long a pod has waited is not written anywhere"
        assert sorted(again.controller.nodes(), key=_name) == sorted(self.harness.controller.nodes(), key=_name)
        assert [p.key for p in again.controller.view().queue] == [p.key for p in self.harness.controller.view().queue]
        for each in self.api.pods.values():
            uid = pods.uid(each)
            if uid in self.deleted_waiting:
                assert pods.key(each) not in {entry.key for entry in self.harness.controller.view().queue}
            elif names.GATE in pods.gates(each) and not pods.finished(each):
                reported = self.reported.get(uid)
                known = ("Memory", "LimitsInAll", "Reserved", "RefusedByScheduler", *PREEMPTION)
                assert reported in known, "it waits and was told why"
            elif names.WITHDRAWN in pods.annotations_of(each) and not pods.finished(each):
                assert uid not in carried
                wanted = "BoundWithoutShare" if _bound(each) else "ShareWithdrawn"
                assert self.reported.get(uid) == wanted or "deletionTimestamp" in each["metadata"]
            else:
                assert uid in carried or pods.finished(each)
        self.nothing_is_on_a_gpu_twice_over()
        self._count()
        before = _counted(self.meter.counted())[0]
        self.now += 100.0
        self._count()
        sizes = {gpu.uuid: gpu.usable for node in NODES for gpu in node.inventory().gpus}
        parts = [
            demand.memory / sizes[uuid]
            for request, allocation in carried.values()
            for uuid, demand in demands(request, allocation).items()
        ]
        assert _counted(self.meter.counted())[0] - before == pytest.approx(100.0 * sum(parts), abs=0.01)


def _bound(made: JSON) -> bool:
    return bool(made["spec"].get("nodeName"))


def _counted(counted: Counted) -> tuple[float, float]:
    """The held and the free time."""
    return sum(counted.held.values()), sum(counted.free.values())


def _name(state: Any) -> str:
    return str(state.name)


class FairHistory(History):
    """Histories with the fair order and two namespaces."""

    order = "fair"
    namespaces: Mapping[str, str] = {"z": "other"}


TestFairHistory = FairHistory.TestCase
TestFairHistory.settings = settings(max_examples=examples(45), stateful_step_count=40, deadline=None)
TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=examples(45), stateful_step_count=40, deadline=None)
