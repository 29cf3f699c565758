"""A small cluster with short times: the real API server and the machinery behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from playground.machinery.cluster import Machinery, Timing
from playground.machinery.controllers.control import ControlTiming
from playground.machinery.kubelet.gpuruntime import NodeGpu
from playground.machinery.kubelet.kubelet import KubeletTiming
from tests.unit.playground.machinery.driving import Cluster

QUICK = Timing(
    kubelet=KubeletTiming(terminate=0.02, retry=0.1, report=0.02, restart=0.02, restart_cap=0.05, node_gone=0.02),
    control=ControlTiming(refused=0.05, refused_cap=0.2, failed_pod=0.02, failed_pod_cap=0.05),
)
GIB = 1 << 30


def gpus_of(node: str) -> list[NodeGpu]:
    return [NodeGpu(i, f"GPU-{node}-{i}", "Tesla T4", 16 * GIB) for i in range(2)]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster(lambda api: Machinery(api, gpus_of=gpus_of, timing=QUICK))
    yield made
    made.machinery.stop()
