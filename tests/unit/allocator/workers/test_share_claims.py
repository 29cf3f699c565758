"""A tenant's claims: allocated before the gate is removed, found after a crash, and never beyond what was counted."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from allocator.workers import share_claims
from allocator.workers.resource_claims import NotWritten
from contract import names, pods
from contract.dialects.base import PodReader, Refusal
from contract.dialects.resourceclaims import read_claim, read_pod
from contract.encoding import resourceclaims
from contract.model import (
    MOST_CONSUMERS,
    Allocation,
    ContainerAllocation,
    DeviceRequest,
    GpuShare,
    PodRequest,
)
from contract.options import DEFAULTS
from playground.api.api import Api
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.wires import Wire

JSON = dict[str, Any]
GIB = 1 << 30
AT = "2026-01-05T08:00:00Z"
UUIDS = tuple(f"GPU-{digit * 8}-2222-3333-4444-555555555555" for digit in "123")
ONE, TWO = DeviceRequest("one", 1, GIB, 10), DeviceRequest("two", 2, 2 * GIB)


def spec_of(*requests: DeviceRequest) -> JSON:
    return {
        "devices": {
            "requests": [
                {
                    "name": each.name,
                    "exactly": {
                        "deviceClassName": "share.gpufraction.io",
                        "count": each.count,
                        "capacity": {
                            "requests": {
                                "memory": f"{each.memory // GIB}Gi",
                                **({"cores": str(each.cores)} if each.cores else {}),
                            }
                        },
                    },
                }
                for each in requests
            ]
        }
    }


def allocated(identity: str, node: str = "a", *, dra: bool = True) -> Allocation:
    def share(uuid: str, memory: int, cores: int) -> GpuShare:
        return GpuShare(uuid, 0, memory, cores, 16 * GIB, "nvidia.com/gpu", dra=dra)

    first = ContainerAllocation("first", (share(UUIDS[0], GIB, 10),))
    second = ContainerAllocation("second", tuple(share(uuid, 2 * GIB, 0) for uuid in UUIDS[1:]))
    return Allocation(identity, node, (first, second))


class Bench:
    """An API server with a waiting pod and its claim, and a wire on which answers are lost."""

    def __init__(self) -> None:
        api = Api()
        self.wire = Wire(api, spares_reads=True)
        self.kube, self.sound = Kube(self.wire), Kube(Wire(api))
        self.pod = self.make("p")

    def make(self, name: str, *, claim: str = "") -> JSON:
        """A waiting pod, with the claim that was created for it; or a pod that names `claim`."""
        source = {"resourceClaimName": claim} if claim else {"resourceClaimTemplateName": "t"}
        body = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "schedulingGates": [{"name": str(names.GATE)}],
                "resourceClaims": [{"name": "gpu", **source}],
                "containers": [
                    {"name": "first", "image": "x", "resources": {"claims": [{"name": "gpu", "request": "one"}]}},
                    {"name": "second", "image": "x", "resources": {"claims": [{"name": "gpu", "request": "two"}]}},
                ],
            },
        }
        made = self.sound.create(paths.pods("default"), body)
        if claim:
            return pods.outline(made)
        self.claim_for(made, f"{name}-gpu", spec_of(ONE, TWO))
        statuses = [{"name": "gpu", "resourceClaimName": f"{name}-gpu"}]
        return pods.outline(
            self.sound.patch_merge(
                paths.pods("default", name, "status"), {"status": {"resourceClaimStatuses": statuses}}
            )
        )

    def claim_for(self, owner: JSON | None, name: str, spec: JSON) -> JSON:
        about: JSON = {"name": name}
        if owner is not None:
            metadata = owner["metadata"]
            reference = {"apiVersion": "v1", "kind": "Pod", "name": metadata["name"], "uid": metadata["uid"]}
            about["ownerReferences"] = [{**reference, "controller": True}]
        return self.sound.create(
            paths.resourceclaims("default"),
            {"apiVersion": resourceclaims.API, "kind": "ResourceClaim", "metadata": about, "spec": spec},
        )

    @property
    def request(self) -> PodRequest:
        found = read_pod(PodReader(self.pod, DEFAULTS), {"gpu": (ONE, TWO)})
        assert isinstance(found, PodRequest)
        return found

    def write(self, allocation: Allocation, pod: JSON | None = None) -> float | None:
        return share_claims.write(self.kube, pod or self.pod, self.request, allocation, at=AT, timeout=5.0)

    def claim(self, name: str = "p-gpu") -> JSON:
        return self.sound.get(paths.resourceclaims("default", name))

    def fenced(self) -> JSON:
        """The pod in a later version, as after a new leader's write."""
        path = paths.pods("default", "p")
        self.pod = pods.outline(self.sound.patch_merge(path, {"metadata": {"annotations": {str(names.FENCE): "x"}}}))
        return self.pod


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_allocation_is_whole_in_one_write(bench: Bench) -> None:
    bench.write(allocated("one"))
    claim = bench.claim()
    allocation = claim["status"]["allocation"]
    assert allocation["allocationTimestamp"] == AT
    assert [
        (each["request"], each["device"], each["pool"], each["consumedCapacity"])
        for each in allocation["devices"]["results"]
    ] == [
        ("one", resourceclaims.device_name(UUIDS[0]), "a", {"memory": "1Gi", "cores": "10"}),
        ("two", resourceclaims.device_name(UUIDS[1]), "a", {"memory": "2Gi", "cores": "0"}),
        ("two", resourceclaims.device_name(UUIDS[2]), "a", {"memory": "2Gi", "cores": "0"}),
    ]
    assert len({each["shareID"] for each in allocation["devices"]["results"]}) == 3
    assert resourceclaims.holders(claim) == ((pods.uid(bench.pod), "p"),)
    assert claim["metadata"]["finalizers"] == [resourceclaims.FINALIZER]
    given = resourceclaims.prepared(claim, uid=claim["metadata"]["uid"], node="a")
    assert [each.request for each in given] == ["one", "two", "two"]


