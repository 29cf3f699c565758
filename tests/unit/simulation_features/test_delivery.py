"""A ResourceClaim that differs from its pod's share is found, and so is one without a pod."""

from __future__ import annotations

from typing import Any

from contract.encoding import resourceclaims
from contract.model import Allocation, ContainerAllocation, GpuShare
from tests.builders import pod
from tests.simulation.features import delivery
from tests.simulation.world.claimplugins import CLAIMS
from tests.unit.simulation_features.fakes import FakeStore, run

JSON = dict[str, Any]
UUID = "GPU-00000000-0000-0000-0000-000000000001"
NAME = resourceclaims.name_from("1")


def naming() -> JSON:
    document = pod("p").uid("u").json()
    document["spec"]["resourceClaims"] = [{"name": "share", "resourceClaimName": NAME}]
    return document


def allocation(*, dra: bool = True) -> Allocation:
    share = GpuShare(UUID, 0, 1 << 30, 0, 15 << 30, dra=dra)
    return Allocation("1", "n", (ContainerAllocation("main", (share,)),))


def claim(*, device: str = UUID, node: str = "n", owner: str = "u", reserved: str = "u", results: bool = True) -> JSON:
    given = [{"pool": node, "device": resourceclaims.device_name(device)}] if results else []
    return {
        "metadata": {"name": NAME, "namespace": "default", "ownerReferences": [{"kind": "Pod", "uid": owner}]},
        "status": {"reservedFor": [{"uid": reserved}], "allocation": {"devices": {"results": given}}},
    }


def test_what_is_not_the_share_is_found() -> None:
    assert delivery.untrue(naming(), allocation(), claim()) is None
    assert "is not there" in (delivery.untrue(naming(), allocation(), None) or "")
    assert "another pod's" in (delivery.untrue(naming(), allocation(), claim(owner="x")) or "")
    assert "not reserved" in (delivery.untrue(naming(), allocation(), claim(reserved="x")) or "")
    assert "its ResourceClaim gives" in (delivery.untrue(naming(), allocation(), claim(node="m")) or "")
    assert "its ResourceClaim gives" in (delivery.untrue(naming(), allocation(), claim(results=False)) or "")


def test_a_share_that_the_claim_does_not_bring_is_no_device_of_it() -> None:
    assert delivery.untrue(naming(), allocation(dra=False), claim(results=False)) is None
    assert "gets no card by its claim" in (delivery.untrue(naming(), allocation(dra=False), claim()) or "")


def test_a_claim_without_a_pod_is_found() -> None:
    store = FakeStore()
    store.objects = {CLAIMS: [claim()]}
    assert delivery._claims_true(run(store)) == [f"ResourceClaim default/{NAME} is left over"]
