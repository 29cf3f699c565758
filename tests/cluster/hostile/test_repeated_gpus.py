"""
Two nodes report one card, because one lies or because two kubelets run on one machine: it is allocated once, and shown.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names
from nodeagent.gpus.simulated import simulated_uuid
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.hostile.attack import TENANT, Hostile, hostile_cluster
from tests.cluster.system import invariants
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
CARD = "1 x Tesla T4 15109MiB"
CARDS = {name: simulated_uuid(name, 0) for name in ("a", "b", "c")}


class Repeated:
    """Three nodes of one card each; `b` may report the card of `a`."""

    def __init__(self, hostile: Hostile, file: Path) -> None:
        self.hostile, self.kube, self._file = hostile, hostile.kube, file

    def reports(self, card: str) -> None:
        """Make the agent of `b` report this card from now on."""
        shown(self._file, card)
        wait_for(lambda: [gpu["uuid"] for gpu in self.status("b")["gpus"]] == [card], "the agent of b is late")

    def status(self, node: str) -> JSON:
        found: JSON = self.kube.get(paths.gpunodes(node))["status"]
        return found

    def condition(self, node: str) -> JSON:
        conditions = self.status(node)["conditions"]
        return next((each for each in conditions if each["type"] == "GpusUnique"), {})

    def shown_on(self, *nodes: str) -> bool:
        return {node for node in CARDS if self.condition(node).get("status") == "False"} == set(nodes)

    def events(self) -> set[str]:
        found = self.kube.list(paths.events("default")).items
        return {each["involvedObject"]["name"] for each in found if each["reason"] == "GPURepeated"}

    def create(self, name: str, memory: str = "7000Mi") -> None:
        self.hostile.create(pod(name).asks(names.GPU_MEMORY, memory))

    def nodes_of(self, *pods: str) -> list[str]:
        return [str(self.kube.get(paths.pods(TENANT, name))["spec"].get("nodeName", "")) for name in pods]


def shown(file: Path, card: str) -> None:
    beside = file.with_suffix(".new")
    beside.write_text(json.dumps({"gpus": CARD, "cards": {"0": {"uuid": card}}}))
    beside.replace(file)


@pytest.fixture(scope="module", params=control_planes())
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repeated]:
    directory = tmp_path_factory.mktemp("repeated")
    file = directory / "b.json"
    shown(file, CARDS["b"])
    nodes = [gpu_node("a", CARD), gpu_node("b", f"@{file}"), gpu_node("c", CARD)]
    for hostile in hostile_cluster(request.param, directory, nodes=nodes):
        yield Repeated(hostile, file)


@pytest.fixture
def repeated(attacked: Repeated) -> Iterator[Repeated]:
    yield attacked
    scenarios.clear(attacked.kube, TENANT)
    attacked.reports(CARDS["b"])
    wait_for(lambda: attacked.shown_on(), "the condition stays")
    invariants.check(attacked.hostile.cluster, labelled=(TENANT, "neighbour"))


def test_a_card_that_two_nodes_report_is_booked_on_one(repeated: Repeated) -> None:
    repeated.reports(CARDS["a"])
    wait_for(lambda: repeated.shown_on("a", "b"), lambda: str([repeated.condition(node) for node in CARDS]))
    wait_for(lambda: repeated.events() == {"a", "b"}, lambda: str(repeated.events()))
    # Two halves of a card each: what two cards have room for, and no more.
    for number in range(6):
        repeated.create(f"half-{number}")
    found = [f"half-{number}" for number in range(6)]
    wait_for(lambda: sum(map(bool, repeated.nodes_of(*found))) == 4, lambda: str(repeated.nodes_of(*found)))
    placed = sorted(filter(None, repeated.nodes_of(*found)))
    assert placed == ["a", "a", "c", "c"]
    repeated.reports(CARDS["b"])
    wait_for(lambda: all(repeated.nodes_of(*found)), lambda: str(repeated.nodes_of(*found)))
    assert sorted(repeated.nodes_of(*found)) == ["a", "a", "b", "b", "c", "c"]


def test_a_node_that_takes_over_a_card_in_use_gets_no_pod_of_it(repeated: Repeated) -> None:
    repeated.hostile.create(pod("owner").selects(**{"kubernetes.io/hostname": "a"}).asks(names.GPU_MEMORY, "1Gi"))
    wait_for(lambda: repeated.nodes_of("owner") == ["a"], "the owner is not placed")
    repeated.reports(CARDS["a"])
    wait_for(lambda: repeated.shown_on("a", "b"), "no condition")
    assert repeated.condition("b")["message"] == (
        f"GPU {CARDS['a']} is also reported by node a, and accepts no new pods here"
    )
    repeated.hostile.create(pod("mate").selects(**{"kubernetes.io/hostname": "a"}).asks(names.GPU_MEMORY, "1Gi"))
    wait_for(lambda: repeated.nodes_of("mate") == ["a"], "a serves nobody any more")
