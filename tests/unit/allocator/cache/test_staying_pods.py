"""How pods that say that they stay with their node reduce the expected size of an empty one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.staying import StayingPod, taken_by
from contract import names
from contract.model import Compute

NODE = Compute(16_000, 64_000, 100_000, 110)
PORT = ("TCP", "0.0.0.0", 80)
AMOUNTS = st.builds(Compute, *(st.integers(0, 1 << 62) for _ in range(4)))
TENANTS = st.lists(st.builds(StayingPod, st.sampled_from(("a", "b", "c", "d")), AMOUNTS, st.just(frozenset({PORT}))))
OURS = st.lists(
    st.builds(StayingPod, st.sampled_from(("kube-system", str(names.NAMESPACE))), st.builds(Compute, st.just(100)))
)


@given(TENANTS, OURS)
def test_whatever_tenants_say_three_quarters_of_the_node_stay(
    tenants: list[StayingPod], ours: list[StayingPod]
) -> None:
    taken, ports = taken_by([*tenants, *ours], NODE)
    own = 100 * len(ours)
    assert own <= taken.cpu <= own + NODE.cpu // 4
    assert (taken.memory * 4 <= NODE.memory, taken.storage * 4 <= NODE.storage, taken.pods * 4 <= NODE.pods) == (
        True,
    ) * 3
    assert ports == frozenset()


@given(TENANTS)
def test_one_namespace_takes_an_eighth_at_most(tenants: list[StayingPod]) -> None:
    taken, _ = taken_by([pod for pod in tenants if pod.namespace == "a"], NODE)
    assert all(
        part * 8 <= whole
        for part, whole in ((taken.cpu, NODE.cpu), (taken.memory, NODE.memory), (taken.storage, NODE.storage))
    )


def test_all_daemons_of_the_system_and_small_ones_of_others_count_in_full() -> None:
    pods = [
        StayingPod("kube-system", Compute(9_000, 1_000, 0, 3), frozenset({PORT})),
        StayingPod("monitoring", Compute(500, 2_000, 100, 2), frozenset({("TCP", "0.0.0.0", 9100)})),
    ]
    assert taken_by(pods, NODE) == (Compute(9_500, 3_000, 100, 5), frozenset({PORT}))


def test_a_made_up_daemon_that_takes_the_whole_node_counts_for_an_eighth() -> None:
    assert taken_by([StayingPod("a", NODE)], NODE)[0] == Compute(2_000, 8_000, 12_500, 13)