SELECTING = {"selectors": [{"cel": {"expression": "device.driver == 'gpufraction.io'"}}]}
SOME = {
    "name": "one",
    "firstAvailable": [
        {"name": name, "deviceClassName": "share.gpufraction.io", "capacity": {"requests": {"memory": "1Gi"}}, **more}
        for name, more in (("best", SELECTING), ("any", {}))
    ],
}


@pytest.mark.parametrize(("alternative", "name"), [(0, "best"), (1, "any"), (2, "")])
def test_an_allocation_names_the_alternative_that_was_chosen(bench: Bench, alternative: int, name: str) -> None:
    spec = {"devices": {"requests": [SOME]}}
    bench.claim_for(None, "own", spec)
    pod = bench.make("q", claim="own")
    del pod["spec"]["containers"][1]["resources"]
    reading = read_claim(spec)
    assert not isinstance(reading, Refusal)
    request = read_pod(PodReader(pod, DEFAULTS), {"gpu": reading})
    assert isinstance(request, PodRequest)
    share = GpuShare(UUIDS[0], 0, GIB, 0, 16 * GIB, "nvidia.com/gpu", dra=True)
    decided = Allocation("one", "a", (ContainerAllocation("first", (share,), alternative),))
    if not name:
        with pytest.raises(NotWritten, match="request one has no alternative 2"):
            share_claims.write(bench.kube, pod, request, decided, at=AT)
        return
    share_claims.write(bench.kube, pod, request, decided, at=AT)
    claim = bench.claim("own")
    assert [each["request"] for each in claim["status"]["allocation"]["devices"]["results"]] == [f"one/{name}"]
    (given,) = resourceclaims.prepared(claim, uid=claim["metadata"]["uid"], node="a")
    assert given.request == "one"


@pytest.mark.parametrize("change", ["a selector more", "alternatives", "none"])
def test_a_claim_with_other_selectors_than_were_judged_is_not_written(bench: Bench, change: str) -> None:
    """A template may be replaced between a pod's admission and the creation of the claim."""
    plain = {"deviceClassName": "share.gpufraction.io", "capacity": {"requests": {"memory": "1Gi"}}}
    judged = {"name": "one", "exactly": {**plain, **SELECTING}}
    more = {"selectors": [*SELECTING["selectors"], {"cel": {"expression": "true"}}]}
    made = {
        "a selector more": {"name": "one", "exactly": {**plain, **more}},
        "alternatives": SOME,
        "none": {"name": "one", "exactly": plain},
    }[change]
    bench.claim_for(None, "own", {"devices": {"requests": [made]}})
    pod = bench.make("q", claim="own")
    del pod["spec"]["containers"][1]["resources"]
    reading = read_claim({"devices": {"requests": [judged]}})
    assert not isinstance(reading, Refusal)
    request = read_pod(PodReader(pod, DEFAULTS), {"gpu": reading})
    assert isinstance(request, PodRequest)
    share = GpuShare(UUIDS[0], 0, GIB, 0, 16 * GIB, "nvidia.com/gpu", dra=True)
    decided = Allocation("one", "a", (ContainerAllocation("first", (share,)),))
    with pytest.raises(NotWritten, match="something other than what was counted"):
        share_claims.write(bench.kube, pod, request, decided, at=AT)
    assert "status" not in bench.claim("own") or not bench.claim("own")["status"]


def test_where_the_node_delivers_in_another_way_the_claim_has_no_device(bench: Bench) -> None:
    bench.write(allocated("one", dra=False))
    assert "results" not in bench.claim()["status"]["allocation"]["devices"]


def test_the_same_write_again_changes_nothing(bench: Bench) -> None:
    bench.write(allocated("one"))
    before = bench.claim()
    bench.write(allocated("one"))
    assert bench.claim() == before


@pytest.mark.parametrize(
    "fates", [["lost-and-done"], ["answered", "lost-and-done"], ["dropped"], ["answered", "dropped"]]
)
def test_a_write_without_an_answer_is_not_taken_for_done_and_can_be_repeated(bench: Bench, fates: Any) -> None:
    bench.wire.fates = list(fates)
    with pytest.raises(NotWritten) as caught:
        bench.write(allocated("one"))
    assert not caught.value.refused
    bench.write(allocated("one"))
    assert resourceclaims.version(bench.claim()) == ("one", int(bench.pod["metadata"]["resourceVersion"]))


def test_a_later_decision_takes_the_place_of_one_that_an_ended_process_left(bench: Bench) -> None:
    bench.write(allocated("one", "a"))
    bench.write(allocated("two", "b"), bench.fenced())
    assert bench.claim()["status"]["allocation"]["devices"]["results"][0]["pool"] == "b"


def test_an_earlier_leader_does_not_change_what_a_later_one_wrote(bench: Bench) -> None:
    before = copy.deepcopy(bench.pod)
    bench.write(allocated("two", "b"), bench.fenced())
    with pytest.raises(NotWritten, match="later leader"):
        bench.write(allocated("one", "a"), before)


def test_a_claim_that_asks_for_something_else_than_was_counted_is_not_allocated(bench: Bench) -> None:
    """Its template was replaced after the pod's admission, or a user put another claim in its place."""
    bench.sound.delete(paths.resourceclaims("default", "p-gpu"))
    owner = bench.sound.get(paths.pods("default", "p"))
    bench.claim_for(owner, "p-gpu", spec_of(ONE, DeviceRequest("two", 2, 8 * GIB)))
    with pytest.raises(NotWritten, match="something other than what was counted") as caught:
        bench.write(allocated("one"))
    assert caught.value.refused
    assert "allocation" not in (bench.claim().get("status") or {})


def test_a_claim_that_was_made_for_another_pod_is_not_allocated(bench: Bench) -> None:
    other = bench.make("other")
    stolen = {**bench.pod, "status": other["status"]}
    with pytest.raises(NotWritten, match="was not made for this pod"):
        bench.write(allocated("one"), stolen)


def test_a_claim_of_another_class_is_no_share(bench: Bench) -> None:
    bench.sound.delete(paths.resourceclaims("default", "p-gpu"))
    spec = {"devices": {"requests": [{"name": "one", "exactly": {"deviceClassName": "nic.example.com"}}]}}
    bench.claim_for(bench.sound.get(paths.pods("default", "p")), "p-gpu", spec)
    with pytest.raises(NotWritten, match="something other than what was counted"):
        bench.write(allocated("one"))


def test_a_claim_that_is_not_made_yet_is_waited_for(bench: Bench) -> None:
    early = {**bench.pod, "status": {}}
    with pytest.raises(NotWritten, match="not created yet") as caught:
        bench.write(allocated("one"), early)
    assert not caught.value.refused


def test_a_claim_that_stands_alone_is_one_pods_until_that_has_ended(bench: Bench) -> None:
    bench.claim_for(None, "alone", spec_of(ONE, TWO))
    first, second = bench.make("first", claim="alone"), bench.make("second", claim="alone")
    bench.write(allocated("one", "a"), first)
    with pytest.raises(NotWritten, match="is used by pod first") as caught:
        bench.write(allocated("two", "b"), second)
    assert not caught.value.refused
    # kube-controller-manager removes the reservation, and without the finalizer it keeps the allocation.
    bench.sound.patch_merge(paths.resourceclaims("default", "alone", "status"), {"status": {"reservedFor": None}})
    bench.write(allocated("two", "b"), second)
    claim = bench.claim("alone")
    assert resourceclaims.holders(claim) == ((pods.uid(second), "second"),)
    assert claim["status"]["allocation"]["devices"]["results"][0]["pool"] == "b"


# -- one claim, several pods --------------------------------------------------------------------------------------


def together(identity: str, claim: JSON, node: str = "a", *, dra: bool = True) -> Allocation:
    """A decision for one of several pods with the claim's share."""
    return replace(allocated(identity, node, dra=dra), shared=claim["metadata"]["uid"])


