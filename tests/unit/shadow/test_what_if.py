"""Changes: how they are read, and what each does to a replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contract.dialects import DIALECTS
from contract.model import FractionRequest
from shadow.replay import changes
from shadow.replay.changes import BadChange, ChangeSet, MigLayout, MoreCards
from shadow.replay.cluster import Quota, replayed
from shadow.replay.outcome import Fates
from tests.unit.shadow import played
from tests.unit.shadow.played import START, Played

GIB = 1 << 30


def with_changes(cluster: Played, until: float, **given: Any) -> Fates:
    change = ChangeSet(**given)
    window = changes.enlarged(cluster.window(until=until), change.cards)
    return replayed(window, changes.choices_of(change, window))


def crowded(pods: int = 6) -> Played:
    """Pods that request half of a card each, on one node with two cards; all of them stay."""
    cluster = Played(played.hami_node("n", cards=2))
    for at in range(pods):
        cluster.see(played.hami_pod(f"p-{at}", START + 10 + at, mib=40960), START + 10 + at)
    return cluster


def placed(fates: Fates) -> int:
    return sum(fate.placed for fate in fates.pods.values())


def test_more_cards_place_more_pods() -> None:
    cluster = crowded()
    assert placed(with_changes(cluster, START + 100)) == 4
    assert placed(with_changes(cluster, START + 100, cards=(MoreCards("A100", 1),))) == 6


def test_cards_of_a_model_that_was_not_there_need_their_memory() -> None:
    cluster = crowded()
    assert placed(with_changes(cluster, START + 100, cards=(MoreCards("L40S", 1, 48 * GIB),))) == 5
    with pytest.raises(BadChange, match=r"no card of this model was recorded; there are NVIDIA A100-SXM4-80GB"):
        with_changes(cluster, START + 100, cards=(MoreCards("L40S", 1),))


def test_cards_in_slices_take_what_fits_a_slice() -> None:
    cluster = crowded(pods=2)
    for at in range(20):
        cluster.see(played.hami_pod(f"small-{at}", START + 50, mib=9000), START + 50)
    fates = with_changes(cluster, START + 100, mig=(changes.mig_layout("A100=1g.10gb*7"),))
    small = [fate for fate in fates.pods.values() if "small" in fate.uid]
    large = [fate for fate in fates.pods.values() if "small" not in fate.uid]
    assert {bool(fate.refused) for fate in large} == {True}
    assert sum(fate.placed for fate in small) == 14
    assert fates.use.cards == 2, "a slice is no card of its own"


def test_another_policy_spreads_over_cards() -> None:
    cluster = crowded(pods=2)
    policy = ("placement.node_policy=spread", "placement.gpu_policy=spread")
    assert with_changes(cluster, START + 100).use.most == 1
    assert with_changes(cluster, START + 100, allocator=policy).use.most == 2


def test_pods_of_time_sliced_cards_ask_for_as_large_a_part() -> None:
    cluster = Played(played.nvidia_node("n", cards=2, replicas=4))
    for at in range(4):
        pod = played.pod(f"p-{at}", START + 10, limits={"nvidia.com/gpu": "1"}, node="n", phase="Running")
        cluster.see(pod, START + 10)
    window = cluster.window(until=START + 100)
    made = changes.translation(window)(window.pods[0])
    made["metadata"] |= {"name": "p"}
    request = DIALECTS.read(made)
    assert getattr(request, "containers", None) == (FractionRequest("main", percent=25, cores=25),)
    assert with_changes(cluster, START + 100).use.most == 1
    assert with_changes(cluster, START + 100, replica=50).use.most == 2


def test_whole_cards_stay_whole_unless_a_part_is_assumed() -> None:
    cluster = Played(played.nvidia_node("n", cards=2))
    for at in range(2):
        pod = played.pod(f"p-{at}", START + 10, limits={"nvidia.com/gpu": "1"}, node="n", phase="Running")
        cluster.see(pod, START + 10)
    assert with_changes(cluster, START + 100).use.most == 2
    assert with_changes(cluster, START + 100, whole=30).use.most == 1


@pytest.mark.parametrize(
    ("read", "text", "made"),
    [
        (changes.more_cards, "A100=10", MoreCards("A100", 10)),
        (changes.more_cards, "NVIDIA L40S:48Gi=8", MoreCards("NVIDIA L40S", 8, 48 * GIB)),
        (changes.mig_layout, "A100=3g.40gb,2g.20gb*2", MigLayout("A100", (40 * GIB, 20 * GIB, 20 * GIB))),
        (changes.quota, "team-a=80Gi,400", ("team-a", Quota(80 * GIB, 400))),
        (changes.quota, "team-a=,400", ("team-a", Quota(None, 400))),
    ],
)
def test_a_change_is_read(read: Callable[[str], object], text: str, made: object) -> None:
    assert read(text) == made


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (changes.more_cards, "A100"),
        (changes.more_cards, "A100=0"),
        (changes.more_cards, "A100=99999"),
        (changes.more_cards, "A100:5=1"),
        (changes.more_cards, "=5"),
        (changes.more_cards, "x" * 500 + "=5"),
        (changes.mig_layout, "A100=4g.40gb*2"),
        (changes.mig_layout, "A100=9g.90gb"),
        (changes.mig_layout, "A100="),
        (changes.quota, "team-a"),
        (changes.quota, "Team=5Gi"),
        (changes.quota, "team-a=-5Gi"),
        (changes.quota, "team-a=much"),
        (lambda text: changes.percent("--whole", text), "0"),
        (lambda text: changes.percent("--whole", text), "101"),
        (lambda text: changes.settings_of([text]), "queue.order"),
        (lambda text: changes.settings_of([text]), "queue.order=best"),
        (lambda text: changes.settings_of([text]), "no.such=1"),
    ],
)
def test_a_change_that_cannot_be_read_says_what_would_work(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(BadChange):
        read(text)


def test_slices_that_no_card_has_room_for_are_refused() -> None:
    cluster = crowded(pods=1)
    with pytest.raises(BadChange, match="and a card has 80 GiB"):
        with_changes(cluster, START + 100, mig=(MigLayout("A100", (90 * GIB,)),))
    with pytest.raises(BadChange, match="no card of this model"):
        with_changes(cluster, START + 100, mig=(MigLayout("H100", (GIB,)),))
