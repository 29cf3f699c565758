"""The administrator's options on a node: what they change at once, and what they never take from a running pod."""

from __future__ import annotations

from typing import Any

import pytest

from contract.encoding import quantity
from contract.encoding.quantity import format_bytes
from contract.encoding.reading import Malformed
from contract.model import PoolSharing
from contract.nodes.capacity import Reserve
from contract.nodes.inventories import inventory_from_object, sharing_of
from contract.options import NO_OPTIONS, Pool, PoolOptions, VgpuOptions
from contract.reasons.gpunodes import GPUNodeReason
from contract.scheduling.needs import Requirement
from nodeagent import machine
from nodeagent.agent import Agent
from nodeagent.conditions import Condition
from nodeagent.publishing.status import Terms
from nodeagent.publishing.terms import PoolDocument, pooled
from runtime.kubernetes.paths import nodes
from runtime.kubernetes.watch import Put
from tests.unit.nodeagent.builders import MIB, T4, card, observation
from tests.unit.nodeagent.cluster import Cluster

JSON = dict[str, Any]
OWN = Terms()
POOL = Pool("a", (Requirement("pool", "In", ("a",)),), VgpuOptions(5, 2.0, disable_core_limit=True))
DOCUMENT = PoolOptions(VgpuOptions(mig_strategy="none", reserve=256 * MIB), (POOL,))
OF_A = (
    ("deviceMemoryScaling", "2.0"),
    ("deviceSplitCount", "5"),
    ("disablecorelimit", "true"),
    ("migStrategy", "none"),
    ("reserveMem", "256"),
)


def test_a_pools_options_go_before_the_clusters_and_those_before_the_defaults() -> None:
    assert pooled(OWN, PoolDocument(DOCUMENT), {"pool": "a"}, {}) == Terms(
        reserve=Reserve(256 * MIB, 0), mig="none", pool="a", options=OF_A
    )
    assert pooled(OWN, PoolDocument(NO_OPTIONS), {"pool": "a"}, {}) == OWN


REFUSED = Condition(
    True,
    GPUNodeReason.CANNOT_BE_READ,
    "the options are refused, and the previous ones stay in use: f: x",
    "OptionsRefused",
)


def test_after_a_restart_with_a_wrong_document_what_is_published_counts() -> None:
    published = {"pool": "a", "options": [{"name": name, "value": value} for name, value in OF_A]}
    assert pooled(OWN, PoolDocument(None, "f: x"), {"pool": "b"}, published) == Terms(
        reserve=Reserve(256 * MIB, 0), mig="none", pool="a", options=OF_A, conditions=(REFUSED,)
    )


@pytest.mark.parametrize("options", [None, [{}], [{"name": "x", "value": "y"}], ["a"]])
def test_what_is_published_may_be_anything(options: Any) -> None:
    assert pooled(OWN, PoolDocument(None, "f: x"), {}, {"options": options}) == Terms(conditions=(REFUSED,))


class Machine:
    """A node of two T4 and its agent; the test controls the document and the allocator."""

    def __init__(self) -> None:
        self.cluster, self.options = Cluster("n1"), PoolDocument(NO_OPTIONS)
        self.now = 1_000_000.0
        self.agent = Agent(
            self.cluster.kube,
            machine.Machine(lambda: observation(card(0), card(1)), options=lambda: self.options),
            "n1",
            clock=lambda: self.now,
        )

    def counted(self, **held: int) -> None:
        """The allocator writes what is held beyond what is published now."""
        self.cluster.says_beyond("n1", **held)
        self.agent.gpunode_event(Put(self.cluster.gpunode("n1")))

    def step(self, *, after: float = 0.0) -> tuple[int, JSON]:
        """The node's GPU memory and the GPUNode's status, after a step this many seconds later."""
        self.now += after
        self.agent.node_event(Put(self.cluster.node("n1")))
        self.agent.step()
        status = self.cluster.node("n1")["status"]
        assert status["capacity"] == {**status["allocatable"], "cpu": "8"}
        inventory = inventory_from_object(self.cluster.gpunode("n1"))
        assert {gpu.sharing for gpu in inventory.gpus} == {sharing_of(dict(inventory.options))}
        memory = quantity.integer(status["capacity"]["gpufraction.io/gpu-memory"])
        return memory, self.cluster.gpunode("n1")["status"]


