"""An agent in its own namespace: options come from the API, and an agent of an earlier installation goes first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract import names
from nodeagent.app import RunningAgent, start
from nodeagent.gpus.simulated import Simulated
from nodeagent.isolation.host import HostSystem
from nodeagent.settings import settings_type
from playground.waiting import wait_for
from runtime.kubernetes.client import JSON, Kube
from runtime.kubernetes.paths import configmaps, gpunodes, namespaces, pods
from runtime.process import Process
from runtime.settings import load
from tests.serving import InProcess
from tests.unit.nodeagent.cluster import Cluster
from tests.wires import WatchedWire

SIMULATED = "1 x Tesla T4 15109MiB"
FLAGS = ("--node=n1", "--interval=100ms", "--metrics-access=open", "--options-by-api=true", "--pods=true")
HOST = HostSystem(kernel="6.1.0-simulated", cgroup="v2", sees_processes=True)
AGENT = {"app.kubernetes.io/name": "gpufraction", "app.kubernetes.io/component": "nodeagent"}
SPLIT = "deviceSplitCount"


class Moved:
    """The agent on the embedded API, which is called in this process."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.served, self.process = cluster, InProcess(), Process()
        settings = load(settings_type(), file=None, env={}, argv=(*FLAGS, f"--simulate={SIMULATED}"))
        library, kube = Simulated(settings.simulate, node=settings.node), Kube(WatchedWire(cluster.api))
        self.running: RunningAgent = start(settings, library, kube, self.process, host=HOST, serve=self.served)

    def ready(self) -> str:
        """The message of `/readyz`; empty if the agent is ready."""
        answer = self.served.opened["metrics"].get("/readyz")
        return "" if answer.status == 200 else answer.body.decode()

    def sharers(self) -> JSON:
        """The options that the GPUNode shows, by name; empty before it is written."""
        code, found = self.cluster.api.call("GET", gpunodes("n1"))
        options = (found.get("status") or {}).get("options") or () if code == 200 else ()
        return {item["name"]: item["value"] for item in options}

    def stop(self) -> None:
        self.process.stop.set()
        self.running.stop()


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster("n1")
    made.call("POST", namespaces(), {"metadata": {"name": names.NAMESPACE}})
    return made


@pytest.fixture
def moved(cluster: Cluster) -> Iterator[Moved]:
    made = Moved(cluster)
    yield made
    made.stop()


def options(count: int) -> JSON:
    data = {names.OPTIONS_FILE: f"{SPLIT}: {count}"}
    return {"metadata": {"name": names.OPTIONS}, "data": data}


def test_the_options_of_the_other_namespace_count_and_are_followed(cluster: Cluster, moved: Moved) -> None:
    wait_for(lambda: moved.ready() == "", moved.ready)
    cluster.call("POST", configmaps(names.NAMESPACE), options(7))
    wait_for(lambda: moved.sharers().get(SPLIT) == "7", lambda: str(moved.sharers()))
    cluster.merge(configmaps(names.NAMESPACE, names.OPTIONS), options(9))
    wait_for(lambda: moved.sharers().get(SPLIT) == "9", lambda: str(moved.sharers()))


def test_an_agent_of_an_earlier_installation_goes_first(cluster: Cluster) -> None:
    former = {
        "metadata": {"name": "old", "labels": AGENT},
        "spec": {"nodeName": "n1", "containers": [{"name": "nodeagent", "image": "x"}]},
    }
    cluster.call("POST", pods(names.NAMESPACE), former)
    moved = Moved(cluster)
    try:
        text = "pod gpufraction-system/old is an agent of an earlier installation"
        wait_for(lambda: text in moved.ready(), moved.ready)
        assert "run: kubectl -n gpufraction-system delete daemonset gpufraction-nodeagent" in moved.ready()
        cluster.call("DELETE", pods(names.NAMESPACE, "old"), {"gracePeriodSeconds": 0})
        wait_for(lambda: moved.ready() == "", moved.ready)
    finally:
        moved.stop()
