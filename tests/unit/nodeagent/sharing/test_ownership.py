"""Who may assign a node's GPUs: the vendor's device plugin or gpufraction, never both."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from contract.model import Allocation, ContainerAllocation, GpuShare
from nodeagent.agent import Agent
from nodeagent.gpus.simulated import Simulated, simulated_uuid
from nodeagent.machine import Machine
from nodeagent.sharing.holders import HolderReporter
from nodeagent.sharing.ownership import Ownership, decide, read
from nodeagent.sharing.residents import Resident, Residents, resident, trim
from runtime.kubernetes.client import JSON
from runtime.kubernetes.paths import gpunodes, namespaces, nodes, pods
from runtime.kubernetes.watch import Deleted, Put, Replaced
from tests.unit.nodeagent.builders import card, observation
from tests.unit.nodeagent.cluster import Cluster

CARDS = ("GPU-0", "GPU-1")
OURS = "gpufraction-system"


@dataclass(frozen=True)
class Case:
    ownership: Ownership
    held: frozenset[str]
    shared: frozenset[str] | None
    reported: tuple[tuple[str, bool, str], ...] = ()


CASES = {
    "no plugin: everything is shared": Case(Ownership(), frozenset(), None),
    "a plugin and no choice: nothing is": Case(
        Ownership(offered=2), frozenset(), frozenset(), (("PluginConflict", True, "NoChoice"),)
    ),
    "a word that is no choice is none": Case(
        Ownership("shared", 2), frozenset(), frozenset(), (("PluginConflict", True, "NoChoice"),)
    ),
    "dedicated, and the plugin is off": Case(Ownership("dedicated"), frozenset(), None),
    "dedicated, and the plugin is not off": Case(
        Ownership("dedicated", 2), frozenset(), frozenset(), (("PluginConflict", True, "PluginStillOn"),)
    ),
    "held: exactly what holders report": Case(
        Ownership("held", 2), frozenset({"GPU-1", "GPU-9"}), frozenset({"GPU-1"}), (("Held", True, "GPUsHeld"),)
    ),
    "held, and no holder runs": Case(Ownership("held", 2), frozenset(), frozenset(), (("Held", False, "NothingHeld"),)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_what_is_shared(case: Case) -> None:
    found = decide(case.ownership, case.held, CARDS)
    reported = tuple((condition.kind, condition.ready, condition.reason) for condition in found.conditions)
    assert (found.shared, reported) == (case.shared, case.reported)


def test_a_conflict_names_both_ways_out() -> None:
    (condition,) = decide(Ownership(offered=1), frozenset(), CARDS).conditions
    for words in ("deploy.device-plugin=false", "gpufraction.io/ownership=dedicated", "gpufraction.io/ownership=held"):
        assert words in condition.message


OFFERS = {
    "GPUs and slices count": ({"nvidia.com/gpu": "4", "nvidia.com/mig-1g.5gb": "7", "nvidia.com/gpu.shared": "2"}, 13),
    "others do not": ({"cpu": "8", "nvidia.com/hostdev": "1", "gpufraction.io/gpu-memory": "1Gi"}, 0),
    "a plugin that was turned off offers none": ({"nvidia.com/gpu": "0"}, 0),
    "what is no amount is none": ({"nvidia.com/gpu": "many"}, 0),
}


@pytest.mark.parametrize(("allocatable", "want"), OFFERS.values(), ids=OFFERS.keys())
def test_what_a_plugin_offers(allocatable: dict[str, str], want: int) -> None:
    node = {"metadata": {"labels": {"gpufraction.io/ownership": "held"}}, "status": {"allocatable": allocatable}}
    assert read(node) == Ownership("held", want)


def holder(uuids: str = "GPU-1", *, namespace: str = OURS, phase: str = "Running", **metadata: object) -> JSON:
    about = {"name": "holder", "namespace": namespace, "uid": "u1", "labels": {"gpufraction.io/holder": "true"}}
    annotations = {"annotations": {"gpufraction.io/held-gpus": uuids}}
    return {"metadata": {**about, **annotations, **metadata}, "status": {"phase": phase}}


HOLDERS = {
    "what it reports": (holder("GPU-1, GPU-0"), frozenset(CARDS)),
    "nothing while it starts": (holder(phase="Pending"), frozenset()),
    "nothing once it has ended": (holder(phase="Failed"), frozenset()),
    "nothing while it is deleted": (holder(deletionTimestamp="2026-01-01T00:00:00Z"), frozenset()),
    "nothing in a tenant's namespace": (holder(namespace="team"), frozenset()),
    "nothing without the label": (holder(labels={}), frozenset()),
}


@pytest.mark.parametrize(("pod", "want"), HOLDERS.values(), ids=HOLDERS.keys())
def test_what_counts_as_held(pod: JSON, want: frozenset[str]) -> None:
    residents = Residents()
    residents.event(Put(trim(pod)))
    assert residents.held() == want


def test_a_pod_with_shares_is_a_resident_with_its_containers() -> None:
    allocation = Allocation("a1", "n1", (ContainerAllocation("main", (GpuShare("GPU-0", 0, 1, 0, 2),)),))
    text = (
        '{"containers":[{"gpus":[{"cores":0,"index":0,"memory":1,"of":2,"uuid":"GPU-0"}],"name":"main"}],'
        '"id":"a1","node":"n1","v":1}'
    )
    pod = {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "annotations": {"gpufraction.io/allocation": text}},
        "status": {
            "phase": "Running",
            "containerStatuses": [
                {"name": "main", "containerID": "containerd://abc"},
                {"name": "side", "containerID": None},
            ],
        },
    }
    assert resident(trim(pod)) == Resident("u", "team", "p", allocation, containers=(("abc", "main"),))


def test_residents_follow_the_watch_and_tell_changes_only() -> None:
    reported: list[int] = []
    residents = Residents(on_change=lambda: reported.append(1))
    plain = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "status": {"phase": "Running"}}
    for event in (Replaced([holder(), plain]), Put(holder()), Put(plain), Deleted(holder())):
        residents.event(event)
    assert (residents.known, residents.all(), len(reported)) == (True, (), 2)


def test_a_node_from_conflict_to_held_and_back() -> None:
    cluster = Cluster("n1")
    residents = Residents()
    agent = Agent(cluster.kube, Machine(lambda: observation(card(0), card(1)), residents=residents), "n1")

    def reported() -> tuple[list[str], list[tuple[str, str]], str]:
        agent.node_event(Put(cluster.node("n1")))
        agent.step()
        cluster.says_beyond("n1")
        agent.gpunode_event(Put(cluster.gpunode("n1")))
        agent.step()
        status = cluster.gpunode("n1")["status"]
        conditions = [(item["type"], item["status"]) for item in status["conditions"]]
        cores = cluster.node("n1")["status"]["capacity"]["gpufraction.io/gpu-cores"]
        return [gpu["health"] for gpu in status["gpus"]], conditions, cores

    well, none = ["Healthy"] * 2, ["NotShared"] * 2
    assert reported() == (well, [("Ready", "True")], "200")
    cluster.merge(nodes("n1", "status"), {"status": {"allocatable": {"nvidia.com/gpu": "2"}}})
    assert reported() == (none, [("Ready", "True"), ("PluginConflict", "True")], "0")
    cluster.merge(nodes("n1"), {"metadata": {"labels": {"gpufraction.io/ownership": "held"}}})
    assert reported()[0] == none, "nothing is said anew before the pods are known"
    residents.event(Replaced([trim(holder("GPU-1"))]))
    assert reported() == (["NotShared", "Healthy"], [("Ready", "True"), ("Held", "True")], "100")
    residents.event(Deleted(holder("GPU-1")))
    assert reported() == (none, [("Ready", "True"), ("Held", "False")], "0")
    assert cluster.call("GET", gpunodes("n1"))["status"]["gpus"][1]["reason"].startswith("no holder pod keeps it")


def test_a_holder_reports_what_the_plugin_gave_it_once() -> None:
    cluster = Cluster()
    cluster.call("POST", namespaces(), {"metadata": {"name": OURS}})
    container = {"name": "holder", "image": "gpufraction"}
    cluster.call("POST", pods(OURS), {"metadata": {"name": "h"}, "spec": {"containers": [container]}})
    one = HolderReporter(cluster.kube, Simulated("2 x Tesla T4 15109MiB", node="h"), "h")
    cluster.network.down = "unreachable"
    assert (one.step(), "not reported" in one.trouble) == (False, True)
    cluster.network.down = None
    assert [one.step(), one.step()] == [True, True]
    written = cluster.call("GET", pods(OURS, "h"))["metadata"]["annotations"]["gpufraction.io/held-gpus"]
    assert written == ",".join(sorted(simulated_uuid("h", index) for index in range(2)))
    assert (len(cluster.network.writes), one.trouble) == (1, "")
