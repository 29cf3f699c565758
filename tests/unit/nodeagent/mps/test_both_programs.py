"""The agent and the MPS daemons' supervisor as they run on one node: what a cluster sees of a daemon's life cycle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeagent.isolation.cdi import FILE
from playground.api.http.server import HttpsServer
from runtime.kubernetes.client import JSON
from runtime.kubernetes.paths import gpunodes
from tests.unit.nodeagent.cluster import Cluster
from tests.unit.nodeagent.mps.test_program import UUID, Running


@pytest.fixture
def running(library: Path, tmp_path: Path) -> Iterator[Running]:
    made = Running(library, tmp_path, wanted=False)
    yield made
    made.close()


class Agent:
    """The agent's process on the same node."""

    def __init__(self, running: Running, library: Path, cluster: Cluster, server: HttpsServer, folder: Path) -> None:
        self.cluster, self.cdi = cluster, folder / "cdi"
        self.cdi.mkdir()
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        flags = [
            "--node=n1",
            f"--nvml-library={library}",
            f"--kubeconfig={kubeconfig}",
            "--interval=100ms",
            "--listen=",
            "--delivery=env-class-cdi:nvidia=nvidia.com/gpu",
            f"--limiters-mps={running.places.root}",
            f"--limiters-cdi={self.cdi}",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nodeagent", "run", *flags], env=running.environment, stderr=subprocess.DEVNULL
        )

    def status(self) -> JSON:
        code, found = self.cluster.api.call("GET", gpunodes("n1"))
        return found.get("status", {}) if code == 200 else {}

    def levels(self) -> list[str]:
        return [level for level in self.status().get("isolation", []) if level != "watch"]

    def health(self) -> list[tuple[str, str]]:
        return [(gpu["health"], gpu["reason"]) for gpu in self.status().get("gpus", [])]

    def mounts(self) -> list[str]:
        [device] = json.loads((self.cdi / FILE).read_text())["devices"]
        assert device["name"] == UUID
        return [mount["hostPath"] for mount in device["containerEdits"].get("mounts", ())]


@pytest.fixture
def agent(running: Running, library: Path, tmp_path: Path) -> Iterator[Agent]:
    cluster = Cluster("n1")
    with HttpsServer(cluster.api) as server:
        made = Agent(running, library, cluster, server, tmp_path)
        yield made
        made.process.terminate()
        made.process.wait(timeout=60)


def test_a_daemons_life_as_a_cluster_sees_it(running: Running, agent: Agent) -> None:
    running.until(lambda: agent.levels() == ["mps"])
    assert agent.health() == [("Healthy", "")]
    assert agent.status()["delivery"]["mounts"] == "cdi"
    pipe = str(running.places.of(UUID) / "pipe")
    running.until(lambda: agent.mounts() == [pipe, str(running.places.root / "shm")])
    assert Path(pipe, "control").is_socket()

    os.kill(running.daemon(), signal.SIGKILL)
    away = [("Unhealthy", "MPS is paused: the MPS daemon ended")]
    running.until(lambda: agent.health() == away and agent.levels() == [])
    running.until(lambda: agent.levels() == ["mps"] and agent.health() == [("Healthy", "")])

    agent.process.kill()
    agent.process.wait(timeout=60)
    at = running.report().at
    running.until(lambda: running.report().at > at)
    assert running.report().gpus[UUID].serving, "the agent's end ends no daemon"
