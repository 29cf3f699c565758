"""Claims of placed pods that a user has deallocated are allocated again, with the cards that the pod has."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.features.resourceclaims.keeper import ClaimKeeper, PodsHindered, holder, lacking
from contract import names
from contract.encoding import codec, resourceclaims
from contract.kinds import SHARE_CLAIMS
from contract.model import MOST_CONSUMERS, Allocation
from contract.pods import uid
from runtime.kubernetes import paths
from tests.unit.allocator.workers.test_share_claims import ONE, TWO, Bench, allocated, spec_of

JSON = dict[str, Any]


class Placed(Bench):
    """The pod has its share."""

    def __init__(self) -> None:
        super().__init__()
        self.allocation = allocated("one")
        self.leads = True
        self.declared: list[PodsHindered] = []
        self.keeper = ClaimKeeper(self.sound, leading=lambda: self.leads, declare=self.declared.append)
        self.placed = self._placed(self.allocation)

    def _placed(self, allocation: Allocation) -> JSON:
        """The pod as it is stored after its placement."""
        stored = self.sound.get(paths.pods("default", "p"))
        self.sound.delete(paths.pods("default", "p"))
        annotations = {
            str(names.REQUEST): codec.request_to_text(self.request),
            str(names.ALLOCATION): codec.allocation_to_text(allocation),
        }
        counted = {
            "first": {str(names.GPU_MEMORY): "1Gi", str(names.GPU_CORES): "10"},
            "second": {str(names.GPU_MEMORY): "4Gi"},
        }
        for each in stored["spec"]["containers"]:
            each["resources"] = {**each["resources"], "limits": counted[each["name"]]}
        stored["spec"].pop("schedulingGates")
        body = {**stored, "metadata": {"name": "p", "annotations": annotations}, "status": {}}
        made = self.sound.create(paths.pods("default"), body)
        statuses = [{"name": "gpu", "resourceClaimName": "p-gpu"}]
        made = self.sound.patch_merge(
            paths.pods("default", "p", "status"), {"status": {"resourceClaimStatuses": statuses}}
        )
        wait = self.sound.list(paths.resourceclaims("default")).items
        assert wait == [], "the claim of the pod before is left"
        self.claim_for(made, "p-gpu", spec_of(ONE, TWO))
        return made


@pytest.fixture
def bench() -> Placed:
    return Placed()


def test_a_claim_without_its_allocation_gets_the_one_that_its_pod_has(bench: Placed) -> None:
    assert len(bench.keeper.once()) == 1
    claim = bench.claim()
    assert resourceclaims.holders(claim) == ((uid(bench.placed), "p"),)
    assert resourceclaims.version(claim) is not None
    assert bench.keeper.once() == ()


def test_a_replica_that_does_not_lead_changes_nothing(bench: Placed) -> None:
    bench.leads = False
    bench.keeper.once()
    assert not (bench.claim().get("status") or {}).get("allocation")


def test_a_pod_that_waits_or_has_ended_or_is_being_deleted_needs_no_claim(bench: Placed) -> None:
    waits = {**bench.placed, "spec": {**bench.placed["spec"], "schedulingGates": [{"name": str(names.GATE)}]}}
    ended = {**bench.placed, "status": {"phase": "Succeeded"}}
    going = {**bench.placed, "metadata": {**bench.placed["metadata"], "deletionTimestamp": "2026-01-05T08:00:00Z"}}
    assert [holder(each) for each in (waits, ended, going)] == [None, None, None]


def test_a_claim_that_is_not_there_or_is_anothers_is_not_made_again(bench: Placed) -> None:
    found = holder(bench.placed)
    assert found is not None
    about = {"namespace": "default", "name": "p-gpu"}
    mine = {"metadata": about, "status": {"allocation": True, "reservedFor": [{"uid": uid(bench.placed)}]}}
    bare = {"metadata": about}
    other = {"metadata": {**about, "namespace": "team"}}
    assert [lacking([each], [found]) for each in (mine, bare, other)] == [(), (found,), ()]


def test_a_pod_without_a_node_whose_claim_is_being_deleted_is_declared(bench: Placed) -> None:
    """kube-scheduler does not try it, and reports that nowhere."""
    bench.keeper.once()
    bench.sound.delete(paths.resourceclaims("default", "p-gpu"))
    assert bench.keeper.once() == (), "it is allocated still"
    before, after = bench.declared
    assert before.found == ()
    [stuck] = after.found
    assert (stuck.key, stuck.uid, stuck.node) == ("default/p", uid(bench.placed), "a")
    assert stuck.message == "its ResourceClaim p-gpu is being deleted"
    bench.sound.create(
        paths.pods("default", "p", "binding"), {"metadata": {"name": "p"}, "target": {"kind": "Node", "name": "a"}}
    )
    bench.keeper.once()
    assert bench.declared[-1].found == (), "one that has a node runs"


def test_each_pod_of_a_claim_that_many_use_is_reserved_for() -> None:
    """A list shows this for all of them, up to as many as may use a claim."""
    uids = [f"uid-{at}" for at in range(MOST_CONSUMERS)]
    claim = {
        "metadata": {"name": "c", "namespace": "default", "uid": "u"},
        "status": {"allocation": {"devices": {}}, "reservedFor": [{"uid": each, "name": "p"} for each in uids]},
    }
    assert SHARE_CLAIMS.trim is not None
    assert [each["uid"] for each in SHARE_CLAIMS.trim(claim)["status"]["reservedFor"]] == uids
