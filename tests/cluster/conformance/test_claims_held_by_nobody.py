"""What the controller of ResourceClaims does with an allocated claim that is deleted and reserved for no pod."""

from __future__ import annotations

from typing import Any

import pytest

from playground.waiting import wait_for
from tests.cluster.conformance.asking import MERGE, Api, Ask
from tests.versions import needs

JSON = dict[str, Any]
FINALIZER = "resource.kubernetes.io/delete-protection"
ALLOCATION = {
    "devices": {"results": [{"request": "gpu", "driver": "conformance.example.com", "pool": "n1", "device": "gpu-0"}]}
}


def claim(name: str, *finalizers: str) -> JSON:
    requests = [{"name": "gpu", "exactly": {"deviceClassName": "conformance.example.com"}}]
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": name, "finalizers": list(finalizers)},
        "spec": {"devices": {"requests": requests}},
    }


@pytest.fixture
def path(api: Api) -> str:
    needs((1, 34), api.version)
    return f"/apis/resource.k8s.io/v1/namespaces/{api.namespace}/resourceclaims"


def allocate(api: Api, path: str, name: str, *finalizers: str) -> None:
    api.done(Ask("POST", path, claim(name, *finalizers)))
    api.done(Ask("PATCH", f"{path}/{name}/status", {"status": {"allocation": ALLOCATION}}, MERGE))


def test_a_claim_that_is_deleted_while_no_pod_has_it_goes_with_its_allocation(api: Api, path: str) -> None:
    allocate(api, path, "unused", FINALIZER)
    api.done(Ask("DELETE", f"{path}/unused"))
    wait_for(lambda: api.ask(Ask("GET", f"{path}/unused")).code == 404, "its finalizer keeps it")


def test_somebody_elses_finalizer_keeps_it(api: Api, path: str) -> None:
    allocate(api, path, "kept", FINALIZER, "conformance.example.com/mine")
    api.done(Ask("DELETE", f"{path}/kept"))
    wait_for(
        lambda: api.ask(Ask("GET", f"{path}/kept")).body["metadata"]["finalizers"] == ["conformance.example.com/mine"],
        "the finalizer of its allocation stays",
    )


def test_a_claim_that_is_not_deleted_keeps_its_allocation(api: Api, path: str) -> None:
    allocate(api, path, "idle", FINALIZER)
    allocate(api, path, "sign", FINALIZER)
    api.done(Ask("DELETE", f"{path}/sign"))
    wait_for(lambda: api.ask(Ask("GET", f"{path}/sign")).code == 404, "the controller has not seen the later claim")
    assert api.ask(Ask("GET", f"{path}/idle")).body["status"]["allocation"]["devices"] == ALLOCATION["devices"]
