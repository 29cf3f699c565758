"""The plugin's places in a fair queue equal the allocator's, and administrators can read the order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.scheduler.events import QueueWeighed
from contract import names, pods
from contract.encoding import codec
from contract.nodes.inventories import inventory_from_object
from contract.scheduling.fairness import BEHIND
from kubectl_gpufraction.cluster.state import ClusterView
from kubectl_gpufraction.commands import explain, waiting
from tests.builders import node as node_builder
from tests.examples import examples
from tests.unit.allocator.chosen import chosen
from tests.unit.allocator.harness import SchedulerHarness
from tests.unit.kubectl_gpufraction.objects import CARD, admitted, gpunode, node

JSON = dict[str, Any]
SECONDS = ("2030-01-01T00:00:00Z", "2030-01-01T00:00:01Z")
FULL = "0 of 1 GPU nodes fit: 1 short of memory"
CARDS = 4
CLUSTER = [gpunode("n", *[CARD] * CARDS)], [node("n")]


def one(namespace: str, name: str, created: str = SECONDS[0], **more: Any) -> JSON:
    """A pod that requests a quarter of a card unless it says otherwise."""
    preferred = more.pop("preferred", False)
    made = admitted(name, "gpufraction.io/gpu-percent", more.pop("percent", 25), created=created, **more)
    if preferred:
        annotations = made["metadata"]["annotations"]
        request = replace(codec.request_from_text(annotations[names.REQUEST]), priority=1)
        annotations[names.REQUEST] = codec.request_to_text(request)
    made["metadata"] |= {"namespace": namespace, "uid": f"{namespace}/{name}"}
    return made


def holder(namespace: str, name: str, gpu: int) -> JSON:
    """A pod that holds one of the cluster's four cards."""
    return one(namespace, name, percent=100, on="n", gpu=gpu)


def view(*made: JSON, weights: Mapping[str, str] | None = None) -> ClusterView:
    return ClusterView.of(*CLUSTER, made, weights=weights)


TWO_TEAMS = (
    holder("team-a", "h0", 0),
    holder("team-a", "h1", 1),
    one("team-a", "w0", waits=f"waiting: {FULL}; {BEHIND}"),
    one("team-b", "w0", SECONDS[1], waits=f"waiting: {FULL}"),
)


def test_who_sees_the_cluster_reads_which_namespace_holds_less() -> None:
    state = view(*TWO_TEAMS, weights={})
    assert [(row["place"], row["namespace"], row["behind"], row["reason"]) for row in waiting.rows(state, None)] == [
        (1, "team-b", "", FULL),
        (2, "team-a", "team-b", f"{FULL}; behind team-b, which has a smaller share"),
    ]
    (pod,) = [pod for pod in state.waiting() if pod.namespace == "team-a"]
    lines = explain.explanation(state, pod)
    assert lines[1:4] == [
        f"It waits, 2 of 2 in the queue: {FULL}",
        "Behind team-b, which has a smaller share: 0 % of the cluster; team-a: 50 % of the cluster",
        "Before it: team-b/w0 (1x25%mem+25%)",
    ]
    assert explain.row(state, pod, lines)["behind"] == "team-b"


def test_a_tenant_reads_no_other_namespaces_name() -> None:
    state = ClusterView.of((), (), TWO_TEAMS[:3], whole=False)
    (pod,) = state.waiting()
    assert explain.explanation(state, pod)[1] == f"It waits: {FULL}; {BEHIND}"
    assert waiting.rows(state, None)[0]["reason"] == f"{FULL}; {BEHIND}"


@pytest.mark.parametrize("weights", [None, {"team-a": "5", "team-b": "5"}], ids=["by age", "fair"])
def test_the_sentence_is_absent_where_no_namespace_holds_less(weights: Mapping[str, str] | None) -> None:
    state = view(*TWO_TEAMS[2:], weights=weights)
    assert [row["reason"] for row in waiting.rows(state, None)] == [FULL, FULL]
    assert [row["behind"] for row in waiting.rows(state, None)] == ["", ""]
    assert [row["namespace"] for row in waiting.rows(state, None)] == ["team-a", "team-b"]


