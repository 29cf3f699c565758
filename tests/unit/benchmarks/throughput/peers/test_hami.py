"""Reading HAMi's stored objects: cards that nodes report, and cards that pods hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.throughput.peers import hami
from benchmarks.throughput.peers.bookings import Booking
from benchmarks.throughput.peers.peer import CARD, CARDS
from contract.encoding import quantity

JSON = dict[str, Any]


def pod(allocated: str | None, *, node: str = "n1", chosen: str = "n1") -> JSON:
    """A pod on a node, with this annotation."""
    annotations = {hami.NODE: chosen, **({hami.ALLOCATED: allocated} if allocated is not None else {})}
    return {"metadata": {"name": "p", "annotations": annotations}, "spec": {"nodeName": node} if node else {}}


def test_a_pod_holds_the_memory_of_the_card_that_is_written() -> None:
    assert hami.bookings(pod("GPU-n1-3,NVIDIA,8192,0:;")) == [Booking("p", "n1", "GPU-n1-3", 8 * quantity.GIB)]


def test_all_containers_and_all_cards_of_each_count() -> None:
    found = hami.bookings(pod(";GPU-a,NVIDIA,1024,0:GPU-b,NVIDIA,1024,30:;GPU-a,NVIDIA,2048,0:;"))
    assert [(each.card, each.memory // quantity.MIB) for each in found] == [
        ("GPU-a", 1024),
        ("GPU-b", 1024),
        ("GPU-a", 2048),
    ]


@pytest.mark.parametrize("one", [pod(None), pod(";"), pod("GPU-n2-0,NVIDIA,8192,0:;", chosen="n2")])
def test_a_pod_has_no_card_where_none_of_its_node_is_written(one: JSON) -> None:
    assert hami.bookings(one) == [Booking("p", "n1", "", 0)]


@pytest.mark.parametrize("text", ["GPU-n1-0,NVIDIA,8192:;", ",NVIDIA,8192,0:;", "GPU-n1-0,NVIDIA,much,0:;"])
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        hami.bookings(pod(text))


def test_a_card_is_known_once_the_pod_is_bound() -> None:
    assert hami.known(pod("GPU-n1-0,NVIDIA,8192,0:;")) == "p"
    assert hami.known(pod("GPU-n1-0,NVIDIA,8192,0:;", node="")) == ""
    assert hami.known(pod(None)) == ""


def test_a_node_reports_cards_in_mib_and_a_device_for_each_that_may_share() -> None:
    node: JSON = {"metadata": {"name": "n1"}, "status": {"capacity": {}, "allocatable": {}}}
    hami.dress(node)
    cards = json.loads(node["metadata"]["annotations"]["hami.io/node-nvidia-register"])
    assert len({card["id"] for card in cards}) == CARDS
    assert {card["devmem"] for card in cards} == {CARD // quantity.MIB}
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == str(sum(card["count"] for card in cards))


class _Stored:
    """An API server with one pod and its node."""

    def __init__(self, lock: str) -> None:
        self.objects = {
            "n1": {"metadata": {"annotations": {hami.LOCK: lock} if lock else {}, "resourceVersion": "7"}},
            "p": pod("GPU-n1-0,NVIDIA,8192,0:;"),
        }
        self.objects["p"]["metadata"] |= {"namespace": "tenant"}
        self.objects["p"]["metadata"]["annotations"][hami.PHASE] = "allocating"

    def get(self, path: str) -> JSON:
        return self.objects[path.rpartition("/")[2]]

    def patch_merge(self, path: str, body: JSON) -> JSON:
        annotations: JSON = self.get(path)["metadata"]["annotations"]
        for name, value in body["metadata"]["annotations"].items():
            annotations.pop(name) if value is None else annotations.update({name: value})
        return body

    def annotations(self, name: str) -> JSON:
        """The annotations written on an object."""
        found: JSON = self.objects[name]["metadata"]["annotations"]
        return found


@pytest.mark.parametrize(
    ("lock", "left"),
    [("2026-01-05T08:00:00Z,tenant,p", ""), ("2026-01-05T08:00:00Z,tenant,other", "other"), ("", "")],
)
def test_a_pod_that_is_served_takes_its_own_lock_off_its_node(lock: str, left: str) -> None:
    stored = _Stored(lock)
    hami.allocate(stored, stored.objects["p"])
    assert stored.annotations("p")[hami.PHASE] == "success"
    assert stored.annotations("n1").get(hami.LOCK, "").rpartition(",")[2] == left
