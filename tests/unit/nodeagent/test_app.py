"""The agent as `start` composes it, without a socket, a signal or a separate process, on a described machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract.isolation import WATCH
from nodeagent.app import RunningAgent, start
from nodeagent.gpus.simulated import Simulated, simulated_uuid
from nodeagent.isolation.host import HostSystem
from nodeagent.settings import settings_type
from playground.waiting import wait_for
from runtime.httpserver import Address
from runtime.kubernetes.client import JSON, Kube
from runtime.process import Process
from runtime.settings import load
from tests.serving import InProcess
from tests.unit.nodeagent.cluster import Cluster
from tests.wires import WatchedWire

SIMULATED = "2 x Tesla T4 15109MiB"
FLAGS = ("--node=n1", "--interval=100ms", "--metrics-access=open", "--listen=127.0.0.1:9445")
HOST = HostSystem(kernel="6.1.0-simulated", cgroup="v2", sees_processes=True)


class Started:
    """An agent of simulated GPUs on the embedded API, which is called in this process."""

    def __init__(self) -> None:
        self.cluster, self.served, self.process = Cluster("n1"), InProcess(), Process()
        settings = load(settings_type(), file=None, env={}, argv=(*FLAGS, f"--simulate={SIMULATED}"))
        library, kube = Simulated(settings.simulate, node=settings.node), Kube(WatchedWire(self.cluster.api))
        self.running: RunningAgent = start(settings, library, kube, self.process, host=HOST, serve=self.served)

    def status(self) -> JSON:
        """The status of the GPUNode, once the agent is ready."""
        probes = self.served.opened["metrics"]
        wait_for(lambda: probes.get("/readyz").status == 200, lambda: str(probes.get("/readyz")))
        status: JSON = self.cluster.gpunode("n1")["status"]
        return status

    def stop(self) -> None:
        self.process.stop.set()
        self.running.stop()


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    made.stop()


def test_an_agent_publishes_without_a_socket(started: Started) -> None:
    address: Address = started.served.opened["metrics"].address
    assert address == ("127.0.0.1", 9445)
    assert [gpu["uuid"] for gpu in started.status()["gpus"]] == [simulated_uuid("n1", index) for index in range(2)]
    metrics = started.served.opened["metrics"].get("/metrics").body.decode()
    assert 'gpufraction_gpus{health="healthy",node="n1"} 2.0' in metrics
    assert started.process.failed is None


def test_an_agent_publishes_the_machine_that_it_is_given(started: Started) -> None:
    status = started.status()
    assert (status["kernelVersion"], status["cgroupMode"]) == (HOST.kernel, HOST.cgroup)
    assert status["isolation"] == [WATCH.name]


def test_an_agent_that_stops_ends_its_publisher_and_closes_its_probes(started: Started) -> None:
    started.status()
    started.stop()
    assert not started.running.publisher.is_alive()
    assert started.served.opened["metrics"].closings == [1.0]
