"""However a run ends, nothing of it is left. The control plane has none of our programs, so the pods have no share."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kubectl_gpufraction.__main__ import main
from kubectl_gpufraction.conformance.pods import NAMESPACES
from playground.api.kinds.values import ADMIN
from playground.embedded import Embedded
from playground.machinery.kubelet.gpuruntime import NodeGpu
from playground.shapes import DEMO
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube, KubeNotFound
from tests.cluster.kit.cluster import CLOSED, CUDA, NODE
from tests.cluster.kit.played import PlayedPrograms

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(120)]
JSON = dict[str, Any]
LABEL = "gpufraction.io/conformance"
_GPU = NodeGpu(0, "GPU-0", "Tesla T4", 15109 << 20)


class BareNode:
    """A control plane with one node that no agent reports about; `run` is the command."""

    def __init__(self, folder: Path) -> None:
        self.plane = Embedded(gpus_of=lambda node: (_GPU,))
        self.plane.start()
        self.programs = PlayedPrograms(folder, tuple(NAMESPACES.values()))
        self.plane.use_programs(self.programs)
        self.plane.add_node(DEMO[0].spec)
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(self.plane.kubeconfig(ADMIN))
        self.kube = Kube.connect(kubeconfig=str(self.kubeconfig))
        crd = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpufraction-system"}}
        self.kube.create(paths.namespaces(), crd)

    def run(self, *arguments: str, image: str = CLOSED, **keywords: Any) -> tuple[int, JSON, str]:
        """The exit status, the printed report, and the messages for people."""
        out, err = io.StringIO(), io.StringIO()
        probe = ("--node", NODE, "--image", "x", "--cuda-image", image, "--start-timeout", "10s")
        common = ("--kubeconfig", str(self.kubeconfig), "-o", "json")
        status = main(["conformance", *probe, *arguments, *common], out=out, err=err, environment={}, **keywords)
        return status, json.loads(out.getvalue()) if out.getvalue() else {}, err.getvalue()

    def namespaces(self) -> dict[str, str]:
        """The kit's namespaces that exist, with their labels."""
        found = {}
        for name in NAMESPACES.values():
            try:
                labels = self.kube.get(paths.namespaces(name))["metadata"].get("labels") or {}
            except KubeNotFound:
                continue
            found[name] = str(labels.get(LABEL, ""))
        return found

    def begins(self, before: int) -> None:
        """Wait until a pod of a run has started."""
        wait_for(lambda: len(self.programs.seen) > before, "the run does not begin", 30.0)


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[BareNode]:
    """The node. At the end nothing of the kit is left there."""
    made = BareNode(tmp_path)
    try:
        yield made
        wait_for(lambda: made.namespaces() == {}, lambda: f"left: {made.namespaces()}", 20.0)
        assert [pod for name in NAMESPACES.values() for pod in made.kube.list(paths.pods(name)).items] == []
    finally:
        made.plane.stop()


def results(found: JSON, check: str) -> list[tuple[str, str, str]]:
    """The results of one check."""
    return [(each["variant"], each["result"], each["reason"]) for each in found["results"] if each["check"] == check]


def test_without_an_agent_what_needs_none_is_tried(bare: BareNode) -> None:
    status, found, _ = bare.run()
    assert (status, results(found, "without-share")) == (0, [("served", "passed", ""), ("unserved", "passed", "")])
    assert {each["reason"] for each in found["results"] if each["check"] != "without-share"} == {
        "AgentAway",
        "LimitsNoCores",
    }


def test_where_every_image_of_cuda_sees_the_gpus_both_fail(bare: BareNode) -> None:
    status, found, _ = bare.run("--check", "without-share", image=CUDA)
    seen = [("served", "failed", "SeesGPUs"), ("unserved", "failed", "SeesGPUs")]
    assert (status, results(found, "without-share")) == (1, seen)


def test_a_run_that_is_stopped_removes_what_it_made(bare: BareNode) -> None:
    stop, found = threading.Event(), list[Any]()
    bare.programs.slow = 20.0
    thread = threading.Thread(target=lambda: found.append(bare.run(stop=stop)))
    thread.start()
    bare.begins(0)
    stop.set()
    thread.join(60.0)
    status, document, _ = found[0]
    assert (status, bare.namespaces()) == (130, {})
    assert results(document, "restart-kubelet") == [("", "not tried", "Interrupted")]


