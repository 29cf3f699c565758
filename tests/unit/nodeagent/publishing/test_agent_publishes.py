"""The agent with the embedded API: what a cluster sees of it, and how often it writes."""

from __future__ import annotations

import math
import random
import threading
from dataclasses import dataclass, field

import pytest

from contract.nodes.idle import IdleShare
from contract.options import NO_OPTIONS, PoolOptions, VgpuOptions
from nodeagent import machine as machines
from nodeagent.agent import Agent
from nodeagent.gpus.observation import Observation
from nodeagent.publishing.reconcile import jittered
from nodeagent.publishing.status import DEFAULT_TERMS, JSON, Terms
from nodeagent.publishing.terms import PoolDocument
from nodeagent.settings import PaceSettings
from playground.api.api import Api
from runtime.kubernetes.client import Kube
from runtime.kubernetes.paths import gpunodes, nodes
from runtime.kubernetes.watch import Deleted, Put, Replaced
from tests.unit.nodeagent.builders import BLIND, MIB, card, observation
from tests.unit.nodeagent.cluster import Cluster
from tests.wires import Answer, Fate, Sent, Wire, status_body

FIRST = ["POST v1alpha1/gpunodes", "PATCH n1/status", "PATCH n1/status"]


@dataclass
class Machine:
    """A node with an agent; the test controls everything around it."""

    cluster: Cluster = field(default_factory=lambda: Cluster("n1"))
    observation: Observation | None = field(default_factory=lambda: observation(card(0), card(1)))
    now: float = 1_000_000.0
    idle: frozenset[IdleShare] = frozenset()
    terms: Terms = DEFAULT_TERMS
    options: PoolOptions = NO_OPTIONS

    def __post_init__(self) -> None:
        self.agent = self.another_agent()

    def another_agent(self) -> Agent:
        return Agent(
            self.cluster.kube,
            machines.Machine(
                lambda: self.observation, options=lambda: PoolDocument(self.options), idle=lambda: self.idle
            ),
            "n1",
            terms=self.terms,
            clock=lambda: self.now,
            rng=random.Random(1),
        )

    def step(self, *, after: float = 0.0) -> float:
        self.now += after
        return self.agent.step()

    def written(self) -> list[str]:
        """The writes since the last call."""
        writes, self.cluster.network.writes = self.cluster.network.writes, []
        return writes


@pytest.fixture
def machine() -> Machine:
    return Machine()


def amounts(node: JSON) -> list[JSON]:
    return [
        {key: value for key, value in node["status"][part].items() if key.startswith("gpufraction.io/")}
        for part in ("capacity", "allocatable")
    ]


def test_the_first_step_publishes_the_object_its_status_and_the_capacity(machine: Machine) -> None:
    assert machine.step() == 10.0
    node, gpunode = machine.cluster.node("n1"), machine.cluster.gpunode("n1")
    share = {"gpufraction.io/gpu-memory": "30218Mi", "gpufraction.io/gpu-cores": "200"}
    assert amounts(node) == [share, share]
    assert gpunode["metadata"]["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}
    ]
    assert gpunode["status"]["summary"] == {"gpus": 2, "healthy": 2, "models": "Tesla T4", "memory": "30218Mi"}
    assert (machine.written(), machine.agent.trouble) == (FIRST, "")


def test_other_resources_of_the_node_are_left_alone(machine: Machine) -> None:
    machine.step()
    assert machine.cluster.node("n1")["status"]["capacity"]["cpu"] == "8"


def test_nothing_is_written_or_read_while_nothing_changes(machine: Machine) -> None:
    machine.step()
    machine.cluster.network.reads, machine.cluster.network.writes = 0, []
    for _ in range(10):
        machine.step(after=10)
    assert (machine.cluster.network.reads, machine.written()) == (0, [])


STARTUP = {"key": "startup-taint.cluster-autoscaler.kubernetes.io/gpufraction", "effect": "NoSchedule"}
OTHER = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


def starting(*taints: JSON) -> Machine:
    """A node with these taints, whose agent may remove the startup taint."""
    found = Machine(terms=Terms(startup_taint=True))
    found.cluster.merge(nodes("n1"), {"spec": {"taints": list(taints)}})
    return found


def taints(machine: Machine) -> list[JSON]:
    return list(machine.cluster.node("n1").get("spec", {}).get("taints") or [])


