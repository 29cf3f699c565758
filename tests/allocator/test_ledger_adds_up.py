"""Whatever happens to reservations, what is taken is what the holdings add up to, and every share comes back once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from allocator.ledger import Holding, Ledger, LedgerBug, State, usage_of
from contract.model import (
    FREE,
    Allocation,
    Compute,
    ContainerAllocation,
    FractionRequest,
    Gpu,
    GpuShare,
    PodRequest,
    Usage,
)
from contract.quantity import GIB

GPUS = tuple(Gpu(f"GPU-{i}", i, "T4", 16 * GIB, 16 * GIB) for i in range(2))


def holding(
    identity: str, *, uid: str = "", gpu: int = 0, memory: int = GIB, since: float = 0.0, node: str = "n"
) -> Holding:
    """A reservation; with a uid, what its pod carries."""
    request = PodRequest("native", (FractionRequest("c", memory=memory, cores=10),))
    share = GpuShare(GPUS[gpu].uuid, gpu, memory, 10, 16 * GIB)
    allocation = Allocation(identity, node, (ContainerAllocation("c", (share,)),))
    state = State.CONFIRMED if uid else State.ASSUMED
    return Holding(uid or identity, f"ns/{identity}", request, allocation, Compute(pods=1), state, since)


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
    assert ledger.overfull("n", GPUS) == ("GPU-0",)
    ledger.release("u0")
    assert ledger.overfull("n", GPUS) == ()


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
        self.ledger = Ledger()
        self.model: dict[str, Holding] = {}
        self.made = 0
        self.now = 0.0

    @rule(gpu=st.integers(0, 1), memory=st.integers(1, 4))
    def assume(self, gpu: int, memory: int) -> None:
        self.made += 1
        self.now += 1
        made = holding(f"a{self.made}", gpu=gpu, memory=memory * GIB, since=self.now)
        self.ledger.assume(made)
        self.model[made.key] = made

    @rule(data=st.data(), twice=st.booleans())
    def pod_appears(self, data: st.DataObject, twice: bool) -> None:
        assumed = [h for h in self.model.values() if h.state is State.ASSUMED]
        if not assumed:
            return
        chosen = data.draw(st.sampled_from(assumed))
        share = chosen.allocation.containers[0].shares[0]
        seen = holding(chosen.key, uid=f"uid-{chosen.key}", gpu=share.index, memory=share.memory)
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
        confirmed = [h for h in self.model.values() if h.state is State.CONFIRMED]
        if confirmed:
            chosen = data.draw(st.sampled_from(confirmed))
            moved = holding("m" + chosen.allocation.id, uid=chosen.key, gpu=data.draw(st.integers(0, 1)))
            self.ledger.confirm(moved)
            self.model[chosen.key] = moved

    @rule(data=st.data())
    def pod_goes(self, data: st.DataObject) -> None:
        confirmed = [k for k, h in self.model.items() if h.state is State.CONFIRMED]
        if confirmed:
            key = data.draw(st.sampled_from(confirmed))
            assert self.ledger.release(key)
            del self.model[key]

    @rule(data=st.data())
    def write_fails(self, data: st.DataObject) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            forgotten = self.ledger.forget(key)
            assert forgotten == (self.model[key].state is State.ASSUMED)
            if forgotten:
                del self.model[key]

    @rule(data=st.data())
    def is_waited_for_longer(self, data: st.DataObject) -> None:
        if self.model:
            key = data.draw(st.sampled_from(sorted(self.model)))
            renewed = self.ledger.renew(key, self.now)
            assert renewed == (self.model[key].state is State.ASSUMED)
            if renewed:
                self.model[key] = replace(self.model[key], since=self.now)

    @invariant()
    def adds_up(self) -> None:
        self.ledger.check_invariants()
        assert {h.key: h for h in self.ledger} == self.model
        for gpu in GPUS:
            here = [
                h.allocation.containers[0].shares[0]
                for h in self.model.values()
                if h.allocation.containers[0].shares[0].uuid == gpu.uuid
            ]
            want = Usage(sum(s.memory for s in here), sum(s.cores for s in here), len(here))
            assert self.ledger.usage("n", gpu.uuid) == want


TestLedgerHistory = LedgerHistory.TestCase
TestLedgerHistory.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
