"""A storm of pods, some with ResourceClaims: each claim is what its pods hold, and none is left over."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names, pods
from contract.encoding import resourceclaims
from contract.model import Allocation
from playground import scenarios
from playground.cluster import DEFAULT_COMPONENTS, Cluster
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import PodBuilder, pod, selecting
from tests.cluster.system import invariants
from tests.clusters import allow_claims, only_real
from tests.stress.storm.conftest import FAST_ELECTION
from tests.stress.storm.storm import Storm, made
from tests.stress.storm.test_claims_storm import NODES, delivering

pytestmark = pytest.mark.storm
JSON = dict[str, Any]
MODEL = "A10"
"""The model of every card here."""
ALONE = tuple(f"together-{at}" for at in range(4))
"""Standalone claims, each used by several pods."""


@pytest.fixture(params=only_real())
def asking(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two replicas, and four nodes of which two deliver by claims; the namespace may request by claims."""
    pytest.importorskip("grpc", reason="gRPC is the package's extra `dra`")
    with Cluster(
        nodes=NODES,
        directory=tmp_path_factory.mktemp("claims"),
        settings={"allocator": (*FAST_ELECTION, "--assume-ttl", "3s")},
        replicas=2,
        components=(*DEFAULT_COMPONENTS, "delivery-dra", "resourceclaims"),
        control_plane=request.param,
    ) as cluster:
        allow_claims(cluster.kube)
        for name, spec in TEMPLATES.items():
            create(cluster, paths.resourceclaimtemplates("default"), name, {"spec": {"spec": spec}})
        for name in ALONE:
            create(cluster, paths.resourceclaims("default"), name, {"spec": asks({"memory": "3Gi"})})
        wait_for(lambda: delivering(cluster) == 2, "the agents do not publish their delivery", 60)
        yield cluster


def asks(amounts: JSON) -> JSON:
    """A claim for one card."""
    capacity = {"capacity": {"requests": amounts}} if amounts else {}
    exactly = {"deviceClassName": str(names.SHARE_CLASS), **capacity}
    return {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}


def choice() -> JSON:
    """A claim for a share of a model that is not there, or else of one that is."""
    exactly = asks({"memory": "2Gi"})["devices"]["requests"][0]["exactly"]
    models = [{"name": model.lower(), **exactly, "selectors": [selecting(model)]} for model in ("H100", MODEL)]
    return {"devices": {"requests": [{"name": "gpu", "firstAvailable": models}]}}


def pair() -> JSON:
    """A claim for two cards of one model."""
    request = asks({"memory": "2Gi"})["devices"]["requests"][0]
    request["exactly"] |= {"count": 2, "selectors": [selecting(MODEL)]}
    alike = {"matchAttribute": "gpufraction.io/productName", "requests": ["gpu"]}
    return {"devices": {"requests": [request], "constraints": [alike]}}


TEMPLATES = {
    "small": asks({"memory": "1Gi"}),
    "middle": asks({"memory": "6Gi", "cores": "20"}),
    "whole": asks({}),
    "choice": choice(),
    "pair": pair(),
}


def create(cluster: Cluster, path: str, name: str, body: JSON) -> None:
    kind = "ResourceClaimTemplate" if path.endswith("templates") else "ResourceClaim"
    cluster.kube.create(path, {"apiVersion": resourceclaims.API, "kind": kind, "metadata": {"name": name}, **body})


def by_claim(name: str, rng: random.Random) -> PodBuilder:
    """A pod with a template, one that uses a claim together with others, or one that requests in another dialect."""
    kind = rng.random()
    if kind < 0.5:
        return pod(name).uses("gpu", template=rng.choice(list(TEMPLATES)))
    return pod(name).uses("gpu", claim=rng.choice(ALONE)) if kind < 0.75 else made(name, rng)


