"""
Pods that request their share by ResourceClaims, on a real node: upstream's objects, our card, and what the container
gets of it with each way of delivery.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from contract import names
from contract.encoding import resourceclaims
from playground.waiting import wait_for
from runtime.kubernetes import paths
from runtime.kubernetes.client import KubeNotFound
from tests.builders import selecting
from tests.cluster.realnode.cluster import JSON, RealNodeCluster, container
from tests.cluster.realnode.test_container_view import share
from tests.cluster.realnode.ways import Way
from tests.clusters import allow_claims

pytestmark = [pytest.mark.realnode, pytest.mark.timeout(600)]
TEMPLATE, CLAIM, CHOICE = "4gi", "together", "choice"


@pytest.fixture
def asking(real: RealNodeCluster, way: Way) -> Iterator[RealNodeCluster]:
    """
    The node in a cluster whose namespace may request by claims. It has a template and a claim for 4 GiB, and a template
    of two alternatives for that, of which only the second names an existing card.
    """
    allow_claims(real.kube)
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "4Gi"}}}
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}
    choices = [{"name": model.lower(), **exactly, "selectors": [selecting(model)]} for model in ("A100", "T4")]
    choice = {"devices": {"requests": [{"name": "gpu", "firstAvailable": choices}]}}
    templates = paths.resourceclaimtemplates("default")
    made: list[tuple[str, str, JSON]] = [
        (templates, TEMPLATE, {"kind": "ResourceClaimTemplate", "spec": {"spec": spec}}),
        (templates, CHOICE, {"kind": "ResourceClaimTemplate", "spec": {"spec": choice}}),
        (paths.resourceclaims("default"), CLAIM, {"kind": "ResourceClaim", "spec": spec}),
    ]
    for path, name, body in made:
        real.kube.create(path, {"apiVersion": resourceclaims.API, "metadata": {"name": name}, **body})
    yield real
    real.clear()
    for path, name, _ in made:
        with contextlib.suppress(KubeNotFound):
            real.kube.delete(f"{path}/{name}")
    wait_for(lambda: not claims(real), lambda: f"claims are left over: {claims(real)}", 60)


def claims(node: RealNodeCluster) -> list[JSON]:
    return list(node.kube.list(paths.resourceclaims("default")).items)


def owner(claim: JSON) -> str:
    """The pod for which the claim was created; empty for a standalone claim."""
    return next((str(each["name"]) for each in claim["metadata"].get("ownerReferences") or ()), "")


def submit(node: RealNodeCluster, name: str, *, request: str = "", **source: str) -> None:
    """A pod that reports what it sees. Its only container uses the claim, or this request of it."""
    entry = {"name": "gpu", **({"request": request} if request else {})}
    using: dict[str, Any] = {**container(), "resources": {"claims": [entry]}}
    node.submit(name, using, resourceClaims=[{"name": "gpu", **source}])


def test_a_pod_of_a_template_sees_its_card_and_its_limits(asking: RealNodeCluster) -> None:
    """The first card has no room for it."""
    asking.submit("large", container(gpu_memory="12Gi"))
    asking.running("large")
    submit(asking, "a", resourceClaimTemplateName=TEMPLATE)
    assert asking.inside("a") == share(4096, 1)
    [claim] = [each for each in claims(asking) if owner(each) == "a"]
    assert [each["name"] for each in claim["status"]["reservedFor"]] == ["a"]


def test_two_pods_of_one_claim_see_the_same_card(asking: RealNodeCluster) -> None:
    for name in ("a", "b"):
        submit(asking, name, resourceClaimName=CLAIM)
    assert [asking.inside(name) for name in ("a", "b")] == [share(4096, 0), share(4096, 0)]


def test_a_restarted_container_has_its_claim_still(asking: RealNodeCluster) -> None:
    submit(asking, "a", resourceClaimTemplateName=TEMPLATE)
    pod = asking.running("a")
    asking.node.end(asking.node.process_of(pod))
    assert asking.inside("a", restart=1) == share(4096, 0)


def test_a_container_that_names_a_request_sees_the_card_of_its_alternative(asking: RealNodeCluster) -> None:
    """The allocation names the alternative, and kubelet looks for the request that the container names."""
    submit(asking, "a", request="gpu", resourceClaimTemplateName=CHOICE)
    assert asking.inside("a") == share(4096, 0)
