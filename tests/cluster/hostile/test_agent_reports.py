"""
Agents report about pods and the allocator acts. Watch mode works whichever replica leads, and a stolen agent token
affects no other nodes.

The tests run on both control planes and check what happens to the pods.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.cluster import account
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeForbidden, KubeInvalid, KubeNotFound
from tests.builders import pod
from tests.cluster.hostile.attack import TENANT, Hostile, hostile_cluster
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
ONE, OTHER = "one", "other"
CARD = "1 x Tesla T4 15109MiB"
AGENT = ("--overuse-grace", "0s", "--overuse-slack", "0", "--evict-overuse", "4s", "--heartbeat", "10s")
COMPONENTS = ("allocator-eviction", "node-access")
ELECTION = ("--election-lease", "3s")


class Watched:
    """Two nodes of one card each, whose agents read a file as their driver."""

    def __init__(self, hostile: Hostile, files: dict[str, Path]) -> None:
        self.hostile, self.kube, self._files = hostile, hostile.kube, files

    def run(self, name: str, node: str) -> JSON:
        """A pod with 4 GiB there, running."""
        self.hostile.create(pod(name).selects(**{"kubernetes.io/hostname": node}).asks(names.GPU_MEMORY, "4Gi"))
        wait_for(lambda: scenarios.is_running(self.pod(name)), lambda: f"{name} does not run")
        return self.pod(name)

    def pod(self, name: str) -> JSON:
        return self.kube.get(paths.pods(TENANT, name))

    def is_deleted(self, name: str) -> bool:
        try:
            return bool(self.pod(name)["metadata"].get("deletionTimestamp"))
        except KubeNotFound:
            return True

    def uses(self, node: str, amount: str = "", *pods: JSON) -> None:
        """These pods' containers use this much memory of the node's card."""
        held = {
            each["containerID"].rpartition("//")[2]: amount for p in pods for each in p["status"]["containerStatuses"]
        }
        shown(self._files[node], held)

    def events(self, uid: str) -> list[JSON]:
        """The Warnings about a pod that follow agents' reports."""
        found = self.kube.list(paths.events(TENANT)).items
        return [e for e in found if e["involvedObject"].get("uid") == uid and e["type"] == "Warning"]

    def leader(self) -> int:
        for replica in self.hostile.cluster.replicas:
            if invariants.figures(self.hostile.cluster, replica.number).get("gpufraction_leader") == 1:
                return replica.number
        return -1

    def thief(self, node: str) -> Kube:
        """The agent of that node has ended, and an attacker has its token."""
        plane, directory = self.hostile.cluster.control_plane, self.hostile.cluster.directory
        path = directory / f"kubeconfig-thief-{node}"
        path.write_text(plane.kubeconfig(account("gpufraction-nodeagent", node=node, components=COMPONENTS)))
        return Kube.connect(kubeconfig=str(path), user_agent="thief")


def shown(file: Path, held: JSON) -> None:
    """Replaced in one step, because the agent may read it at any time."""
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps({"gpus": CARD, "cards": {"0": {"holding": held}}}))
    beside.replace(file)


@pytest.fixture(scope="module", params=control_planes())
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    directory = tmp_path_factory.mktemp("reports")
    files = {name: directory / f"{name}.json" for name in (ONE, OTHER)}
    for file in files.values():
        shown(file, {})
    for hostile in hostile_cluster(
        request.param,
        directory,
        nodes=[gpu_node(name, f"@{file}") for name, file in files.items()],
        flags=ELECTION,
        nodeagent=AGENT,
        components=COMPONENTS,
    ):
        yield Watched(hostile, files)


@pytest.fixture
def watched(attacked: Watched) -> Iterator[Watched]:
    yield attacked
    for node in (ONE, OTHER):
        attacked.uses(node)
    scenarios.clear(attacked.kube, TENANT)
    invariants.check(attacked.hostile.cluster, labelled=(TENANT, "neighbour"))


