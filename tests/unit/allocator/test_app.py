"""The allocator as `start` composes it, without a socket, a signal or a separate process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from allocator.app import RunningAllocator, settings_type, start
from allocator.server.http import WAITING_PATH
from contract import names
from contract.encoding.protocol import CARDS_PATH
from playground.waiting import wait_for
from runtime.httpserver import Address
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from runtime.process import Process
from runtime.settings import load
from tests.serving import InProcess
from tests.unit.nodeagent.cluster import Cluster
from tests.wires import WatchedWire

FLAGS = ("--election-lease=1s", "--election-identity=a", "--metrics-access=open", "--listen=127.0.0.1:9402")


class Started:
    """An allocator on the embedded API, which is called in this process."""

    def __init__(self) -> None:
        self.cluster, self.served, self.process = Cluster("n1"), InProcess(), Process()
        self.cluster.call("POST", paths.namespaces(), {"metadata": {"name": names.NAMESPACE}})
        settings = load(settings_type(), file=None, env={}, argv=FLAGS)
        kube = Kube(WatchedWire(self.cluster.api))
        self.socket = settings.socket
        self.running: RunningAllocator = start(settings, kube, self.process, serve=self.served)

    def stop(self) -> None:
        self.process.stop.set()
        self.running.stop()


@pytest.fixture
def started() -> Iterator[Started]:
    made = Started()
    yield made
    made.stop()


def test_an_allocator_leads_and_answers_without_a_socket(started: Started) -> None:
    socket, health = started.served.opened["socket"], started.served.opened["health"]
    addresses: list[Address] = [socket.address, health.address]
    assert addresses == [started.socket, ("127.0.0.1", 9402)]
    wait_for(lambda: health.get("/readyz").status == 200, lambda: str(health.get("/readyz")))
    wait_for(started.running.leader.is_leader, "it does not lead")
    assert (socket.get(CARDS_PATH).status, json.loads(socket.get(WAITING_PATH).body)) == (200, [])
    assert "gpufraction_leader 1.0" in health.get("/metrics").body.decode()
    assert started.process.failed is None


def test_an_allocator_that_stops_closes_what_it_serves(started: Started) -> None:
    started.stop()
    assert [len(each.closings) for each in started.served.opened.values()] == [1, 1]
    assert not started.running.leader.is_leader()
