"""
Whatever happens to reservations, the allocated amount is the sum of the holdings, and every share is returned once.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from allocator.cache.ledger import (
    OWN,
    Journal,
    Ledger,
    LedgerBug,
    Reservation,
    ReservationState,
    ShareMoved,
    is_overcommitted,
    usage_of,
)
from contract.encoding.quantity import GIB
from contract.model import (
    FREE,
    NO_OVERCOUNT,
    Allocation,
    Compute,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    Overcount,
    PodRequest,
    Usage,
)
from contract.scheduling.demand import Demand, demands
from contract.scheduling.filters import Limits
from tests.examples import examples

GPUS = tuple(Gpu(f"GPU-{i}", i, "T4", 16 * GIB, 16 * GIB) for i in range(2))


def holding(
    identity: str,
    *,
    uid: str = "",
    gpu: int = 0,
    memory: int = GIB,
    burst: int = 0,
    since: float = 0.0,
    node: str = "n",
    shared: str = "",
) -> Reservation:
    """A reservation. With a uid, what its pod holds."""
    limit = memory + burst if burst else 0
    request = PodRequest("native", (FractionRequest("c", memory=memory, cores=10, limit=limit),))
    share = GpuShare(GPUS[gpu].uuid, gpu, memory, 10, 16 * GIB, burst=burst)
    allocation = Allocation(identity, node, (ContainerAllocation("c", (share,)),), shared=shared)
    state = ReservationState.CONFIRMED if uid else ReservationState.ASSUMED
    return Reservation(uid or identity, f"ns/{identity}", request, allocation, Compute(pods=1), state, since)


def test_a_reservation_becomes_its_pods_and_is_given_back_once() -> None:
    ledger = Ledger()
    ledger.assume(holding("a"))
    assert ledger.usage("n", "GPU-0") == Usage(GIB, 10, 1)
    assert ledger.confirm(holding("a", uid="u1"))
    assert not ledger.confirm(holding("a", uid="u1")), "seen again, nothing changes"
    assert ledger.usage("n", "GPU-0") == Usage(GIB, 10, 1)
    assert not ledger.forget("a"), "it is confirmed by now"
    assert ledger.release("u1")
    assert not ledger.release("u1")
    assert (ledger.usage("n", "GPU-0"), len(ledger)) == (FREE, 0)


def test_a_pod_replaces_only_the_assumed_share_that_it_comes_from() -> None:
    ledger = Ledger()
    ledger.assume(holding("a"))
    ledger.confirm(holding("a", uid="u1", gpu=1))
    assert usage_of(GPUS, ledger, "n") == (Usage(GIB, 10, 1), Usage(GIB, 10, 1)), "an allocation of another content"
    ledger.confirm(holding("u1", uid="u2", gpu=1))
    assert usage_of(GPUS, ledger, "n") == (Usage(GIB, 10, 1), Usage(2 * GIB, 20, 2)), "an id that is a pod's uid"
    ledger.check_invariants()


def test_two_pods_that_carry_the_same_allocation_are_two_sharers() -> None:
    ledger = Ledger()
    ledger.assume(holding("a"))
    ledger.confirm(holding("a", uid="u1"))
    ledger.confirm(holding("a", uid="u2"))
    assert usage_of(GPUS, ledger, "n") == (Usage(2 * GIB, 20, 2), FREE)


def test_what_the_pods_carry_is_booked_even_beyond_the_card_and_named() -> None:
    ledger = Ledger()
    for i in range(3):
        ledger.confirm(holding(f"a{i}", uid=f"u{i}", memory=8 * GIB))
    assert ledger.overcommitted("n", GPUS) == ("GPU-0",)
    ledger.release("u0")
    assert ledger.overcommitted("n", GPUS) == ()


ONE = Limits(max_sharers=3)
FULL = Usage(16 * GIB, 100, 3)
BEYOND = {
    "as much as there is": (FULL, False),
    "a byte too much": (replace(FULL, memory=16 * GIB + 1), True),
    "a percent of cores too much": (replace(FULL, cores=101), True),
    "a pod too many": (replace(FULL, sharers=4), True),
    "held whole by one": (Usage(GIB, 10, 1, exclusive=True), False),
    "held whole by one of two": (Usage(GIB, 10, 2, exclusive=True), True),
}


@pytest.mark.parametrize(("usage", "want"), BEYOND.values(), ids=BEYOND.keys())
def test_a_gpu_is_overcommitted_with(usage: Usage, want: bool) -> None:
    assert is_overcommitted(GPUS[0], usage, ONE) is want


def test_a_reservation_whose_pod_is_known_to_come_is_renewed() -> None:
    ledger = Ledger()
    early, late = holding("early", since=1.0), holding("late", since=5.0)
    ledger.assume(early)
    ledger.assume(late)
    assert ledger.renew("early", 9.0)
    assert [h.since for h in ledger] == [5.0, 9.0]
    ledger.confirm(holding("late", uid="u"))
    assert not ledger.renew("u", 9.0), "it is confirmed"
    assert not ledger.renew("unknown", 9.0)


def overcounted(identity: str, *, uid: str = "", node: str = "n") -> Reservation:
    """It holds 15 GiB on one card, of which Kubernetes counts 20."""
    sizes = {"first": 15, "a": 5, "b": 5}
    fractions = tuple(FractionRequest(name, memory=gib * GIB, init=name == "first") for name, gib in sizes.items())
    containers = tuple(
        ContainerAllocation(name, (GpuShare("GPU-0", 0, gib * GIB, 0, 16 * GIB),)) for name, gib in sizes.items()
    )
    state = ReservationState.CONFIRMED if uid else ReservationState.ASSUMED
    allocation = Allocation(identity, node, containers)
    return Reservation(
        uid or identity, f"ns/{identity}", PodRequest("native", fractions), allocation, Compute(), state, 0
    )


def test_what_is_counted_beyond_what_is_held_comes_and_goes_with_its_pod() -> None:
    ledger = Ledger()
    ledger.assume(holding("usual"))
    assert ledger.overcount("n") is NO_OVERCOUNT
    ledger.assume(overcounted("a"))
    ledger.confirm(overcounted("b", uid="u-b"))
    ledger.confirm(overcounted("c", uid="u-c", node="other"))
    assert (ledger.overcount("n"), ledger.overcount("other")) == (Overcount(10 * GIB), Overcount(5 * GIB))
    ledger.confirm(overcounted("a", uid="u-a"))
    ledger.check_invariants()
    assert ledger.overcount("n") == Overcount(10 * GIB), "the pod of a reservation counts once"
    ledger.release("u-a")
    ledger.release("u-b")
    ledger.check_invariants()
    assert ledger.overcount("n") is NO_OVERCOUNT


def of_claim(key: str, *, gpu: int = 0, memory: int = GIB, claim: str = "egpu-1", whole: bool = False) -> Reservation:
    """A holder of a claim's share: its ElasticGPU, or a pod that uses it."""
    share = GpuShare(GPUS[gpu].uuid, gpu, memory, 100 if whole else 10, 16 * GIB)
    allocation = Allocation(f"id-{key}", "n", (ContainerAllocation("c", (share,)),), claim)
    request = PodRequest("claims", (FractionRequest("c"),))
    return Reservation(key, f"ns/{key}", request, allocation, Compute(), ReservationState.CONFIRMED, 0.0)