def test_the_startup_taint_goes_after_the_gpus_are_published() -> None:
    machine = starting(OTHER, STARTUP)
    machine.step()
    assert (taints(machine), machine.written()) == ([OTHER], [*FIRST, "PATCH nodes/n1"])


def test_a_taint_that_came_since_the_agent_read_the_node_stays() -> None:
    machine = starting(STARTUP)
    machine.observation = BLIND
    machine.step()
    machine.cluster.merge(nodes("n1"), {"spec": {"taints": [OTHER, STARTUP]}})
    machine.observation = observation(card(0))
    machine.step()
    assert taints(machine) == [OTHER, STARTUP], "the removal was refused, since another taint is at that place"
    machine.step(after=10)
    assert taints(machine) == [OTHER]


def test_a_removal_that_a_policy_refuses_is_reported_and_delays_nothing_else() -> None:
    machine = starting(STARTUP)
    answered: list[Fate] = ["answered"] * 5
    machine.cluster.network.fates = [*answered, "refused"]
    machine.step()
    assert (machine.agent.trouble, taints(machine)) == ("", [STARTUP])
    machine.step(after=1)
    found = {item["type"]: item for item in machine.cluster.gpunode("n1")["status"]["conditions"]}
    assert (found["StartupTaint"]["reason"], found["Ready"]["status"]) == ("RemovalRefused", "True")
    machine.step(after=60)
    assert taints(machine) == []
    machine.step(after=1)
    assert {item["type"] for item in machine.cluster.gpunode("n1")["status"]["conditions"]} == {"Ready"}


class Guarded(Wire):
    """A cluster in which a policy refuses every write to a Node itself."""

    def __init__(self, api: Api) -> None:
        super().__init__(api)
        self.refusals = 0

    def answer(self, sent: Sent) -> Answer:
        if sent.method == "PATCH" and sent.path == nodes("n1"):
            self.refusals += 1
            return Answer(403, status_body(403, "Forbidden", "taints of the pool stay"))
        return super().answer(sent)


def test_a_removal_that_is_always_refused_is_tried_ever_more_seldom() -> None:
    machine = starting(STARTUP)
    guarded = Guarded(machine.cluster.api)
    machine.cluster.kube = Kube(guarded)
    machine.agent = machine.another_agent()
    tried = []
    for second in range(700):
        before, machine.now = guarded.refusals, 1_000_000.0 + second
        machine.step()
        tried += [second] * (guarded.refusals - before)
    assert (tried[:-1], len(tried)) == ([0, 10, 30, 70, 150, 268, 386, 504], 9)
    found = {item["type"]: item for item in machine.cluster.gpunode("n1")["status"]["conditions"]}
    assert "taints of the pool stay" in found["StartupTaint"]["message"]
    assert len(guarded.writes) < 10, "the figures once, the condition once, and heartbeats"


@pytest.mark.parametrize("fate", ["unreachable", "lost-and-done", "dropped"])
def test_a_removal_without_an_answer_is_looked_at_and_ends_once(fate: Fate) -> None:
    machine = starting(STARTUP, OTHER)
    before: list[Fate] = ["answered"] * 5
    machine.cluster.network.fates = [*before, fate]
    machine.step()
    machine.step(after=10)
    machine.step(after=10)
    assert (taints(machine), machine.agent.trouble) == ([OTHER], "")


def test_a_restarted_agent_takes_the_startup_taint_of_a_new_registration_off() -> None:
    machine = starting(STARTUP)
    machine.step()
    machine.cluster.merge(nodes("n1"), {"spec": {"taints": [STARTUP]}})
    machine.agent = machine.another_agent()
    machine.step(after=10)
    assert taints(machine) == []


def test_a_startup_taint_that_the_agent_may_not_remove_is_reported(machine: Machine) -> None:
    machine.cluster.merge(nodes("n1"), {"spec": {"taints": [STARTUP]}})
    machine.step()
    found = {item["type"]: item for item in machine.cluster.gpunode("n1")["status"]["conditions"]}
    assert (found["StartupTaint"]["status"], taints(machine)) == ("True", [STARTUP])
    assert "manifests/components/startup-taint" in found["StartupTaint"]["message"]
    machine.cluster.merge(nodes("n1"), {"spec": {"taints": []}})
    machine.agent.node_event(Put(machine.cluster.node("n1")))
    machine.step(after=10)
    assert {item["type"] for item in machine.cluster.gpunode("n1")["status"]["conditions"]} == {"Ready"}


