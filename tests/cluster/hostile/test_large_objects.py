"""Other users' objects that programs list: as large as an API server stores them, and many of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from allocator.features.delivery import sweeper
from contract.encoding import resourceclaims
from runtime.kubernetes import paths
from tests.cluster.hostile.attack import DELAY, TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

JSON = dict[str, Any]
pytestmark = [pytest.mark.hostile, pytest.mark.storm, pytest.mark.timeout(900)]
CLAIMS, ANNOTATIONS = {"Real": 107, "Embedded": 12}, 55_000
"""The embedded API server is Python and holds no managed fields. It takes seconds to list this many."""


@pytest.fixture(scope="module", params=control_planes())
def delivering(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """A cluster whose leader lists ResourceClaims."""
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    directory = tmp_path_factory.mktemp("claims")
    yield from hostile_cluster(request.param, directory, components=("claims", "delivery-dra"))


@pytest.fixture
def hostile(delivering: Hostile) -> Iterator[Hostile]:
    yield from unharmed(delivering)


def large_claim(number: int) -> JSON:
    """A claim as every tenant with the role `edit` may create it, with the labels of our claims."""
    labels = {"app.kubernetes.io/name": "gpufraction", "app.kubernetes.io/managed-by": "gpufraction-allocator"}
    annotations = {f"{at:x}": "" for at in range(ANNOTATIONS)}
    return {
        "apiVersion": resourceclaims.API,
        "kind": "ResourceClaim",
        "metadata": {"name": f"large-{number}", "labels": labels, "annotations": annotations},
        "spec": {"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "other.example.com"}}]}},
    }


def test_large_claims_of_a_tenant_take_no_leader_over_its_limit(hostile: Hostile) -> None:
    """Two sweeps pass over claims with 55,000 annotations each. The claims stay, and a neighbour is not affected."""
    claims = CLAIMS[type(hostile.cluster.control_plane).__name__]
    for number in range(claims):
        hostile.kube.create(paths.resourceclaims(TENANT), large_claim(number), timeout=60)
    took, end = list[float](), time.monotonic() + 2 * sweeper.EVERY + 5
    while time.monotonic() < end and not hostile.footprint.killed:
        took.append(hostile.neighbour_is_served())
        time.sleep(1)
    peaks = {name: f"{peak >> 20} MiB" for name, peak in hostile.footprint.peaks.items()}
    print("peaks:", peaks, "seconds until a neighbour's pod is placed:", round(max(took), 2))
    assert hostile.footprint.killed == []
    assert sorted(took)[len(took) // 2] <= DELAY
    for number in range(claims):  # they were not ours, so they are not removed
        hostile.kube.delete(paths.resourceclaims(TENANT, f"large-{number}"))
