"""
The page on switching, typed from top to bottom on the embedded cluster alongside a simulated HAMi.

There is no container runtime, so a script in front of kubectl runs what the page executes in the recorder's pod: the
recorder's own command, on the recording of a recorder that runs here. `apply -k manifests/base` is not typed again,
because the playground has the base installed and `tests/unit/manifests/test_installing_for_real.py` types it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract import names, pods
from kubectl_gpufraction import commandline
from kubectl_gpufraction.__main__ import parser
from playground.cluster import Cluster
from playground.machinery.objects.nodes import NodeSpec
from playground.programs import installing
from playground.programs.process import Program
from playground.shapes import GpuNode
from playground.waiting import wait_for
from runtime.kubernetes import paths
from shadow.__main__ import parser as own_parser
from tests.unit.manifests.kube import ROOT
from tests.unit.shadow import played

JSON = dict[str, Any]
PAGE = (ROOT / "docs" / "switching.md").read_text(encoding="utf-8")
SECTIONS = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
SHARES = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}


def commands() -> Iterator[tuple[str, str]]:
    """Each line of the page's blocks for a shell, with its heading."""
    for section in SECTIONS:
        heading = section.partition("\n")[0]
        for block in re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL):
            for line in block.splitlines():
                yield heading, line


def test_every_command_of_the_page_can_be_read() -> None:
    typed = [shlex.split(line) for _, line in commands()]
    ours = [words[2:] for words in typed if words[:2] == ["kubectl", "gpufraction"]]
    programs = [words[3:] for words in typed if words[:2] == ["python", "-m"]]
    assert len(programs) == 2
    assert len(ours) > 10
    for words in ours:
        commandline.parsed(parser(), words)
    for words in programs:
        own_parser().parse_args(words)


@pytest.mark.system
@pytest.mark.kubectl
@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_page_leads_to_gpufraction_and_back(tmp_path: Path) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl 1.30 or newer on PATH")
    nodes = [
        GpuNode(NodeSpec(name, cpu="32", memory="128Gi", labels={"gpu": "on"}), "2 x NVIDIA A100-SXM4-80GB 81920MiB")
        for name in ("node-a", "node-b")
    ]
    with Cluster(nodes=nodes, directory=tmp_path / "run") as cluster:
        reader = _Reader(cluster, tmp_path)
        reader.begin()
        try:
            for heading, line in commands():
                reader.types(heading, line)
        finally:
            reader.recorder.terminate()
            reader.recorder.wait()


class _Reader:
    """Types the page's commands, and simulates HAMi between them."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster, self.kube = cluster, cluster.kube
        self.directory = directory
        self.recording = directory / "recording"
        words = ["shadow", "record", f"--kubeconfig={cluster.kubeconfig}", f"--directory={self.recording}", "--listen="]
        self.recorder = Program("shadow", words, log=directory / "shadow.log", environment={})
        folder = directory / "bin"
        folder.mkdir()
        real, python = shutil.which("kubectl"), sys.executable
        (folder / "kubectl-gpufraction").symlink_to(Path(python).parent / "kubectl-gpufraction")
        executed = f'exec {shlex.quote(python)} "$@" --recording {shlex.quote(str(self.recording))}'
        stand_in = folder / "kubectl"
        stand_in.write_text(
            "#!/bin/bash\n"
            'if [[ " $* " == *" exec deployment/gpufraction-shadow -- python "* ]]; then\n'
            '  while [ "$1" != "--" ]; do shift; done; shift 2\n'
            f"  {executed}\nfi\n"
            f'exec {real} "$@"\n'
        )
        stand_in.chmod(0o755)
        # A link would lose the virtual environment: Python looks for it next to the link.
        (folder / "python").write_text(f'#!/bin/bash\nexec {shlex.quote(python)} "$@"\n')
        (folder / "python").chmod(0o755)
        self.environment = {
            "PATH": f"{folder}:{os.environ['PATH']}",
            "HOME": str(directory),
            "KUBECONFIG": str(cluster.kubeconfig),
            "PYTHONPATH": str(ROOT),
            "NO_PROXY": "*",
        }

    def begin(self) -> None:
        for name in ("node-a", "node-b"):
            self._dress(name, units="20")
        installing.apply(self.kube, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team-a"}})
        self.cluster.await_account("team-a")
        container = {"name": "main", "image": "registry.example/web:1", "resources": {"limits": SHARES}}
        spec = {"schedulerName": "hami-scheduler", "containers": [container]}
        template = {"metadata": {"labels": {"app": "web"}}, "spec": spec}
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web", "namespace": "team-a"},
            "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": template},
        }
        self.kube.create(paths.deployments("team-a"), deployment)
        self.recorder.start()
        wait_for(lambda: len(self.pods()) == 2, "the Deployment has no pods", 30)
        self.by_hami()

    def _dress(self, name: str, units: str) -> None:
        annotations = played.hami_node(name, 2)["metadata"]["annotations"]
        self.kube.patch_merge(paths.nodes(name), {"metadata": {"annotations": annotations}})
        amounts = {"nvidia.com/gpu": units}
        self.kube.patch_merge(f"{paths.nodes(name)}/status", {"status": {"capacity": amounts, "allocatable": amounts}})

    def pods(self) -> list[JSON]:
        found = self.kube.list(paths.pods("team-a")).items
        return [pod for pod in found if not pod["metadata"].get("deletionTimestamp")]

    def by_hami(self) -> None:
        """HAMi's scheduler places the pods that name it."""
        for number, pod in enumerate(self.pods()):
            if pod["spec"]["schedulerName"] == "hami-scheduler" and not pod["spec"].get("nodeName"):
                name = pod["metadata"]["name"]
                given = {
                    "hami.io/vgpu-node": "node-b",
                    "hami.io/vgpu-devices-allocated": f"GPU-node-b-{number % 2},NVIDIA,4000,0:;",
                }
                self.kube.patch_merge(paths.pods("team-a", name), {"metadata": {"annotations": given}})
                target = {"apiVersion": "v1", "kind": "Node", "name": "node-b"}
                binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
                self.kube.create(paths.pods("team-a", name, "binding"), binding)

    def types(self, heading: str, line: str) -> None:
        if line == "kubectl apply -k manifests/base":
            return
        line = line.replace("report.txt", str(self.directory / "report.txt"))
        line = line.replace("recording.jsonl", str(self.directory / "recording.jsonl"))
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"`{line}`: {said}"
        self._after(heading, line, said)

    def _after(self, heading: str, line: str, said: str) -> None:
        if line.startswith("kubectl label node node-a gpu- "):
            self._dress("node-a", units="0")  # HAMi's agent has left the node
            wait_for(lambda: "Healthy" in self._prints("kubectl gpufraction nodes"), "no card is shared", 60)
        elif "rollout restart" in line:
            ours = heading.startswith("Enable")
            wait_for(lambda: self._restarted(ours=ours), f"the pods are not those of {heading}", 60)
        elif line == "kubectl gpufraction shadow":
            assert "overcommitted card" in said

    def _prints(self, line: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.stdout

    def _restarted(self, *, ours: bool) -> bool:
        """Either gpufraction serves all pods on the node that it has, or it serves none and HAMi serves them."""
        self.by_hami()
        found = self.pods()
        if len(found) != 2 or not all(pod["spec"].get("nodeName") for pod in found):
            return False
        if not ours:
            return all(names.REQUEST not in pods.annotations_of(pod) for pod in found)
        return all(pods.carried_allocation(pod) is not None and pod["spec"]["nodeName"] == "node-a" for pod in found)
