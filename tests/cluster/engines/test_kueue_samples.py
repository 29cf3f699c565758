"""The samples for Kueue, applied one by one on a real control plane alongside Kueue's own program."""

from __future__ import annotations

from pathlib import Path

import pytest

from playground import scenarios
from playground.cluster import Cluster
from playground.engines.kueue import Kueue
from playground.waiting import wait_for
from tests.cluster.queueing import samples

pytestmark = [pytest.mark.engines, pytest.mark.timeout(300)]


@pytest.fixture(scope="module", autouse=True)
def queues(beside: tuple[Cluster, Kueue]) -> None:
    samples.apply(beside[0].kube, samples.QUEUES)


@pytest.mark.parametrize("sample", samples.WORKLOADS, ids=lambda path: path.stem)
def test_a_sample_comes_to_what_its_header_states(
    beside: tuple[Cluster, Kueue], cluster: Cluster, sample: Path
) -> None:
    samples.apply(cluster.kube, sample)
    want = samples.stated(sample)
    wait_for(
        lambda: samples.come_to(cluster.kube, beside[1].charged()) == want,
        lambda: (
            f"want {want}, found {samples.come_to(cluster.kube, beside[1].charged())}: "
            f"{scenarios.shown(scenarios.all_pods(cluster.kube))}"
        ),
        60,
    )
    scenarios.settled(cluster.kube, want.running + want.waiting, running=want.running)
