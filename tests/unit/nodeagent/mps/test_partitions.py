"""Partitions of a card: what daemons answer, how percentages become chunks, and what is done with real processes."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeagent.files import write_atomically
from nodeagent.mps.exchange import GpuReport, wanted_to_text
from nodeagent.mps.partitions import COMMON, Layout, chunks_of, created, layout, steps, supported
from tests.unit.nodeagent.mps.conftest import UUID, Node, await_end

NAME = "Dx4AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
SLASHES = "D/79e/DgwYMDAAAAAAAAAAAAAAAAAAAAAAAAA"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Unknown command\n", None),
        (
            "GPU Partition free used free used clients\nchunk chunk SM SM\n"
            f"GPU-74d43ed3 - 3 7 24 56 -\nGPU-74d43ed3 {NAME} - 7 - 56 -\n",
            Layout(10, {NAME: 7}, frozenset(), 8),
        ),
        (f"GPU-aa 5 10 52 80\nGPU-aa {SLASHES} 10 80 Yes\n", Layout(15, {SLASHES: 10}, frozenset({SLASHES}), 8)),
        ("GPU-aa - 10 0 92 92 -\n", Layout(10, {})),
    ],
    ids=["no table", "as documented", "without dashes", "without partitions"],
)
def test_the_table_of_partitions_is_read(text: str, found: Layout | None) -> None:
    assert layout(text) == found


@pytest.mark.parametrize(
    ("answer", "name"),
    [
        (f"GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65/{NAME}\n", NAME),
        (f"Partition GPU-74d43ed3-cdf7/{SLASHES} created\n", SLASHES),
        (
            "Failed to fulfill the requested SM partition of 28 chunks",
            "",
        ),
    ],
)
def test_the_name_of_a_new_partition_is_read(answer: str, name: str) -> None:
    assert created(answer) == name


@pytest.mark.parametrize(
    ("version", "capability", "able"),
    [
        ("13010", "8.0", True),
        ("version 13030\n", "9.0", True),
        ("12090", "9.0", False),
        ("13010", "7.5", False),
        ("", "9.0", False),
    ],
)
def test_what_can_give_out_partitions(version: str, capability: str, able: bool) -> None:
    assert supported(version, capability) is able


TOTALS = st.integers(1, 40)
SHARES = st.dictionaries(st.text("abc", min_size=1, max_size=3), st.integers(1, 100), max_size=8)


@given(TOTALS, st.lists(st.integers(1, 100), max_size=12))
def test_shares_of_at_least_a_chunk_that_fit_by_percent_fit_by_chunks(total: int, cores: list[int]) -> None:
    while sum(cores) > 100:
        cores.pop()
    if all(each * total >= 100 for each in cores):
        assert sum(chunks_of(each, total) for each in cores) <= total


@given(TOTALS, SHARES, SHARES, st.sets(st.sampled_from("pqrs")), st.data())
def test_steps_lead_to_what_is_wanted_and_touch_no_partition_in_use(
    total: int, wanted: dict[str, int], others: dict[str, int], stray: set[str], data: st.DataObject
) -> None:
    known = {key: f"of-{key}" for key in others}
    sizes: dict[str, int] = {}
    for name in sorted({*known.values(), *stray}):
        if sum(sizes.values()) < total:
            sizes[name] = data.draw(st.integers(1, total - sum(sizes.values())))
    used = frozenset(data.draw(st.sets(st.sampled_from(sorted(sizes))))) if sizes else frozenset()
    found = Layout(total, sizes, used)
    todo = steps(found, known, wanted)
    assert not used & set(todo.remove)
    assert set(todo.known.values()).isdisjoint(todo.remove)
    for key in wanted:
        assert (key in todo.known) + (key in todo.add) + (key in todo.without) == 1
        if known.get(key) in sizes:
            assert todo.known[key] == known[key], "a share keeps its partition"
    after = {name: size for name, size in sizes.items() if name not in todo.remove}
    assert sum(after.values()) + sum(todo.add.values()) <= total
    again = steps(
        Layout(total, {**after, **{f"new-{key}": size for key, size in todo.add.items()}}, used),
        {**todo.known, **{key: f"new-{key}" for key in todo.add}},
        wanted,
    )
    assert (again.remove, dict(again.add), set(again.without)) == ((), {}, set(todo.without))


# -- with real processes ----------------------------------------------------------------------------------------------


def shares(node: Node, **keys: int) -> None:
    """The agent requests this partitioning of the card."""
    write_atomically(node.places.wanted, wanted_to_text([UUID], {UUID: keys}))


def partitioned(node: Node, *keys: str) -> GpuReport:
    return node.until(lambda report: report.partitioned and set(report.partitions) == set(keys))


def test_partitions_are_given_out_and_taken_back(node: Node) -> None:
    shares(node, a=50, b=25)
    report = partitioned(node, "a", "b")
    assert (report.chunks, report.rounded) == (10, "rounded down to whole chunks: 25% is 2 of 10 chunks")
    assert len(set(report.partitions.values())) == 2
    first = report.partitions["a"]
    shares(node, a=50, c=50)
    report = partitioned(node, "a", "c")
    assert (report.partitions["a"], report.why) == (first, "")
    shares(node)
    assert partitioned(node).partitions == {}


def test_a_partition_in_use_stays_until_its_clients_have_ended(node: Node) -> None:
    shares(node, a=100)
    name = partitioned(node, "a").partitions["a"]
    node.scripted(using=[name])
    shares(node, b=100)
    assert node.look().why == "too few chunks are left on the GPU for 1 pods, which do not start"
    node.scripted()
    assert partitioned(node, "b").why == ""


def test_a_new_supervisor_finds_the_partitions_and_forgets_a_dead_daemons(node: Node) -> None:
    shares(node, a=30, **{COMMON: 0})
    before = partitioned(node, "a", COMMON)
    node.restart()
    assert partitioned(node, "a", COMMON).partitions == before.partitions
    daemon = node.pid()
    os.kill(daemon, signal.SIGKILL)
    await_end(daemon)
    node.look()
    node.now += 5.0
    assert partitioned(node, "a", COMMON).starts >= 1


def test_a_partition_that_nobody_recorded_is_removed(node: Node) -> None:
    shares(node, a=50)
    partitioned(node, "a")
    (node.places.of(UUID) / "partitions").unlink()
    node.restart()
    shares(node, b=100)
    partitioned(node, "b")


def test_without_the_file_of_wanted_gpus_partitions_stay(node: Node) -> None:
    shares(node, a=50)
    before = partitioned(node, "a")
    node.places.wanted.unlink()
    assert node.look().partitions == before.partitions


@pytest.mark.parametrize("sentence", [False, True])
def test_both_forms_of_the_answer_are_understood(node: Node, sentence: bool) -> None:
    node.scripted(sentence=sentence)
    shares(node, a=50)
    partitioned(node, "a")


@pytest.mark.parametrize(("scripted", "capability"), [({"version": 12090}, "8.6"), ({"old": True}, "8.6"), ({}, "7.0")])
def test_a_daemon_or_card_without_partitions_caps_by_percentages_and_says_so(
    node: Node, scripted: dict[str, object], capability: str
) -> None:
    node.cards.card = replace(node.cards.card, capability=capability)
    node.scripted(**scripted)
    if "old" in scripted:
        node.cards.driver = "535.1"
    shares(node, a=50)
    report = node.serves()
    assert not report.partitioned
    assert "cores are capped by percentages and not reserved" in report.why


def test_a_daemon_in_the_other_mode_is_restarted_once_it_has_no_clients(node: Node) -> None:
    node.serves()
    first = node.pid()
    node.scripted(servers={"71": [72]})
    shares(node, a=50)
    assert not node.serves().partitioned
    node.scripted()
    node.until(lambda report: report.phase == "paused")
    assert "to turn partitions on or off" in node.look().why
    node.now += 5.0
    partitioned(node, "a")
    assert node.pid() != first
    node.wants(UUID)
    node.until(lambda report: report.phase == "paused")
    node.now += 5.0
    assert not node.serves().partitioned
