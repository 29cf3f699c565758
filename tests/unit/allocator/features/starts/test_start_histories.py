"""
Whatever engines, kubelets, tenants and leaders do, no two pods that start alone are starting on one card within the
bound, and none waits forever.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from contract import names, pods
from contract.encoding.protocol import Placed
from contract.reasons.nodes import Code
from tests.builders import node
from tests.examples import examples
from tests.unit.allocator.features.starts.engines import BOUND, PlayedEngines, engine
from tests.unit.allocator.harness import admitted, question

_RESERVED = 40
"""How many times the bound, during which nodes may be reserved for starving pods."""


class StartHistory(RuleBasedStateMachine):
    """Rules for the part of kubelets and tenants. The checks use what pods on the API server have."""

    def __init__(self) -> None:
        super().__init__()
        self.played = PlayedEngines([node("n").gpus(2), node("m").gpus(1)])
        self.made = 0
        self.alone: set[str] = set()
        self.since: dict[str, float] = {}
        """For pods that start alone and have a share: when they were placed, or their container started."""
        self.up: set[str] = set()
        self.restarts: dict[str, int] = {}

    def _name(self, alone: bool) -> str:
        self.made += 1
        name = f"p{self.made}"
        if alone:
            self.alone.add(f"default/{name}")
        return name

    @rule(alone=st.sampled_from((True, True, False)), mib=st.sampled_from((2_000, 6_000, 14_000)))
    def creates(self, alone: bool, mib: int) -> None:
        self.played.creates(engine(self._name(alone), alone=alone, mib=mib))

    @rule(alone=st.sampled_from((True, True, False)), stored=st.booleans())
    def admits(self, alone: bool, stored: bool) -> None:
        """The webhook asks. If the pod is placed at once, it may be stored, or be refused after our webhook."""
        made = engine(self._name(alone), alone=alone)
        answer = self.played.replica.controller.reserve(question(made, uid=f"r{self.made}"))
        if isinstance(answer, Placed) and stored:
            self.played.stores(admitted(made, allocation=answer.allocation))
            self.played.replica.catch_up()
        self._look()

    @rule(seconds=st.sampled_from((1.0, 5.0, 45.0, 140.0, BOUND + 1)))
    def passes(self, seconds: float) -> None:
        self.played.passes(seconds)
        self._look()

    def _some(self, data: st.DataObject, *, ready: bool | None = None) -> str | None:
        keys = sorted(key for key in self.since if ready is None or (key in self.up) is ready)
        return data.draw(st.sampled_from(keys)) if keys else None

    @precondition(lambda self: self.since)
    @rule(data=st.data())
    def container_starts(self, data: st.DataObject) -> None:
        key = self._some(data, ready=False)
        if key is None:
            return
        before = self.restarts.get(key)
        self.restarts[key] = restarts = 0 if before is None else before + 1
        self.played.starts(key, restarts=restarts)
        if not restarts:
            self.since[key] = self.played.now
        self.played.replica.catch_up()

    @precondition(lambda self: self.since)
    @rule(data=st.data())
    def becomes_ready(self, data: st.DataObject) -> None:
        key = self._some(data, ready=False)
        if key is not None:
            self.up.add(key)
            self.played.ready(key)

    @precondition(lambda self: self.since)
    @rule(data=st.data(), gone=st.booleans())
    def ends(self, data: st.DataObject, gone: bool) -> None:
        key = self._some(data)
        if key is None:
            return
        if gone:
            self.played.api.delete(key)
        else:
            self.played.api.change(key, phase="Succeeded")
        self._forget(key)

    @rule()
    def leader_is_killed(self) -> None:
        self.played.lead()
        self.played.passes()
        self._look()

    def _forget(self, key: str) -> None:
        self.since.pop(key, None)
        self.up.discard(key)

    def _look(self) -> None:
        """Each pod that has just got its share is the only one that is starting on its card."""
        placed = self.played.placed()
        for key in self.alone & placed.keys() - self.since.keys():
            if pods.finished(self.played.api.pods[key]):
                continue
            card = self.played.card(key)
            for other, since in self.since.items():
                within = self.played.now - since < BOUND and other not in self.up
                assert not (within and self.played.card(other) == card), f"{key} starts while {other} does"
            self.since[key] = self.played.now

    @invariant()
    def is_consistent(self) -> None:
        self.played.replica.controller.check_invariants()

    def _waiting(self) -> dict[str, str]:
        """The pods that wait for a neighbour, and their messages."""
        keys = [key for key in sorted(self.alone & self.played.api.pods.keys()) if not self.played.card(key)]
        assert all(names.GATE in pods.gates(self.played.api.pods[key]) for key in keys)
        text = Code.NEIGHBOUR_STARTING.row.text
        return {key: said for key in keys if text in (said := self.played.waits(key))}

    def teardown(self) -> None:
        """Once the bound of all others is over, no pod waits for a neighbour, or for a reserved node."""
        for _ in range(len(self.alone) + _RESERVED):
            self.played.passes(BOUND + 1)
            if not self._waiting():
                break
        assert self._waiting() == {}
        super().teardown()


TestStartHistory = StartHistory.TestCase
TestStartHistory.settings = settings(max_examples=examples(15), stateful_step_count=20, deadline=None)
