"""
GPUs that disappear, are replaced, become unhealthy or offer less while pods hold them: every pod that is placed on a
healthy GPU runs.

A kubelet counts the pods of all GPUs together, including those of a removed GPU. The capacity that it reads must leave
room for both, or it fails the new pods with `OutOfgpufraction.io/gpu-memory`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from contract import names
from contract.encoding import quantity
from contract.encoding.quantity import GIB
from nodeagent.gpus.simulated import simulated_uuid
from playground import scenarios
from playground.shapes import gpu_node
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod
from tests.cluster.hostile.attack import TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
TWO = "2 x Tesla V100 16GiB"
WELL = [(simulated_uuid("n", index), "Healthy") for index in range(2)]


@dataclass
class Machine:
    """A cluster of one node whose GPUs the test controls."""

    hostile: Hostile
    path: Path

    def shows(self, gpus: str = TWO, cards: dict[int, JSON] | None = None) -> None:
        """Set what the driver shows from now on; `cards` sets deviations by index."""
        # Written under another name first: the driver would be broken by a half-written description.
        made = self.path.with_suffix(".new")
        made.write_text(json.dumps({"gpus": gpus, "cards": cards or {}}))
        made.replace(self.path)

    def scaled(self, factor: float) -> None:
        """Set the administrator's options."""
        text = yaml.safe_dump({"deviceMemoryScaling": factor}) if factor != 1 else ""
        path = paths.configmaps(names.NAMESPACE, names.OPTIONS)
        self.hostile.kube.patch_merge(path, {"data": {names.OPTIONS_FILE: text}})

    def published(self, wanted: Callable[[list[JSON]], bool]) -> None:
        """Wait until the agent has published GPUs like these."""

        def found() -> list[JSON]:
            return gpus_of(self)

        wait_for(lambda: wanted(found()), lambda: f"published is {found()}")

    def capacity(self) -> int:
        """The node's GPU memory in GiB."""
        status = self.hostile.kube.get(paths.nodes("n"))["status"]
        return quantity.integer(status["allocatable"][names.GPU_MEMORY]) // GIB

    def capacity_becomes(self, gib: int) -> None:
        wait_for(
            lambda: self.capacity() == gib,
            lambda: f"the capacity is {self.capacity()} GiB, not {gib}; {self.hostile.kube.get(paths.gpunodes('n'))}",
        )

    def run(self, *made: PodBuilder) -> None:
        """Have these pods placed."""
        for builder in made:
            self.hostile.create(builder)
        names_of = {builder.manifest()["metadata"]["name"] for builder in made}

        def found() -> list[JSON]:
            return [p for p in self.hostile.pods() if p["metadata"]["name"] in names_of]

        wait_for(
            lambda: (
                all(map(scenarios.is_running, found())) or any(p["status"].get("phase") == "Failed" for p in found())
            ),
            lambda: scenarios.shown(found()),
        )
        assert [p["status"]["phase"] for p in found()] == ["Running"] * len(made), scenarios.shown(found())

    def messages(self, name: str) -> list[str]:
        """The reasons of a pod's warnings."""
        uid = self.hostile.kube.get(paths.pods(TENANT, name))["metadata"]["uid"]
        events = self.hostile.kube.list(paths.events(TENANT)).items
        return [e["reason"] for e in events if e["involvedObject"].get("uid") == uid and e["type"] == "Warning"]


@pytest.fixture(scope="module", params=control_planes())
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    directory = tmp_path_factory.mktemp("cards")
    path = directory / "gpus.json"
    path.write_text(json.dumps({"gpus": TWO}))
    for hostile in hostile_cluster(request.param, directory, nodes=[gpu_node("n", f"@{path}")]):
        yield Machine(hostile, path)


@pytest.fixture
def machine(own: Machine) -> Iterator[Machine]:
    """The machine with two free GPUs. Afterwards it has them again, to the byte."""
    for _ in unharmed(own.hostile):
        yield own
        scenarios.clear(own.hostile.kube)
        own.shows()
        own.scaled(1)
        own.published(lambda gpus: [(gpu["uuid"], gpu["health"]) for gpu in gpus] == WELL)
        own.capacity_becomes(32)


