"""
A card that two nodes report takes pods on one of them. No history of reports ends that, or allocates a card twice.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from allocator.cache.repeated import RepeatedGpus
from contract.model import Gpu, Inventory
from contract.nodes import repeated
from contract.nodes.repeated import RepeatedGpu


def inventory(node: str, *uuids: str) -> Inventory:
    return Inventory(node, tuple(Gpu(uuid, index, "Tesla T4", 1 << 34, 1 << 34) for index, uuid in enumerate(uuids)))


def nobody(node: str, uuid: str) -> bool:
    return False


def open_on(found: RepeatedGpus, **there: list[str]) -> dict[str, list[str]]:
    """The cards of each node that take new pods, of the given ones."""
    closed = {node: {each.uuid for each in found.repeated(node) if each.closed} for node in there}
    return {node: [uuid for uuid in uuids if uuid not in closed[node]] for node, uuids in there.items()}


def test_who_reported_it_first_keeps_it_and_both_show_it() -> None:
    gpus = RepeatedGpus()
    assert gpus.put(inventory("a", "X", "Y"), nobody) == (inventory("a", "X", "Y"),)
    [b] = gpus.put(inventory("b", "X", "Z"), nobody)
    assert [(gpu.uuid, gpu.healthy, gpu.reason) for gpu in b.gpus] == [
        ("X", False, "node a also reports a GPU with this UUID"),
        ("Z", True, ""),
    ]
    assert open_on(gpus, a=["X", "Y"], b=["X", "Z"]) == {"a": ["X", "Y"], "b": ["Z"]}
    assert gpus.repeated("a") == (RepeatedGpu("X", "b", closed=False),)
    assert gpus.repeated("b") == (RepeatedGpu("X", "a", closed=True),)


def test_a_node_whose_pods_hold_it_keeps_it() -> None:
    gpus = RepeatedGpus()
    gpus.put(inventory("liar", "X"), nobody)
    gpus.put(inventory("b", "X"), nobody)
    assert open_on(gpus, b=["X"], liar=["X"]) == {"b": [], "liar": ["X"]}
    changed = gpus.settle(lambda node, uuid: node == "b")
    assert [(each.node, each.gpus[0].healthy) for each in changed] == [("b", True), ("liar", False)]


def test_it_reopens_once_the_other_node_is_deleted_or_reports_another_card() -> None:
    gpus = RepeatedGpus()
    gpus.replace({"a": inventory("a", "X"), "b": inventory("b", "X")}, nobody)
    assert [each.node for each in gpus.put(inventory("a", "W"), nobody)] == ["a", "b"]
    assert open_on(gpus, a=["W"], b=["X"]) == {"a": ["W"], "b": ["X"]}
    gpus.put(inventory("c", "X"), nobody)
    assert gpus.drop("b", nobody) == (inventory("c", "X"),)


def test_it_is_noted_on_both_nodes_once_and_taken_back() -> None:
    gpus = RepeatedGpus()
    gpus.replace({"a": inventory("a", "X"), "b": inventory("b", "X")}, nobody)
    for node in ("a", "b"):
        gpus.note(node, "")
    notes, news = gpus.look(0.0)
    assert [(note.key, note.text) for note in notes] == [("a", "X b open"), ("b", "X a closed")]
    assert news == [
        ("a", "GPU X is also reported by node b, and accepts new pods here, but not there"),
        ("b", "GPU X is also reported by node a, and accepts no new pods here"),
    ]
    assert gpus.look(1.0) == ([], []), "it was asked for a moment ago"
    assert [note.key for note in gpus.look(20.0)[0]] == ["a", "b"]
    for note in notes:
        gpus.note(note.key, note.text)
    assert gpus.look(40.0) == ([], [])
    gpus.drop("b", nobody)
    assert [(note.key, note.text) for note in gpus.look(41.0)[0]] == [("a", "")]


def _among(held: frozenset[tuple[str, str]]) -> Callable[[str, str], bool]:
    return lambda node, uuid: (node, uuid) in held


nodes, uuids = st.sampled_from("abcd"), st.lists(st.sampled_from("UVWXYZ"), unique=True, max_size=5)
steps = st.tuples(st.sampled_from(["put", "drop", "list", "settle"]), nodes, uuids)


held_by = st.frozensets(st.tuples(nodes, st.sampled_from("UVWXYZ")))


@given(st.lists(st.tuples(steps, held_by), max_size=25))
def test_after_any_history_each_card_is_open_on_one_node_that_reports_it(
    history: list[tuple[tuple[str, str, list[str]], frozenset[tuple[str, str]]]],
) -> None:
    gpus, there, seen = RepeatedGpus(), dict[str, list[str]](), dict[str, Inventory]()
    changed: tuple[Inventory, ...]
    for (step, node, found), held in history:
        holds = _among(held)
        match step:
            case "put":
                there[node] = found
                changed = gpus.put(inventory(node, *found), holds)
            case "drop":
                there.pop(node, None)
                seen.pop(node, None)
                changed = gpus.drop(node, holds)
            case "list":
                there = {node: found, "z": found}
                seen = gpus.replace({name: inventory(name, *listed) for name, listed in there.items()}, holds)
                changed = ()
            case _:
                changed = gpus.settle(holds)
        seen |= {each.node: each for each in changed}
        for uuid in "UVWXYZ":
            reporting = [name for name, listed in there.items() if uuid in listed]
            opened = [name for name, each in seen.items() for gpu in each.gpus if gpu.uuid == uuid and gpu.healthy]
            assert len(opened) == min(1, len(reporting))
            assert set(opened) <= set(reporting)


@given(st.text())
def test_any_annotation_is_read_as_cards_or_as_none(text: str) -> None:
    assert all(isinstance(each, RepeatedGpu) for each in repeated.from_text(text))


def test_an_annotation_is_read_as_it_was_written() -> None:
    found = (RepeatedGpu("GPU-1", "n-1.example.com", closed=True), RepeatedGpu("GPU-2", "n2", closed=False))
    assert repeated.from_text(repeated.to_text(found)) == found
