"""
For any history of several preemptions at the same time, they never conflict, and no pod is evicted without need.

1. No GPU has more allocated than it has.
2. Each victim is evicted once and has a lower priority. For each pod there are as few victims as a search through all
   sets finds, provided that everything in progress is carried out.
3. If no pod of higher priority arrives in between, every pod with victims is placed once they have ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, combinations
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.cache.podinfo import pod_event
from allocator.engine import reference
from allocator.engine.reference import DEFAULT_POLICY
from allocator.queue.records import Eviction
from allocator.scheduler.events import BindSucceeded, EvictionAnswered, EvictionOutcome, PodDeleted, TickPhase
from contract import pods
from contract.encoding.protocol import Placed
from contract.model import NodeState
from contract.reasons.nodes import Reason
from contract.scheduling import nodeinfo
from contract.scheduling.needs import SchedulingRequest
from contract.scheduling.nodeinfo import AllocatedPod
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade

JSON = dict[str, Any]
SIZES = st.sampled_from(("4Gi", "8Gi", "8Gi", "16Gi"))
FATES = st.sampled_from(("evicted", "evicted", "evicted", "gone", "budget", "failed"))
VIP = 10


class SideBySide(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.running: dict[str, JSON] = {}
        self.ending: set[str] = set()
        self.evicted: set[str] = set()
        self.failed: set[str] = set()
        """The pods for which an eviction could not be requested."""

    @initialize(
        cards=st.lists(st.integers(1, 2), min_size=1, max_size=2), sizes=st.lists(SIZES, min_size=8, max_size=8)
    )
    def begin(self, cards: list[int], sizes: list[str]) -> None:
        nodes = [node(f"n{i}").gpus(count, mib=16384) for i, count in enumerate(cards)]
        self.harness = SchedulerHarness(nodes, options=chosen(preemption=True, starvation_timeout=0))
        for size in sizes:
            self.come(size, 1, 0)
        for size in sizes[:3]:
            self.wait(size, 1)

    def _builder(self, size: str, count: int, priority: int) -> PodBuilder:
        self.made += 1
        made = pod(f"p{self.made}").uid(f"uid-{self.made}").created(f"2030-01-01T00:00:{self.made % 60:02}Z")
        made = made.asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
        return made.asks("gpufraction.io/gpu-count", count) if count > 1 else made

    # -- pods come and go -----------------------------------------------------------------------------------------

    @rule(size=SIZES, count=st.sampled_from((1, 1, 2)), priority=st.sampled_from((0, 0, 1, VIP)))
    def come(self, size: str, count: int, priority: int) -> None:
        builder = self._builder(size, count, priority)
        answer = self.harness.controller.reserve(question(builder))
        if isinstance(answer, Placed):
            made = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
            self._put(made)

    def _put(self, made: JSON) -> None:
        self.running[pods.uid(made)] = made
        self.harness.controller.handle(pod_event(pods.trim(made)))

    @rule(size=SIZES, count=st.sampled_from((1, 1, 1, 2)))
    def wait(self, size: str, count: int) -> None:
        self.harness.controller.handle(pod_event(pods.trim(admitted(self._builder(size, count, VIP), gated=True))))

    @precondition(lambda self: self.harness.controller.view().queue)
    @rule(data=st.data())
    def gives_up_waiting(self, data: st.DataObject) -> None:
        self.harness.controller.handle(
            PodDeleted(data.draw(st.sampled_from([p.uid for p in self.harness.controller.view().queue])))
        )

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        self._is_deleted(data.draw(st.sampled_from(sorted(self.running))))

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def a_victim_ends(self, data: st.DataObject) -> None:
        self._is_deleted(data.draw(st.sampled_from(sorted(self.ending))))

    def _is_deleted(self, uid: str) -> None:
        del self.running[uid]
        self.ending.discard(uid)
        self.harness.controller.handle(PodDeleted(uid))

    # -- the allocator --------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from((1, 1, 1, 31)))
    def time_passes(self, seconds: int) -> None:
        self.harness.now += seconds
        self.harness.controller.tick(TickPhase.UPKEEP)
        bindings, _ = self.harness.controller.schedule_pending()
        for binding in bindings:
            self.running[binding.pod.uid] = placed = admitted(remade(binding), allocation=binding.allocation)
            self.harness.controller.handle(BindSucceeded(binding, pod_event(pods.trim(placed))))

    @rule(fates=st.lists(FATES, min_size=8, max_size=8))
    def make_room(self, fates: list[EvictionOutcome]) -> None:
        self.time_passes(1)
        controller = self.harness.controller
        preemptions, sharers = controller.preemptor.preemptions, controller.preemptor.sharers.by_node()
        planned = controller.preemptor.as_planned(sharers)
        before = set(preemptions.under_way)
        orders = controller.preempt()
        for uid in preemptions.under_way.keys() - before:
            self._as_few_as_can_be(preemptions.under_way[uid].pod.ask, orders, planned, sharers)
        for order, fate in zip(orders, fates, strict=False):
            if fate == "failed":
                self.failed |= preemptions.under_way.keys() - before
            assert order.uid not in self.evicted
            assert pods.priority(self.running[order.uid]) < VIP
            controller.handle(EvictionAnswered(order, fate))
            if fate == "gone":
                self._is_deleted(order.uid)
            elif fate == "evicted":
                self._ends(order)
            else:
                return

    def _ends(self, order: Eviction) -> None:
        self.evicted.add(order.uid)
        self.ending.add(order.uid)
        made = self.running[order.uid]
        made = {**made, "metadata": {**made["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}}
        self._put(made)

    def _as_few_as_can_be(
        self,
        ask: SchedulingRequest,
        orders: list[Eviction],
        planned: list[NodeState],
        sharers: dict[str, tuple[AllocatedPod, ...]],
    ) -> None:
        spared = self.harness.controller.preemptor.preemptions.spared(self.harness.now)
        sizes = [
            len(going)
            for state in planned
            for going in _sets(s for s in sharers.get(state.name, ()) if s.priority < VIP and s.uid not in spared)
            if self._fits(state, sharers.get(state.name, ()), going, ask)
        ]
        assert len(orders) == min(sizes)

    def _fits(
        self, state: NodeState, on: tuple[AllocatedPod, ...], going: tuple[AllocatedPod, ...], ask: SchedulingRequest
    ) -> bool:
        leaving = [s for s in on if s.ending is not None]
        after = nodeinfo.unbooked(state, on, [*leaving, *(s for s in going if s.ending is None)])
        return not isinstance(reference.evaluate(after, ask, self.harness.limits, DEFAULT_POLICY), Reason)

    # -- promises -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_booked_twice(self) -> None:
        self.harness.controller.check_invariants()
        assert self.harness.controller.look().overcommitted == 0

    @invariant()
    def nobody_went_in_vain(self) -> None:
        vain = {uid for uid in self.harness.controller.preemptor.preemptions.vain() if uid not in self.failed}
        assert vain == set()

    def teardown(self) -> None:
        if not self.made:
            return
        for _ in range(3):
            for uid in sorted(self.ending):
                self._is_deleted(uid)
            self.time_passes(1)
            self.time_passes(1)
        self.nothing_is_booked_twice()
        self.nobody_went_in_vain()


def _sets(of: Iterable[AllocatedPod]) -> Iterator[tuple[AllocatedPod, ...]]:
    """Every set of pods that are not being evicted yet, the smallest first."""
    able = [sharer for sharer in of if sharer.ending is None]
    return chain.from_iterable(combinations(able, size) for size in range(len(able) + 1))


TestSideBySide = SideBySide.TestCase
TestSideBySide.settings = settings(max_examples=examples(40), stateful_step_count=30, deadline=None)
