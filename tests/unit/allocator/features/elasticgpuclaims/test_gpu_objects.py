"""GPU objects: what is unused on each card, written when it changes, and no more often than allowed."""

from __future__ import annotations

import threading

from allocator.features.elasticgpuclaims import cards, objects
from allocator.features.elasticgpuclaims.cards import CardWrite
from allocator.features.elasticgpuclaims.worker import Claims
from contract.scheduling.filters import DEFAULT_LIMITS, Limits
from tests.builders import node
from tests.unit.allocator.features.elasticgpuclaims.harness import Bench


def amounts(mib: int, cores: int) -> dict[str, str]:
    return {
        "qgpu-core": str(cores),
        "qgpu-memory": str(mib // 1024),
        "elasticgpu.io/gpu-core": str(cores),
        "elasticgpu.io/gpu-memory": str(mib),
    }


def test_a_card_shows_what_is_left() -> None:
    states = [node("n").gpu(mib=15109, used_mib=5120, cores=30).gpu(mib=15109).state()]
    found = cards.wanted(states, DEFAULT_LIMITS)
    assert found["n-00"] == {
        "apiVersion": objects.GROUP_VERSION,
        "kind": "GPU",
        "metadata": {
            "name": "n-00",
            "labels": {"app.kubernetes.io/managed-by": "gpufraction", "elasticgpu.io/node": "n"},
        },
        "spec": {"index": 0, "uuid": "GPU-n-0", "model": "Tesla T4", "memory": 15109 << 20, "nodeName": "n"},
        "status": {"state": "Healthy", "capacity": amounts(15109, 100), "allocatable": amounts(9989, 70)},
    }
    assert found["n-01"]["status"]["allocatable"] == amounts(15109, 100)


def left(*nodes: object, limits: Limits = DEFAULT_LIMITS) -> list[dict[str, str]]:
    found = cards.wanted(nodes, limits)  # type: ignore[arg-type]
    return [document["status"]["allocatable"] for document in found.values()]


def test_an_exclusive_unhealthy_or_overcommitted_card_has_nothing_left() -> None:
    assert left(node("n").gpu(mib=1024, exclusive=True).state()) == [amounts(0, 0)]
    assert left(node("n").gpu(mib=1024, sick="XID 79").state()) == [amounts(0, 0)]
    assert left(node("n").gpu(mib=1024, used_mib=4096, cores=130).state()) == [amounts(0, 0)]
    assert left(node("n").gpu(mib=1024).state(), limits=Limits(memory_factor=2.0)) == [amounts(2048, 100)]


def test_only_what_differs_is_written_and_what_others_made_is_left_alone() -> None:
    [(name, before)] = cards.wanted([node("n").gpu(mib=1024).state()], DEFAULT_LIMITS).items()
    after = cards.wanted([node("n").gpu(mib=1024, used_mib=512).state()], DEFAULT_LIMITS)
    made = {key: value for key, value in before.items() if key != "status"}
    assert list(cards.writes({}, {name: before})) == [CardWrite("create", name, made)]
    assert list(cards.writes({name: made}, {name: before})) == [CardWrite("status", name, before["status"])]
    assert list(cards.writes({name: before}, {name: before})) == []
    assert list(cards.writes({name: before}, after)) == [CardWrite("status", name, after[name]["status"])]
    assert list(cards.writes({name: before}, {})) == [CardWrite("delete", name, {})]
    swapped = cards.wanted([node("n").gpu(mib=1024, uuid="GPU-new").state()], DEFAULT_LIMITS)
    assert list(cards.writes({name: before}, swapped)) == [CardWrite("delete", name, {})]
    foreign = {**before, "metadata": {"name": name}}
    assert list(cards.writes({name: foreign}, after)) == []
    assert list(cards.writes({name: foreign}, {})) == []


def writer(on: Bench, most: int) -> Claims:
    return Claims(
        clock=lambda: on.now,
        kube=on.kube,
        controller=on.harness.controller,
        part=on.harness.claims,
        woken=threading.Event(),
        limits=DEFAULT_LIMITS,
        card_writes=most,
        timeout=1,
    )


def test_writes_are_bounded_and_end_when_all_is_as_it_should_be() -> None:
    on = Bench(node("a").gpus(5, mib=1024))
    claims = writer(on, 2)
    counts = []
    for _ in range(7):
        before = len(on.wire.requests)
        claims.write_cards()
        counts.append(len(on.wire.requests) - before)
    assert (counts, len(on.all(objects.CARDS))) == ([2, 2, 2, 2, 1, 1, 0], 5)
    on.a_claim("c", memory=1, cores=10)
    on.quiet()
    before = len(on.wire.requests)
    claims.write_cards()
    assert on.wire.requests[before:] == ["PATCH /apis/elasticgpu.io/v1alpha1/gpus/a-00/status"]
    assert on.get(objects.CARDS, "a-00")["status"]["allocatable"] == amounts(0, 90)
    on.nodes["a"] = node("a").gpus(4, mib=1024)
    on.cards()
    claims.write_cards()
    assert "a-04" not in on.all(objects.CARDS)


def test_a_node_that_has_not_changed_is_not_looked_at() -> None:
    on = Bench(node("a").gpus(1, mib=1024), node("b").gpus(1, mib=1024))
    claims = writer(on, 10)
    for _ in range(3):
        claims.write_cards()
    assert set(on.all(objects.CARDS)) == {"a-00", "b-00"}
    on.delete(objects.CARDS, "b-00")
    on.a_pod("p", memory="1Gi", nodeSelector={"none": "such"})
    on.quiet()
    before = len(on.wire.requests)
    claims.write_cards()
    assert len(on.wire.requests) == before
    on.nodes = {"b": on.nodes["b"]}
    on.cards()
    claims.write_cards()
    assert on.wire.requests[before:] == ["DELETE /apis/elasticgpu.io/v1alpha1/gpus/a-00"]
    on.now += 601
    claims.write_cards()
    assert set(on.all(objects.CARDS)) == {"b-00"}, "what somebody deleted is found missing in time"


def test_none_are_written_where_the_administrator_wants_none_or_another_leads() -> None:
    on = Bench(node("a").gpus(1))
    writer(on, 0).write_cards()
    on.harness.leads, on.harness.term = False, None
    writer(on, 5).write_cards()
    assert on.wire.requests == []
