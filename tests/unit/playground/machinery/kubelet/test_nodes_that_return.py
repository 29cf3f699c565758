"""A node whose kubelet was away catches up with what was due meanwhile."""

from __future__ import annotations

import time

import pytest

from playground.machinery.kubelet.podrun import RUN_SECONDS, START_SECONDS
from tests.unit.playground.machinery.driving import PODS, Cluster, pod

NODE = "/api/v1/nodes/n1"
SOON, PASSED = "0.3", 0.6
"""Seconds after which the pod starts or ends, and seconds in which that has passed."""


@pytest.fixture
def waiting(cluster: Cluster) -> Cluster:
    """One node, whose pod is bound and will be Running a moment later."""
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("p", annotations={START_SECONDS: SOON}))
    cluster.wait(lambda: cluster.pod("p")["spec"].get("nodeName"), "the pod is bound")
    return cluster


def test_a_pod_that_was_to_start_meanwhile_starts(waiting: Cluster) -> None:
    waiting.machinery.fail_node("n1")
    waiting.condition(NODE, "Ready", "Unknown")
    time.sleep(PASSED)
    assert waiting.pod("p")["status"]["phase"] == "Pending"
    waiting.machinery.restart_node("n1")
    waiting.phase("p", "Running")


def test_a_pod_that_was_to_end_meanwhile_ends(cluster: Cluster) -> None:
    cluster.nodes("n1")
    cluster.do("POST", PODS, pod("p", restartPolicy="Never", annotations={RUN_SECONDS: SOON}))
    cluster.phase("p", "Running")
    cluster.machinery.fail_node("n1")
    cluster.condition(NODE, "Ready", "Unknown")
    time.sleep(PASSED)
    cluster.machinery.restart_node("n1")
    cluster.phase("p", "Succeeded")