def test_weights_are_shown_and_an_unreadable_one_is_reported() -> None:
    held = (*TWO_TEAMS, holder("team-b", "h2", 2))
    state = view(*held, weights={"team-b": "3", "team-a": "much"})
    (pod,) = [pod for pod in state.waiting() if pod.namespace == "team-a"]
    assert explain.explanation(state, pod)[2:4] == [
        "Behind team-b, which has a smaller share: 25 % of the cluster, weight 3; team-a: 50 % of the cluster",
        "Note: namespace team-a: the label gpufraction.io/queue-weight=much counts as 1; it must be a whole number "
        "from 1 to 1000",
    ]


def test_who_waits_for_another_systems_gate_is_before_nobody() -> None:
    gated = one("team-b", "w0", SECONDS[1], waits="held by the scheduling gate other first")
    gated["status"]["conditions"][0]["reason"] = "ForeignGate"
    state = view(*TWO_TEAMS[:3], gated, weights={})
    assert [row["behind"] for row in waiting.rows(state, "team-a")] == [""]


def test_pods_of_one_second_share_the_places_of_their_namespace() -> None:
    made = [one(team, name) for team in ("a", "b") for name in ("x", "y")]
    state = view(*made, one("b", "z", SECONDS[1]), weights={})
    assert {key: str(places) for key, places in state.places().items()} == {
        "a/x": "1-3",
        "a/y": "1-3",
        "b/x": "2-4",
        "b/y": "2-4",
        "b/z": "5",
    }
    (pod,) = [pod for pod in state.waiting() if pod.key == "b/x"]
    assert explain.explanation(state, pod)[2:] == [
        "Before it: a/x (1x25%mem+25%)",
        "Created in the same second, in an order that only the allocator knows: b/y",
        "There is room on GPU 0 of n, GPU 1 of n, GPU 2 of n, GPU 3 of n now, so its turn comes without the end of "
        "another pod.",
    ]


ASKS = {"a": 25, "b": 50, "c": 25}
"""Equal within a namespace; otherwise turns depend on which pod of a second the allocator saw first."""
WAITING = st.lists(
    st.builds(
        lambda team, *more, **others: one(team, *more, percent=ASKS[team], **others),
        st.sampled_from("abc"),
        st.text("xyz", min_size=1, max_size=3),
        st.sampled_from(SECONDS),
        priority=st.sampled_from((0, 0, 10)),
        preferred=st.sampled_from((False, False, True)),
    ),
    max_size=8,
    unique_by=pods.key,
)


@given(
    WAITING,
    st.lists(st.sampled_from("abc"), max_size=CARDS),
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(("1", "2", "7"))),
    st.sampled_from(("fair", "age")),
    st.randoms(),
)
@settings(max_examples=examples(20), deadline=None)
def test_the_allocators_place_is_among_those_that_are_shown(
    made: list[JSON], holders: list[str], weights: dict[str, str], mode: str, order: Any
) -> None:
    holding = [holder(team, f"h{i}", i) for i, team in enumerate(holders)]
    state = view(*made, *holding, weights=weights if mode == "fair" else None)
    bench = SchedulerHarness([node_builder("n").gpus(CARDS, mib=CARD)], options=chosen(queue_order=mode), synced=False)
    bench.sync([*holding, *sorted(made, key=lambda _: order.random())])
    bench.controller.handle(QueueWeighed({team: int(weight) for team, weight in weights.items()}))
    queue = bench.controller.view().queue
    shown = state.places()
    assert shown.keys() == {each.key for each in queue}
    for place, entry in enumerate(queue, 1):
        assert shown[entry.key].first <= place <= shown[entry.key].last


def test_the_bench_has_the_plugins_cards() -> None:
    assert [gpu.usable for gpu in inventory_from_object(CLUSTER[0][0]).gpus] == [
        gpu.usable for gpu in node_builder("n").gpus(CARDS, mib=CARD).inventory().gpus
    ]
