"""How the running allocator learns: each pod counts once, however it arrives, and the engine gets complete tables."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

from allocator.cache.podinfo import pod_event
from allocator.engine.reference import Placement, Policy
from allocator.scheduler.events import BindSucceeded
from allocator.scheduler.view import QueuedPodView, SchedulerView
from allocator.scoring.classes import Demanded, demanded
from allocator.scoring.constants import FIRST, ONE
from allocator.scoring.tables import Tables
from allocator.server import debug
from allocator.workers.learner import LearningWorker
from contract.encoding.protocol import Placed
from contract.encoding.quantity import GIB
from contract.model import Compute, FractionRequest, Gpu, NodeState, PodRequest, Usage, Wishes
from contract.scheduling.filters import DEFAULT_LIMITS
from contract.scheduling.needs import PodNeeds, SchedulingRequest
from tests.builders import PodBuilder, node, pod
from tests.unit.allocator.harness import SchedulerHarness, admitted, question

HALF = PodRequest("any", (FractionRequest("main", percent=50),))


def _node(name: str, model: str) -> NodeState:
    return NodeState(name, (Gpu(f"GPU-{name}", 0, model, 16 * GIB, 16 * GIB),), (Usage(),))


def _worker(name: str) -> PodBuilder:
    return pod(name).uid(f"uid-{name}").needs(cpu="2").asks("gpufraction.io/gpu-memory", "4Gi")


def test_a_pod_counts_once_however_it_comes() -> None:
    harness = SchedulerHarness([node("t4").gpus(1)])
    answer = harness.controller.reserve(question(_worker("first")))
    assert isinstance(answer, Placed)
    assert harness.requested == [], "its creation may still be refused"
    on_node = admitted(_worker("first").on("t4"), allocation=answer.allocation)
    harness.controller.handle(pod_event(on_node))
    harness.controller.handle(pod_event(on_node))
    harness.controller.handle(pod_event(admitted(_worker("second"), gated=True)))
    bindings, _ = harness.controller.schedule_pending()
    harness.controller.handle(
        BindSucceeded(bindings[0], pod_event(admitted(_worker("second").on("t4"), allocation=bindings[0].allocation)))
    )
    assert [cpu for _, cpu in harness.requested] == [2000, 2000]


def test_a_leader_learns_from_the_pods_that_it_lists() -> None:
    first = SchedulerHarness([node("t4").gpus(1)])
    answer = first.controller.reserve(question(_worker("first")))
    assert isinstance(answer, Placed)
    second = SchedulerHarness([node("t4").gpus(1)], synced=False)
    second.sync([admitted(_worker("first").on("t4"), allocation=answer.allocation)])
    assert len(second.requested) == 1


def test_lessons_come_when_due_and_when_the_cluster_has_new_cards() -> None:
    lessons: list[Tables] = []
    made = LearningWorker(policy="value", limits=DEFAULT_LIMITS)
    one, two = _node("one", "T4"), _node("two", "A10")
    made.once([one], lessons.append, due=False)
    assert lessons == []
    made.see(HALF, 1000)
    made.once([one], lessons.append, due=True)
    assert [kind.model for kind in lessons[-1].kinds] == ["T4"]
    made.once([one], lessons.append, due=False)
    assert len(lessons) == 1
    made.once([one, two], lessons.append, due=False)
    assert [kind.model for kind in lessons[-1].kinds] == ["A10", "T4"]


def test_a_lesson_comes_when_scarce_cards_were_taken() -> None:
    lessons: list[Tables] = []
    one, two = _node("one", "T4"), _node("two", "A10")
    taken = replace(two, usage=(Usage(8 * GIB, 0, 1),))
    unscarce, made = (LearningWorker(policy="value", limits=DEFAULT_LIMITS) for _ in range(2))
    unscarce.see(HALF, 1000)
    unscarce.once([one, two], lessons.append, due=True)
    unscarce.once([one, taken], lessons.append, due=False)
    assert len(lessons) == 1, "no kind of card is scarce"
    named = replace(HALF.containers[0], wishes=Wishes(use_models=("A10",)))
    made.see(replace(HALF, containers=(named,)), 1000)
    made.once([one, two], lessons.append, due=True)
    made.once([one, two], lessons.append, due=False)
    assert len(lessons) == 2
    made.once([one, taken], lessons.append, due=False)
    before, after = (lesson.scarcity.tolist() for lesson in lessons[1:])
    assert (before, after) == ([0, 2 * ONE, 0], [0, 3 * ONE, 0])


def test_a_lesson_comes_although_scarcity_was_rounded_to_nothing() -> None:
    lessons: list[Tables] = []
    made = LearningWorker(policy="value", limits=DEFAULT_LIMITS)
    one, two = _node("one", "T4"), _node("two", "A10")
    for _ in range(19):
        made.see(HALF, 1000)
    made.see(replace(HALF, containers=(replace(HALF.containers[0], wishes=Wishes(use_models=("A10",))),)), 1000)
    made.once([one, two], lessons.append, due=True)
    made.once([one, replace(two, usage=(Usage(14 * GIB, 0, 1),))], lessons.append, due=False)
    before, after = (max(lesson.scarcity) for lesson in lessons)
    assert before == 0 < after


def test_a_lesson_comes_when_a_larger_node_joins() -> None:
    lessons: list[Tables] = []
    made = LearningWorker(policy="value", limits=DEFAULT_LIMITS)
    one = _node("one", "T4")
    made.see(HALF, 1000)
    made.once([one], lessons.append, due=True)
    card = one.gpus[0]
    two = replace(one, name="two", gpus=(card, replace(card, uuid="GPU-two-1", index=1)), usage=(Usage(), Usage()))
    made.once([one, replace(one, name="three")], lessons.append, due=False)
    made.once([one, two], lessons.append, due=False)
    assert [lesson.largest for lesson in lessons] == [1, 2]


def test_a_snapshot_holds_how_scarce_cards_were_at_the_last_lesson() -> None:
    share = FractionRequest("main", percent=10, wishes=Wishes(use_models=("A10",)))
    (wanted,) = demanded(PodRequest("any", (share,)), 0)
    states = (_node("one", "T4"), _node("two", "A10"))
    view = SchedulerView(
        DEFAULT_LIMITS, Policy("value"), states, demand=((wanted, 1.0),), scarcity=(0, 7, 0), largest=3, awaited=4
    )
    made = debug.from_json(json.loads(json.dumps(debug.to_json(view)))).tables()
    assert made is not None
    assert (made.scarcity.tolist(), made.largest, made.awaited) == ([0, 7, 0], 3, 4)
    joined = replace(view, nodes=(*states, _node("three", "H100"))).tables()
    assert joined is not None
    assert len(joined.scarcity) == 4, "a kind has joined since, and the next lesson is due"
    assert joined.awaited == 4


def test_a_policy_that_does_not_learn_has_no_lessons() -> None:
    lessons: list[Tables] = []
    made = LearningWorker(policy="binpack", limits=DEFAULT_LIMITS)
    made.see(HALF, 1000)
    made.once([_node("one", "T4")], lessons.append, due=False)
    assert lessons == []


def test_the_thread_learns_and_stops() -> None:
    made, stop, learnt = LearningWorker(policy="value", limits=DEFAULT_LIMITS), threading.Event(), threading.Event()
    found: list[Tables] = []

    def adopt(tables: Tables) -> None:
        found.append(tables)
        stop.set()
        learnt.set()

    thread = threading.Thread(
        target=made.run, args=(lambda: [_node("one", "T4")], adopt, stop), name="learning", daemon=True
    )
    thread.start()
    for _ in range(FIRST):
        made.see(HALF, 1000)
    assert learnt.wait(20)
    thread.join(20)
    assert not thread.is_alive()
    assert found[0].policy == "value"


def test_a_snapshot_decides_by_what_was_learnt() -> None:
    """Best fit would take the fuller card, which has room for only one of the requested shares."""
    full, half = (Usage(memory=used * GIB, sharers=1) for used in (11, 8))
    cards = tuple(Gpu(f"GPU-n-{at}", at, "T4", 16 * GIB, 16 * GIB) for at in range(2))
    state = NodeState("n", cards, (full, half), allocatable=Compute(pods=50))
    share = FractionRequest("main", memory=3 * GIB)
    pair = {Demanded(0, memory=5 * GIB): 9.0}
    view = SchedulerView(
        DEFAULT_LIMITS,
        Policy("value"),
        (state,),
        (QueuedPodView("default/p", "uid", SchedulingRequest(PodRequest("any", (share,)), PodNeeds())),),
        demand=tuple(pair.items()),
    )
    back = debug.from_json(json.loads(json.dumps(debug.to_json(view))))
    assert back == view
    chosen = [
        outcome.decision.containers[0].shares[0].uuid
        for each in (view, replace(view, policy=Policy()))
        for outcome in debug.one_cycle(each)
        if isinstance(outcome.decision, Placement)
    ]
    assert chosen == ["GPU-n-1", "GPU-n-0"]