def amiss(cluster: Cluster) -> list[str]:
    """What is wrong with the claims and with the pods that have shares from them."""
    alive = {pods.uid(each): each for each in scenarios.all_pods(cluster.kube) if not pods.finished(each)}
    claims = {each["metadata"]["name"]: each for each in cluster.kube.list(paths.resourceclaims("default")).items}
    wrong = [
        f"{name} is {what} for a pod that is gone"
        for name, claim in claims.items()
        for what, uids in (("made", [resourceclaims.owner_uid(claim)]), ("reserved", reserved(claim)))
        if any(uid and uid not in alive for uid in uids)
    ]
    cards: dict[str, set[tuple[object, ...]]] = {}
    for uid, each in alive.items():
        request, allocation = pods.admitted(each), pods.carried_allocation(each)
        if request is None or not request.own_claims or allocation is None or names.GATE in pods.gates(each):
            continue
        name = claim_of(each)
        claim = claims.get(name)
        if claim is None or uid not in reserved(claim):
            wrong.append(f"{pods.key(each)} has a share, and its claim {name} is not for it")
        elif devices(claim) != devices_of(allocation):
            wrong.append(f"{pods.key(each)} has {devices_of(allocation)}, and its claim {name} says {devices(claim)}")
        cards.setdefault(name, set()).add((allocation.node, *shares(allocation)))
    return wrong + [f"the pods of claim {name} have {found}" for name, found in cards.items() if len(found) > 1]


def claim_of(each: JSON) -> str:
    """The name of the claim that the pod uses."""
    entry = each["spec"]["resourceClaims"][0]
    made_for = {one["name"]: one.get("resourceClaimName") for one in each["status"].get("resourceClaimStatuses") or ()}
    return str(entry.get("resourceClaimName") or made_for.get(entry["name"]))


def reserved(claim: JSON) -> list[str]:
    return [each["uid"] for each in (claim.get("status") or {}).get("reservedFor") or ()]


def devices(claim: JSON) -> list[tuple[str, str]]:
    """The devices that it has, each with its node."""
    found = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    return sorted((each["pool"], each["device"]) for each in found.get("results") or ())


def devices_of(allocation: Allocation) -> list[tuple[str, str]]:
    """The devices of a claim with this share; none on a node that delivers in another way."""
    found = [share for each in allocation.containers for share in each.shares if share.dra]
    return sorted((allocation.node, resourceclaims.device_name(share.uuid)) for share in found)


def shares(allocation: Allocation) -> list[tuple[str, int]]:
    return sorted((share.uuid, share.memory) for each in allocation.containers for share in each.shares)


def check(cluster: Cluster, storm: Storm) -> None:
    storm.settle(timeout=300)
    invariants.check(cluster)
    wait_for(lambda: not amiss(cluster), lambda: f"amiss: {amiss(cluster)}", 90, every=1.0)
    assert (storm.refused, storm.strikes > 0) == ([], True)


def running(cluster: Cluster) -> list[JSON]:
    """The running pods with a share from a claim of their author."""
    found = [each for each in scenarios.all_pods(cluster.kube) if scenarios.is_running(each)]
    return [each for each in found if (request := pods.admitted(each)) and request.own_claims]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("size", [120, 1000])
def test_a_storm_of_pods_that_ask_by_claims(asking: Cluster, size: int) -> None:
    storm = Storm(asking, pods=size, deleted=0.4, seed=21, make=by_claim)
    storm.blow()
    check(asking, storm)
    used = [claim_of(each) for each in running(asking)]
    assert len(set(used)) < len(used), "several pods use one claim"
    scenarios.clear(asking.kube)
    wait_for(lambda: there(asking) == set(ALONE), lambda: f"claims are left over: {there(asking)}", 90)


def there(cluster: Cluster) -> set[str]:
    """The names of all claims."""
    return {each["metadata"]["name"] for each in cluster.kube.list(paths.resourceclaims("default")).items}


@pytest.mark.timeout(2400)
def test_a_storm_of_1000_pods_in_four_gusts_by_claims_of_their_own(asking: Cluster) -> None:
    storm = Storm(asking, pods=250, deleted=0.4, seed=22, make=by_claim)
    for _ in range(4):
        storm.blow()
        check(asking, storm)
