"""What the simulation finds wrong with claims and their pods."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from contract import names
from contract.encoding import codec, resourceclaims
from contract.model import Allocation, ContainerAllocation, FractionRequest, GpuShare, PodRequest
from tests.simulation.features.resourceclaims import DEALLOCATED, FEATURE

JSON = dict[str, Any]
SHARE = GpuShare("GPU-1", 0, 1 << 30, 0, 16 << 30, "nvidia.com/gpu", dra=True)
ALLOCATION = Allocation("one", "n1", (ContainerAllocation("main", (SHARE,)),))
REQUEST = PodRequest("resourceclaims", (FractionRequest("main", memory=1 << 30),))
KEY = ("team-a", "p-gpu")


def pod() -> JSON:
    annotations = {
        str(names.REQUEST): codec.request_to_text(REQUEST),
        str(names.ALLOCATION): codec.allocation_to_text(ALLOCATION),
    }
    resources = {"claims": [{"name": "gpu"}], "limits": {str(names.GPU_MEMORY): "1Gi"}}
    return {
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1", "annotations": annotations},
        "spec": {
            "resourceClaims": [{"name": "gpu", "resourceClaimTemplateName": "t"}],
            "containers": [{"name": "main", "resources": resources}],
        },
        "status": {"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "p-gpu"}]},
    }


def claim(**status: Any) -> JSON:
    exactly = {"deviceClassName": str(names.SHARE_CLASS), "capacity": {"requests": {"memory": "1Gi"}}}
    owner = {"kind": "Pod", "name": "p", "uid": "u-1"}
    given = resourceclaims.shared_status(pod(), ALLOCATION, [("gpu", SHARE)], at="2026-01-05T08:00:00Z")
    return {
        "metadata": {"name": "p-gpu", "namespace": "team-a", "ownerReferences": [owner], "finalizers": ["x/y"]},
        "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}},
        "status": {**given, **status},
    }


def missing(pods: list[JSON], claims: list[JSON], notes: JSON | None = None) -> list[str]:
    """What the goal reports about a cluster with these objects. `notes`: of the run."""

    def scan(resource: str) -> list[JSON]:
        return pods if resource == "pods" else claims

    def get(resource: str, key: tuple[str, str]) -> JSON | None:
        return next((each for each in claims if (each["metadata"]["namespace"], each["metadata"]["name"]) == key), None)

    world = SimpleNamespace(api=SimpleNamespace(store=SimpleNamespace(scan=scan, get=get)))
    run: Any = SimpleNamespace(world=world, notes=notes or {})
    goal, _ = FEATURE.goals
    return goal.missing(run)


OTHER = {"resource": "pods", "name": "q", "uid": "u-2"}
WRONG: dict[str, tuple[list[JSON], list[JSON], str]] = {
    "no claim": ([pod()], [], "its ResourceClaim p-gpu is not there"),
    "a claim for another pod": ([pod()], [claim(reservedFor=[OTHER])], "is reserved for (('u-2', 'q'),)"),
    "a claim without an allocation": ([pod()], [claim(allocation=None)], "says []"),
    "a claim of a pod that is gone": ([], [claim()], "is reserved for pod p, which is gone"),
    "a claim that nobody uses": ([], [claim(reservedFor=[])], "is allocated, and nobody uses it"),
    "an alternative that accepts no card": (
        [pod()],
        [claim(**resourceclaims.shared_status(pod(), ALLOCATION, [("gpu/none", SHARE)], at="2026-01-05T08:00:00Z"))],
        "names ['gpu/none']",
    ),
    "a claim that is left over": ([], [claim(reservedFor=[], allocation=None)], "is left over"),
}


def test_a_claim_that_is_what_its_pods_share_says_is_right() -> None:
    assert missing([pod()], [claim()]) == []


@pytest.mark.parametrize(("pods", "claims", "words"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_claim(pods: list[JSON], claims: list[JSON], words: str) -> None:
    assert any(words in each for each in missing(pods, claims))


def test_a_claim_that_was_deallocated_may_be_gone() -> None:
    """Once it was deleted too, nothing held it any more; the pod keeps its share."""
    assert missing([pod()], [], {DEALLOCATED: {("team-a", "p-gpu")}}) == []
    assert missing([pod()], [], {DEALLOCATED: {("team-b", "p-gpu")}}) != []
