"""ElasticGPUClaims on nodes that deliver GPUs by ResourceClaims."""

from __future__ import annotations

from typing import Any

import pytest

from allocator.features.elasticgpuclaims import objects
from allocator.features.elasticgpuclaims.objects import BOUND, PENDING
from contract import names, pods
from contract.encoding import resourceclaims
from contract.model import Delivery
from runtime.kubernetes import paths
from tests.builders import NodeBuilder, node, pod
from tests.unit.allocator.features.elasticgpuclaims.classes import bench, of_pod, status, taken
from tests.unit.allocator.features.elasticgpuclaims.harness import CLAIM_OF, Bench
from tests.unit.allocator.harness import admitted

JSON = dict[str, Any]
BY_CLAIM = Delivery(("",), "nvidia.com/gpu", dra=True)
BY_ENV = Delivery(("",))


def gpus(name: str, count: int = 1, way: Delivery = BY_CLAIM) -> NodeBuilder:
    return node(name).gpus(count, mib=16384).delivering(way)


def user(on: Bench, name: str, claim: str, *, containers: int = 1, names_one: bool = True, **spec: Any) -> None:
    """A pod as the webhook leaves it: behind the gate, with its own ResourceClaim."""
    builder = pod(name).spec(automountServiceAccountToken=False, **spec)
    for number in range(containers):
        builder = builder.container(f"c{number}")
    body = admitted(builder.annotated(CLAIM_OF, claim), gated=True)
    request = pods.admitted(body)
    assert request is not None
    if names_one:
        body["spec"] = resourceclaims.with_claim(body["spec"], request, resourceclaims.name_from(name))
    on.create(paths.pods("default"), body)


def given(on: Bench, name: str) -> dict[str, set[str]]:
    """The devices of each container from the pod's ResourceClaim; empty if the claim has none."""
    found = on.kube.get(paths.resourceclaims("default", resourceclaims.name_from(name)))
    assert found["status"]["reservedFor"][0]["name"] == name
    devices: dict[str, set[str]] = {}
    for result in found["status"]["allocation"]["devices"].get("results", ()):
        devices.setdefault(result["request"], set()).add(result["device"])
    counts = {each["name"]: each["exactly"]["count"] for each in found["spec"]["devices"]["requests"]}
    assert all(len(cards) == counts[container] for container, cards in devices.items())
    return devices


def test_a_claim_is_bound_before_any_pod_names_it_and_later_pods_start_there() -> None:
    on = bench(gpus("a"), by_claims=True)
    on.a_claim("c", memory=2, of="now")
    on.quiet()
    assert status(on, "c") == (BOUND, "Bound")
    for name in ("p", "q"):
        user(on, name, "c", containers=2)
    on.quiet()
    assert of_pod(on, "p") == of_pod(on, "q") == {"GPU-a-0": 2 << 30}
    assert given(on, "p") == given(on, "q") == {"c0": {"gpu-a-0"}, "c1": {"gpu-a-0"}}
    assert not on.overbooked()


def test_a_claim_is_not_bound_there_where_pods_name_no_resource_claims() -> None:
    on = bench(gpus("a"))
    on.a_claim("c", of="now")
    on.quiet()
    assert (status(on, "c"), taken(on)) == ((PENDING, "Delivery"), {})


@pytest.mark.parametrize("of", ["now", "later"])
def test_a_claim_is_bound_there_for_a_pod_that_waits(of: str) -> None:
    on = bench(gpus("a"), by_claims=True)
    user(on, "p", "c")
    on.quiet()
    assert on.reason_of("p") == "ClaimMissing"
    on.a_claim("c", of=of)
    on.quiet()
    assert given(on, "p") == {"c0": {"gpu-a-0"}}


def test_whole_cards_come_to_each_container() -> None:
    on = bench(gpus("a", 2), by_claims=True)
    on.a_claim("c", memory=None, cores=200, of="now")
    on.quiet()
    user(on, "p", "c", containers=2)
    on.quiet()
    both = {"gpu-a-0", "gpu-a-1"}
    assert given(on, "p") == {"c0": both, "c1": both}


def test_an_unused_share_moves_for_a_pod_that_names_no_resource_claim() -> None:
    """A pod that was created before its webhook added ResourceClaims."""
    on = bench(gpus("a"), gpus("b", way=BY_ENV).tainted("later"), by_claims=True)
    on.a_claim("c", of="now")
    on.quiet()
    user(on, "p", "c", names_one=False, tolerations=[{"operator": "Exists"}])
    on.quiet()
    assert set(of_pod(on, "p")) == {"GPU-b-0"}
    assert on.share_of("c").allocation is not None


def test_a_pod_without_a_resource_claim_waits_while_others_use_the_share() -> None:
    on = bench(gpus("a"), by_claims=True)
    on.a_claim("c", of="now")
    user(on, "p", "c")
    on.quiet()
    user(on, "q", "c", names_one=False)
    on.quiet()
    assert on.reason_of("q") == "Delivery"
    assert names.GATE in pods.gates(on.get("pods", "q"))


def test_more_cards_than_a_resource_claim_holds_are_given_elsewhere() -> None:
    """33 devices: 11 containers that each see all three cards."""
    on = bench(gpus("a", 3), gpus("b", 3, way=BY_ENV), by_claims=True)
    user(on, "p", "c", containers=11)
    on.a_claim("c", memory=None, cores=300, of="now")
    on.quiet()
    assert {each.node for each in [on.share_of("c").allocation] if each} == {"b"}
    assert given(on, "p") == {}


def test_a_container_that_starts_after_the_delivery_changed_gets_the_new_one() -> None:
    on = bench(gpus("a", way=BY_ENV), by_claims=True)
    on.a_claim("c", of="now")
    user(on, "before", "c")
    on.quiet()
    assert given(on, "before") == {}
    on.nodes["a"] = gpus("a")
    on.cards()
    user(on, "after", "c")
    on.quiet()
    assert given(on, "after") == {"c0": {"gpu-a-0"}}
    assert given(on, "before") == {}
    on.nodes["a"] = gpus("a", way=BY_ENV)
    on.cards()
    user(on, "back", "c")
    on.quiet()
    assert given(on, "back") == {}
    assert not on.overbooked()
    assert set(on.all(objects.SHARES)) == {on.share_of("c").name}
