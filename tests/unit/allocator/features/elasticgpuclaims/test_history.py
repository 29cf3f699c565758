"""
The promises hold for any history of claims, pods, late watches, lost writes and leaders that die between two writes.

1. No GPU is ever allocated twice, from any replica's view, from the first write to the last.
2. A claim's share counts once, and a claim that a pod uses exists, with its share.
3. Once all is quiet, claims and ElasticGPUs are bound to each other one to one, all others have a reason, and deleted
   objects no longer exist.
4. A replica that starts then has the same state.
5. The claims of a namespace together never have more than the administrator allows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from allocator.features.elasticgpuclaims import ClaimSettings, objects
from contract import names, pods
from contract.encoding.quantity import GIB
from tests.builders import node
from tests.examples import examples
from tests.unit.allocator.features.elasticgpuclaims.harness import KINDS, Bench
from tests.wires import Fate

NAMES = st.sampled_from(("x", "y"))
FATES: tuple[Fate, ...] = ("answered", "answered", "lost-and-done", "lost", "refused")
NODES = (node("a").gpus(2, mib=16384).labelled("disk", "fast"), node("b").gpus(1, mib=16384))


class History(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.most = 0
        self.made = 0

    @initialize(used=st.sampled_from(("now", "later", "")), most=st.sampled_from((0, 0, 24)))
    def begin(self, used: str, most: int) -> None:
        """Most histories begin with a claim that a pod uses, because most can go wrong there."""
        self.most = most * GIB
        self.bench = Bench(*NODES, claiming=ClaimSettings(claims=True, claim_memory=self.most))
        self.bench.a_class("now")
        self.bench.a_class("later", egpuBindingMode=objects.FIRST_CONSUMER, reclaimPolicy=objects.RETAIN)
        self.bench.look()
        if used:
            self.bench.a_claim("x", memory=10, of=used)
            self.bench.a_pod("p0", "x")
            self.bench.quiet()
            for kind in (objects.CLASSES, objects.CLAIMS):
                self.bench.follows(kind)

    # -- users ----------------------------------------------------------------------------------------------------

    @rule(
        name=NAMES,
        memory=st.sampled_from((4, 10, 16, None)),
        cores=st.sampled_from((10, 60, 100, 200)),
        later=st.booleans(),
    )
    def claim_is_made(self, name: str, memory: int | None, cores: int, later: bool) -> None:
        if name not in self.bench.all(objects.CLAIMS):
            self.bench.a_claim(name, memory=memory, cores=cores, of="later" if later else "now")

    @rule(name=NAMES)
    def claim_is_deleted(self, name: str) -> None:
        self.bench.delete(objects.CLAIMS, name)

    @rule(name=NAMES, picky=st.booleans())
    def pod_names_a_claim(self, name: str, picky: bool) -> None:
        self.made += 1
        wants: dict[str, Any] = {"nodeSelector": {"disk": "fast"}} if picky else {}
        self.bench.a_pod(f"p{self.made}", name, **wants)

    @rule(memory=st.sampled_from(("6Gi", "12Gi")))
    def pod_asks_for_itself(self, memory: str) -> None:
        self.made += 1
        self.bench.a_pod(f"p{self.made}", memory=memory)

    @rule(data=st.data(), deleted=st.booleans())
    def pod_goes(self, data: st.DataObject, deleted: bool) -> None:
        there = sorted(self.bench.all("pods"))
        if there:
            name = data.draw(st.sampled_from(there))
            if deleted:
                self.bench.delete("pods", name)
            else:
                self.bench.ended(name)

    @rule(data=st.data())
    def share_is_deleted_by_hand(self, data: st.DataObject) -> None:
        there = sorted(self.bench.all(objects.SHARES))
        if there:
            self.bench.delete(objects.SHARES, data.draw(st.sampled_from(there)))

    @rule(there=st.booleans())
    def a_card_goes_or_comes(self, there: bool) -> None:
        self.bench.nodes["b"] = node("b").gpus(1 if there else 0, mib=16384)
        self.bench.cards()

    # -- the replica that leads -----------------------------------------------------------------------------------

    @rule(kind=st.sampled_from(KINDS))
    def watch_brings(self, kind: str) -> None:
        self.bench.look(kind)

    @rule(kind=st.sampled_from((objects.CLASSES, objects.CLAIMS)))
    def the_next_leader_sees(self, kind: str) -> None:
        self.bench.follows(kind)

    @rule()
    def late_writes_land(self) -> None:
        self.bench.wire.carry_out_late()

    @rule(rounds=st.integers(1, 4))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        for _ in range(rounds):
            self.bench.look()
            self.bench.decide()
            self.bench.work()
            self.bench.passes(3)

    @rule(fate=st.sampled_from(FATES))
    def decide(self, fate: Fate) -> None:
        self.bench.wire.fates = [fate]
        self.bench.decide()

    @rule(fate=st.sampled_from(FATES), most=st.integers(1, 3))
    def write(self, fate: Fate, most: int) -> None:
        self.bench.wire.fates = [fate]
        self.bench.work(most)

    @rule(fate=st.sampled_from(FATES), most=st.integers(0, 3))
    def write_and_die(self, fate: Fate, most: int) -> None:
        """Another replica leads between any two writes, and knows only what is on the API server."""
        self.bench.wire.fates = [fate]
        self.bench.work(most)
        self.bench.wire.fates = []
        self.bench.take_over()

    @rule(seconds=st.sampled_from((1, 3, 11)))
    def time_passes(self, seconds: int) -> None:
        self.bench.passes(seconds)

    # -- promises -------------------------------------------------------------------------------------------------

    @invariant()
    def nothing_is_promised_twice(self) -> None:
        assert self.bench.overbooked() == []
        self.bench.harness.controller.check_invariants()

    @invariant()
    def claims_keep_to_their_bound(self) -> None:
        shares = map(objects.share, self.bench.all(objects.SHARES).values())
        given = [each for share in shares if share.allocation for c in share.allocation.containers for each in c.shares]
        assert not self.most or sum(each.memory for each in given) <= self.most

    @invariant()
    def what_pods_use_is_there(self) -> None:
        shares = self.bench.all(objects.SHARES)
        claims = self.bench.all(objects.CLAIMS)
        for each in self.bench.all("pods").values():
            request = pods.admitted(each)
            assert request is not None
            allocation = pods.allocation_of(each, request)
            if request.claim and allocation is not None and not pods.finished(each):
                share = objects.share(shares[allocation.claim])
                assert share.claim_uid == claims[request.claim]["metadata"]["uid"]
                assert share.allocation is not None
                assert share.allocation.containers[0].shares == allocation.containers[0].shares, "it moved under a pod"

    def teardown(self) -> None:
        self.bench.wire.fates = []
        self.bench.wire.carry_out_late()
        self.bench.quiet()
        self.nothing_is_promised_twice()
        self.what_pods_use_is_there()
        self._bound_one_to_one()
        self._every_pod_has_a_reason()
        before = self.bench.harness.controller
        for kind in (objects.CLASSES, objects.CLAIMS):
            self.bench.follows(kind)
        self.bench.take_over()
        after = self.bench.harness.controller
        assert after.look() == replace(before.look(), reserved=0)
        assert sorted(map(repr, after.nodes())) == sorted(map(repr, before.nodes()))

    def _bound_one_to_one(self) -> None:
        claims = [objects.claim(each) for each in self.bench.all(objects.CLAIMS).values()]
        shares = {each: objects.share(found) for each, found in self.bench.all(objects.SHARES).items()}
        for claim in claims:
            share = shares.pop(claim.own_share, None)
            if claim.status.phase == objects.BOUND:
                assert share is not None
                assert (share.claim_uid, share.status.phase) == (claim.uid, objects.BOUND)
                assert (claim.bound, claim.kept) == (True, True)
            else:
                assert claim.status.phase in (objects.PENDING, objects.LOST)
                assert claim.status.message
        for share in shares.values():
            assert (share.reclaim, share.status.phase) == (objects.RETAIN, objects.RELEASED)

    def _every_pod_has_a_reason(self) -> None:
        in_use = {
            codec_claim
            for each in self.bench.all("pods").values()
            for codec_claim in [pods.admitted(each)]
            if codec_claim is not None and not pods.finished(each) and names.GATE not in pods.gates(each)
        }
        for claim in map(objects.claim, self.bench.all(objects.CLAIMS).values()):
            assert not claim.deleting or any(request.claim == claim.name for request in in_use)
        for name, each in self.bench.all("pods").items():
            if names.GATE in pods.gates(each) and not pods.finished(each):
                assert self.bench.reason_of(name), f"{name} waits and was not told why"


TestHistory = History.TestCase
TestHistory.settings = settings(max_examples=examples(45), stateful_step_count=30, deadline=None)
