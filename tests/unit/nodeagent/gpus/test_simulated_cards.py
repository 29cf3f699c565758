"""
GPUs that are only described: the grammar, the file that changes while the agent runs, and names that stay the same.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.gpus.library import Card, DriverGone, LibraryBroken
from nodeagent.gpus.observation import Observation, look
from nodeagent.gpus.simulated import BadSimulation, Simulated, cards_from_text, scene_from_document, simulated_uuid
from nodeagent.sharing.usage import container_of
from tests.unit.nodeagent.builders import MIB


def made(index: int, model: str, mib: int, **changes: Any) -> Card:
    plain = {"uuid": simulated_uuid("n1", index), "used_bytes": 0, "utilisation": 0}
    return Card(**{"index": index, "model": model, "memory_bytes": mib * MIB, **plain, **changes})


TEXTS = {
    "one kind": ("2 x Tesla T4 15109MiB", (made(0, "Tesla T4", 15109), made(1, "Tesla T4", 15109))),
    "two kinds, spaced": (
        " 1 x  NVIDIA A10  23028Mi , 1 x V100 32GiB ",
        (made(0, "NVIDIA A10", 23028), made(1, "V100", 32768)),
    ),
    "nothing": ("", ()),
}


@pytest.mark.parametrize(("text", "want"), TEXTS.values(), ids=TEXTS.keys())
def test_a_text_makes_cards(text: str, want: tuple[Card, ...]) -> None:
    assert cards_from_text(text, node="n1") == want


@pytest.mark.parametrize(
    "text", ["T4", "2 x T4", "x T4 1Gi", "2 T4 1Gi", "2 x T4 1GB", "2 x T4 1Gi 3", "9999 x T4 1Gi"]
)
def test_a_text_that_makes_none_is_refused_with_one_that_would(text: str) -> None:
    with pytest.raises(BadSimulation, match=r"such as '2 x Tesla T4 15109MiB'"):
        cards_from_text(text, node="n1")


@given(st.text(max_size=40))
def test_any_text_is_cards_or_a_refusal(text: str) -> None:
    try:
        cards = cards_from_text(text, node="n1")
    except BadSimulation:
        return
    assert [card.index for card in cards] == list(range(len(cards)))


def test_names_look_real_stay_and_differ() -> None:
    names = [simulated_uuid(node, index) for node in ("n1", "n2") for index in range(8)]
    assert names == [simulated_uuid(node, index) for node in ("n1", "n2") for index in range(8)]
    assert len(set(names)) == 16
    assert all(re.fullmatch(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name) for name in names)


TWO = "2 x T4 1Gi"
CHANGES: dict[str, tuple[dict[str, Any], tuple[Card, ...]]] = {
    "an illness with its reason": (
        {"cards": {"0": {"healthy": False, "reason": "XID 79"}}},
        (made(0, "T4", 1024, healthy=False, reason="XID 79"), made(1, "T4", 1024)),
    ),
    "an illness without one": (
        {"cards": {0: {"healthy": False}}},
        (made(0, "T4", 1024, healthy=False, reason="simulated fault"), made(1, "T4", 1024)),
    ),
    "a card that vanished leaves the others their index": ({"cards": {0: {"vanished": True}}}, (made(1, "T4", 1024),)),
    "a replaced card": (
        {"cards": {1: {"uuid": "GPU-new"}}},
        (made(0, "T4", 1024), made(1, "T4", 1024, uuid="GPU-new")),
    ),
    "a busy card": (
        {"cards": {1: {"used": "512MiB", "utilisation": 40}}},
        (made(0, "T4", 1024), made(1, "T4", 1024, used_bytes=512 * MIB, utilisation=40)),
    ),
}


@pytest.mark.parametrize(("change", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_a_file_changes_single_cards(change: dict[str, Any], want: tuple[Card, ...]) -> None:
    assert scene_from_document({"gpus": TWO, **change}, node="n1").cards == want


REFUSED = {
    "not a map": ([], "the description is []"),
    "an unknown field": ({"gpu": TWO}, "'gpu', which is none of cards, cuda, driver, failure, gpus"),
    "gpus of another type": ({"gpus": 2}, "gpus is 2"),
    "a card that is not there": ({"gpus": TWO, "cards": {2: {}}}, "cards.2 does not exist"),
    "a field that cards do not have": ({"gpus": TWO, "cards": {1: {"sick": True}}}, "cards.1 has 'sick'"),
    "an unknown failure": ({"failure": "Gone"}, "failure is 'Gone'; it is one of DriverGone"),
    "memory without a unit": ({"gpus": TWO, "cards": {1: {"used": 5}}}, "5 is not an amount of memory"),
    "a share of time that is no number": ({"gpus": TWO, "cards": {1: {"utilisation": "all"}}}, "cards.1.utilisation"),
    "cards as a list": ({"gpus": TWO, "cards": [1]}, "cards is [1]"),
}


@pytest.mark.parametrize(("document", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_wrong_file_is_refused_by_the_name_of_its_part(document: Any, words: str) -> None:
    with pytest.raises(BadSimulation, match=re.escape(words)):
        scene_from_document(document, node="n1")


def test_a_file_is_read_again_at_every_look(tmp_path: Path) -> None:
    file = tmp_path / "gpus.yaml"
    file.write_text(json.dumps({"gpus": "1 x T4 1Gi", "driver": "1.2", "cuda": "9.9"}))
    library = Simulated(f"@{file}", node="n1")
    assert look(library) == Observation((made(0, "T4", 1024),), "1.2", "9.9")
    file.write_text("{failure: DriverGone}")
    assert look(library) == Observation(problem="simulated: the description says so", reason=DriverGone.reason)
    file.write_text("gpus: [")
    broken = f"simulated GPUs: {file} is neither YAML nor JSON"
    assert look(library) == Observation(problem=broken, reason=LibraryBroken.reason)
    file.write_text("gpus: 1 x T4 1Gi")
    assert look(library).cards == (made(0, "T4", 1024),)


def test_a_file_that_is_not_there_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(BadSimulation, match="cannot be read"):
        Simulated(f"@{tmp_path}/none", node="n1")


def test_a_file_says_which_container_computes() -> None:
    cards = {0: {"computing": {"a" * 64: 40, "b" * 64: 0}}, 1: {"computing": {}}}
    scene = scene_from_document({"gpus": "3 x T4 1Gi", "cards": cards}, node="n1")
    (computing, idle) = sorted(scene.computing, key=lambda pid: scene.computing[pid])
    assert [scene.computing[pid] for pid in (computing, idle)] == ["a" * 64, "b" * 64]
    found = [(card.processes, card.busy, card.active) for card in scene.cards]
    busy = (((computing, 0), (idle, 0)), ((computing, 40), (idle, 0)), (computing,))
    assert found == [busy, ((), (), ()), (None, None, None)], "of the third card nobody knows who computes"


def test_the_simulation_has_the_control_group_of_each_process(tmp_path: Path) -> None:
    file = tmp_path / "gpus.json"
    file.write_text(json.dumps({"gpus": "1 x T4 1Gi", "cards": {"0": {"computing": {"a" * 64: 40}}}}))
    library = Simulated(f"@{file}", node="n1")
    ((pid, _),) = library.gpus()[0].busy or ()
    assert (container_of(library.cgroup_of(pid)), library.cgroup_of(pid + 1)) == ("a" * 64, "")


def test_the_supervisor_of_mps_can_ask_for_what_it_needs() -> None:
    cards = {1: {"capability": "8.6"}}
    scene = scene_from_document({"gpus": "2 x NVIDIA A10 1Gi", "cards": cards}, node="n1")
    assert [card.capability for card in scene.cards] == ["", "8.6"]
    library = Simulated("2 x NVIDIA A10 1Gi", node="n1")
    first, second = (card.uuid for card in library.gpus())
    assert (library.set_exclusive(first, True), library.exclusive(first), library.exclusive(second)) == (
        "",
        True,
        False,
    )
    assert (library.set_exclusive(first, False), library.exclusive(first)) == ("", False)
