"""
For any history of idle pods, warnings, silent agents and changes of leaders, only pods that agreed to it are evicted.

1. Evicted pods agreed, have been idle for as long as they agreed to, and have at most the waiting pod's priority.
2. Each got its warning from this leader and its whole grace after it, and has not computed since, as its agent has
   reported since.
3. The waiting pod fits when they have ended, and would not fit if any one of them stayed.
4. No GPU has more allocated than it has.
"""

from __future__ import annotations

from typing import Any

from hypothesis import event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from allocator.cache.podinfo import pod_event
from allocator.engine import reference
from allocator.engine.reference import DEFAULT_POLICY
from allocator.features.idle.part import ConsentsListed, IdlePodWarned, WarnIdlePods, WarningOutcome
from allocator.features.idle.settings import IdleSettings
from allocator.preemption import tracker
from allocator.queue.records import Eviction
from allocator.scheduler.events import (
    BindSucceeded,
    EvictionAnswered,
    EvictionOutcome,
    IdleSharesReported,
    PodDeleted,
    TickPhase,
)
from contract import names, pods
from contract.encoding.protocol import Placed
from contract.nodes.idle import IdleReport
from contract.reasons.nodes import Reason
from contract.scheduling import nodeinfo
from contract.scheduling.consent import agreed, idle_after
from tests.builders import PodBuilder, node, pod
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted, question, remade

JSON = dict[str, Any]
GRACE = 30
SIZES = st.sampled_from(("4Gi", "8Gi", "8Gi", "16Gi"))
WORDS = st.sampled_from(("", "", "0", "40s", "40s", "2m"))
PRIORITIES = st.sampled_from((0, 0, 0, 1))
WARNED = st.sampled_from(("warned", "warned", "warned", "warned", "gone", "budget", "failed"))
FATES = st.sampled_from(("evicted", "evicted", "evicted", "budget", "failed"))
SECONDS = st.sampled_from((1, 1, 10, 31, 40))


class IdleHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.made = 0
        self.running: dict[str, JSON] = {}
        self.idle_since: dict[str, int] = {}
        """What the pods really do: since when each computes nothing."""
        self.reported: dict[str, tuple[int, int, float]] = {}
        """
        For each pod that its agent calls idle: since when, and when the agent last wrote, by its clock and by ours.
        """
        self.warned: dict[str, float] = {}
        """Valid warnings: by this leader, for pods that have not been reported as computing since."""
        self.namespace: int | None = None
        self.going: set[str] = set()

    @initialize(sizes=st.lists(SIZES, min_size=5, max_size=5), words=st.lists(WORDS, min_size=5, max_size=5))
    def begin(self, sizes: list[str], words: list[str]) -> None:
        self.harness = SchedulerHarness(
            [node("a").gpu(mib=16384), node("b").gpu(mib=16384)],
            options=chosen(starvation_timeout=0),
            idling=IdleSettings(evict=True, grace=GRACE),
        )
        for size, word in zip(sizes, words, strict=True):
            self.come(size, 0, word, computes=False)
        self.wait(sizes[0], 0)

    def _builder(self, size: str, priority: int, word: str) -> PodBuilder:
        self.made += 1
        made = pod(f"p{self.made}").uid(f"uid-{self.made}").created(f"2030-01-01T00:00:{self.made % 60:02}Z")
        made = made.asks("gpufraction.io/gpu-memory", size).spec(priority=priority)
        return made.annotated(names.IDLE_AFTER, word) if word else made

    # -- tenants --------------------------------------------------------------------------------------------------

    @rule(size=SIZES, priority=PRIORITIES, word=WORDS, computes=st.booleans())
    def come(self, size: str, priority: int, word: str, computes: bool) -> None:
        builder = self._builder(size, priority, word)
        answer = self.harness.controller.reserve(question(builder))
        if isinstance(answer, Placed):
            made = admitted(builder.on(answer.allocation.node), allocation=answer.allocation)
            self._put(made)
            if not computes:
                self.idle_since[pods.uid(made)] = int(self.harness.now)

    def _put(self, made: JSON) -> None:
        self.running[pods.uid(made)] = made
        self.harness.controller.handle(pod_event(pods.trim(made)))

    @rule(size=SIZES, priority=PRIORITIES)
    def wait(self, size: str, priority: int) -> None:
        made = admitted(self._builder(size, priority, ""), gated=True)
        self.harness.controller.handle(pod_event(pods.trim(made)))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), word=WORDS)
    def changes_its_word(self, data: st.DataObject, word: str) -> None:
        made = self.running[data.draw(st.sampled_from(sorted(self.running)))]
        annotations = {k: v for k, v in made["metadata"]["annotations"].items() if k != names.IDLE_AFTER}
        if word:
            annotations[str(names.IDLE_AFTER)] = word
        self._put({**made, "metadata": {**made["metadata"], "annotations": annotations}})

    @rule(seconds=st.sampled_from((None, 0, 40, 120)))
    def namespace_changes_its_word(self, seconds: int | None) -> None:
        self.namespace = seconds
        self.harness.controller.handle(ConsentsListed({} if seconds is None else {"default": seconds}))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def computes_or_stops(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.running)))
        if uid in self.idle_since:
            del self.idle_since[uid]
        else:
            self.idle_since[uid] = int(self.harness.now)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def ends(self, data: st.DataObject) -> None:
        uid = data.draw(st.sampled_from(sorted(self.running)))
        del self.running[uid]
        for known in (self.idle_since, self.reported, self.warned):
            known.pop(uid, None)
        self.going.discard(uid)
        self.harness.controller.handle(PodDeleted(uid))

    # -- agents ---------------------------------------------------------------------------------------------------

    @rule(on=st.sampled_from("ab"))
    def an_agent_writes(self, on: str) -> None:
        """It names every idle pod, including those of the other node, which the allocator must ignore."""
        now = int(self.harness.now)
        self.harness.controller.handle(IdleSharesReported(on, IdleReport(dict(self.idle_since), now)))
        for uid, made in self.running.items():
            if made["spec"]["nodeName"] != on:
                continue
            since, before = self.idle_since.get(uid), self.reported.pop(uid, None)
            if before is not None and before[0] != since:
                self.warned.pop(uid, None)
            if since is not None:
                self.reported[uid] = (since, now, self.harness.now)

    # -- the allocator --------------------------------------------------------------------------------------------

    @rule(
        seconds=SECONDS,
        agents=st.booleans(),
        outcomes=st.lists(WARNED, min_size=4, max_size=4),
        fates=st.lists(FATES, min_size=4, max_size=4),
    )
    def time_passes(
        self, seconds: int, agents: bool, outcomes: list[WarningOutcome], fates: list[EvictionOutcome]
    ) -> None:
        self.harness.now += seconds
        if agents:
            self.an_agent_writes("a")
            self.an_agent_writes("b")
        self.harness.controller.tick(TickPhase.UPKEEP)
        bindings, _ = self.harness.controller.schedule_pending()
        for binding in bindings:
            made = admitted(remade(binding).on(binding.allocation.node), allocation=binding.allocation)
            self.running[binding.pod.uid] = made
            self.harness.controller.handle(BindSucceeded(binding, pod_event(pods.trim(made))))
        effects = self.harness.controller.tick(TickPhase.EVICTIONS)
        warnings = [warning for each in effects if isinstance(each, WarnIdlePods) for warning in each.warnings]
        for number, warning in enumerate(warnings):
            outcome = outcomes[number % len(outcomes)]
            if outcome == "warned":
                self.warned[warning.eviction.uid] = self.harness.now
            self.harness.controller.handle(IdlePodWarned(warning, outcome))
        self._make_room(fates)

    @rule()
    def a_minute_passes_and_all_goes_well(self) -> None:
        for _ in range(6):
            self.time_passes(10, True, ["warned"], ["evicted"] * 4)

    @rule()
    def another_leads_for_a_while(self) -> None:
        self.harness.leads = False
        self.harness.controller.tick(TickPhase.UPKEEP)
        self.harness.leads = True
        self.warned.clear()

    def _make_room(self, fates: list[EvictionOutcome]) -> None:
        controller = self.harness.controller
        sharers = controller.preemptor.sharers.by_node()
        planned = {state.name: state for state in controller.preemptor.as_planned(sharers)}
        before = set(controller.preemptor.preemptions.under_way)
        orders = controller.preempt()
        if not orders:
            return
        (uid,) = controller.preemptor.preemptions.under_way.keys() - before
        under_way = controller.preemptor.preemptions.under_way[uid]
        for order in orders:
            self._may_go(order, under_way.pod.priority)
        state, on = planned[under_way.node], sharers[under_way.node]
        going = [sharer for sharer in on if sharer.uid in {order.uid for order in orders}]
        leaving = tracker.leaving(on, self.harness.now)  # not a pod that has been terminating for ten minutes
        ending = [sharer for sharer in on if sharer.uid in leaving]

        def fits(ended: list[nodeinfo.AllocatedPod]) -> bool:
            after = nodeinfo.unbooked(state, on, [*ending, *ended])
            found = reference.evaluate(after, under_way.pod.ask, self.harness.limits, DEFAULT_POLICY)
            return not isinstance(found, Reason)

        assert len(going) == len(orders) > 0
        assert fits(going)
        assert not any(fits([each for each in going if each is not one]) for one in going)
        for order, fate in zip(orders, fates, strict=False):
            controller.handle(EvictionAnswered(order, fate))
            if fate != "evicted":
                return
            event("evicted")
            self.going.add(order.uid)
            made = self.running[order.uid]
            self._put({**made, "metadata": {**made["metadata"], "deletionTimestamp": "2030-01-01T01:00:00Z"}})

    def _may_go(self, order: Eviction, priority: int) -> None:
        made, uid = self.running[order.uid], order.uid
        word = agreed(idle_after(pods.annotations_of(made).get(names.IDLE_AFTER)), self.namespace)
        since, observed, at = self.reported[uid]
        assert order.cause == "idle"
        assert uid not in self.going
        assert 0 < word <= observed - since + (self.harness.now - at)
        assert pods.priority(made) <= priority
        assert self.harness.now - self.warned[uid] >= GRACE
        assert at > self.warned[uid]
        del self.warned[uid]

    # -- promises -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_booked_twice(self) -> None:
        self.harness.controller.check_invariants()
        assert self.harness.controller.look().overcommitted == 0


TestIdleHistory = IdleHistory.TestCase
TestIdleHistory.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
