"""A leader ends between two writes of a gang: the next one completes the gang in its first cycle, and undoes none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from contract.encoding.protocol import Wait
from tests.builders import node
from tests.unit.allocator.apiserver import ApiServer
from tests.unit.allocator.features.gangs.played import Replica, cards, created, member, placed
from tests.unit.allocator.harness import question


def run_until(replica: Replica, writes: int) -> int:
    """Cycles until so many pods were written; then the replica is gone. How many it wrote."""
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
    if late:  # pods that come meanwhile, and one that asks before the first cycle, take nothing of the gang
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
    """Two leaders may find different ways; the second takes the first one's, also where a pod was deleted meanwhile."""
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


def _all_bindings(replica: Replica) -> list:  # type: ignore[type-arg]
    gangs = replica.harness.gangs
    return [each for others in gangs._opening.values() for each in others]
