"""The records of claims and ElasticGPUs: when each is created, changed and dropped, and the consequences."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from allocator.cache.cache import Cache
from allocator.cache.ledger import OWN
from allocator.engine.engine import Engine
from allocator.faults import surfaced
from allocator.features.elasticgpuclaims import objects, rendering, writer
from allocator.features.elasticgpuclaims.inflight import InFlight
from allocator.features.elasticgpuclaims.manager import ClaimManager
from allocator.features.elasticgpuclaims.objects import DELETE, PENDING, Claim, Status
from allocator.features.elasticgpuclaims.rendering import ClaimBinding
from allocator.features.elasticgpuclaims.shares import CONTAINER
from allocator.features.elasticgpuclaims.steps import ClaimSteps
from allocator.features.elasticgpuclaims.store import ClaimRecord, ClaimStore
from contract import names
from contract.encoding.quantity import GIB
from contract.model import Allocation, ContainerAllocation, GpuShare
from contract.reasons.claims import ClaimReason
from runtime.kubernetes.client import Kube
from runtime.kubernetes.errors import KubeError, KubeNotFound, KubeUnavailable
from tests.wires import Answer, Script

JSON = dict[str, Any]
NO_ROOM = Status(PENDING, ClaimReason.NAMESPACE_LIMIT, "too much")


class Kept:
    """A store, its ledger, and its clock."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cache = Cache(engine=Engine())
        self.bindings = InFlight(self.cache)
        self.store = ClaimStore(self.cache, self.bindings, clock=lambda: self.now, faulted=surfaced)
        self.steps = ClaimSteps(self.store, self.bindings, clock=lambda: self.now)

    def noted(self) -> ClaimRecord:
        """The record of a claim, with everything that it can hold."""
        self.store.put(objects.CLAIMS, a_claim())
        record = self.store.claims["default/c"]
        record.pending = NO_ROOM
        record.paused = 102.0
        record.unbindable = 115.0
        record.refusal = "no"
        record.round = 7
        return record

    def booked(self) -> dict[str, Allocation]:
        return {holding.key: holding.allocation for holding in self.cache.ledger}


def a_claim(uid: str = "u", version: int = 1) -> JSON:
    return {"metadata": {"namespace": "default", "name": "c", "uid": uid, "resourceVersion": str(version)}}


def allocation(node: str = "a", key: str = "own/1") -> Allocation:
    share = GpuShare(f"GPU-{node}", 0, GIB, 1, 16 * GIB)
    return Allocation(key, node, (ContainerAllocation(CONTAINER, (share,)),), "egpu-u")


def binding(node: str = "a") -> ClaimBinding:
    return ClaimBinding(objects.claim(a_claim()), DELETE, allocation(node))


def a_share(node: str = "a", uid: str = "s", version: int = 2) -> JSON:
    document = rendering.document(binding(node))
    document["metadata"] |= {"uid": uid, "resourceVersion": str(version)}
    return document


def claim(uid: str = "u", version: int = 1) -> Claim:
    return objects.claim(a_claim(uid, version))


BROUGHT = {
    "a newer version keeps what is noted": (
        [a_claim(version=2)],
        {"default/c": ClaimRecord(claim(version=2), NO_ROOM, 102.0, 115.0, "no", 7)},
    ),
    "an older version changes nothing": (
        [a_claim(version=0)],
        {"default/c": ClaimRecord(claim(), NO_ROOM, 102.0, 115.0, "no", 7)},
    ),
    "a claim made again under the name has nothing noted": (
        [a_claim(uid="v", version=2)],
        {"default/c": ClaimRecord(claim(uid="v", version=2))},
    ),
    "a claim that is not listed has no record": ([], {}),
}


@pytest.mark.parametrize(("listed", "records"), BROUGHT.values(), ids=BROUGHT.keys())
def test_a_list_of_claims_leaves_these_records(listed: list[JSON], records: dict[str, ClaimRecord]) -> None:
    on = Kept()
    on.noted()
    on.store.replace(objects.CLAIMS, listed)
    assert on.store.claims == records


def test_a_claim_that_returns_after_its_deletion_has_nothing_noted() -> None:
    on = Kept()
    on.noted()
    dropped = [on.store.drop(objects.CLAIMS, a_claim()) for _ in range(2)]
    on.store.put(objects.CLAIMS, a_claim())
    assert (dropped, on.store.claims) == ([True, False], {"default/c": ClaimRecord(claim())})


def test_an_answer_to_a_write_makes_no_record() -> None:
    on = Kept()
    assert not on.store.put(objects.CLAIMS, a_claim(), existing_only=True)
    assert on.store.claims == {}


def test_the_ledger_has_what_the_elastic_gpus_record_says() -> None:
    on = Kept()
    found = []
    for document in (a_share("a"), a_share("b", version=3), a_share("a", version=1), a_share("b", "t", version=4)):
        on.store.put(objects.SHARES, document)
        record = on.store.shares["egpu-u"]
        found.append((record.share.uid, record.share.version, on.booked()))
    a, b = ({f"{OWN}egpu-u": allocation(node)} for node in "ab")
    assert found == [("s", 2, a), ("s", 3, b), ("s", 3, b), ("t", 4, b)]
    assert on.store.share_of(claim()) == objects.share(a_share("b", "t", version=4))
    on.store.replace(objects.SHARES, [])
    assert (on.store.shares, on.store.share_of(claim()), on.booked()) == ({}, None, {})