def test_a_claims_share_counts_once_in_any_order_of_its_holders() -> None:
    ledger = Ledger()
    once = Usage(GIB, 10, 1)
    for key in ("pod-1", f"{OWN}egpu-1", "pod-2"):
        ledger.confirm(of_claim(key))
        assert ledger.usage("n", "GPU-0") == once
    assert [h.key for h in ledger.users("claim/egpu-1")] == [f"{OWN}egpu-1", "pod-1", "pod-2"]
    for key in (f"{OWN}egpu-1", "pod-2"):
        ledger.release(key)
        assert ledger.usage("n", "GPU-0") == once
    ledger.release("pod-1")
    assert (ledger.usage("n", "GPU-0"), ledger.users("claim/egpu-1")) == (FREE, ())
    ledger.check_invariants()


def test_a_claim_that_moves_counts_in_both_places_until_it_has() -> None:
    ledger = Ledger()
    ledger.confirm(of_claim(f"{OWN}egpu-1", gpu=0))
    moved = of_claim(f"{OWN}egpu-1", gpu=1)
    ledger.assume(replace(moved, key=moved.allocation.id, state=ReservationState.ASSUMED))
    assert usage_of(GPUS, ledger, "n") == (Usage(GIB, 10, 1), Usage(GIB, 10, 1))
    ledger.confirm(moved)
    assert usage_of(GPUS, ledger, "n") == (FREE, Usage(GIB, 10, 1))


