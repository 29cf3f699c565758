"""
The conformance kit on a real node, for each way of delivering GPUs: real pods and containers, and a restart of kubelet.

Checks that load a card or exceed a share need a program on a card, and there is no card: these checks are "not tried".
If REALNODE_REPORTS names a folder, the reports are written there in the form of docs/environments.
"""

from __future__ import annotations

import io
import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.conformance.pods import NAMESPACES
from playground.waiting import slower, wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.cluster.realnode.cluster import NODE, RealNodeCluster
from tests.cluster.realnode.node import CUDA_IMAGE, IMAGE
from tests.cluster.realnode.ways import Way

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(900)]
JSON = dict[str, Any]
REPORTS = "REALNODE_REPORTS"
_SECONDS = 120
"""Seconds for one pod's start."""
_PASSED = ("without-share served", "without-share unserved", "restart-container", "restart-kubelet")


class Told(io.StringIO):
    """What the command prints for a person. It restarts the kubelet when the text asks for it."""

    def __init__(self) -> None:
        super().__init__()
        self.restart = threading.Event()

    def write(self, text: str) -> int:
        if "systemctl restart kubelet" in text:
            self.restart.set()
        return super().write(text)


@pytest.fixture
def report(request: pytest.FixtureRequest, real: RealNodeCluster, way: Way, tmp_path: Path) -> JSON:
    """The report of this node and this way."""
    folder = Path(os.environ.get(REPORTS) or tmp_path)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{real.node.runtime.name}-{way.delivery['modes'][0]}.json"
    told, ended = Told(), threading.Event()

    def hand() -> None:
        told.restart.wait()
        if not ended.is_set():
            real.node.restart_kubelet()

    person = threading.Thread(target=hand)
    person.start()
    seconds = round(_SECONDS * slower())
    flags = ["--node", NODE, "--image", IMAGE, "--cuda-image", CUDA_IMAGE, "--report", str(file), "--restart-kubelet"]
    flags += ["--start-timeout", f"{seconds}s", "--timeout", "4h"]
    flags += ["--runtime-class", str(way.pod["runtimeClassName"])] if way.pod else []
    try:
        access = ("--kubeconfig", str(real.cluster.kubeconfig), "-o", "json")
        main(["conformance", *flags, *access], out=io.StringIO(), err=told, environment={})
    finally:
        ended.set()
        told.restart.set()
        person.join()
    print(told.getvalue())
    return dict(json.loads(file.read_text()))


def outcomes(found: JSON) -> dict[str, str]:
    """Each result by its check and variant, with the reason if there is one."""
    return {
        f"{each['check']} {each['variant']}".strip(): f"{each['result']} {each['reason']}".strip()
        for each in found["results"]
    }


def test_pods_see_their_own_gpu_before_and_after_restarts(report: JSON, real: RealNodeCluster, way: Way) -> None:
    found = outcomes(report)
    (mode,) = way.delivery["modes"]
    wanted = {name: "passed" for name in (f"delivery {mode}", *_PASSED)}
    assert {name: result for name, result in found.items() if not result.startswith("not tried")} == wanted
    assert found["neighbour"] == "not tried ProgramMissing"
    assert found["memory driver"] == "not tried LevelNotPublished"
    machine = real.node.machine
    unified = not machine.run(["test", "-e", "/sys/fs/cgroup/cgroup.controllers"]).returncode
    assert report["environment"]["cgroup"] == ("v2" if unified else "v1")
    assert report["environment"]["runtime"].startswith(f"{real.node.runtime.name} ")
    wait_for(lambda: not left(real), lambda: f"left: {left(real)}")


def left(real: RealNodeCluster) -> list[str]:
    """The kit's namespaces that still exist."""
    found = []
    for name in NAMESPACES.values():
        try:
            real.kube.get(paths.namespaces(name))
        except KubeNotFound:
            continue
        found.append(name)
    return found