def test_the_heartbeat_writes_the_status_alone(machine: Machine) -> None:
    machine.step()
    before = machine.cluster.gpunode("n1")["status"]
    machine.written()
    machine.step(after=331)
    after = machine.cluster.gpunode("n1")["status"]
    assert machine.written() == ["PATCH n1/status"]
    assert after == {**before, "observedAt": after["observedAt"]} != before
    assert after["heartbeatSeconds"] == math.ceil(jittered(PaceSettings().heartbeat, "n1"))


def test_a_restarted_agent_writes_nothing(machine: Machine) -> None:
    machine.step()
    machine.written()
    machine.agent = machine.another_agent()
    machine.step(after=100)
    assert machine.written() == []


def test_a_share_that_begins_or_ends_to_be_idle_is_one_write(machine: Machine) -> None:
    machine.step()
    machine.written()
    machine.idle = frozenset((IdleShare(1_700_000_000, "uid-a"),))
    for _ in range(9):
        machine.step(after=10)
    found = machine.cluster.gpunode("n1")["status"]
    assert (found["idle"], machine.written()) == (
        [{"pod": "uid-a", "since": "2023-11-14T22:13:20Z"}],
        ["PATCH n1/status"],
    )
    machine.observation = BLIND
    machine.step(after=10)
    assert "idle" not in machine.cluster.gpunode("n1")["status"], "of a driver that does not answer nobody is idle"
    machine.observation, machine.idle = observation(card(0), card(1)), frozenset()
    machine.step(after=10)
    assert "idle" not in machine.cluster.gpunode("n1")["status"]


def test_a_sick_card_is_published_at_once(machine: Machine) -> None:
    machine.step()
    machine.observation = observation(card(0), card(1, healthy=False, reason="XID 79"))
    machine.step(after=1)
    gpus = machine.cluster.gpunode("n1")["status"]["gpus"]
    assert [(gpu["health"], gpu["reason"]) for gpu in gpus] == [("Healthy", ""), ("Unhealthy", "XID 79")]


def test_a_driver_that_goes_takes_its_gpus_away_and_gives_them_back(machine: Machine) -> None:
    machine.step()
    seen = machine.observation
    machine.observation = BLIND
    machine.step(after=1)
    status = machine.cluster.gpunode("n1")["status"]
    none = {"gpufraction.io/gpu-memory": "0", "gpufraction.io/gpu-cores": "0"}
    assert (status["gpus"], status["problem"]) == ([], "the NVIDIA kernel driver is not loaded")
    machine.cluster.says_beyond("n1")
    machine.agent.gpunode_event(Put(machine.cluster.gpunode("n1")))
    machine.step(after=1)
    assert amounts(machine.cluster.node("n1")) == [none, none]
    assert machine.agent.trouble == "the NVIDIA kernel driver is not loaded"
    machine.observation = seen
    machine.step(after=1)
    assert (len(machine.cluster.gpunode("n1")["status"]["gpus"]), machine.agent.trouble) == (2, "")


def test_cards_are_cordoned_and_freed_by_the_annotation_of_their_node(machine: Machine) -> None:
    def health_with(value: str | None) -> list[str]:
        machine.cluster.merge(nodes("n1"), {"metadata": {"annotations": {"gpufraction.io/cordon": value}}})
        machine.agent.node_event(Put(machine.cluster.node("n1")))
        machine.step(after=1)
        return [gpu["health"] for gpu in machine.cluster.gpunode("n1")["status"]["gpus"]]

    assert health_with("GPU-1, GPU-7") == ["Healthy", "Cordoned"]
    assert health_with("GPU-0,GPU-1") == ["Cordoned", "Cordoned"]
    assert health_with(None) == ["Healthy", "Healthy"]


def test_the_reserve_is_kept_back_from_each_card() -> None:
    machine = Machine(options=PoolOptions(VgpuOptions(reserve=256 * MIB)))
    machine.step()
    assert amounts(machine.cluster.node("n1"))[0]["gpufraction.io/gpu-memory"] == "29706Mi"


