"""What the webhook learns about the claims of a pod that is being created."""

from __future__ import annotations

import json
from typing import Any

import pytest

from allocator.features.resourceclaims.reading import answer
from allocator.workers.claim_reader import ClaimReader
from contract.encoding.protocol import (
    ClaimsAnswer,
    ClaimsQuestion,
    claims_answer_from_json,
    claims_answer_to_json,
    claims_question_from_json,
    claims_question_to_json,
)
from contract.encoding.reading import Malformed
from contract.model import ClaimEntry, DeviceRequest
from contract.scheduling.gates import Version
from playground.api.api import Api
from runtime.httpserver import Request
from runtime.kubernetes import paths
from runtime.kubernetes.client import Kube
from tests.unit.allocator.workers.test_share_claims import ONE, spec_of
from tests.wires import Wire

JSON = dict[str, Any]
GPU, OWN, NIC = ClaimEntry("gpu", template="t"), ClaimEntry("own", claim="c"), ClaimEntry("nic", template="nic")


class Bench:
    """An API server with a template and a claim for our driver, and a template for another driver."""

    def __init__(self) -> None:
        self.wire = Wire(Api())
        self.kube = Kube(self.wire)
        nic = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic.example.com"}}]}}
        bad = spec_of(ONE)
        bad["devices"]["requests"][0]["exactly"]["adminAccess"] = True
        for name, spec in {"t": spec_of(ONE), "nic": nic, "bad": bad}.items():
            self.kube.create(
                paths.resourceclaimtemplates("default"), {"metadata": {"name": name}, "spec": {"spec": spec}}
            )
        self.kube.create(paths.resourceclaims("default"), {"metadata": {"name": "c"}, "spec": spec_of(ONE)})

    def read(self, *claims: ClaimEntry, version: Version = (1, 36)) -> ClaimsAnswer:
        """What the webhook learns."""
        body = json.dumps(claims_question_to_json(ClaimsQuestion("default", claims))).encode()
        reply = answer(ClaimReader(self.kube, version=version), Request("POST", "/v1/claims", "", {}, body))
        return claims_answer_from_json(json.loads(reply.body))


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_claims_and_templates_are_read_and_those_of_other_drivers_are_nothing(bench: Bench) -> None:
    one = (DeviceRequest("one", 1, 1 << 30, 10),)
    assert bench.read(GPU, OWN, NIC) == ClaimsAnswer({"gpu": one, "own": one, "nic": ()})


def test_what_does_not_exist_is_named(bench: Bench) -> None:
    assert bench.read(ClaimEntry("gpu", template="none")).refused == (
        "spec.resourceClaims[gpu]: found ResourceClaimTemplate none, which does not exist; create it before the pod"
    )


def test_what_cannot_be_served_is_named_by_its_object_and_field(bench: Bench) -> None:
    assert bench.read(GPU, ClaimEntry("bad", template="bad")).refused == (
        "ResourceClaimTemplate bad: spec.spec.devices.requests[0].exactly.adminAccess: found True; leave it out; "
        "kubectl gpufraction nodes shows the GPUs and their pods"
    )


def test_below_1_36_a_share_is_refused_and_other_claims_are_not(bench: Bench) -> None:
    """The API server has dropped the capacity, so the claim would have a whole card."""
    assert bench.read(NIC, version=(1, 35)) == ClaimsAnswer({"nic": ()})
    assert bench.read(GPU, version=(1, 35)).refused == (
        "spec.resourceClaims[gpu]: found ResourceClaimTemplate t for a share of a GPU on Kubernetes 1.35; it drops "
        "capacity.requests; name resources such as gpufraction.io/gpu-memory, or use 1.36"
    )


def test_the_reply_says_whether_it_is_worth_asking_again(bench: Bench) -> None:
    def asked(body: bytes) -> tuple[int, JSON]:
        reply = answer(ClaimReader(bench.kube, version=(1, 36)), Request("POST", "/v1/claims", "", {}, body))
        return reply.status, json.loads(reply.body)

    question = json.dumps(claims_question_to_json(ClaimsQuestion("default", (NIC,)))).encode()
    assert asked(question) == (200, claims_answer_to_json(ClaimsAnswer({"nic": ()})))
    assert asked(b"{}")[0] == 400
    bench.wire.fates = ["dropped"]
    assert asked(question)[0] == 503


QUESTION = {"namespace": "default", "claims": [{"name": "gpu", "template": "t"}]}
MALFORMED = {
    "a namespace that is a path": {**QUESTION, "namespace": "../x"},
    "a template that is a path": {**QUESTION, "claims": [{"name": "gpu", "template": "../../secrets/x"}]},
    "very many claims": {**QUESTION, "claims": [{"name": "gpu", "claim": "c"}] * 65},
}


@pytest.mark.parametrize("document", MALFORMED.values(), ids=MALFORMED)
def test_a_question_that_no_webhook_asks_is_refused(document: JSON) -> None:
    assert claims_question_from_json(QUESTION) == ClaimsQuestion("default", (GPU,))
    with pytest.raises(Malformed):
        claims_question_from_json(document)


def test_an_answer_survives_the_socket() -> None:
    found = ClaimsAnswer({"gpu": (DeviceRequest("a", 2, 1 << 30, 30, 2 << 30, "mps"),), "own": ()})
    assert claims_answer_from_json(json.loads(json.dumps(claims_answer_to_json(found)))) == found