def test_the_card_of_an_elastic_gpu_that_cannot_be_read_is_closed() -> None:
    on = Kept()
    later = a_share("a", version=3)
    text = later["metadata"]["annotations"][names.ALLOCATION].replace('"v":1', '"v":2')
    later["metadata"]["annotations"] = {**later["metadata"]["annotations"], names.ALLOCATION: text}
    found = []
    for document in (a_share("a"), later, a_share("a", version=4)):
        on.store.take_in(objects.SHARES, document)
        found.append((on.booked() != {}, on.cache.suspects()))
    on.store.replace(objects.SHARES, [])
    share = f"{OWN}egpu-u"
    assert found == [(True, frozenset()), (False, frozenset((share,))), (True, frozenset())]
    assert on.cache.suspects() == set()


def test_each_pause_ends_at_its_time() -> None:
    on = Kept()
    record = on.noted()
    on.store.put(objects.SHARES, a_share())
    on.store.shares["egpu-u"].paused = 115.0
    found = []
    for on.now in (101.0, 102.0, 114.0, 115.0, 116.0):
        ended = on.store.tick()
        found.append((ended, record.paused, record.unbindable, record.may_bind, on.store.shares["egpu-u"].paused))
    assert found == [
        (False, 102.0, 115.0, False, 115.0),
        (True, None, 115.0, False, 115.0),
        (False, None, 115.0, False, 115.0),
        (True, None, None, True, None),
        (False, None, None, True, None),
    ]


def test_a_binding_keeps_its_share_reserved_when_its_claim_is_deleted() -> None:
    on = Kept()
    on.store.put(objects.CLAIMS, a_claim())
    on.bindings.start(binding(), on.now)
    assert on.bindings.take(on.now) == [binding()]
    on.store.drop(objects.CLAIMS, a_claim())
    assert (on.store.claims, on.booked()) == ({}, {"own/1": allocation()})
    assert on.steps.not_written(binding()) is None
    assert (on.store.claims, on.booked(), "u" in on.bindings) == ({}, {}, False)


def test_a_binding_of_a_deleted_claim_pauses_no_claim_of_its_name() -> None:
    on = Kept()
    on.store.put(objects.CLAIMS, a_claim())
    on.bindings.start(binding(), on.now)
    on.store.put(objects.CLAIMS, a_claim(uid="v", version=2))
    on.steps.not_written(binding())
    assert on.store.claims == {"default/c": ClaimRecord(claim(uid="v", version=2))}


def test_a_claim_that_comes_during_a_round_is_none_for_which_a_pod_was_tried() -> None:
    on = Kept()
    manager = ClaimManager(on.cache, new_id=lambda: "1", clock=lambda: on.now)
    manager.store.put(objects.CLAIMS, a_claim())
    manager.bind_the_rest()
    assert manager.store.claims["default/c"].pending is not None


def test_what_was_sent_stays_reserved_while_nobody_leads() -> None:
    """A leader that is paused beyond its lease continues in the same term, for which nothing is listed again."""
    on = Kept()
    on.bindings.start(binding(), on.now)
    on.bindings.take(on.now, 1)
    on.bindings.written(binding(), on.now)
    on.bindings.abandon()
    assert (list(on.booked()), claim().uid in on.bindings) == ([allocation().id], True)
    assert on.bindings.take(on.now, 1) == []
    on.now += 10
    assert on.bindings.take(on.now, 1) == [dataclasses.replace(binding(), written=True)]
    on.store.put(objects.SHARES, a_share("a"))
    assert (list(on.booked()), claim().uid in on.bindings) == ([f"{OWN}egpu-u"], False)


def test_what_was_never_sent_is_given_up_while_another_leads() -> None:
    on = Kept()
    on.bindings.start(binding(), on.now)
    on.bindings.abandon()
    assert (on.booked(), claim().uid in on.bindings) == ({}, False)


def test_what_an_earlier_term_sent_is_given_up_once_the_next_one_has_listed() -> None:
    on = Kept()
    on.bindings.start(binding(), on.now)
    on.bindings.take(on.now, 1)
    assert (on.bindings.take(on.now, 2), list(on.booked())) == ([], [allocation().id]), "it is being written"
    on.bindings.unresolved(binding(), on.now)
    assert (on.bindings.take(on.now, 2), on.booked()) == ([], {})


OTHER = rendering.document(ClaimBinding(objects.claim(a_claim()), DELETE, allocation(key="own/2")))
LOOKS: dict[str, tuple[Answer | KubeError, str]] = {
    "it is there": (Answer(200, a_share("a")), "succeeded"),
    "it was deleted": (KubeNotFound("gone"), "failed"),
    "another one has its name": (Answer(200, OTHER), "failed"),
    "nobody knows": (KubeUnavailable("away"), "succeeded"),
}


@pytest.mark.parametrize(("answer", "outcome"), LOOKS.values(), ids=LOOKS.keys())
def test_what_was_written_is_looked_for_and_not_made_again(answer: Answer | KubeError, outcome: str) -> None:
    script = Script(answer)
    assert writer.bind(Kube(script), dataclasses.replace(binding(), written=True), timeout=1) == outcome
    assert [each.method for each in script.sent] == ["GET"]
