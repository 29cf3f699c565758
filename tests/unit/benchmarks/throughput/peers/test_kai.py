"""Reading KAI-Scheduler's stored objects: the pods that hold shared cards, and the pods that share them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.throughput.peers import kai
from benchmarks.throughput.peers.bookings import Booking
from contract.encoding import quantity

JSON = dict[str, Any]


def pod(name: str, *, group: str = "g", node: str = "n1", fraction: str = "0.1") -> JSON:
    """A pod that shares the card of a group."""
    labels = {kai.GROUP: group} if group else {}
    metadata = {"name": name, "labels": labels, "annotations": {kai.FRACTION: fraction}}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


def holder(name: str, card: str, *, group: str = "g", node: str = "n1") -> JSON:
    """A pod that holds a card for a group; without a card it has not reported the card yet."""
    metadata = {"name": name, "labels": {kai.GROUP: group}, "annotations": {kai.RESERVED: card} if card else {}}
    return {"metadata": metadata, "spec": {"nodeName": node}}


def test_pods_of_a_group_share_the_card_that_is_held_for_it() -> None:
    found = kai.bookings(
        [pod("a"), pod("b"), pod("c", group="h")], [holder("x", "GPU-0"), holder("y", "GPU-1", group="h")]
    )
    assert [(each.pod, each.card, each.memory // quantity.GIB) for each in found] == [
        ("a", "GPU-0", 8),
        ("b", "GPU-0", 8),
        ("c", "GPU-1", 8),
    ]


@pytest.mark.parametrize(
    ("one", "holds"),
    [
        (pod("a"), []),
        (pod("a"), [holder("x", "")]),
        (pod("a"), [holder("x", "GPU-0", node="n2")]),
        (pod("a", group=""), [holder("x", "GPU-0")]),
    ],
)
def test_a_pod_has_no_card_where_none_is_held_for_it_on_its_node(one: JSON, holds: list[JSON]) -> None:
    assert kai.bookings([one], holds) == [Booking("a", "n1", "", 0)]


def test_of_two_holders_the_first_counts() -> None:
    (found,) = kai.bookings([pod("a")], [holder("y", "GPU-1"), holder("x", "GPU-0")])
    assert found.card == "GPU-0"


def test_pods_without_a_node_hold_nothing() -> None:
    assert kai.bookings([pod("a", node="")], [holder("x", "GPU-0")]) == []


def test_a_fraction_that_is_no_number_is_refused() -> None:
    with pytest.raises(ArithmeticError):
        kai.bookings([pod("a", fraction="8Gi")], [holder("x", "GPU-0")])


def test_a_card_is_known_once_the_pod_is_bound() -> None:
    assert [kai.known(each) for each in (pod("a"), pod("a", node=""), pod("a", group=""))] == ["a", "", ""]


class _Stored:
    """An API server that remembers which card was written on which pod, and which pods failed."""

    def __init__(self) -> None:
        self.cards: dict[str, str] = {}
        self.failed: list[str] = []

    def get(self, path: str) -> JSON:
        return {}

    def patch_merge(self, path: str, body: JSON) -> JSON:
        if path.endswith("/status"):
            assert body["status"]["phase"] == "Failed"
            self.failed.append(path.split("/")[-2])
        else:
            self.cards[path.rpartition("/")[2]] = body["metadata"]["annotations"][kai.RESERVED]
        return body


def held(name: str, card: str = "") -> JSON:
    """A pod that holds a card, as a watch shows it."""
    made = holder(name, card)
    made["metadata"] |= {"uid": name, "namespace": kai.RESERVATIONS}
    return made


def test_each_pod_gets_a_card_that_no_other_pod_holds() -> None:
    stored = _Stored()
    cards = kai.Cards(stored)

    def happens(what: str, pod: JSON) -> None:
        work = cards.react(what, pod)
        if work is not None:
            work()

    happens("ADDED", held("old", kai.uuid("n1", 0)))
    for number in range(1, 9):
        happens("ADDED", held(f"new-{number}"))
    assert stored.cards == {f"new-{number}": kai.uuid("n1", number) for number in range(1, 8)}
    assert stored.failed == ["new-8"]
    happens("MODIFIED", held("new-8") | {"status": {"phase": "Failed"}})
    assert stored.failed == ["new-8"]
    happens("MODIFIED", held("new-1"))
    happens("DELETED", held("old"))
    happens("ADDED", held("last"))
    assert stored.cards["last"] == kai.uuid("n1", 0)
