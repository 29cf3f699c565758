"""
A tenant's ElasticGPUClaims with arbitrary text in their fields, and a node that reports odd things about its cards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from playground import scenarios
from playground.waiting import wait_for
from runtime.kubernetes import paths
from tests.builders import pod
from tests.cluster.hostile.attack import TENANT, Hostile, hostile_cluster, unharmed
from tests.clusters import control_planes

pytestmark = [pytest.mark.hostile, pytest.mark.long]
JSON = dict[str, Any]
AMOUNT = "gpushare.provisioner.elasticgpu.io/gpu-memory"
ODD = {
    "long": "a" * 200_000,
    "escape": "\x1b[2J\x1b[31mgold",
    "lines": "gold\nWarning: your disk is full",
    "direction": "gold\u202edlog",
}
LONGEST = 400


@pytest.fixture(scope="module", params=control_planes())
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    yield from hostile_cluster(request.param, tmp_path_factory.mktemp("claims"), components=("claims",))


@pytest.fixture
def hostile(attacked: Hostile) -> Iterator[Hostile]:
    yield from unharmed(attacked)


def path(name: str | None = None) -> str:
    return paths.path(scenarios.ELASTIC, "elasticgpuclaims", TENANT, name)


def test_any_class_that_a_claim_names_is_reported_in_plain_words(hostile: Hostile) -> None:
    for number, text in enumerate(ODD.values()):
        about = {"elasticGPUClassName": text, "resources": {"requests": {AMOUNT: 1}}}
        document = {"apiVersion": scenarios.ELASTIC, "kind": "ElasticGPUClaim", "spec": about}
        hostile.kube.create(path(), {**document, "metadata": {"name": f"odd-{number}"}})
        hostile.create(pod(f"odd-{number}").annotated("egpuc.elasticgpu.io/a", f"odd-{number}").container("main"))

    def messages() -> list[str]:
        """The messages in the claims' status, in their Events and in the conditions of the pods that name them."""
        statuses = [str((each.get("status") or {}).get("message", "")) for each in hostile.kube.list(path()).items]
        events = hostile.kube.list(paths.path("v1", "events", TENANT)).items
        conditions = [
            str(condition.get("message", ""))
            for each in hostile.pods()
            for condition in (each.get("status") or {}).get("conditions") or ()
        ]
        return [*statuses, *(str(event.get("message", "")) for event in events), *conditions]

    def all_reported() -> bool:
        return sum("elasticGPUClassName" in text for text in messages()) >= len(ODD)

    try:
        wait_for(all_reported, lambda: f"told is {[text[:200] for text in messages()]}")
        assert [text[:200] for text in messages() if len(text) > LONGEST or not text.isprintable()] == []
    finally:
        for each in hostile.kube.list(path()).items:
            hostile.kube.delete(path(each["metadata"]["name"]))
