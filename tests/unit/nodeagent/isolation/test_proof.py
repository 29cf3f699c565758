"""No level without a proof: the agent publishes a level that limits only while a proof of that level is fresh."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from contract.isolation import LIMITING
from contract.nodes.proofs import Proof, ProofState
from nodeagent.isolation.proof import NOTHING_LIMITS, OPEN, Proofs

WITHIN, HALF = 1000.0, 500.0
HELD = Proof(True, 10_000, "570")


def judged(proofs: Proofs, proof: Proof | None = HELD, now: float = 10_001.0, driver: str = "570") -> tuple[str, bool]:
    """The state, and whether `mps` may be published."""
    gate = proofs.judge(["mps", "watch"], proof, driver, now, ["mps"])
    assert gate.lets("watch")
    return gate.state, gate.lets("mps")


def test_without_the_component_every_level_is_let_through() -> None:
    proofs = Proofs(0)
    assert (proofs.judge(["mps"], None, "570", 0.0, []), proofs.gate) == (OPEN, OPEN)


def test_before_the_first_look_nothing_that_limits_is_let_through() -> None:
    gate = Proofs(WITHIN).gate
    assert {level: gate.lets(level) for level in LIMITING} == dict.fromkeys(LIMITING, False)


def test_where_nothing_limits_nothing_is_to_be_proven() -> None:
    assert Proofs(WITHIN).judge(["watch"], HELD, "570", 10_001.0, []) == NOTHING_LIMITS


def test_a_proof_ages() -> None:
    proofs = Proofs(WITHIN)
    assert judged(proofs) == (ProofState.HELD, True)
    assert judged(proofs, now=10_000 + HALF) == (ProofState.DUE, True)
    assert judged(proofs, now=10_000 + WITHIN) == (ProofState.DUE, True)
    assert judged(proofs, now=10_001 + WITHIN) == (ProofState.MISSING, False)


def test_no_proof_no_level() -> None:
    assert judged(Proofs(WITHIN), None) == (ProofState.MISSING, False)


def test_a_canary_that_exceeded_its_share_withdraws_the_level_for_however_long() -> None:
    proofs, failed = Proofs(WITHIN), replace(HELD, held=False)
    assert judged(proofs, failed) == (ProofState.FAILED, False)
    assert judged(proofs, failed, now=1e9) == (ProofState.FAILED, False)
    assert judged(proofs, replace(HELD, at=999_999_990), now=1e9) == (ProofState.HELD, True)


def test_another_driver_a_time_to_come_and_a_clock_set_back_prove_nothing() -> None:
    assert judged(Proofs(WITHIN), driver="580") == (ProofState.MISSING, False)
    assert judged(Proofs(WITHIN), now=9_999.0) == (ProofState.MISSING, False)


def test_a_level_that_stopped_working_needs_a_new_proof() -> None:
    proofs = Proofs(WITHIN)
    assert judged(proofs) == (ProofState.HELD, True)
    assert proofs.judge(["watch"], HELD, "570", 10_002.0, []).state == ""
    assert judged(proofs, now=10_003.0) == (ProofState.MISSING, False)
    assert judged(proofs, replace(HELD, at=10_003), now=10_004.0) == (ProofState.HELD, True)


def test_after_a_restart_only_what_was_published_stays() -> None:
    assert judged(Proofs(WITHIN)) == (ProofState.HELD, True)
    proofs = Proofs(WITHIN)
    assert proofs.judge(["mps"], HELD, "570", 10_001.0, []).lets("mps") is False


class ProofsOfAnAgent(RuleBasedStateMachine):
    """In any history, a level that may be published was refused to a canary that was created while the level worked."""

    @initialize()
    def begin(self) -> None:
        self.now, self.driver = 1_000_000, "570"
        self.proof: Proof | None = None
        self.works: set[str] = set()
        self.published: tuple[str, ...] = ()
        self.since: dict[str, float] = {}
        self.proofs = Proofs(WITHIN)
        self.look()

    def look(self) -> None:
        """What the agent does in each round, and the model next to it."""
        gate = self.proofs.judge(sorted(self.works), self.proof, self.driver, self.now, self.published)
        self.since = {level: self.since.get(level, self.now) for level in self.works}
        self.published = tuple(level for level in LIMITING if level in self.works and gate.lets(level))

    @rule(seconds=st.integers(1, 800))
    def wait(self, seconds: int) -> None:
        self.now += seconds
        self.look()

    @rule(level=st.sampled_from(LIMITING))
    def change(self, level: str) -> None:
        """A mechanism begins to work, or stops."""
        self.works ^= {level}
        self.look()

    @rule(held=st.booleans(), ago=st.integers(0, 900), driver=st.sampled_from(["570", "580"]))
    def canary(self, held: bool, ago: int, driver: str) -> None:
        self.proof = Proof(held, self.now - ago, driver)
        self.look()

    @rule()
    def annotation_removed(self) -> None:
        self.proof = None
        self.look()

    @rule()
    def another_driver(self) -> None:
        self.driver = "580" if self.driver == "570" else "570"
        self.look()

    @rule()
    def restart(self) -> None:
        """The agent restarts. The published levels have kept working."""
        self.proofs = Proofs(WITHIN)
        self.look()

    @invariant()
    def no_proof_no_level(self) -> None:
        for level in self.published:
            assert self.proof is not None
            assert self.proof.held
            assert self.proof.driver == self.driver
            assert 0 <= self.now - self.proof.at <= WITHIN
            assert self.since[level] <= self.proof.at


TestProofsOfAnAgent = ProofsOfAnAgent.TestCase
TestProofsOfAnAgent.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
