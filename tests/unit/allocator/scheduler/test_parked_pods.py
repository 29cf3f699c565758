"""A parked pod waits like any other: it has a condition, is read in turn, placed, fenced, and forgotten."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.cache.podinfo import pod_event
from allocator.queue.records import StatusUpdate
from allocator.scheduler.events import ParkedRead, PodDeleted, ReadParked, TickPhase, pods_listed
from contract import pods
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness, admitted
from tests.unit.allocator.one_gpu import worker

JSON = dict[str, Any]
SMALL = chosen(queue_memory=120_000, queue_memory_total=400_000)


def large(name: str, *, fits: bool = False) -> JSON:
    """A gated pod that takes about 30 KiB in memory."""
    tolerations = [{"key": f"{name}-{at}", "operator": "Exists"} for at in range(60)]
    made = worker(name).spec(tolerations=tolerations)
    return admitted(made if fits else made.selects(nowhere="yes"), gated=True)


@dataclass
class World:
    """An API server with gated pods, and a controller that watches it."""

    harness: SchedulerHarness = field(default_factory=lambda: SchedulerHarness(options=SMALL))
    stored: dict[str, JSON] = field(default_factory=dict)
    reported: dict[str, str] = field(default_factory=dict)
    version: int = 10

    def store(self, pod: JSON) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.stored[pods.uid(pod)] = pod
        self.harness.controller.handle(pod_event(pods.trim(pod)))

    def delete(self, uid: str) -> None:
        del self.stored[uid]
        self.harness.controller.handle(PodDeleted(uid))

    def turn(self, *, lost: bool = False) -> list[str]:
        """One scheduling cycle, and the reads that follow it. Returns the uids that were read."""
        controller = self.harness.controller
        self.harness.now += 1
        _, news = controller.schedule_pending()
        self.reported.update({each.uid: each.code for each in news if isinstance(each, StatusUpdate)})
        due = [each.pod for each in controller.tick(TickPhase.UPKEEP) if isinstance(each, ReadParked)]
        for each in due:
            found = None if lost else self.stored.get(each.uid)
            deleted = not lost and found is None
            controller.handle(ParkedRead(each.uid, pod_event(found, pods.trim) if found else None, deleted))
        return [each.uid for each in due]

    def figures(self) -> tuple[int, int]:
        look = self.harness.controller.look()
        return look.waiting, look.parked

    def check(self) -> None:
        controller = self.harness.controller
        assert set(controller.uids()) == set(self.stored)
        assert self.figures()[0] == len(self.stored)


def filled(number: int) -> World:
    world = World()
    for at in range(number):
        world.store(large(f"p{at:02}"))
    return world


def test_pods_beyond_the_budget_are_parked_with_a_condition() -> None:
    world = filled(12)
    waiting, parked = world.figures()
    assert (waiting, 4 < parked < 12) == (12, True)
    world.turn()
    parked_ones = [uid for uid, code in world.reported.items() if code == "Parked"]
    assert len(parked_ones) == parked
    world.check()


def test_a_parked_pod_is_read_when_another_goes() -> None:
    world = filled(12)
    before = world.figures()[1]
    world.delete(min(world.stored))
    assert len(world.turn()) == 1
    assert world.figures() == (11, before - 1)


def test_every_parked_pod_is_tried_though_none_goes() -> None:
    world, read = filled(12), set[str]()
    first = {pod.uid for pod in world.harness.controller._queue.parking.pods()}
    for _ in range(60):
        read |= set(world.turn())
        world.harness.controller._trigger.requeue()
        world.check()
    assert first
    assert first <= read


def test_a_parked_pod_that_is_deleted_before_it_is_read_is_forgotten() -> None:
    world = filled(12)
    world.delete(min(world.stored))
    controller = world.harness.controller
    due = [each.pod for each in controller.tick(TickPhase.UPKEEP) if isinstance(each, ReadParked)]
    del world.stored[due[0].uid]
    controller.handle(ParkedRead(due[0].uid, None, deleted=True))
    world.check()


def test_an_older_read_does_not_undo_what_the_watch_brought() -> None:
    world = filled(12)
    world.delete(min(world.stored))
    controller = world.harness.controller
    due = next(each.pod for each in controller.tick(TickPhase.UPKEEP) if isinstance(each, ReadParked))
    old = pod_event(world.stored[due.uid], pods.trim)
    placed = {**world.stored[due.uid], "spec": {**world.stored[due.uid]["spec"], "schedulingGates": []}}
    world.store(placed)
    controller.handle(ParkedRead(due.uid, old))
    assert world.figures()[0] == len(world.stored) - 1


def test_another_leader_parks_and_tells_again() -> None:
    world = filled(12)
    after = World()
    after.stored = dict(world.stored)
    after.harness.controller.handle(pods_listed(map(pods.trim, world.stored.values())))
    assert after.figures() == world.figures()
    after.turn()
    assert "Parked" in after.reported.values()


@given(
    st.lists(
        st.tuples(st.sampled_from(["store", "store", "change", "delete", "turn", "lose", "list"]), st.integers(0, 15)),
        max_size=60,
    )
)
@settings(max_examples=examples(30), deadline=None)
def test_whatever_happens_each_gated_pod_waits_and_none_else(steps: list[tuple[str, int]]) -> None:
    world = World()
    made = {at: large(f"p{at:02}") for at in range(16)}
    for step, at in steps:
        uid = pods.uid(made[at])
        if step in ("store", "change"):
            if (step == "change") == (uid in world.stored):
                world.store({**made[at], "metadata": {**made[at]["metadata"], "labels": {"v": str(world.version)}}})
        elif step == "delete" and uid in world.stored:
            world.delete(uid)
        elif step == "list":
            world.harness.controller.handle(pods_listed(map(pods.trim, world.stored.values())))
        elif step in ("turn", "lose"):
            world.turn(lost=step == "lose")
        world.check()
