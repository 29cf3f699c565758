"""
B3: with the component hide-gpus a pod sees no GPU for a resource that its node does not have, however the pod gets
there. On a node whose own plugin assigns GPUs, it sees the plugin's GPUs.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import IMAGE, PodBuilder, pod
from tests.cluster.hiding import hide_gpus
from tests.cluster.hostile.attack import Hostile, hostile_cluster, unharmed
from tests.cluster.hostile.replicas import asking
from tests.clusters import control_planes

JSON = dict[str, Any]
pytestmark = [pytest.mark.hostile, pytest.mark.long]
MIG = "nvidia.com/mig-1g.10gb"
NODE = paths.path("v1", "nodes", name="t4")
VISIBLE = str(names.VISIBLE_DEVICES)


@pytest.fixture(scope="module", params=control_planes())
def hiding(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    flags = ("--hide-gpus=true",)
    for made in hostile_cluster(request.param, tmp_path_factory.mktemp("hiding"), webhook=flags):
        hide_gpus(made.cluster)
        made.kube.patch_merge(f"{NODE}/status", {"status": {"capacity": {MIG: "2"}}})
        wait_for(
            lambda: MIG in made.kube.get(NODE)["status"]["allocatable"],  # noqa: B023
            "the node does not offer the slice",
        )
        yield made


@pytest.fixture
def hidden(hiding: Hostile) -> Iterator[Hostile]:
    yield from unharmed(hiding)


def greedy(name: str, resource: str = "", amount: int = 1) -> PodBuilder:
    """A container that names all GPUs of its node."""
    made = pod(name).container("main", image=IMAGE).env(VISIBLE, "all")
    return made.asks(resource, amount) if resource else made


SEES_NOTHING: dict[str, PodBuilder] = {
    "nothing asked": greedy("none").on("t4"),
    "a made-up name": greedy("foo", "nvidia.com/foo").on("t4"),
    "a slice that the node does not have": greedy("slice", "nvidia.com/mig-7g.80gb").on("t4"),
    "a slice that another node has": greedy("other", MIG).on("v100"),
    "a shared GPU that nobody has": greedy("shared", "nvidia.com/gpu.shared").on("t4"),
    "none of a slice": greedy("zero", MIG, 0).on("t4"),
    "no GPU": greedy("gpu", "nvidia.com/gpu", 0).on("t4"),
    "an init container": greedy("init", "nvidia.com/foo").init("first", image=IMAGE).env(VISIBLE, "all").on("t4"),
    "behind an annotation": greedy("cdi", "nvidia.com/foo")
    .annotated("nvidia.cdi.k8s.io/container.main", "nvidia.com/gpu=all")
    .on("t4"),
    "a toleration of everything": greedy("tolerant", "nvidia.com/foo").tolerates().on("t4"),
}


@pytest.mark.parametrize("leads", [True, False], ids=["the leader is asked", "a follower is asked"])
def test_a_made_up_resource_shows_no_gpu(hidden: Hostile, leads: bool) -> None:
    with asking(hidden, leads=leads):
        made = [hidden.create(each) for each in SEES_NOTHING.values()]
    found = scenarios.settled(hidden.kube, len(made), running=len(made))
    assert {each["metadata"]["name"]: seen(hidden, each) for each in found if seen(hidden, each)} == {}
    for each in found:
        for container in (*each["spec"].get("initContainers", ()), *each["spec"]["containers"]):
            assert container["env"][0] == {"name": VISIBLE, "value": names.NO_DEVICES}


def seen(on: Hostile, made: JSON) -> list[str]:
    """The GPUs that the pod's first container prints."""
    text = scenarios.printed(on.kube, made)
    assert f"{VISIBLE}=" in text, text
    return re.findall(r"^GPU \d+: .*", text, re.MULTILINE)


def test_what_the_nodes_own_plugin_hands_out_is_left_to_it(hidden: Hostile) -> None:
    """The plugin's choice is in the variable that kubelet sets. A tenant's variable would win, so it is removed."""
    for made in (greedy("bound", MIG).on("t4"), greedy("scheduled", MIG)):
        stored = hidden.create(made, dry_run=True)
        assert [entry for entry in stored["spec"]["containers"][0].get("env", []) if entry["name"] == VISIBLE] == []


def test_without_an_allocator_no_resource_is_offered(hidden: Hostile) -> None:
    """The allocator next to the webhook is paused for a moment."""
    with asking(hidden, leads=False) as number:
        allocator = hidden.cluster.programs[hidden.cluster.replicas[number].name("allocator")]
        stored = [hidden.create(greedy("bound", MIG).on("t4"), dry_run=True)]
        os.kill(allocator.pid, signal.SIGSTOP)
        try:
            stored.append(hidden.create(greedy("bound", MIG).on("t4"), dry_run=True))
        finally:
            os.kill(allocator.pid, signal.SIGCONT)
    values = [
        [e["value"] for e in each["spec"]["containers"][0].get("env", []) if e["name"] == VISIBLE] for each in stored
    ]
    assert values == [[], [names.NO_DEVICES]]
