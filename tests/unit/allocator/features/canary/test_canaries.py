"""
When a canary is created, what its end means, and that it gives way: alone, and in a cluster with any other events.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from allocator.features.canary import pods
from allocator.features.canary.machine import (
    AT_ONCE,
    LONGEST,
    Canaries,
    CanaryNode,
    CanaryPod,
    CanaryView,
    ConcludeCanary,
    RemoveCanary,
    StartCanary,
)
from contract import names
from contract.nodes.proofs import Proof
from runtime import cudaprobe

NOW = 1_000_000.0
DRIVERS = {"n1": "570"}
VIEW = CanaryView((CanaryNode("n1", "570", ("GPU-a",)),), drivers=DRIVERS)
POD = CanaryPod("canary-1", "uid-1", "n1", NOW)
RUNNING = replace(VIEW, awaiting=())


def test_a_node_that_awaits_a_proof_gets_one_canary_on_an_idle_card() -> None:
    machine = Canaries()
    assert machine.step(NOW, VIEW, []) == [StartCanary("n1", "GPU-a")]
    assert machine.step(NOW + 1, VIEW, [POD]) == []


NOT_STARTED: dict[str, CanaryView] = {
    "no card is idle": replace(VIEW, awaiting=(CanaryNode("n1", "570"),)),
    "a pod that waits would fit there": replace(VIEW, wanted=frozenset(["n1"])),
    "no node awaits a proof": replace(VIEW, awaiting=()),
}


@pytest.mark.parametrize("view", NOT_STARTED.values(), ids=NOT_STARTED.keys())
def test_none_is_created_where(view: CanaryView) -> None:
    assert Canaries().step(NOW, view, []) == []


@pytest.mark.parametrize("held", [True, False])
def test_a_verdict_is_written_with_when_the_canary_was_created(held: bool) -> None:
    ended = replace(POD, ended=True, held=held)
    assert Canaries().step(NOW + 9, RUNNING, [ended]) == [ConcludeCanary(ended, Proof(held, int(NOW), "570"))]


def test_after_no_verdict_the_next_canary_comes_later_each_time() -> None:
    machine, at, gaps = Canaries(), NOW, []
    for _ in range(3):
        failed = replace(POD, ended=True, created=at)
        assert machine.step(at, VIEW, [failed]) == [RemoveCanary(failed, "no-verdict")]
        began = at
        while not machine.step(at, VIEW, []):
            at += 10
        gaps.append(at - began)
    assert gaps == sorted(gaps)
    assert gaps[0] >= 60
    assert gaps[2] > gaps[0]


GIVES_WAY: dict[str, CanaryView] = {
    "a pod waits that would fit": replace(RUNNING, wanted=frozenset(["n1"])),
    "its card got another share": replace(RUNNING, crowded=frozenset(["uid-1"])),
}


@pytest.mark.parametrize("view", GIVES_WAY.values(), ids=GIVES_WAY.keys())
def test_it_gives_way_where(view: CanaryView) -> None:
    assert Canaries().step(NOW + 1, view, [POD]) == [RemoveCanary(POD, "gave-way")]


def test_one_that_lasts_too_long_is_removed() -> None:
    assert Canaries().step(NOW + LONGEST + 1, RUNNING, [POD]) == [RemoveCanary(POD, "too-long")]


def test_after_a_failure_the_next_one_comes_in_time_to_end_the_alert() -> None:
    machine = Canaries()
    machine.step(NOW, RUNNING, [replace(POD, ended=True, held=False)])
    assert machine.step(NOW + 60, VIEW, []) == []
    assert machine.step(NOW + 901, VIEW, []) == [StartCanary("n1", "GPU-a")]


def test_a_clock_that_was_set_back_stops_no_canary_for_good() -> None:
    machine = Canaries()
    assert machine.step(NOW, VIEW, []) == [StartCanary("n1", "GPU-a")]
    assert machine.step(NOW - 1e6, VIEW, []) == [StartCanary("n1", "GPU-a")]


def _status(**state: Any) -> dict[str, Any]:
    made = pods.canary("canary-1", "n1", "GPU-a", "image")
    status = {"phase": "Failed", "containerStatuses": [{"name": pods.CONTAINER, "state": state}]}
    return {**made, "status": status}


VERDICTS = {cudaprobe.HELD: True, cudaprobe.EXCEEDED: False, cudaprobe.BROKEN: None, 1: None, 137: None}


@pytest.mark.parametrize(("code", "held"), [*VERDICTS.items(), (False, None), ("0", None), (None, None)])
def test_only_two_exit_codes_are_a_verdict(code: object, held: bool | None) -> None:
    found = pods.read(_status(terminated={"exitCode": code}))
    assert found is not None
    assert (found.held, found.ended, found.node) == (held, True, "n1")


def test_a_pod_past_its_deadline_has_no_verdict() -> None:
    found = pods.read({**_status(), "status": {"phase": "Failed", "reason": "DeadlineExceeded"}})
    assert found is not None
    assert found.held is None


def test_a_pod_without_the_label_is_no_canary() -> None:
    assert pods.read({"metadata": {"name": "x", "labels": {str(names.CANARY): "yes"}}}) is None


NODES = ("n1", "n2", "n3", "n4", "n5", "n6")


class CanariesOfACluster(RuleBasedStateMachine):
    """The machine in a cluster where anything can happen between two steps, also to the allocator itself."""

    @initialize()
    def begin(self) -> None:
        self.now, self.count = NOW, 0
        self.pods: dict[str, CanaryPod] = {}
        self.cards: dict[str, str] = {}
        self.shared: set[str] = set()
        self.wanted: set[str] = set()
        self.awaiting = set(NODES)
        self.proofs: dict[str, Proof] = {}
        self.exits: dict[str, bool | None] = {}
        self.machine = Canaries()

    def view(self) -> CanaryView:
        taken = self.shared | set(self.cards.values())
        nodes = [
            CanaryNode(name, "570", tuple(card for card in (f"{name}-a", f"{name}-b") if card not in taken))
            for name in sorted(self.awaiting)
        ]
        crowded = frozenset(pod.uid for pod in self.pods.values() if self.cards[pod.name] in self.shared)
        return CanaryView(tuple(nodes), frozenset(self.wanted), crowded, dict.fromkeys(NODES, "570"))

    @rule(seconds=st.integers(1, 400))
    def step(self, seconds: int) -> None:
        self.now += seconds
        view, before = self.view(), list(self.pods.values())
        actions = self.machine.step(self.now, view, before)
        for action in actions:
            match action:
                case StartCanary(node, card):
                    assert card not in self.shared, "a canary where somebody has a share"
                    assert node not in self.wanted, "a canary where a pod that waits would fit"
                    assert node in self.awaiting
                    self.count += 1
                    name = f"canary-{self.count}"
                    self.pods[name] = CanaryPod(name, f"uid-{self.count}", node, self.now)
                    self.cards[name] = card
                case ConcludeCanary(pod, proof):
                    assert self.exits[pod.name] is proof.held, "a proof that no program gave"
                    assert proof.at <= pod.created
                    self.proofs[pod.node] = proof
                    self.remove(pod.name)
                case RemoveCanary(pod, _):
                    self.remove(pod.name)
        left = [pod for pod in self.pods.values() if pod in before]
        assert [pod for pod in left if pod.node in self.wanted or self.cards[pod.name] in self.shared] == []
        assert [pod for pod in left if self.now - pod.created > LONGEST] == []

    def remove(self, name: str) -> None:
        self.pods.pop(name)
        self.cards.pop(name)

    @rule(data=st.data(), held=st.sampled_from([True, False, None]))
    def a_canary_ends(self, data: st.DataObject, held: bool | None) -> None:
        alive = sorted(name for name, pod in self.pods.items() if not pod.ended)
        if alive:
            name = data.draw(st.sampled_from(alive))
            self.exits[name] = held
            self.pods[name] = replace(self.pods[name], ended=True, held=held)

    @rule(card=st.sampled_from([f"{name}-{which}" for name in NODES for which in "ab"]))
    def a_share_comes_or_goes(self, card: str) -> None:
        self.shared ^= {card}

    @rule(name=st.sampled_from(NODES))
    def a_pod_waits_or_does_not(self, name: str) -> None:
        self.wanted ^= {name}

    @rule(name=st.sampled_from(NODES))
    def a_proof_is_due_or_fresh(self, name: str) -> None:
        self.awaiting ^= {name}

    @rule()
    def another_leads(self) -> None:
        """It knows only what is on the API server."""
        self.machine = Canaries()

    @invariant()
    def few_and_one_on_each_node(self) -> None:
        nodes = [pod.node for pod in self.pods.values()]
        assert len(nodes) <= AT_ONCE
        assert len(set(nodes)) == len(nodes)


TestCanariesOfACluster = CanariesOfACluster.TestCase
TestCanariesOfACluster.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