def test_all_cores_of_a_card_by_claim_are_a_whole_card() -> None:
    ledger = Ledger()
    ledger.confirm(of_claim("pod-1", whole=True))
    ledger.confirm(of_claim("pod-2", whole=True))
    assert ledger.usage("n", "GPU-0") == Usage(GIB, 100, 1, exclusive=True)
    assert ledger.overcommitted("n", GPUS) == ()
    ledger.confirm(holding("a", uid="u"))
    assert ledger.overcommitted("n", GPUS) == ("GPU-0",)


def test_a_resource_claims_share_counts_once_and_kubernetes_counts_each_pod() -> None:
    ledger = Ledger()
    ledger.assume(holding("a", shared="claim"))
    ledger.assume(holding("b", shared="claim"))
    assert ledger.usage("n", "GPU-0") == Usage(GIB, 10, 1)
    assert ledger.counted_again("n") == Overcount(GIB, 10)
    ledger.confirm(holding("b", uid="u", shared="claim"))
    ledger.forget("a")
    assert (ledger.usage("n", "GPU-0"), ledger.counted_again("n")) == (Usage(GIB, 10, 1), NO_OVERCOUNT)
    assert ledger.held("ns").memory == GIB


def test_limits_add_up_beside_what_is_booked() -> None:
    ledger = Ledger()
    ledger.assume(holding("a", memory=2 * GIB, burst=10 * GIB))
    ledger.confirm(holding("b", uid="u", memory=GIB))
    assert ledger.usage("n", "GPU-0") == Usage(3 * GIB, 20, 2, burst=10 * GIB)
    assert ledger.overcommitted("n", GPUS) == (), "nothing of a limit is booked"
    ledger.forget("a")
    assert ledger.usage("n", "GPU-0") == Usage(GIB, 10, 1)


def test_assuming_twice_is_once_and_differently_is_a_bug() -> None:
    ledger = Ledger()
    ledger.assume(holding("a"))
    ledger.assume(holding("a"))
    assert ledger.usage("n", "GPU-0").sharers == 1
    with pytest.raises(LedgerBug, match="assumed twice"):
        ledger.assume(holding("a", gpu=1))
    with pytest.raises(LedgerBug, match="state confirmed"):
        ledger.assume(holding("b", uid="u"))