def test_a_change_is_published_in_the_next_step_with_its_pool_and_its_capacity() -> None:
    machine = Machine()
    assert machine.step()[0] == 2 * T4
    machine.cluster.merge(nodes("n1"), {"metadata": {"labels": {"pool": "a"}}})
    machine.options = PoolDocument(DOCUMENT)
    memory, status = machine.step()
    assert memory == 2 * 2 * (T4 - 256 * MIB)
    assert (status["pool"], {option["name"]: option["value"] for option in status["options"]}) == ("a", dict(OF_A))
    assert status["summary"]["memory"] == format_bytes(memory)
    machine.options = PoolDocument(NO_OPTIONS)
    less, status = machine.step()
    assert (less, status["pool"], status["options"]) == (memory, "", [])
    assert machine.step(after=600)[0] == memory, "pods that were placed before may still come"
    machine.counted()
    assert machine.step()[0] == 2 * T4


def test_kubelet_has_a_higher_capacity_before_the_allocator_learns_of_it() -> None:
    machine = Machine()
    machine.step()
    orders = []
    for factor in (2.0, 1.0):
        machine.options = PoolDocument(PoolOptions(VgpuOptions(device_memory_scaling=factor)))
        machine.cluster.network.calls.clear()
        machine.step()
        machine.counted()
        machine.step()
        orders.append([path for method, path in machine.cluster.network.calls if method == "PATCH"])
    node, gpunode = "/api/v1/nodes/n1/status", "/apis/gpufraction.io/v1alpha1/gpunodes/n1/status"
    assert orders == [[node, gpunode], [gpunode, node]]


def test_capacity_is_never_less_than_pods_hold_of_each_gpu() -> None:
    machine = Machine()
    machine.options = PoolDocument(PoolOptions(VgpuOptions(device_memory_scaling=3)))
    assert machine.step()[0] == 6 * T4
    machine.options = PoolDocument(NO_OPTIONS)
    machine.step()
    machine.counted(GPU_0=3 * T4, GPU_1=T4 - 5)
    memory, status = machine.step()
    assert (memory, status["options"]) == (3 * T4 + T4, [])
    machine.counted(GPU_1=T4 - 5)
    assert machine.step()[0] == 2 * T4


def test_capacity_stays_until_what_pods_hold_is_known() -> None:
    machine = Machine()
    machine.options = PoolDocument(PoolOptions(VgpuOptions(device_memory_scaling=3)))
    assert machine.step()[0] == 6 * T4
    machine.options = PoolDocument(NO_OPTIONS)
    assert [machine.step(after=after)[0] for after in (0, 61)] == [6 * T4] * 2
    machine.counted()
    assert machine.step()[0] == 2 * T4


def test_a_wrong_document_is_a_condition_and_changes_nothing() -> None:
    machine = Machine()
    machine.options = PoolDocument(DOCUMENT)
    before, status = machine.step()
    machine.options = PoolDocument(
        DOCUMENT, "options.yaml: deviceSplitCount: found 0; give a whole number from 1 to 1024"
    )
    after, now = machine.step()
    assert (after, now["options"]) == (before, status["options"])
    conditions = {item["type"]: (item["status"], item["message"][-60:]) for item in now["conditions"]}
    assert conditions["OptionsRefused"] == (
        "True",
        "deviceSplitCount: found 0; give a whole number from 1 to 1024"[-60:],
    )
    machine.options = PoolDocument(DOCUMENT)
    assert [item["type"] for item in machine.step()[1]["conditions"]] == ["Ready"]


SHARING: dict[str, tuple[dict[str, str], PoolSharing]] = {
    "nothing": ({}, PoolSharing()),
    "everything": (dict(OF_A), PoolSharing(5, 2.0, True)),
    "core limits that stay": ({"disablecorelimit": "false"}, PoolSharing()),
}


@pytest.mark.parametrize(("options", "want"), SHARING.values(), ids=SHARING.keys())
def test_what_options_say_about_sharing(options: dict[str, str], want: PoolSharing) -> None:
    assert sharing_of(options) == want


@pytest.mark.parametrize(
    "options", [{"deviceSplitCount": "many"}, {"deviceSplitCount": "-1"}, {"deviceMemoryScaling": "0.5"}]
)
def test_options_that_nobody_could_have_published_are_malformed(options: dict[str, str]) -> None:
    with pytest.raises(Malformed):
        sharing_of(options)
