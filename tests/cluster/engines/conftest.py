"""One real control plane with gpufraction for all tests of the engines. Each test leaves it empty and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from contract.options import DEFAULTS
from kubectl_gpufraction.commands import kueueconfig as transformations
from playground import scenarios
from playground.cluster import Cluster
from playground.engines import kueue
from playground.engines.kueue import KUEUE, Kueue
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.engines.programs import folder_of
from tests.cluster.queueing import witness
from tests.cluster.system import invariants
from tests.clusters import real


@pytest.fixture(scope="session")
def us(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A real control plane with gpufraction."""
    pace = ("--assume-ttl", "2s", "--repair-every", "1s", "--placement-node-policy", "binpack")
    directory = tmp_path_factory.mktemp("engines")
    with Cluster(directory=directory, settings={"allocator": pace}, control_plane=real) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def beside(us: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Kueue]]:
    """
    The control plane with gpufraction, and Kueue with its default configuration. A module with another configuration
    has a fixture of this name.
    """
    directory = tmp_path_factory.mktemp("kueue") / "run"
    counting = yaml.safe_load(transformations.document(DEFAULTS))
    with kueue.running(us, folder_of(KUEUE.assets()), directory, counting) as found:
        yield us, found


@pytest.fixture
def cluster(beside: tuple[Cluster, Kueue]) -> Iterator[Cluster]:
    """
    The cluster, empty. No pod behind another system's gate ever has a share, and afterwards every invariant holds.
    """
    with witness.watching(beside[0].kube):
        yield beside[0]
        invariants.check(beside[0])
        _delete_jobs(beside[0])
        scenarios.clear(beside[0].kube)
        invariants.check(beside[0])
    wait_for(beside[1].holds_nothing, lambda: f"quota is held: {beside[1].charged()}", 30)


def _delete_jobs(cluster: Cluster) -> None:
    """Jobs are deleted first: Kueue starts an admitted Job again that another program suspends."""
    jobs = paths.path("batch/v1", "jobs", "default")
    for job in cluster.kube.list(jobs).items:
        cluster.kube.delete(f"{jobs}/{job['metadata']['name']}", {"propagationPolicy": "Background"})
    wait_for(lambda: not cluster.kube.list(jobs).items, "Jobs are still there")
