"""
The recorded demand through admission and the allocator's core: which pods wait, how long, and which cards are used.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.nodes.inventories import inventory_to_status
from contract.options import pool_options
from shadow.replay.actual import actual
from shadow.replay.cluster import ClusterChoices, Quota, VirtualCluster, replayed
from shadow.replay.patches import PatchFailed, patched
from tests.unit.shadow import played
from tests.unit.shadow.played import START, Played

MIB, GIB = 1 << 20, 1 << 30


def spread() -> Played:
    """Four small pods that HAMi put on four cards, for an hour."""
    cluster = Played(played.hami_node("n"))
    for at in range(4):
        cluster.runs(f"p-{at}", START + 10, START + 20, START + 3620, mib=10000, card=f"GPU-n-{at}", node="n")
    return cluster


def test_four_small_pods_on_four_cards_fit_on_one() -> None:
    window = spread().window()
    before, after = actual(window).fates.use, replayed(window).use
    assert (before.most, after.most) == (4, 1)
    assert before.mean == pytest.approx(4 * 3600 / window.length)
    assert after.mean == pytest.approx(3600 / window.length)


def test_each_pod_runs_as_long_as_it_did() -> None:
    window = spread().window(until=START + 10_000)
    found = VirtualCluster(window, ClusterChoices())
    fates = found.run()
    assert {fate.waited for fate in fates.pods.values()} == {0.0}
    assert all(fate.placed for fate in fates.pods.values())
    assert not found._used.total()


def test_a_pod_without_room_waits_until_a_card_is_free() -> None:
    cluster = Played(played.hami_node("n", cards=1))
    cluster.runs("first", START + 10, START + 20, START + 1020, mib=60000, card="GPU-n-0", node="n")
    # HAMi scaled the memory, or the annotation was forged: both pods were on one card.
    cluster.runs("second", START + 30, START + 40, START + 2000, mib=60000, card="GPU-n-0", node="n")
    window = cluster.window()
    fates = {fate.uid: fate for fate in replayed(window).pods.values()}
    second = fates["uid-team-a-second"]
    assert (second.placed, second.waited) == (True, 10 + 1000 - 30)
    assert "short of memory" in second.why
    (card,) = actual(window).overcommitted
    assert (card.uuid, card.memory, card.of, card.since) == ("GPU-n-0", 120000 * MIB, 81920 * MIB, START + 40)
    assert card.seconds == 1020 - 40
    assert card.pods == ("team-a/first", "team-a/second")


def test_pods_that_are_older_than_the_recording_hold_their_cards_too() -> None:
    cluster = Played(played.hami_node("n", cards=1), at=START + 0.5)
    for name, until in (("first", START + 100), ("second", START + 50)):
        cluster.runs(name, START, START, until, mib=60000, card="GPU-n-0", node="n")
    found = actual(cluster.window())
    (card,) = found.overcommitted
    assert (card.since, card.seconds, card.pods) == (START + 0.5, 49.5, ("team-a/first", "team-a/second"))
    assert found.stray == 0


def test_a_pod_that_was_deleted_leaves_when_it_was_deleted() -> None:
    cluster = Played(played.hami_node("n", cards=1))
    cluster.runs("first", START + 10, START + 20, None, mib=80000, card="GPU-n-0", node="n")
    cluster.see(played.hami_pod("gives-up", START + 30, mib=80000), START + 30)
    cluster.take(cluster.recorder.pod_deleted("uid-team-a-gives-up", START + 100))
    fate = replayed(cluster.window(until=START + 500)).pods["uid-team-a-gives-up"]
    assert (fate.placed, fate.waited) == (False, 70.0)


def test_what_admission_refuses_is_told_with_its_cure() -> None:
    cluster = Played(played.hami_node("n", cards=1))
    cluster.see(played.hami_pod("p", START + 10, mib=90000), START + 10)
    fate = replayed(cluster.window(until=START + 100)).pods["uid-team-a-p"]
    assert not fate.placed
    assert "81920 MiB" in fate.refused


def test_pods_without_a_gpu_take_their_room() -> None:
    """Two pods fit on their cards, but the CPU that others leave is not enough for both."""
    cluster = Played(played.hami_node("n"))
    big = played.pod("besides", START + 1, node="n", phase="Running")
    big["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "62"
    cluster.see(big, START + 1)
    cluster.runs("p", START + 10, START + 20, None, mib=1000, card="GPU-n-0", node="n")
    cluster.see(played.hami_pod("q", START + 30, mib=1000), START + 30)
    fates = replayed(cluster.window(until=START + 100)).pods
    assert [fate.placed for fate in fates.values()] == [True, False]
    assert "CPU" in fates["uid-team-a-q"].why


def test_a_pod_beyond_its_quota_starts_once_another_ends() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.runs("first", START + 10, START + 10, START + 1010, mib=10240, card="GPU-n-0", node="n")
    cluster.runs("second", START + 20, START + 20, START + 2020, mib=10240, card="GPU-n-1", node="n")
    choices = ClusterChoices(quotas={"team-a": Quota(memory=15 * GIB)})
    fates = replayed(cluster.window(until=START + 9000), choices).pods
    assert [fate.waited for fate in fates.values()] == [0.0, 990.0]
    assert fates["uid-team-a-second"].why == "the namespace's quota is used up"


def test_a_node_that_goes_takes_no_pods_any_more() -> None:
    cluster = Played(played.hami_node("n"))
    cluster.take(cluster.recorder.node_deleted("n", START + 100))
    cluster.see(played.hami_pod("p", START + 200, mib=1000), START + 200)
    fates = replayed(cluster.window(until=START + 300))
    (fate,) = fates.pods.values()
    assert not fate.placed
    assert fates.use.cards == pytest.approx(4 * 100 / 300)


def test_the_options_of_the_administrator_hold() -> None:
    cluster = Played(played.hami_node("n", cards=1))
    for name in ("a", "b"):
        cluster.see(played.hami_pod(name, START + 10, mib=60000), START + 10)
    window = cluster.window(until=START + 100)
    options = pool_options({"deviceMemoryScaling": 2})
    assert sum(fate.placed for fate in replayed(window).pods.values()) == 1
    assert sum(fate.placed for fate in replayed(window, ClusterChoices(options=options)).pods.values()) == 2


def test_cards_that_are_not_named_are_counted_as_packed() -> None:
    cluster = Played(played.nvidia_node("n", cards=4, replicas=4))
    for at in range(5):
        pod = played.pod(f"p-{at}", START + 10, limits={"nvidia.com/gpu": "1"}, node="n", phase="Running")
        cluster.see(pod, START + 10)
    found = actual(cluster.window(until=START + 110))
    assert (found.fates.use.most, found.unknown) == (2, 5)


def test_groups_of_kai_are_cards() -> None:
    cluster = Played(played.nvidia_node("n", cards=4))
    for at, group in enumerate(("g", "g", "h")):
        labels = {"runai-gpu-group": group}
        given = {"gpu-fraction": "0.25"}
        pod = played.pod(f"p-{at}", START + 10, annotations=given, labels=labels, node="n", limits={}, phase="Running")
        cluster.see(pod, START + 10)
    holder = played.pod("holder", namespace="kai-resource-reservation", limits={"nvidia.com/gpu": "1"}, node="n")
    cluster.see(holder, START + 10)
    window = cluster.window(until=START + 110)
    assert (actual(window).fates.use.most, replayed(window).use.most) == (2, 1)


class _Checked(VirtualCluster):
    """Checks every card after each moment."""

    def _settle(self) -> None:
        super()._settle()
        for node in self._controller.nodes():
            for gpu, usage in zip(node.gpus, node.usage, strict=True):
                assert usage.memory <= gpu.usable
        self._controller.check_invariants()


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(1, 60), st.sampled_from((4000, 20000, 50000, 81920))),
        min_size=1,
        max_size=12,
    )
)
def test_no_card_of_a_replay_ever_holds_more_than_it_has(pods: list[tuple[int, int, int]]) -> None:
    cluster = Played(played.hami_node("n", cards=2))
    ends: list[tuple[int, int]] = []
    for number, (after, length, mib) in enumerate(sorted(pods)):
        cluster.see(played.hami_pod(f"p-{number}", START + 10 + after, mib=mib), START + 10 + after)
        ends.append((after + length, number))
    for after, number in sorted(ends):
        cluster.take(cluster.recorder.pod_deleted(f"uid-team-a-p-{number}", START + 10 + after))
    found = _Checked(cluster.window(until=START + 1000), ClusterChoices())
    fates = found.run()
    assert fates.faults == 0
    assert len(fates.pods) == len(pods)


# -- patches ------------------------------------------------------------------------------------------------------


def test_operations_change_a_copy() -> None:
    document = {"a": [1, {"b/c": 2}], "d": {}}
    operations: list[dict[str, object]] = [
        {"op": "test", "path": "/a/0", "value": 1},
        {"op": "replace", "path": "/a/1/b~1c", "value": 3},
        {"op": "add", "path": "/a/-", "value": 4},
        {"op": "add", "path": "/a/0", "value": 0},
        {"op": "remove", "path": "/d"},
    ]
    assert patched(document, operations) == {"a": [0, 1, {"b/c": 3}, 4]}
    assert document == {"a": [1, {"b/c": 2}], "d": {}}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/a", "value": 2},
        {"op": "remove", "path": "/b"},
        {"op": "replace", "path": "/b/c", "value": 1},
        {"op": "add", "path": "/l/9", "value": 1},
        {"op": "add", "path": "/l/x", "value": 1},
        {"op": "remove", "path": "/l/2"},
        {"op": "add", "path": "/a/b", "value": 1},
    ],
)
def test_an_operation_that_does_not_fit_is_refused(operation: dict[str, object]) -> None:
    with pytest.raises(PatchFailed):
        patched({"a": 1, "l": [1, 2]}, [operation])


def test_a_card_that_is_seen_after_its_pod_is_free_once_the_pod_ends() -> None:
    cluster = Played(played.plain_node("n"))
    cluster.runs("p", START + 10, START + 20, None, mib=1000, card="GPU-n-0", node="n")
    cluster.take(cluster.recorder.node_changed(played.hami_node("n"), START + 30))
    cluster.take(cluster.recorder.pod_deleted("uid-team-a-p", START + 50))
    found = actual(cluster.window(until=START + 110))
    assert (found.stray, found.fates.use.most) == (0, 1)
    assert found.fates.use.mean == pytest.approx(30 / 110)


def test_what_gpufraction_serves_is_recorded_and_replayed_in_the_same_form() -> None:
    """After the switch: a pod as admission and the allocator left it, and the cards of its node's GPUNode."""
    before = Played(played.hami_node("n", cards=2))
    before.see(played.hami_pod("p", START + 10, mib=10000), START + 10)
    first = VirtualCluster(before.window(until=START + 100), ClusterChoices())
    first.run()
    stored = first._pods["uid-team-a-p"].stored
    assert stored is not None
    after = Played(played.plain_node("n"))
    status = inventory_to_status(first._inventories["n"])
    after.take(after.recorder.gpunodes_listed([{"metadata": {"name": "n"}, "status": status}], START))
    running = {**stored, "status": {"phase": "Running"}}
    after.see({**running, "metadata": {**stored["metadata"], "creationTimestamp": "2026-05-28T20:30:00Z"}}, START + 300)
    window = after.window(until=START + 400)
    (pod,) = window.pods
    assert [(part.uuid, part.memory) for part in pod.held] == [("GPU-n-0", 10000 * MIB)]
    assert "gpufraction.io/allocation" not in pod.pod["metadata"]["annotations"]
    assert (actual(window).fates.use.most, replayed(window).use.most) == (1, 1)
    assert [fate.placed for fate in replayed(window).pods.values()] == [True]
    after.take(after.recorder.gpunodes_listed([], START + 500))
    assert after.window().nodes[-1].name == "n"
    assert not hasattr(after.window().nodes[-1], "cards")
