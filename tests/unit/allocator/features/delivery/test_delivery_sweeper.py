"""Claims whose pods are deleted, and pods whose claims are deleted: what the leader removes, and what it recreates."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocator.features.delivery import sweeper
from allocator.features.delivery.sweeper import ClaimSweeper
from contract import names, pods
from contract.encoding import resourceclaims
from contract.model import Allocation
from playground.api.api import Api
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.builders import pod
from tests.examples import examples
from tests.unit.allocator.harness import admitted, request_of
from tests.unit.allocator.workers.test_resource_claims import allocated
from tests.wires import Wire

JSON = dict[str, Any]


class Bench:
    """An API server, and the leader's sweeper."""

    def __init__(self) -> None:
        self.kube = Kube(Wire(Api()))
        self.leads = True
        self.sweeper = ClaimSweeper(self.kube, leading=lambda: self.leads)

    def pod(self, name: str, *, gated: bool = False, allocation: Allocation | None = None) -> JSON:
        """A pod that names a claim; a pod that is not gated has its share."""
        builder = pod(name).asks(names.GPU_MEMORY, "1Gi")
        made = admitted(builder, gated=gated, allocation=None if gated else allocation or allocated(f"of-{name}"))
        request = request_of(builder.json())
        made["spec"] = resourceclaims.with_claim(made["spec"], request, resourceclaims.name_from(name))
        return self.kube.create(paths.pods("default"), made)

    def claims(self) -> dict[str, str]:
        """The uid of each claim's owner, by the claim's name."""
        items = self.kube.list(paths.resourceclaims()).items
        return {item["metadata"]["name"]: resourceclaims.owner_uid(item) for item in items}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_missing_claim_is_made_with_the_allocation_that_its_pod_has(bench: Bench) -> None:
    placed = bench.pod("a")
    assert len(bench.sweeper.once().restore) == 1
    (claim,) = bench.kube.list(paths.resourceclaims()).items
    assert resourceclaims.version(claim) == ("of-a", int(placed["metadata"]["resourceVersion"]))
    assert bench.claims() == {resourceclaims.name_from("a"): pods.uid(placed)}
    assert bench.sweeper.once() == sweeper.Sweep()


def test_a_pod_that_waits_needs_no_claim(bench: Bench) -> None:
    bench.pod("a", gated=True)
    assert bench.sweeper.once() == sweeper.Sweep()


def test_a_claim_goes_with_its_pod_and_when_its_pod_has_finished(bench: Bench) -> None:
    for name in "ab":
        bench.pod(name)
    bench.sweeper.once()
    finished = {"status": {"phase": "Succeeded"}}
    bench.kube.patch_merge(paths.pods("default", "a", "status"), finished)
    bench.sweeper.once()
    assert list(bench.claims()) == [resourceclaims.name_from("b")]


def test_a_claim_whose_pod_was_recreated_under_its_name_is_removed(bench: Bench) -> None:
    first = bench.pod("a")
    claim = sweeper.ClaimState("default", "gpufraction.io-x", "uid", "another pod's uid", "a", True)
    found = sweeper.sweep([claim], [each for each in [sweeper.holder(first)] if each])
    assert [each.name for each in found.remove] == ["gpufraction.io-x"]


def test_a_claim_that_lost_its_reservation_or_is_being_deleted_is_not_there(bench: Bench) -> None:
    placed = bench.pod("a")
    holder = sweeper.holder(placed)
    assert holder is not None
    lost = sweeper.ClaimState("default", holder.claim, "uid", pods.uid(placed), "a", False)
    assert sweeper.sweep([lost], [holder]).restore == (holder,)
    kept = sweeper.ClaimState("default", holder.claim, "uid", pods.uid(placed), "a", True)
    assert sweeper.sweep([kept], [holder]) == sweeper.Sweep()


def test_a_replica_that_does_not_lead_changes_nothing(bench: Bench) -> None:
    bench.pod("a")
    bench.leads = False
    bench.sweeper.once()
    assert bench.claims() == {}


def test_a_pod_whose_share_cannot_be_read_is_left_alone(bench: Bench) -> None:
    placed = bench.pod("a")
    placed["metadata"]["annotations"][names.ALLOCATION] = "{}"
    found = sweeper.holder(placed)
    assert found is not None
    assert found.allocation is None


def test_a_status_that_is_written_again_gives_the_same_devices(bench: Bench) -> None:
    bench.pod("a")
    bench.sweeper.once()
    (claim,) = bench.kube.list(paths.resourceclaims()).items
    first = resourceclaims.prepared(claim, uid=claim["metadata"]["uid"], node="a")
    bench.kube.delete(paths.resourceclaims("default", claim["metadata"]["name"]))
    bench.sweeper.once()
    (again,) = bench.kube.list(paths.resourceclaims()).items
    assert again["metadata"]["uid"] != claim["metadata"]["uid"]
    assert resourceclaims.prepared(again, uid=again["metadata"]["uid"], node="a") == first


OTHERS_WORDS = st.text("abz09", min_size=1, max_size=20)
LABELS = st.sampled_from(("app.kubernetes.io/name", "app.kubernetes.io/managed-by", "gpufraction.io/x", "a"))
WRITTEN_BY_TENANTS = st.fixed_dictionaries(
    {
        "labels": st.none() | st.dictionaries(LABELS, st.none() | OTHERS_WORDS),
        "annotations": st.none() | st.dictionaries(LABELS | OTHERS_WORDS, st.text(max_size=10) | st.just("x" * 10_000)),
        "finalizers": st.lists(OTHERS_WORDS.map("example.com/{}".format), max_size=3, unique=True),
    }
)


@settings(max_examples=examples(15), deadline=None)
@given(WRITTEN_BY_TENANTS)
def test_whatever_tenants_write_on_a_claim_the_sweep_sees_it(metadata: JSON) -> None:
    bench = Bench()
    bench.pod("a")
    bench.sweeper.once()
    bench.kube.patch_merge(paths.resourceclaims("default", resourceclaims.name_from("a")), {"metadata": metadata})
    assert bench.sweeper.once() == sweeper.Sweep()
    bench.kube.patch_merge(paths.pods("default", "a", "status"), {"status": {"phase": "Succeeded"}})
    assert [claim.name for claim in bench.sweeper.once().remove] == [resourceclaims.name_from("a")]


def test_other_systems_claims_are_none_of_the_sweeps_business(bench: Bench) -> None:
    labels = {"app.kubernetes.io/name": "gpufraction", "app.kubernetes.io/managed-by": "gpufraction-allocator"}
    request = {"name": "r", "exactly": {"deviceClassName": "example.com"}}
    body = {"metadata": {"name": "mine", "labels": labels}, "spec": {"devices": {"requests": [request]}}}
    bench.kube.create(paths.resourceclaims("default"), body)
    assert bench.sweeper.once() == sweeper.Sweep()
