"""The kit's cluster, once on each control plane. After each test nothing of the kit is left in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from contract import names
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.cluster.kit.cluster import Kit, kit_cluster
from tests.clusters import control_planes


@pytest.fixture(scope="package", params=control_planes())
def running_kit(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """The cluster."""
    with kit_cluster(tmp_path_factory.mktemp("kit"), request.param) as kit:
        yield kit


@pytest.fixture
def kit(running_kit: Kit) -> Iterator[Kit]:
    """The cluster. Afterwards nothing of the kit is left in it."""
    running_kit.programs.holds = frozenset(("memory", "cores"))
    yield running_kit
    wait_for(lambda: not running_kit.namespaces(), lambda: f"left: {running_kit.namespaces()}", 30.0)
    held = running_kit.cluster.kube.list(paths.pods(), {"labelSelector": str(names.CONFORMANCE)}).items
    assert held == []