def test_who_uses_too_much_is_warned_and_evicted_and_others_are_not(watched: Watched) -> None:
    greedy, modest = watched.run("greedy", ONE), watched.run("modest", ONE)
    watched.uses(ONE, "5GiB", greedy)
    uid = greedy["metadata"]["uid"]
    wait_for(lambda: watched.is_deleted("greedy"), "the greedy pod is not evicted")
    wait_for(lambda: len(watched.events(uid)) == 2, lambda: str(watched.events(uid)))
    start = "container main uses 5120 MiB of GPU "
    assert {(e["reason"], e["source"]["component"], e["message"].startswith(start)) for e in watched.events(uid)} == {
        ("GPUMemoryOveruse", "gpufraction-allocator", True)
    }
    ends = sorted(event["message"].partition("; ")[2] for event in watched.events(uid))
    assert ends == [
        "the pod is evicted as soon as its disruption budgets allow it",
        "the pod is evicted if this continues for 4 s",
    ]
    assert (watched.events(modest["metadata"]["uid"]), watched.is_deleted("modest")) == ([], False)


def test_the_next_leader_evicts_and_tells_nothing_twice(watched: Watched) -> None:
    greedy = watched.run("greedy", ONE)
    uid, cluster = greedy["metadata"]["uid"], watched.hostile.cluster
    wait_for(lambda: watched.leader() >= 0, "nobody leads")
    leader = cluster.replicas[watched.leader()].name("allocator")
    watched.uses(ONE, "5GiB", greedy)
    wait_for(lambda: watched.events(uid), "no warning")
    cluster.programs[leader].kill()
    try:
        wait_for(lambda: watched.is_deleted("greedy"), "the greedy pod is not evicted by the next leader")
        wait_for(lambda: len(watched.events(uid)) == 2, lambda: str(watched.events(uid)))
    finally:
        cluster.programs[leader].start()
    time.sleep(2)
    assert len({event["metadata"]["name"] for event in watched.events(uid)}) == 2


def forged(uid: str, gpu: str, **fields: Any) -> JSON:
    report = {"pod": uid, "code": "GPUMemoryOveruse", "container": 0, "gpu": gpu, "since": "2030-01-01T00:00:00Z"}
    return {**report, "usedBytes": 1 << 40, "evict": True, **fields}


def test_a_stolen_agent_ends_pods_of_its_own_node_only(watched: Watched) -> None:
    own, others = watched.run("own", ONE), watched.run("others", OTHER)
    cards = {node: watched.kube.get(paths.gpunodes(node))["status"]["gpus"][0]["uuid"] for node in (ONE, OTHER)}
    kube, agent = watched.thief(ONE), watched.hostile.cluster.programs[f"nodeagent-{ONE}"]
    uid = others["metadata"]["uid"]
    agent.kill()
    try:
        lies = [forged(uid, cards[ONE]), forged(uid, cards[OTHER]), forged(uid, cards[OTHER], code="GPUUnhealthy")]
        kube.patch_merge(paths.gpunodes(ONE, "status"), {"status": {"reports": lies}})
        for write in ({"code": "Evicted"}, {"pod": ""}, {"usedBytes": -1}):
            body = {"status": {"reports": [forged(uid, cards[ONE], **write)]}}
            with pytest.raises(KubeInvalid):
                kube.patch_merge(paths.gpunodes(ONE, "status"), body)
        with pytest.raises((KubeInvalid, KubeForbidden)):
            kube.patch_merge(paths.gpunodes(OTHER, "status"), {"status": {"reports": lies}})
        time.sleep(4)
        assert (watched.is_deleted("others"), watched.events(uid)) == (False, [])
        lies.append(forged(own["metadata"]["uid"], cards[ONE]))
        kube.patch_merge(paths.gpunodes(ONE, "status"), {"status": {"reports": lies}})
        wait_for(lambda: watched.is_deleted("own"), "its own node's pod is not evicted")
        time.sleep(2)
        assert (watched.is_deleted("others"), watched.events(uid)) == (False, [])
    finally:
        agent.start()
    assert watched.hostile.neighbour_is_served() < 30


def test_a_stolen_agent_evicts_nobody_and_writes_no_event_about_a_pod(watched: Watched) -> None:
    made = watched.run("own", ONE)
    kube, about = watched.thief(ONE), made["metadata"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "own", "namespace": TENANT}}
    with pytest.raises(KubeForbidden):
        kube.create(paths.pods(TENANT, "own", "eviction"), eviction)
    event = {
        "metadata": {"generateName": "own.", "namespace": TENANT},
        "involvedObject": {"kind": "Pod", "namespace": TENANT, "name": "own", "uid": about["uid"], "apiVersion": "v1"},
        "type": "Warning",
        "reason": "GPUGone",
        "message": "m",
        "source": {"component": "gpufraction-nodeagent", "host": ONE},
    }
    with pytest.raises(KubeInvalid):
        kube.create(paths.events(TENANT), event)