def test_capacity_that_a_kubelet_wiped_is_back_in_the_next_step(machine: Machine) -> None:
    machine.step()
    machine.written()
    machine.cluster.wipe_capacity("n1")
    machine.agent.node_event(Put(machine.cluster.node("n1")))
    machine.step(after=11)
    assert machine.written() == ["PATCH n1/status"]
    assert amounts(machine.cluster.node("n1"))[0]["gpufraction.io/gpu-cores"] == "200"


def test_an_object_that_somebody_deleted_is_made_again(machine: Machine) -> None:
    machine.step()
    machine.written()
    machine.agent.gpunode_event(Deleted(machine.cluster.gpunode("n1")))
    machine.cluster.call("DELETE", gpunodes("n1"))
    machine.step(after=1)
    assert machine.written() == FIRST[:2]


def test_what_the_watch_says_of_our_own_writes_costs_nothing(machine: Machine) -> None:
    machine.step()
    machine.cluster.network.reads = 0
    machine.agent.node_event(Replaced([machine.cluster.node("n1")]))
    machine.agent.gpunode_event(Put(machine.cluster.gpunode("n1")))
    machine.step(after=1)
    assert machine.cluster.network.reads == 0


def test_an_outage_ends_in_one_read_and_one_write(machine: Machine) -> None:
    machine.step()
    machine.written()
    machine.cluster.network.down = "unreachable"
    machine.observation = observation(card(0))
    pauses = [machine.step(after=10) for _ in range(12)]
    assert machine.agent.trouble == "the inventory is not published: connection refused"
    assert all(0.5 <= pause <= 60 for pause in pauses)
    assert sum(pauses[6:]) > 6 * 30
    machine.cluster.network.down, machine.cluster.network.reads = None, 0
    machine.observation = observation(card(1))
    assert machine.step(after=10) == 10.0
    event = "POST default/events"  # card 0 is removed; its capacity stays until the allocator has written who holds it
    assert (machine.cluster.network.reads, machine.written()) == (2, ["PATCH n1/status", event])
    assert machine.agent.trouble == ""


OUTCOMES: dict[str, tuple[Fate, list[str]]] = {
    "it was never sent": ("unreachable", ["PATCH n1/status"]),
    "it was done, and nobody said so": ("lost-and-done", []),
    "it was lost, and nobody said so": ("dropped", ["PATCH n1/status"]),
}


@pytest.mark.parametrize(("fate", "again"), OUTCOMES.values(), ids=OUTCOMES.keys())
def test_a_write_whose_outcome_is_unknown_is_read_back(machine: Machine, fate: Fate, again: list[str]) -> None:
    machine.step()
    machine.observation = observation(card(0), card(1, healthy=False, reason="lost"))
    machine.cluster.network.fates = [fate]
    machine.step(after=1)
    machine.written()
    machine.step(after=2)
    assert machine.written() == again
    assert machine.cluster.gpunode("n1")["status"]["gpus"][1]["health"] == "Unhealthy"


def test_a_name_that_no_node_has_is_reported_and_waited_for(machine: Machine) -> None:
    machine.cluster.call("DELETE", nodes("n1"))
    machine.step()
    assert machine.agent.trouble == "there is no Node named 'n1'; set node to the name of this machine's Node"
    machine.cluster.add_node("n1")
    machine.step(after=10)
    assert (machine.written(), machine.agent.trouble) == (FIRST, "")


def test_a_cluster_without_our_definition_is_reported_as_missing_it(machine: Machine) -> None:
    machine.cluster.api.kinds.replace_custom("gpufraction.io", "gpunodes", ())
    machine.step()
    assert machine.agent.trouble == (
        "the inventory is not published: POST /apis/gpufraction.io/v1alpha1/gpunodes: 404 NotFound: the server could "
        "not find the requested resource; is the CustomResourceDefinition of GPUNode installed?"
    )


def test_nothing_is_published_before_the_first_look(machine: Machine) -> None:
    machine.observation = None
    machine.step()
    assert (machine.written(), machine.agent.trouble) == ([], "no GPU was looked at yet")


def test_the_loop_ends_when_it_is_stopped(machine: Machine) -> None:
    stopping = threading.Event()
    thread = threading.Thread(target=machine.agent.run, args=(stopping,), name="agent-under-test", daemon=True)
    thread.start()
    stopping.set()
    machine.agent.wake()
    thread.join(5)
    assert not thread.is_alive()
