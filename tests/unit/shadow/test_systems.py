"""What is read from nodes and pods of other systems, and what is ignored."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shadow.systems import cards_of, held_by, reserves
from shadow.systems.base import HeldPart, SeenCard
from tests.unit.shadow import played

JSON = dict[str, Any]
MIB = 1 << 20


def test_cards_of_hami_are_those_that_its_agent_registers() -> None:
    system, cards = cards_of(played.hami_node("n", 2))
    made = [SeenCard(f"GPU-n-{at}", at, "NVIDIA A100-SXM4-80GB", 81920 * MIB) for at in range(2)]
    assert (system, list(cards)) == ("hami", made)


def test_cards_of_an_older_hami_are_read_from_its_rows() -> None:
    node = played.hami_node("n", 1)
    rows = "GPU-a,10,16384,100,NVIDIA-Tesla T4,0,true:GPU-b,10,16384,100,NVIDIA-Tesla T4,0,false:"
    node["metadata"]["annotations"]["hami.io/node-nvidia-register"] = rows
    _, cards = cards_of(node)
    made = (SeenCard("GPU-a", 0, "Tesla T4", 16384 * MIB), SeenCard("GPU-b", 1, "Tesla T4", 16384 * MIB, healthy=False))
    assert cards == made


def test_memory_that_hami_scales_is_seen_by_the_label_of_the_card() -> None:
    node = played.hami_node("n", 1, mib=163840)
    node["metadata"]["labels"]["nvidia.com/gpu.memory"] = "81920"
    _, (card,) = cards_of(node)
    assert (card.memory, card.real) == (163840 * MIB, 81920 * MIB)


@pytest.mark.parametrize(
    ("node", "count", "replicas"),
    [
        pytest.param(played.nvidia_node("n", 4), 4, 1, id="whole cards"),
        pytest.param(played.nvidia_node("n", 2, replicas=5), 2, 5, id="time slicing"),
    ],
)
def test_cards_of_nvidias_plugin_are_counted_by_labels(node: JSON, count: int, replicas: int) -> None:
    system, cards = cards_of(node)
    assert (system, len(cards), {card.replicas for card in cards}) == ("nvidia", count, {replicas})
    assert {(card.model, card.memory) for card in cards} == {("Tesla-T4", 15360 * MIB)}


def test_replicas_under_a_name_of_their_own_are_counted() -> None:
    node = played.nvidia_node("n", 2, replicas=4)
    for amounts in ("capacity", "allocatable"):
        node["status"][amounts]["nvidia.com/gpu.shared"] = node["status"][amounts].pop("nvidia.com/gpu")
    _, cards = cards_of(node)
    assert [card.replicas for card in cards] == [4, 4]


def test_a_node_without_cards_has_none() -> None:
    assert cards_of(played.plain_node("n")) == ("", ())


def test_what_a_pod_of_hami_holds_is_what_its_scheduler_wrote() -> None:
    pod = played.hami_pod("p", mib=4000, card="GPU-n-0", node="n", cores=30)
    assert held_by(pod) == (HeldPart("GPU-n-0", 4000 * MIB, cores=30),)


def test_what_hami_wrote_for_another_node_is_not_held() -> None:
    pod = played.hami_pod("p", mib=4000, card="GPU-n-0", node="n")
    pod["metadata"]["annotations"]["hami.io/vgpu-node"] = "other"
    assert held_by(pod) == (HeldPart(),), "only the whole card that its container asks for"


def test_pods_of_kai_with_one_group_hold_one_card() -> None:
    labels = {"runai-gpu-group": "g-1"}
    pod = played.pod("p", annotations={"gpu-fraction": "0.25"}, labels=labels, node="n", limits={})
    assert held_by(pod) == (HeldPart("n/g-1", percent=25),)


def test_the_pods_by_which_kai_holds_cards_are_told_from_others() -> None:
    asks = {"nvidia.com/gpu": "1"}
    assert reserves(played.pod("p", namespace="kai-resource-reservation", limits=asks, node="n"))
    assert not reserves(played.pod("p", limits=asks, node="n"))


def test_whole_cards_are_held_without_a_name() -> None:
    assert held_by(played.pod("p", limits={"nvidia.com/gpu": "2"}, node="n")) == (HeldPart(), HeldPart())


def test_a_pod_without_a_node_holds_nothing() -> None:
    assert held_by(played.hami_pod("p", mib=4000)) == ()
    assert held_by(played.pod("p", limits={"nvidia.com/gpu": "1"})) == ()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        "9" * 5000,
        '[{"id": "GPU-a", "devmem": 1e400}]',
        '[{"id": "GPU-a", "devmem": true}]',
        '[{"id": "all", "devmem": 10}]',
        '[{"id": "GPU-a", "devmem": 99999999999999999999}]',
        '[{"id": null}, 5, "x"]',
        '{"id": "GPU-a"}',
        "x" * (300 << 10),
    ],
)
def test_a_hostile_register_has_no_cards(text: str) -> None:
    node = played.plain_node("n")
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": text}
    assert cards_of(node) == ("", ())


@given(st.text(max_size=200), st.text(max_size=50))
def test_no_annotation_of_a_pod_ends_the_reader(allocated: str, node: str) -> None:
    pod = played.pod("p", node="n")
    pod["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": allocated, "hami.io/vgpu-node": node}
    for part in held_by(pod):
        assert 0 <= part.memory <= 1 << 46
        assert 0 <= part.cores <= 100


def test_a_pod_that_names_thousands_of_cards_holds_so_many_at_most() -> None:
    pod = played.pod("p", node="n")
    cards = "".join(f"GPU-{at},NVIDIA,1,1:" for at in range(5000))
    pod["metadata"]["annotations"] = {"hami.io/vgpu-devices-allocated": cards, "hami.io/vgpu-node": "n"}
    assert len(held_by(pod)) == 256
