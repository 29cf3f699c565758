"""
One real node for all tests here, for each container runtime whose programs the folder of REALNODE_ASSETS has.

Run `make test-realnode` as root. The tests skip a missing runtime, with the names of what is missing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from playground.waiting import slower
from tests.cluster.realnode.assets import node_assets
from tests.cluster.realnode.cluster import RealNodeCluster
from tests.cluster.realnode.runtimes import RUNTIMES
from tests.cluster.realnode.ways import WAYS, Way
from tests.cluster.system import invariants


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give tests on an emulated machine more time, too."""
    for item in items:
        limit = item.get_closest_marker("timeout")
        if limit is not None and slower() > 1:
            item.add_marker(pytest.mark.timeout(limit.args[0] * slower()), append=False)


def runtimes() -> list[Any]:
    """Parameters for a fixture: the name of a container runtime each."""
    found = {name: node_assets(os.environ, tuple(needs)) for name, (_, needs) in RUNTIMES.items()}
    return [
        pytest.param(name, marks=[pytest.mark.skip(reason=assets)] if isinstance(assets, str) else [])
        for name, assets in found.items()
    ]


@pytest.fixture(scope="session", params=runtimes())
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodeCluster]:
    """The node, and its cluster."""
    make, needs = RUNTIMES[request.param]
    assets = node_assets(os.environ, tuple(needs))
    assert not isinstance(assets, str)
    settings = {"webhook": ("--hide-gpus=true",)}
    made = RealNodeCluster(assets, make, tmp_path_factory.mktemp(request.param), settings=settings, hide_gpus=True)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def real(up: RealNodeCluster) -> Iterator[RealNodeCluster]:
    """The node without pods. Afterwards they are removed, and no pod holds a share."""
    yield up
    up.clear()
    invariants.check(up.cluster)


@pytest.fixture(scope="session", params=WAYS.keys())
def way(request: pytest.FixtureRequest, up: RealNodeCluster) -> Way:
    """A way in which GPUs get into containers, each in turn."""
    chosen = WAYS[request.param]
    lacking = up.assets.lacks(chosen.needs)
    if lacking:
        pytest.skip(f"REALNODE_ASSETS: {up.assets.folder} has no {' and no '.join(lacking)}")
    up.use(chosen)
    return chosen