def share(name: str, gib: int, gpu: str = "") -> PodBuilder:
    made = pod(name).asks("gpufraction.io/gpu-memory", f"{gib}Gi")
    return made.annotated("gpufraction.io/gpu-uuids", gpu) if gpu else made


def small(count: int) -> list[PodBuilder]:
    return [share(f"small-{number}", 4) for number in range(count)]


def test_a_replaced_gpu_does_not_fail_the_pods_of_the_new_one(machine: Machine) -> None:
    """C2: the kubelet still counts the pods of the old GPU, and the new GPU is filled to the last byte."""
    machine.run(share("first", 16), share("second", 16))
    machine.shows(cards={0: {"uuid": "GPU-new"}})
    machine.published(lambda gpus: gpus[0]["uuid"] == "GPU-new")
    machine.run(*small(4))
    assert machine.capacity() == 48
    (stranded,) = {name for name in ("first", "second") if old_gpu(machine, name)}
    wait_for(lambda: machine.messages(stranded) == ["GPUReplaced"], lambda: str(machine.messages(stranded)))
    machine.hostile.kube.delete(paths.pods(TENANT, stranded))
    machine.capacity_becomes(32)


def old_gpu(machine: Machine, name: str) -> bool:
    """Whether the pod holds a GPU that no longer exists."""
    here = {gpu["uuid"] for gpu in machine.hostile.kube.get(paths.gpunodes("n"))["status"]["gpus"]}
    return not scenarios.held(machine.hostile.kube.get(paths.pods(TENANT, name))).keys() <= here


def test_a_removed_gpu_does_not_fail_the_pods_of_new_ones(machine: Machine) -> None:
    """C2: one GPU disappears and two appear while pods wait. The pods are placed at once, and all run."""
    machine.run(share("first", 16), share("second", 16))
    waiting = small(8)
    for each in waiting:
        machine.hostile.create(each)
    machine.shows("4 x Tesla V100 16GiB", {0: {"vanished": True}})
    found: list[JSON] = []

    def all_run() -> bool:
        found[:] = machine.hostile.pods()
        return all(map(scenarios.is_running, found)) or any(p["status"].get("phase") == "Failed" for p in found)

    wait_for(all_run, lambda: scenarios.shown(found))
    assert [p["status"]["phase"] for p in found] == ["Running"] * 10, scenarios.shown(found)
    machine.capacity_becomes(64)
    stranded = [name for name in ("first", "second") if old_gpu(machine, name)]
    wait_for(
        lambda: [machine.messages(name) for name in stranded] == [["GPUGone"]],
        lambda: str(machine.messages(stranded[0])),
    )


def test_a_sick_gpu_keeps_its_part_of_the_capacity(machine: Machine) -> None:
    """C2: no new pod is placed on it, and its pods take nothing from the healthy one."""
    machine.run(share("first", 16))
    (held,) = scenarios.held(machine.hostile.pods()[0])
    sick = [gpu["index"] for gpu in gpus_of(machine) if gpu["uuid"] == held]
    machine.shows(cards={sick[0]: {"healthy": False, "reason": "XID 79"}})
    machine.published(lambda gpus: [gpu["health"] for gpu in gpus].count("Unhealthy") == 1)
    machine.run(*small(4))
    assert machine.capacity() == 32


def test_shares_of_a_factor_that_is_lowered_take_nothing_from_others(machine: Machine) -> None:
    """C2: what pods hold of one GPU beyond its new limit does not count against the other one."""
    machine.scaled(2)
    machine.capacity_becomes(64)
    uuids = [gpu["uuid"] for gpu in gpus_of(machine)]
    machine.run(share("first", 16, uuids[0]), share("second", 16, uuids[0]))
    machine.scaled(1)
    machine.capacity_becomes(48)
    machine.run(*small(4))


def gpus_of(machine: Machine) -> list[JSON]:
    return list(machine.hostile.kube.get(paths.gpunodes("n"))["status"]["gpus"])
