"""
Whatever happens, in any order, the published state becomes what the machine shows, and then nothing more is written.

The real agent runs with the real embedded API; the test controls only time, the network and the watch.
"""

from __future__ import annotations

import contextlib
import random

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from contract.encoding.reading import Malformed
from contract.nodes.inventories import inventory_from_object
from contract.reasons.gpunodes import GPUNodeReason
from nodeagent.agent import Agent
from nodeagent.gpus.observation import Observation
from nodeagent.machine import Machine
from nodeagent.publishing.reconcile import LABELS, node_view, object_view
from nodeagent.publishing.status import Terms, desired
from nodeagent.settings import PaceSettings
from runtime.kubernetes.client import JSON
from runtime.kubernetes.paths import gpunodes, nodes
from runtime.kubernetes.watch import Event, Put, Replaced
from tests.examples import examples
from tests.unit.nodeagent.builders import BLIND, card, observation
from tests.unit.nodeagent.cluster import Cluster
from tests.wires import Fate

HEARTBEAT = 300.0
STARTUP = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction", "effect": "NoSchedule"}
OTHERS = (
    {"key": "nvidia.com/gpu", "effect": "NoSchedule"},
    {"key": "example.com/a", "value": "b", "effect": "NoExecute"},
)
FATES: tuple[Fate, ...] = ("answered", "unreachable", "lost-and-done", "dropped")
SIGHTS = (
    observation(card(0), card(1)),
    observation(card(0), card(1, healthy=False, reason="lost")),
    observation(card(0, healthy=False, reason="lost"), card(1, uuid="")),
    observation(card(1)),
    observation(card(0, uuid="GPU-new"), card(1)),
    BLIND,
    Observation(driver="550.54.15", problem="the driver works but reports no GPU", reason=GPUNodeReason.NO_GPU),
)


class Convergence(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster("n1")
        self.now = 1_000_000.0
        self.observation = SIGHTS[0]
        self.stale: list[JSON] = []
        self.start_agent()

    @rule()
    def start_agent(self) -> None:
        """Start an agent, or restart it: a new agent has no memory."""
        self.agent = Agent(
            self.cluster.kube,
            Machine(lambda: self.observation),
            "n1",
            PaceSettings(heartbeat=HEARTBEAT),
            terms=Terms(startup_taint=True),
            clock=lambda: self.now,
            rng=random.Random(0),
        )

    @rule(seconds=st.sampled_from([0.0, 0.5, 10.0, 60.0, 400.0, -30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=5))
    def the_agent_steps(self, fates: list[Fate]) -> None:
        self.cluster.network.fates = list(fates)
        assert self.agent.step() > 0
        self.cluster.network.fates = []

    @rule(seen=st.sampled_from(SIGHTS))
    def the_machine_changes(self, seen: Observation) -> None:
        self.observation = seen

    @rule()
    def a_kubelet_wipes_the_capacity(self) -> None:
        if self.found(nodes("n1")):
            self.cluster.wipe_capacity("n1")
        self.watch_tells()

    @rule()
    def the_node_is_registered_again(self) -> None:
        self.delete(nodes("n1"))
        self.cluster.add_node("n1")
        self.watch_tells()

    @rule(first=st.booleans(), seen=st.booleans())
    def the_startup_taint_is_put_on(self, first: bool, seen: bool) -> None:
        """A cloud adds it before or after other taints; the agent may not have seen it at its next write."""
        if self.found(nodes("n1")):
            taints = [STARTUP, *OTHERS] if first else [*OTHERS, STARTUP]
            self.cluster.merge(nodes("n1"), {"spec": {"taints": taints}})
        if seen:
            self.watch_tells()

    @rule(count=st.sampled_from([0, 1, 2]))
    def other_taints_change(self, count: int) -> None:
        if found := self.found(nodes("n1")):
            mine = [taint for taint in found.get("spec", {}).get("taints") or [] if taint["key"] == STARTUP["key"]]
            self.cluster.merge(nodes("n1"), {"spec": {"taints": [*OTHERS[:count], *mine]}})

    @rule()
    def somebody_deletes_the_object(self) -> None:
        self.delete(gpunodes("n1"))
        self.watch_tells()

    @rule(
        patch=st.sampled_from(
            [
                {"status": {"gpus": []}},
                {"status": {"conditions": None, "observedAt": None}},
                {"status": {"observedAt": "2999-01-01T00:00:00Z"}},
            ]
        )
    )
    def somebody_edits_the_status(self, patch: JSON) -> None:
        if self.found(gpunodes("n1")):
            self.cluster.merge(gpunodes("n1", "status"), patch)
        self.watch_tells()

    @rule()
    def somebody_edits_the_metadata(self) -> None:
        if self.found(gpunodes("n1")):
            self.cluster.merge(gpunodes("n1"), {"metadata": {"labels": None, "ownerReferences": None}})
        self.watch_tells()

    @rule()
    def the_allocator_counts(self) -> None:
        """Nothing is held here."""
        if self.found(gpunodes("n1")):
            with contextlib.suppress(Malformed):
                self.cluster.says_beyond("n1")
        self.watch_tells()

    @rule()
    def the_watch_is_late(self) -> None:
        """The watch delivers an event from before the agent's own last write."""
        for gpunode in self.stale:
            self.agent.gpunode_event(Put(gpunode))

    def watch_tells(self) -> None:
        found = self.found(gpunodes("n1"))
        self.stale = [found] if found else []
        self.agent.node_event(self.event(nodes("n1")))
        self.agent.gpunode_event(self.event(gpunodes("n1")))

    def event(self, path: str) -> Event:
        found = self.found(path)
        return Replaced([found] if found else [])

    def found(self, path: str) -> JSON | None:
        status, answer = self.cluster.api.call("GET", path)
        return answer if status == 200 else None

    def taints(self) -> tuple[list[JSON], bool]:
        """The Node's other taints, and whether it has the startup taint."""
        taints = self.cluster.node("n1").get("spec", {}).get("taints") or []
        others = [taint for taint in taints if taint["key"] != STARTUP["key"]]
        return others, len(others) < len(taints)

    def delete(self, path: str) -> None:
        if self.found(path):
            self.cluster.call("DELETE", path)

    def teardown(self) -> None:
        others, starting = self.taints()
        for _ in range(4):
            self.agent.step()
            self.the_allocator_counts()
            self.now += HEARTBEAT * 1.1
        self.agent.step()
        wanted = desired("n1", self.observation)
        node, gpunode = self.cluster.node("n1"), self.cluster.gpunode("n1")
        assert inventory_from_object(gpunode) == wanted.inventory
        assert (node_view(node).capacity, node_view(node).allocatable) == (wanted.amounts, wanted.amounts)
        assert self.taints() == (others, starting and not wanted.condition.ready)
        seen = object_view(gpunode)
        assert (seen.owner, dict(seen.labels)) == (node["metadata"]["uid"], LABELS)
        self.agent.step()
        self.cluster.network.writes.clear()
        for _ in range(20):
            self.now += 10
            self.agent.step()
        assert self.cluster.network.writes == []


def test_any_history_converges_and_then_rests() -> None:
    run_state_machine_as_test(
        Convergence,
        settings=settings(
            max_examples=examples(40), stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )
