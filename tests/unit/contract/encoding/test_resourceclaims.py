"""The ResourceClaim of a pod: what a pod names, what the allocator writes, and what a kubelet plugin reads from it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from contract import names
from contract.encoding import resourceclaims
from contract.encoding.reading import Malformed
from contract.encoding.resourceclaims import PreparedDevice
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest

JSON = dict[str, Any]
UUID, OTHER = "GPU-11111111-2222-3333-4444-555555555555", "GPU-66666666-2222-3333-4444-555555555555"
NAME = resourceclaims.name_from("review")
TWO = PodRequest("native", (FractionRequest("main", memory=1 << 30), FractionRequest("side", memory=1 << 30)))


def share(uuid: str = UUID, *, dra: bool = True) -> GpuShare:
    return GpuShare(uuid, 0, 1 << 30, 0, 16 << 30, "nvidia.com/gpu,gpufraction.io/share", dra=dra)


def allocation(*, dra: bool = True) -> Allocation:
    containers = (
        ContainerAllocation("main", (share(dra=dra), share(OTHER, dra=dra))),
        ContainerAllocation("side", (share(dra=dra),)),
    )
    return Allocation("the-id", "node-1", containers)


def pod() -> JSON:
    spec: JSON = {
        "containers": [{"name": "main"}, {"name": "side", "resources": {"limits": {"cpu": "1"}}}, {"name": "x"}]
    }
    spec = resourceclaims.with_claim(spec, TWO, NAME)
    metadata = {"name": "p", "namespace": "ns", "uid": "pod-uid", "resourceVersion": "17"}
    return {"metadata": metadata, "spec": spec}


def stored(**changed: Any) -> JSON:
    claim = resourceclaims.claim_for(pod(), TWO, allocation(**changed))
    claim["metadata"]["uid"] = "claim-uid"
    claim["status"] = resourceclaims.status_for(pod(), allocation(**changed))
    return claim


def test_only_containers_with_a_share_have_a_request_of_the_claim() -> None:
    spec = pod()["spec"]
    assert spec["resourceClaims"] == [{"name": "gpufraction", "resourceClaimName": NAME}]
    assert [each.get("resources", {}).get("claims") for each in spec["containers"]] == [
        [{"name": "gpufraction", "request": "main"}],
        [{"name": "gpufraction", "request": "side"}],
        None,
    ]
    assert resourceclaims.named_by(spec) == NAME


def test_what_a_tenant_wrote_under_our_names_goes_and_the_rest_stays() -> None:
    own = {"name": "network", "resourceClaimName": "mine"}
    spec = {
        "resourceClaims": [
            own,
            {"name": "gpufraction", "resourceClaimName": "mine"},
            {"name": "forged", "resourceClaimName": NAME},
        ],
        "containers": [
            {
                "name": "main",
                "resources": {"claims": [{"name": "forged"}, {"name": "network"}], "limits": {"cpu": "1"}},
            },
            {"name": "side", "resources": {"claims": [{"name": "gpufraction", "request": "x"}]}},
        ],
    }
    before = copy.deepcopy(spec)
    after = resourceclaims.without_claim(spec)
    assert after["resourceClaims"] == [own]
    assert after["containers"][0]["resources"] == {"limits": {"cpu": "1"}, "claims": [{"name": "network"}]}
    assert after["containers"][1]["resources"] == {}
    assert spec == before, "the pod that came in is not changed"
    assert resourceclaims.without_claim(after) == after


def test_naming_the_claim_twice_changes_nothing() -> None:
    spec = pod()["spec"]
    assert resourceclaims.with_claim(spec, TWO, NAME) == spec


def test_a_pod_with_more_shares_than_a_claim_holds_gets_none() -> None:
    assert resourceclaims.fits_claim(PodRequest("native", (FractionRequest("main", count=32, memory=1),)))
    assert not resourceclaims.fits_claim(PodRequest("native", (FractionRequest("main", count=33, memory=1),)))


def test_the_claim_is_owned_by_its_pod_and_never_allocated_by_kube_scheduler() -> None:
    claim = stored()
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("Pod", "pod-uid", True)
    classes = {each["exactly"]["deviceClassName"] for each in claim["spec"]["devices"]["requests"]}
    assert classes == {names.GROUP}
    assert claim["status"]["reservedFor"] == [{"resource": "pods", "name": "p", "uid": "pod-uid"}]


def test_each_container_gets_the_devices_of_its_own_shares() -> None:
    both = tuple(f"{kind}={UUID}" for kind in ("nvidia.com/gpu", "gpufraction.io/share"))
    others = tuple(f"{kind}={OTHER}" for kind in ("nvidia.com/gpu", "gpufraction.io/share"))
    assert resourceclaims.prepared(stored(), uid="claim-uid", node="node-1") == (
        PreparedDevice("main", "node-1", UUID.lower(), both),
        PreparedDevice("main", "node-1", OTHER.lower(), others),
        PreparedDevice("side", "node-1", UUID.lower(), both),
    )


def test_the_card_of_an_alternative_is_given_by_the_name_of_its_request() -> None:
    """Containers name the request, and kubelet compares that name with the answer as text."""
    given = [("gpu/large", share())]
    claim = {
        "metadata": {"name": "mine", "uid": "claim-uid"},
        "status": resourceclaims.shared_status(pod(), allocation(), given, at="2026-01-01T00:00:00Z"),
    }
    cdi = tuple(f"{kind}={UUID}" for kind in ("nvidia.com/gpu", "gpufraction.io/share"))
    assert resourceclaims.prepared(claim, uid="claim-uid", node="node-1") == (
        PreparedDevice("gpu", "node-1", UUID.lower(), cdi),
    )


def test_where_the_node_delivers_in_another_way_the_claim_has_no_device() -> None:
    claim = stored(dra=False)
    assert "results" not in claim["status"]["allocation"]["devices"]
    assert resourceclaims.prepared(claim, uid="claim-uid", node="node-1") == ()


def results(claim: JSON) -> list[JSON]:
    found: list[JSON] = claim["status"]["allocation"]["devices"]["results"]
    return found


FORGED: dict[str, Callable[[JSON], object]] = {
    "another name": lambda c: c["metadata"].update(name="mine"),
    "another uid": lambda c: c["metadata"].update(uid="anew"),
    "no owner": lambda c: c["metadata"].pop("ownerReferences"),
    "two owners": lambda c: c["metadata"]["ownerReferences"].append({"kind": "Pod", "uid": "other"}),
    "an owner that is no pod": lambda c: c["metadata"]["ownerReferences"][0].update(kind="Job"),
    "reserved for another pod": lambda c: c["status"]["reservedFor"][0].update(uid="other"),
    "reserved for two pods": lambda c: c["status"]["reservedFor"].append({"resource": "pods", "uid": "other"}),
    "reserved for none": lambda c: c["status"].pop("reservedFor"),
    "not allocated": lambda c: c["status"].pop("allocation"),
    "another node": lambda c: results(c)[0].update(pool="node-2"),
    "another driver": lambda c: results(c)[0].update(driver="gpu.nvidia.com"),
    "a card without a share": lambda c: results(c)[0].update(device="gpu-0"),
    "another container's card": lambda c: results(c)[1].update(request="side"),
    "another driver's configuration": lambda c: c["status"]["allocation"]["devices"]["config"][0]["opaque"].update(
        driver="gpu.nvidia.com"
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED)
def test_a_forged_claim_gives_nothing(forge: Callable[[JSON], object]) -> None:
    claim = stored()
    forge(claim)
    with pytest.raises(Malformed):
        resourceclaims.prepared(claim, uid="claim-uid", node="node-1")


def test_the_claim_tells_by_which_version_of_its_pod_it_was_decided() -> None:
    assert resourceclaims.version(stored()) == ("the-id", 17)
    assert resourceclaims.version({"status": {}}) is None
    with pytest.raises(Malformed):
        resourceclaims.version({"status": {"allocation": {"devices": {}}}})


@pytest.mark.parametrize(
    ("uuid", "device"),
    [(UUID, UUID.lower()), ("GPU-a_b.c", "gpu-a-b-c"), ("x" * 80, "x" * 63), ("--", "gpu")],
)
def test_a_device_has_a_dns_label_as_name(uuid: str, device: str) -> None:
    assert resourceclaims.device_name(uuid) == device


def test_a_checkpoint_reads_as_it_was_written() -> None:
    known = {"claim-uid": resourceclaims.prepared(stored(), uid="claim-uid", node="node-1"), "empty": ()}
    assert resourceclaims.from_checkpoint(resourceclaims.to_checkpoint(known)) == known


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"v": 2, "claims": {}}', '{"v": 1, "claims": {"a": [1]}}'])
def test_a_checkpoint_that_cannot_be_read_is_malformed(text: str) -> None:
    with pytest.raises(Malformed):
        resourceclaims.from_checkpoint(text)