class LedgerHistory(RuleBasedStateMachine):
    """A model that only counts: which pods and reservations hold which GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.journal = Journal()
        self.ledger = Ledger(self.journal)
        self.noted: dict[tuple[str, str], Demand] = {}
        """The sum of the journal, by card and key."""
        self.ledger.held_by_namespaces()  # from now on the ledger keeps these sums, and checks that they are right
        self.model: dict[str, Reservation] = {}
        self.made = 0
        self.now = 0.0

    @rule(
        gpu=st.integers(0, 1),
        memory=st.integers(1, 4),
        burst=st.sampled_from((0, 0, 3)),
        shared=st.sampled_from(("", "", "claim-1", "claim-2")),
    )
    def assume(self, gpu: int, memory: int, burst: int, shared: str) -> None:
        self.made += 1
        self.now += 1
        burst = 0 if shared else burst * GIB
        made = holding(f"a{self.made}", gpu=gpu, memory=memory * GIB, burst=burst, since=self.now, shared=shared)
        self.ledger.assume(made)
        self.model[made.key] = made

    @rule(data=st.data(), twice=st.booleans())
    def pod_appears(self, data: st.DataObject, twice: bool) -> None:
        assumed = [h for h in self.model.values() if h.state is ReservationState.ASSUMED]
        if not assumed:
            return
        chosen = data.draw(st.sampled_from(assumed))
        share = chosen.allocation.containers[0].shares[0]
        seen = holding(
            chosen.key,
            uid=f"uid-{chosen.key}",
            gpu=share.index,
            memory=share.memory,
            burst=share.burst,
            shared=chosen.allocation.shared,
        )
        assert self.ledger.confirm(seen)
        if twice:
            assert not self.ledger.confirm(seen)
        del self.model[chosen.key]
        self.model[seen.key] = seen

    @rule(gpu=st.integers(0, 1))
    def foreign_pod_appears(self, gpu: int) -> None:
        self.made += 1
        seen = holding(f"f{self.made}", uid=f"uid-f{self.made}", gpu=gpu)
        self.ledger.confirm(seen)
        self.model[seen.key] = seen

    @rule(data=st.data())
    def pod_moves_to_another_gpu(self, data: st.DataObject) -> None:
        confirmed = [h for h in self.model.values() if h.state is ReservationState.CONFIRMED]
        if confirmed:
            chosen = data.draw(st.sampled_from(confirmed))
            moved = holding("m" + chosen.allocation.id, uid=chosen.key, gpu=data.draw(st.integers(0, 1)))
            self.ledger.confirm(moved)
            self.model[chosen.key] = moved

    @rule(claim=st.sampled_from(("egpu-1", "egpu-2")), gpu=st.integers(0, 1), memory=st.integers(1, 4))
    def user_of_a_claim_appears(self, claim: str, gpu: int, memory: int) -> None:
        self.made += 1
        seen = of_claim(f"c{self.made}", claim=claim, gpu=gpu, memory=memory * GIB)
        assert self.ledger.confirm(seen)
        assert not self.ledger.confirm(seen)
        self.model[seen.key] = seen

    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        confirmed = [k for k, h in self.model.items() if h.state is ReservationState.CONFIRMED]
        if confirmed:
            key = data.draw(st.sampled_from(confirmed))
            assert self.ledger.release(key)
            del self.model[key]

    @rule(data=st.data())
    def write_fails(self, data: st.DataObject) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            forgotten = self.ledger.forget(key)
            assert forgotten == (self.model[key].state is ReservationState.ASSUMED)
            if forgotten:
                del self.model[key]

    @rule(data=st.data())
    def is_waited_for_longer(self, data: st.DataObject) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            renewed = self.ledger.renew(key, self.now)
            assert renewed == (self.model[key].state is ReservationState.ASSUMED)
            if renewed:
                self.model[key] = replace(self.model[key], since=self.now)

    @invariant()
    def the_journal_tells_what_pods_and_claims_hold(self) -> None:
        self.journal.stamp(self.now, 0.0)
        for at, change in self.journal.take():
            assert at == self.now
            assert isinstance(change, ShareMoved)
            place = (change.uuid, change.key)
            if change.demand is None:
                del self.noted[place]
            else:
                self.noted[place] = change.demand
        want: dict[tuple[str, str], Demand] = {}
        for held in self.model.values():
            if held.state is ReservationState.CONFIRMED:
                key = held.allocation.group or held.key
                for uuid, demand in demands(held.request, held.allocation).items():
                    want[uuid, key] = demand.beside(want[uuid, key]) if (uuid, key) in want else demand
        assert self.noted == want

    @invariant()
    def adds_up(self) -> None:
        self.ledger.check_invariants()
        assert {h.key: h for h in self.ledger} == self.model
        for gpu in GPUS:
            groups: dict[str, tuple[int, int]] = {}
            burst = 0
            for key, held in self.model.items():
                share = held.allocation.containers[0].shares[0]
                if share.uuid == gpu.uuid:
                    memory, cores = groups.get(held.allocation.group or key, (0, 0))
                    groups[held.allocation.group or key] = (max(memory, share.memory), max(cores, share.cores))
                    burst += share.burst
            booked, cores = sum(m for m, _ in groups.values()), sum(c for _, c in groups.values())
            assert self.ledger.usage("n", gpu.uuid) == Usage(booked, cores, len(groups), burst=burst)

    @invariant()
    def kubernetes_counts_a_shared_claim_for_each_of_its_pods(self) -> None:
        each, once = list[tuple[int, int]](), dict[tuple[str, str], tuple[int, int]]()
        for held in self.model.values():
            share = held.allocation.containers[0].shares[0]
            if held.allocation.shared:
                each.append((share.memory, share.cores))
                before = once.get((held.allocation.shared, share.uuid), (0, 0))
                once[held.allocation.shared, share.uuid] = (max(before[0], share.memory), max(before[1], share.cores))
        memory, cores = (sum(e[at] for e in each) - sum(o[at] for o in once.values()) for at in (0, 1))
        assert self.ledger.counted_again("n") == Overcount(memory, cores)


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
