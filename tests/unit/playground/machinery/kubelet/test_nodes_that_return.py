"""A node whose kubelet was away catches up with what became due meanwhile."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from playground.machinery.cluster import Machinery
from playground.machinery.kubelet.podrun import RUN_SECONDS, START_SECONDS
from tests.unit.playground.machinery.driving import PODS, Cluster, pod

NODE = "/api/v1/nodes/n1"
LATER, PASSED = "30", 60.0
"""
Seconds after which the pod starts or ends, longer than a test takes; and the seconds by which the clock is moved ahead.
"""
MOMENT = 0.2


class Aside:
    """A cluster of one node, and its clock."""

    def __init__(self) -> None:
        self._ahead = 0.0
        self.cluster = Cluster(lambda api: Machinery(api, monotonic=lambda: time.monotonic() + self._ahead))
        self.cluster.nodes("n1")

    def fails(self) -> None:
        """The node's kubelet goes away, and what is due in this time becomes due."""
        self.cluster.machinery.fail_node("n1")
        self.cluster.condition(NODE, "Ready", "Unknown")
        self._ahead += PASSED
        self.cluster.machinery.fail_node("n1")  # a kubelet with something to do reads the clock
        time.sleep(MOMENT)

    def returns(self, phase: str) -> None:
        """The kubelet comes back, and the pod reaches this phase."""

        def there() -> bool:
            self._ahead += PASSED  # it may have seen the pod as late as this
            self.cluster.machinery.restart_node("n1")
            return bool(self.cluster.pod("p")["status"]["phase"] == phase)

        self.cluster.wait(there, phase)


@pytest.fixture
def aside() -> Iterator[Aside]:
    made = Aside()
    yield made
    made.cluster.machinery.stop()


def test_a_pod_that_was_to_start_meanwhile_starts(aside: Aside) -> None:
    aside.cluster.do("POST", PODS, pod("p", annotations={START_SECONDS: LATER}))
    aside.cluster.wait(lambda: aside.cluster.pod("p")["spec"].get("nodeName"), "the pod is bound")
    aside.fails()
    assert aside.cluster.pod("p")["status"]["phase"] == "Pending"
    aside.returns("Running")


def test_a_pod_that_was_to_end_meanwhile_ends(aside: Aside) -> None:
    aside.cluster.do("POST", PODS, pod("p", restartPolicy="Never", annotations={RUN_SECONDS: LATER}))
    aside.cluster.phase("p", "Running")
    aside.fails()
    assert aside.cluster.pod("p")["status"]["phase"] == "Running"
    aside.returns("Succeeded")
