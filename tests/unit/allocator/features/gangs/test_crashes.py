"""
A leader ends between two writes of a gang: the next one completes the gang in its first cycle, and reverts no write.
"""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.queue.records import Binding
from allocator.scheduler.events import TickPhase
from contract.encoding.protocol import Wait
from tests.builders import node
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, cards, created, member, placed
from tests.unit.allocator.harness import question
from tests.wires import status_body


def run_until(replica: Replica, writes: int) -> int:
    """Run cycles until this many pods were written; then the replica is gone. Returns how many it wrote."""
    written = 0
    for _ in range(6):
        bindings, _ = replica.controller.schedule_pending()
        for binding in bindings:
            if written == writes:
                return written
            replica.loop._bind(binding)
            written += 1
        replica.catch_up()
    return written


def begun(api: ApiServer, *names: str) -> bool:
    return any(f"default/{name}" in placed(api) for name in names)


@given(writes=st.integers(0, 5), size=st.integers(2, 5), late=st.booleans())
def test_the_next_leader_completes_what_has_begun_in_its_first_cycle(writes: int, size: int, late: bool) -> None:
    api = ApiServer()
    names = [f"m{i}" for i in range(size)]
    created(api, *(member(name, minimum=size) for name in names))
    first = Replica(api, cards(size), term=1)
    run_until(first, min(writes, size))
    before = placed(api)
    if late:  # pods that arrive meanwhile, and one that asks before the first cycle, take nothing of the gang
        created(api, member("single", gang="none").spec(priority=1000))
    second = Replica(api, cards(size), term=2)
    if before and len(before) < size:
        answer = second.controller.reserve(question(member("eager", gang="none").spec(priority=2000)))
        assert isinstance(answer, Wait)
    second.loop.once()
    after = placed(api)
    assert before.items() <= after.items()
    if before:
        assert after.keys() >= {f"default/{name}" for name in names}
    second.catch_up()
    second.controller.check_invariants()


@given(
    writes=st.integers(1, 5),
    shares=st.lists(st.sampled_from((3000, 5000, 7000, 9000, 15000)), min_size=2, max_size=5),
    gone=st.integers(0, 4),
)
def test_the_plan_is_kept_whatever_the_shares_are(writes: int, shares: list[int], gone: int) -> None:
    """
    Two leaders may find different arrangements. The second uses the first one's, even if a pod was deleted meanwhile.
    """
    api = ApiServer()
    size = len(shares)
    nodes = [node("n0").gpus(2), node("n1").gpus(2), node("n2").gpus(1)]
    created(api, *(member(f"m{i}", minimum=size, mib=mib) for i, mib in enumerate(shares)))
    first = Replica(api, nodes, term=1)
    run_until(first, min(writes, size))
    decided = {each.pod.key: each.allocation for each in _all_bindings(first)}
    before = placed(api)
    if 0 < len(before) < size and f"default/m{gone}" in api.pods:
        api.delete(f"default/m{gone}")
    second = Replica(api, nodes, term=2)
    second.loop.once()
    second.catch_up()
    second.controller.check_invariants()
    if before.keys() - {f"default/m{gone}"}:
        assert placed(api).keys() == api.pods.keys()
    for key, allocation in decided.items():
        if key in placed(api):
            assert placed(api)[key] == allocation.node


def _all_bindings(replica: Replica) -> list[Binding]:
    return [each for others in replica.harness.gangs._opening.values() for each in others]


@given(sizes=st.lists(st.integers(2, 4), min_size=2, max_size=6), mixed=st.randoms(use_true_random=False))
def test_gangs_that_arrive_mixed_never_hold_each_other_up(sizes: list[int], mixed: Random) -> None:
    """Pods of all gangs arrive in any order. Whenever the running ones have ended, another gang starts as a whole."""
    api = ApiServer()
    made = [member(f"g{g}-{i}", gang=f"g{g}", minimum=size) for g, size in enumerate(sizes) for i in range(size)]
    mixed.shuffle(made)
    replica = Replica(api, cards(4), term=1)
    created(api, *made)
    replica.catch_up()
    for _ in sizes:
        for _ in range(3):
            replica.cycle()
        running = placed(api)
        for key in running:
            name = key.split("/")[1].split("-")[0]
            mates = [other for other in api.pods if other.startswith(f"default/{name}-")]
            assert running.keys() >= set(mates)
        if not api.pods:
            break
        assert running
        for key in running:
            api.delete(key)
        replica.catch_up()
    assert not api.pods


@settings(max_examples=20)
@given(minimum=st.integers(2, 4), fails=st.integers(1, 8), member_first=st.booleans())
def test_a_refused_write_starts_nothing_or_is_tried_again(minimum: int, fails: int, member_first: bool) -> None:
    """The API server refuses a write several times. If it is the first one, no pod starts; else its share stays."""
    api = Refusing("default/m0" if member_first else "default/m1", fails)
    created(api, *(member(f"m{i}", minimum=minimum) for i in range(minimum)))
    replica = Replica(api, cards(minimum), term=1)
    every = {f"default/m{i}" for i in range(minimum)}
    for _ in range(400):
        replica.harness.now += 1.0
        replica.loop.carry_out(TickPhase.UPKEEP)
        replica.cycle()
        if member_first and api.left:
            assert placed(api) == {}
    assert placed(api).keys() == every


class Refusing(ApiServer):
    """Refuses this many writes of one pod."""

    def __init__(self, key: str, left: int) -> None:
        super().__init__()
        self._key, self.left = key, left

    def _patch(self, key: str, operations: list[Any]) -> tuple[int, Any]:
        if key == self._key and self.left:
            self.left -= 1
            return 422, status_body(422, "Invalid")
        return super()._patch(key, operations)


def test_a_first_pod_that_has_ended_meanwhile_still_has_the_plan() -> None:
    api = ApiServer()
    created(api, *(member(f"m{i}", minimum=3) for i in range(3)))
    first = Replica(api, cards(3), term=1)
    run_until(first, 1)
    assert placed(api).keys() == {"default/m0"}
    api.change("default/m0", phase="Failed")
    second = Replica(api, cards(3), term=2)
    second.loop.once()
    assert placed(api).keys() == {f"default/m{i}" for i in range(3)}
    second.catch_up()
    second.controller.check_invariants()


def test_a_first_pod_that_was_deleted_meanwhile_leaves_a_gang_that_waits() -> None:
    api = ApiServer()
    created(api, *(member(f"m{i}", minimum=3) for i in range(3)))
    first = Replica(api, cards(3), term=1)
    run_until(first, 1)
    api.delete("default/m0")
    second = Replica(api, cards(3), term=2)
    second.cycle()
    assert placed(api) == {}
    created(api, member("m3", minimum=3))
    second.catch_up()
    second.cycle()
    second.cycle()
    assert placed(api).keys() == {f"default/m{i}" for i in (1, 2, 3)}


def test_a_gang_that_is_created_again_under_its_name_starts_as_a_whole_again() -> None:
    """Its former pods, one of which has the old plan, have failed and still exist."""
    api = ApiServer()
    replica = Replica(api, cards(2), term=1)
    created(api, *(member(f"m{i}") for i in range(2)))
    replica.catch_up()
    replica.cycle()
    replica.cycle()
    for i in range(2):
        api.change(f"default/m{i}", phase="Failed")
    created(api, member("again0"))
    replica.catch_up()
    replica.cycle()
    assert "default/again0" not in placed(api)
    created(api, member("again1"))
    replica.catch_up()
    replica.cycle()
    replica.cycle()
    assert placed(api).keys() >= {"default/again0", "default/again1"}
