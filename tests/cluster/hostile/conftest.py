"""Fixtures for the attacked cluster: one for all tests, which each of them leaves empty and in order."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.hostile.attack import MANIFEST_LEASE, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes


@pytest.fixture(scope="package", params=control_planes())
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("hostile"), flags=MANIFEST_LEASE)


@pytest.fixture(autouse=True)
def looked_at(request: pytest.FixtureRequest) -> Iterator[None]:
    """Monitors memory only during these tests, because the cluster also serves the tests of other files."""
    found = request.getfixturevalue("attacked") if "attacked" in request.fixturenames else None
    if not isinstance(found, Hostile):
        yield
        return
    found.footprint.resume()
    yield
    found.footprint.pause()


@pytest.fixture
def hostile(attacked: Hostile) -> Iterator[Hostile]:
    """The cluster, empty. Afterwards nothing has ended or leaked, and others are served."""
    yield from unharmed(attacked)