@contextmanager
def command(bare: BareNode) -> Iterator[subprocess.Popen[bytes]]:
    """The command as a process whose pods keep running, once one of them has started."""
    bare.programs.slow = 30.0
    program = [sys.executable, "-m", "kubectl_gpufraction", "conformance", "--node", NODE, "--cuda-image", CLOSED]
    flags = ["--image", "x", "--kubeconfig", str(bare.kubeconfig)]
    with subprocess.Popen([*program, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            bare.begins(0)
            yield process
        finally:
            if process.poll() is None:
                process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_it_removes_what_it_made(bare: BareNode, number: signal.Signals) -> None:
    with command(bare) as process:
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, bare.namespaces(), b"Traceback" in out + err) == (130, {}, False)


def test_what_a_killed_command_left_ends_by_itself_and_clean_removes_it(bare: BareNode) -> None:
    with command(bare) as process:
        process.kill()
        process.wait(30)
    assert bare.namespaces().keys() == set(NAMESPACES.values())
    left = [pod for name in NAMESPACES.values() for pod in bare.kube.list(paths.pods(name)).items]
    assert [pod["spec"]["activeDeadlineSeconds"] <= 600 for pod in left] == [True]
    assert bare.run("--clean")[0] == 0


def test_the_next_run_removes_what_a_killed_one_left(bare: BareNode) -> None:
    """What is left: namespaces with another id, and a pod of that run."""
    for name in NAMESPACES.values():
        metadata = {"name": name, "labels": {LABEL: "killed"}}
        bare.kube.create(paths.namespaces(), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        wait_for(lambda name=name: _account(bare.kube, name), "no account", 20.0)  # type: ignore[misc]
        left = {"metadata": {"name": "left", "labels": {LABEL: "killed"}}, "spec": {"containers": [_CONTAINER]}}
        bare.kube.create(paths.pods(name), {"apiVersion": "v1", "kind": "Pod", **left})
    status, found, _ = bare.run("--check", "without-share")
    assert (status, results(found, "without-share")[0]) == (0, ("served", "passed", ""))


def test_a_second_run_ends_the_first_and_keeps_its_own(bare: BareNode) -> None:
    found = list[Any]()
    bare.programs.slow = 15.0
    thread = threading.Thread(target=lambda: found.append(bare.run()))
    thread.start()
    bare.begins(0)
    bare.programs.slow = 0.0
    status, second, _ = bare.run("--check", "without-share")
    thread.join(60.0)
    passed = [("served", "passed", ""), ("unserved", "passed", "")]
    assert (status, results(second, "without-share")) == (0, passed)
    assert results(found[0][1], "restart-kubelet") == [("", "not tried", "Interrupted")]


def test_clean_leaves_what_is_somebody_elses(bare: BareNode) -> None:
    mine, theirs = NAMESPACES.values()
    for name, labels in ((mine, {LABEL: "killed"}), (theirs, {})):
        metadata = {"name": name, "labels": labels}
        bare.kube.create(paths.namespaces(), {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    try:
        assert bare.run("--clean")[0] == 0
        wait_for(lambda: bare.namespaces() == {theirs: ""}, lambda: f"there are {bare.namespaces()}", 20.0)
        status, _, said = bare.run("--check", "without-share")
        assert (status, "was not created by this command" in said) == (1, True)
    finally:
        bare.kube.delete(paths.namespaces(theirs))


def test_time_that_is_over_is_told_and_nothing_is_left(bare: BareNode) -> None:
    bare.programs.slow = 30.0
    status, found, _ = bare.run("--timeout", "2s")
    assert (status, results(found, "without-share")[0][1:]) == (0, ("not tried", "OutOfTime"))


@pytest.mark.parametrize("target", ["missing/report.json", "."])
def test_a_report_that_cannot_be_written_is_told_before_anything_runs(bare: BareNode, target: str) -> None:
    status, _, said = bare.run("--report", str(bare.kubeconfig.parent / target))
    assert (status, "no file can be written there" in said, bare.programs.seen) == (2, True, [])


_CONTAINER = {"name": "probe", "image": "x", "command": ["sleep", "60"]}


def _account(kube: Kube, namespace: str) -> bool:
    try:
        return bool(kube.get(paths.path("v1", "serviceaccounts", namespace, "default")))
    except KubeNotFound:
        return False