@pytest.mark.parametrize("dra", [True, False])
def test_a_claim_is_reserved_for_each_pod_that_has_its_share(bench: Bench, dra: bool) -> None:
    claim = bench.claim_for(None, "alone", spec_of(ONE, TWO))
    first, second, third = (bench.make(name, claim="alone") for name in ("first", "second", "third"))
    bench.write(together("one", claim, dra=dra), first)
    allocation = bench.claim("alone")["status"]["allocation"]
    bench.write(together("two", claim, dra=dra), second)
    bench.write(together("one", claim, dra=dra), first)
    found = bench.claim("alone")
    assert found["status"]["allocation"] == allocation
    assert resourceclaims.holders(found) == ((pods.uid(first), "first"), (pods.uid(second), "second"))
    # The share belongs to the claim, whichever pods are left.
    reserved = found["status"]["reservedFor"][1:]
    bench.sound.patch_merge(paths.resourceclaims("default", "alone", "status"), {"status": {"reservedFor": reserved}})
    bench.write(together("three", claim, dra=dra), third)
    found = bench.claim("alone")
    assert [name for _, name in resourceclaims.holders(found)] == ["second", "third"]
    given = resourceclaims.prepared(found, uid=found["metadata"]["uid"], node="a")
    assert [each.request for each in given] == (["one", "two", "two"] if dra else [])


def test_the_claim_says_the_same_whichever_pod_wrote_it(bench: Bench) -> None:
    claim, said = bench.claim_for(None, "alone", spec_of(ONE, TWO)), []
    for name in ("first", "second"):
        bench.write(together(f"id-{name}", claim), bench.make(name, claim="alone"))
        said.append(bench.claim("alone")["status"]["allocation"]["devices"]["results"])
        released = {"status": {"reservedFor": None, "allocation": None}}
        bench.sound.patch_merge(paths.resourceclaims("default", "alone", "status"), released)
    assert said[0] == said[1]


def test_a_pod_with_other_cards_does_not_join(bench: Bench) -> None:
    claim = bench.claim_for(None, "alone", spec_of(ONE, TWO))
    first, second = bench.make("first", claim="alone"), bench.make("second", claim="alone")
    bench.write(together("one", claim, "a"), first)
    with pytest.raises(NotWritten, match="is used by pod first"):
        bench.write(together("two", claim, "b"), second)
    assert [name for _, name in resourceclaims.holders(bench.claim("alone"))] == ["first"]


def test_a_claim_that_was_made_again_is_another_share(bench: Bench) -> None:
    claim = bench.claim_for(None, "alone", spec_of(ONE, TWO))
    pod = bench.make("first", claim="alone")
    bench.sound.delete(paths.resourceclaims("default", "alone"))
    bench.claim_for(None, "alone", spec_of(ONE, TWO))
    with pytest.raises(NotWritten, match="was created again"):
        bench.write(together("one", claim), pod)


def test_no_more_pods_than_the_api_server_takes(bench: Bench) -> None:
    claim = bench.claim_for(None, "alone", spec_of(ONE, TWO))
    pod = bench.make("first", claim="alone")
    bench.write(together("one", claim), pod)
    many = [{"resource": "pods", "name": f"p{at}", "uid": f"u{at}"} for at in range(MOST_CONSUMERS)]
    bench.sound.patch_merge(paths.resourceclaims("default", "alone", "status"), {"status": {"reservedFor": many}})
    with pytest.raises(NotWritten, match="used by 256 pods, which is the maximum"):
        bench.write(together("more", claim), bench.make("more", claim="alone"))


@pytest.mark.parametrize("fate", ["lost-and-done", "dropped", "lost"])
def test_a_reservation_without_an_answer_can_be_repeated(bench: Bench, fate: Any) -> None:
    claim = bench.claim_for(None, "alone", spec_of(ONE, TWO))
    first, second = bench.make("first", claim="alone"), bench.make("second", claim="alone")
    bench.write(together("one", claim), first)
    bench.wire.fates = [fate]
    with pytest.raises(NotWritten):
        bench.write(together("two", claim), second)
    bench.write(together("two", claim), second)
    assert [name for _, name in resourceclaims.holders(bench.claim("alone"))] == ["first", "second"]


def test_a_claim_that_is_being_deleted_is_left_alone(bench: Bench) -> None:
    bench.write(allocated("one"))
    bench.sound.delete(paths.resourceclaims("default", "p-gpu"))
    with pytest.raises(NotWritten, match="is being deleted"):
        bench.write(allocated("two"), bench.fenced())
