"""
These promises hold for any history of pods that name one ResourceClaim, of lost answers, late watches and new leaders.

1. No card has more allocated than it has, and the pods with the claim have one share: one node, and the same cards.
2. A pod without its gate has the claim allocated on its node and reserved for it, whatever ended in between.
3. Once all is quiet, every pod that fits on the claim's node is there, the ledger equals what the pods say, and an
   unused claim holds nothing.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from allocator.cache.capacities import HeldBeyond
from allocator.cache.ledger import Ledger, Reservation, ReservationState
from allocator.cache.podinfo import pod_event
from allocator.queue.records import Binding
from allocator.scheduler.events import HeldBeyondChanged, NodeChanged, PodDeleted, StorageListed, TickPhase
from allocator.workers import binder
from contract import names, pods
from contract.dialects.base import PodReader
from contract.dialects.resourceclaims import read_claim, read_pod
from contract.encoding import codec, resourceclaims
from contract.encoding.quantity import GIB
from contract.model import Allocation, Compute, PodRequest
from contract.nodes import capacity
from contract.nodes.attributes import facts, trim
from contract.options import DEFAULTS
from contract.scheduling.clusterfilters.objects import read_device_claim
from playground.api.api import Api
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.builders import node
from tests.examples import examples
from tests.unit.allocator.harness import SchedulerHarness, unresolved
from tests.wires import Fate, Wire

JSON = dict[str, Any]
NODES = (node("a").gpus(1, mib=16384), node("b").gpus(1, mib=16384))
HOST = "kubernetes.io/hostname"
FATES: tuple[Fate, ...] = ("answered", "answered", "answered", "lost-and-done", "dropped", "refused")
AMOUNTS = {"memory": "10Gi", "cores": "20"}
SPEC = {
    "devices": {
        "requests": [
            {
                "name": "gpu",
                "exactly": {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": AMOUNTS}},
            }
        ]
    }
}


class SharedClaim(RuleBasedStateMachine):
    """One claim, two nodes that each have room for it once, and pods that name it."""

    def __init__(self) -> None:
        super().__init__()
        api = Api()
        self.wire = Wire(api, spares_reads=True)
        self.kube, self.sound = Kube(self.wire), Kube(Wire(api))
        self.bindings: list[Binding] = []
        self.orphans: list[Binding] = []
        """The writes that former leaders had in progress."""
        self.made = self.terms = 0
        self.taken_away = False
        """Whether a user removed the claim's allocation, which the keeper writes again."""
        body = {"apiVersion": resourceclaims.API, "kind": "ResourceClaim", "metadata": {"name": "c"}, "spec": SPEC}
        self.sound.create(paths.resourceclaims("default"), body)
        self._begin()

    def _begin(self) -> None:
        self.terms += 1
        self.harness = SchedulerHarness(NODES, now=100.0 + 100 * self.terms, made=1000 * self.terms)
        self.controller = self.harness.controller
        self.controller.handle(StorageListed("deviceclasses", ((("", str(names.SHARE_CLASS)), ""),)))
        self.seen: set[str] = set()
        for each in NODES:
            self.controller.handle(HeldBeyondChanged(each.name, ""))
        self.see_claims()
        self.see_pods()

    # -- the cluster ----------------------------------------------------------------------------------------------

    def pods(self) -> list[JSON]:
        return list(self.sound.list(paths.pods("default")).items)

    def claim(self) -> JSON:
        return self.sound.get(paths.resourceclaims("default", "c"))

    @rule(host=st.sampled_from(("", "", "", "a", "b")))
    def a_pod_is_created(self, host: str) -> None:
        self.made += 1
        spec: JSON = {
            "schedulingGates": [{"name": str(names.GATE)}],
            "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
            "containers": [{"name": f"c{self.made}", "image": "x", "resources": {"claims": [{"name": "gpu"}]}}],
        }
        if host:
            spec["nodeSelector"] = {HOST: host}
        body: JSON = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"p{self.made}"}, "spec": spec}
        reading = read_claim(SPEC)
        assert isinstance(reading, tuple)
        request = read_pod(PodReader(body, DEFAULTS), {"gpu": reading})
        assert isinstance(request, PodRequest)
        counted = pods.accounting(request.containers[0], 10 * GIB)
        spec["containers"][0]["resources"].update(limits=counted, requests=counted)
        body["metadata"]["annotations"] = {str(names.REQUEST): codec.request_to_text(request)}
        self.sound.create(paths.pods("default"), body)

    @precondition(lambda self: self.pods())
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        found = data.draw(st.sampled_from(sorted(each["metadata"]["name"] for each in self.pods())))
        self.sound.delete(paths.pods("default", found), {"gracePeriodSeconds": 0})

    @rule()
    def kubernetes_releases(self) -> None:
        """kube-controller-manager: releases pods that no longer exist, and then the claim."""
        claim, there = self.claim(), {pods.uid(each) for each in self.pods()}
        status = claim.get("status") or {}
        kept = [each for each in status.get("reservedFor") or () if each["uid"] in there]
        path = paths.resourceclaims("default", "c", "status")
        if not status.get("allocation") or (kept and len(kept) == len(status["reservedFor"])):
            return
        self.sound.patch_merge(path, {"status": {"reservedFor": kept or None}})
        if not kept and resourceclaims.FINALIZER in (claim["metadata"].get("finalizers") or ()):
            self.sound.patch_merge(path, {"status": {"allocation": None}})
            self.taken_away = False

    @rule()
    def somebody_takes_the_allocation_away(self) -> None:
        status = {"status": {"allocation": None, "reservedFor": None}}
        self.taken_away = bool((self.claim().get("status") or {}).get("allocation")) or self.taken_away
        self.sound.patch_merge(paths.resourceclaims("default", "c", "status"), status)

    # -- the allocator --------------------------------------------------------------------------------------------

    @rule()
    def see_pods(self) -> None:
        there = self.pods()
        for uid in self.seen - {pods.uid(each) for each in there}:
            self.controller.handle(PodDeleted(uid))
        self.seen = {pods.uid(each) for each in there}
        for each in there:
            self.controller.handle(pod_event(pods.trim(each)))

    @rule()
    def see_claims(self) -> None:
        self.controller.handle(StorageListed("resourceclaims", ((("default", "c"), read_device_claim(self.claim())),)))

    @rule()
    def agents_publish(self) -> None:
        for phase in TickPhase:
            for each in self.controller.tick(phase):
                if isinstance(each, HeldBeyond):
                    self.controller.handle(HeldBeyondChanged(each.key, each.text))
                    self._publish(each.key, each.text)
                elif isinstance(each, Binding):
                    self.bindings.append(each)

    def _publish(self, name: str, text: str) -> None:
        beyond, (builder,) = capacity.from_text(text), [each for each in NODES if each.name == name]
        assert beyond is not None
        document = builder.json()
        amounts = capacity.total(capacity.promises(builder.inventory().gpus).values()) + beyond.amounts
        document["status"]["allocatable"][str(names.GPU_MEMORY)] = str(amounts.memory)
        document["status"]["allocatable"][str(names.GPU_CORES)] = str(amounts.cores)
        self.controller.handle(NodeChanged(facts(trim(document))))

    @rule()
    def decide(self) -> None:
        self.harness.now += 16
        found, _ = self.controller.schedule_pending()
        self.bindings += found

    @precondition(lambda self: self.bindings)
    @rule(data=st.data(), fates=st.lists(st.sampled_from(FATES), max_size=4))
    def write(self, data: st.DataObject, fates: list[Fate]) -> None:
        binding = self.bindings.pop(data.draw(st.integers(0, len(self.bindings) - 1)))
        self.controller.handle(self._written(binding, fates))

    @precondition(lambda self: self.orphans)
    @rule(data=st.data())
    def a_leader_before_writes(self, data: st.DataObject) -> None:
        self._written(self.orphans.pop(data.draw(st.integers(0, len(self.orphans) - 1))), [])

    def _written(self, binding: Binding, fates: list[Fate]) -> object:
        self.wire.fates = list(fates)
        try:
            return binder.write(self.kube, binding, int(self.harness.now * 1e9))
        finally:
            self.wire.fates = []

    @rule()
    def another_leader_begins(self) -> None:
        """It gives every waiting pod a later version before it decides."""
        self.orphans += self.bindings
        self.bindings = []
        for each in self.pods():
            if names.GATE in pods.gates(each):
                fence = {"metadata": {"annotations": {str(names.FENCE): f"term-{self.terms}"}}}
                self.sound.patch_merge(paths.pods("default", each["metadata"]["name"]), fence)
        self._begin()

    # -- what holds -----------------------------------------------------------------------------------------------

    def placed(self) -> dict[str, Allocation]:
        found = ((pods.uid(each), pods.carried_allocation(each)) for each in self.pods())
        return {uid: allocation for uid, allocation in found if allocation is not None}

    @invariant()
    def one_share(self) -> None:
        self.controller.check_invariants()
        ledger, given = Ledger(), set()
        for each in self.pods():
            allocation, request = pods.carried_allocation(each), pods.admitted(each)
            if allocation is not None and request is not None:
                seen = ReservationState.CONFIRMED
                ledger.confirm(Reservation(pods.uid(each), "d/p", request, allocation, Compute(), seen, 0.0))
                given.add((allocation.node, allocation.containers[0].shares, allocation.shared))
        assert len(given) <= 1, given
        for builder in NODES:
            cards = builder.inventory().gpus
            assert ledger.overcommitted(builder.name, cards) == ()
            assert self.controller._cache.ledger.overcommitted(builder.name, cards) == ()

    @invariant()
    def the_claim_is_theirs(self) -> None:
        placed, claim = self.placed(), self.claim()
        if not placed or self.taken_away:
            return
        reserved = {uid for uid, _ in resourceclaims.holders(claim)}
        assert placed.keys() <= reserved, (placed.keys(), reserved)
        (terms,) = claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"]
        assert terms["matchFields"][0]["values"] == [next(iter(placed.values())).node]

    def teardown(self) -> None:
        for _ in range(12):
            self.see_pods()
            self.kubernetes_releases()
            self.see_claims()
            self.agents_publish()
            self.bindings += unresolved(self.controller)
            self.harness.now += 100
            self.decide()
            while self.bindings:
                self.controller.handle(self._written(self.bindings.pop(), []))
        self.one_share()
        placed, there = self.placed(), self.pods()
        nodes = {each.node for each in placed.values()}
        for each in there:
            host = (each["spec"].get("nodeSelector") or {}).get(HOST, "")
            assert pods.uid(each) in placed or (nodes and host and host not in nodes), (
                f"{each['metadata']['name']} waits"
            )
        ledger = self.harness.controller._cache.ledger
        assert {holding.key for holding in ledger} == placed.keys()
        if not there:
            assert not (self.claim().get("status") or {}).get("allocation")


TestSharedClaim = SharedClaim.TestCase
TestSharedClaim.settings = settings(max_examples=examples(20), stateful_step_count=25, deadline=None)
