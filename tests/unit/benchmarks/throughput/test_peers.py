"""Peers of the benchmark: what their objects allocate on cards, and the message if their programs are missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.throughput import sides, turns
from benchmarks.throughput.peers import dra, ours, timeslicing
from benchmarks.throughput.peers.bookings import Booking, overcommitted, without_card
from benchmarks.throughput.peers.peer import CARD, FOLDER, KUBERNETES, SHARE, gib
from benchmarks.throughput.peers.table import PEERS
from contract import names
from contract.encoding import codec
from contract.model import Allocation, ContainerAllocation, GpuShare

JSON = dict[str, Any]


def shares(count: int, *, node: str = "n1", card: str = "0", memory: int = SHARE) -> list[Booking]:
    """This many pods' allocations on one card."""
    return [Booking(f"{node}-{card}-{number}", node, card, memory) for number in range(count)]


# -- the checker --------------------------------------------------------------------------------------------------


def test_a_card_that_is_exactly_full_is_not_overcommitted() -> None:
    assert not overcommitted(shares(CARD // SHARE), CARD)


def test_a_card_with_one_share_too_many_is_overcommitted() -> None:
    assert overcommitted(shares(CARD // SHARE + 1), CARD) == {("n1", "0"): CARD + SHARE}


def test_cards_of_one_name_on_two_nodes_are_two_cards() -> None:
    assert not overcommitted([*shares(6), *shares(6, node="n2"), *shares(6, card="1")], CARD)


def test_one_pod_with_two_bookings_on_a_card_counts_twice() -> None:
    assert overcommitted([Booking("a", "n1", "0", CARD), Booking("a", "n1", "0", 1)], CARD) == {("n1", "0"): CARD + 1}


def test_pods_without_a_card_are_counted_apart() -> None:
    bookings = [*shares(2), Booking("lost", "n1", "", 0)]
    assert without_card(bookings) == 1
    assert not overcommitted([Booking(str(number), "n1", "", SHARE) for number in range(20)], CARD)


# -- what is stored -----------------------------------------------------------------------------------------------


def pod(name: str, node: str = "n1", **annotations: str) -> JSON:
    metadata = {"name": name, **({"annotations": annotations} if annotations else {})}
    return {"metadata": metadata, "spec": {"nodeName": node} if node else {}}


def claim(consumer: str, *, device: str = "gpu-0", memory: str | None = "8Gi") -> JSON:
    """A claim that is allocated and reserved."""
    consumed = {} if memory is None else {"consumedCapacity": {"memory": memory}}
    result = {"request": "gpu", "driver": "d", "pool": "n1", "device": device, **consumed}
    reserved = [{"resource": "pods", "name": consumer, "uid": "u"}] if consumer else []
    return {"status": {"allocation": {"devices": {"results": [result]}}, "reservedFor": reserved}}


def test_a_reserved_claim_books_what_it_consumes_of_its_device() -> None:
    assert dra.bookings([pod("a")], [claim("a")]) == [Booking("a", "n1", "n1/gpu-0", SHARE)]


def test_a_claim_that_does_not_say_what_it_consumes_books_the_card() -> None:
    assert dra.bookings([pod("a")], [claim("a", memory=None)]) == [Booking("a", "n1", "n1/gpu-0", CARD)]


def test_a_claim_books_nothing_before_its_pod_has_a_node() -> None:
    assert dra.bookings([pod("a", node="")], [claim("a"), claim("gone")]) == []


def test_a_pod_with_a_node_and_no_reserved_claim_has_no_card() -> None:
    assert dra.bookings([pod("a")], [claim(""), {"status": {}}, {}]) == [Booking("a", "n1", "", 0)]


def test_a_claims_card_is_known_once_it_is_reserved() -> None:
    known = dra.PEER.reading.known
    assert [known(each) for each in (claim("a"), claim(""), {}, {"status": {"reservedFor": [{"name": "a"}]}})] == [
        "a",
        "",
        "",
        "",
    ]


def test_our_own_pod_books_what_its_annotation_gives_it() -> None:
    share = GpuShare("GPU-1", 0, SHARE, 0, CARD)
    uid = "6f1b6f0e-6a3c-4a51-8b8e-0d6c7a0f6a11"
    text = codec.allocation_to_text(Allocation(uid, "n1", (ContainerAllocation("main", (share,)),)))
    placed = pod("a", **{str(names.ALLOCATION): text})
    assert ours.bookings(placed) == [Booking("a", "n1", "GPU-1", SHARE)]
    assert ours.READING.known(placed) == "a"


def test_our_own_pod_without_an_annotation_has_no_card() -> None:
    assert ours.bookings(pod("a")) == [Booking("a", "n1", "", 0)]
    assert ours.READING.known(pod("a")) == ""


# -- the peers ----------------------------------------------------------------------------------------------------


def test_every_peer_is_a_side_that_is_measured_only_where_it_is_named() -> None:
    assert [side.peer for side in sides.BESIDE] == list(PEERS)
    assert not any(side.peer for side in sides.chosen(()))
    assert [side.name for side in sides.chosen(["dra", "nodeName"])] == ["nodeName", "dra"]


def test_our_side_by_claims_is_measured_only_where_it_is_named() -> None:
    (side,) = sides.chosen(["claims"])
    assert side not in sides.chosen(())
    assert side.plane not in {each.plane for each in (*sides.SIDES, *sides.BESIDE)}
    made = sides.pod_of(side, "one")
    assert made["spec"]["containers"][0]["resources"]["claims"] == [{"name": "gpu"}]
    assert "resourceclaims" in side.made
    assert side.reading is ours.READING


def test_every_peer_has_a_control_plane_of_its_own() -> None:
    planes = [side.plane for side in sides.BESIDE]
    assert len({*planes, *(side.plane for side in sides.SIDES)}) == len(planes) + 2


def test_every_peers_pod_is_the_same_small_pod_but_for_its_share() -> None:
    for side in sides.BESIDE:
        made = sides.pod_of(side, "one")
        assert made["metadata"]["name"] == "one"
        assert made["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "10m", "memory": "16Mi"}


def test_nodes_offer_as_many_replicas_as_shares_fit_on_their_cards() -> None:
    node: JSON = {"status": {"capacity": {}, "allocatable": {}}}
    timeslicing.PEER.dress(node)
    assert node["status"] == {key: {timeslicing.RESOURCE: "80"} for key in ("capacity", "allocatable")}


def test_amounts_are_written_in_gib() -> None:
    assert (gib(SHARE), gib(CARD)) == ("8Gi", "80Gi")


# -- missing programs ---------------------------------------------------------------------------------------------


def test_programs_below_no_folder_are_missing() -> None:
    assert dra.PEER.missing({}) == f"{KUBERNETES}, which is not set, has no kube-scheduler, kube-controller-manager"


def test_only_programs_that_their_folder_does_not_have_are_missing(tmp_path: Path) -> None:
    environment = {KUBERNETES: str(tmp_path)}
    (tmp_path / "kube-scheduler").touch()
    assert dra.PEER.missing(environment) == f"the folder that {KUBERNETES} names has no kube-controller-manager"
    (tmp_path / "kube-controller-manager").touch()
    assert dra.PEER.missing(environment) == ""


@pytest.mark.parametrize("side", sides.BESIDE, ids=lambda side: side.name)
def test_a_side_whose_programs_are_missing_is_reported_and_left_out(side: sides.Side, tmp_path: Path) -> None:
    environment = {KUBERNETES: str(tmp_path), FOLDER: str(tmp_path)}
    (line,) = turns.missing([side, sides.KUBE_SCHEDULER], environment)
    assert line.startswith(f"{side.name} is missing: ")
    assert turns.present([side, sides.KUBE_SCHEDULER], environment) == (sides.KUBE_SCHEDULER,)
