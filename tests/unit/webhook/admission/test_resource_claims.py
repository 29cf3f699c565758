"""Which pods name a ResourceClaim of ours after admission, and that nobody else chooses its name."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from contract import names
from contract.encoding import resourceclaims
from contract.encoding.protocol import Answer, Question
from tests.unit.webhook.builders import NOW_NS, WAIT, container, patched, placed, pod, review, share
from webhook.admission import review as reviews
from webhook.admission.admit import Configuration, admit

JSON = dict[str, Any]
BY_CLAIMS = Configuration(dra=True)
PLAIN = pod(container(gpufraction_io__gpu_memory="5Gi"), container("side"))
UID = "705ab4f5-6393-11e8-b7cc-42010a800002"


class Allocator:
    """Gives one answer, and keeps what it was asked."""

    def __init__(self, answer: Answer | None) -> None:
        self.answer = answer
        self.questions: list[Question] = []

    def ask(self, question: Question) -> Answer | None:
        self.questions.append(question)
        return self.answer


def stored(
    made: JSON, answer: Answer | None, configuration: Configuration = BY_CLAIMS, *, uid: str = UID
) -> tuple[JSON, Allocator]:
    """The pod as the API server stores it, and who was asked."""
    allocator = Allocator(answer)
    body = json.dumps(review(made, uid=uid)).encode()
    found = admit(reviews.decode(body), configuration, allocator.ask, lambda node: frozenset(), now_ns=NOW_NS)
    return patched(made, json.loads(found.body)["response"]), allocator


def test_a_waiting_pod_names_a_claim_and_its_sharing_containers_a_request() -> None:
    after, allocator = stored(PLAIN, WAIT)
    name = resourceclaims.named_by(after["spec"])
    assert name == resourceclaims.name_from(UID)
    assert after["spec"]["containers"][0]["resources"]["claims"] == [{"name": names.POD_CLAIM, "request": "main"}]
    assert "claims" not in after["spec"]["containers"][1].get("resources", {})
    assert resourceclaims.named_by(allocator.questions[0].pod["spec"]) == name, "it decides where the pod may go"


def test_a_pod_waits_with_a_claim_also_while_nobody_answers() -> None:
    after, _ = stored(PLAIN, None)
    assert resourceclaims.named_by(after["spec"])


def test_a_pod_that_is_placed_where_no_claim_is_needed_names_none() -> None:
    after, _ = stored(PLAIN, placed("affinity"))
    assert "resourceClaims" not in after["spec"]
    assert "claims" not in after["spec"]["containers"][0]["resources"]


def test_a_pod_that_is_placed_by_claim_keeps_it() -> None:
    after, _ = stored(PLAIN, placed("affinity", main=(replace(share(), cdi="nvidia.com/gpu", dra=True),)))
    assert resourceclaims.named_by(after["spec"])


def test_where_claims_are_off_nobody_names_one_whatever_he_wrote() -> None:
    forged = resourceclaims.with_claim(PLAIN["spec"], _with_claims(), resourceclaims.name_from("another"))
    after, allocator = stored({**PLAIN, "spec": forged}, WAIT, Configuration())
    assert "resourceClaims" not in after["spec"]
    assert not resourceclaims.named_by(allocator.questions[0].pod["spec"])


def test_nobody_chooses_the_name_of_his_claim() -> None:
    forged = resourceclaims.with_claim(PLAIN["spec"], _with_claims(), resourceclaims.name_from("another"))
    after, _ = stored({**PLAIN, "spec": forged}, WAIT)
    assert resourceclaims.named_by(after["spec"]) == resourceclaims.name_from(UID)


def test_a_second_pass_changes_nothing_and_another_review_gives_another_name() -> None:
    once, _ = stored(PLAIN, WAIT)
    again, allocator = stored(once, WAIT)
    assert again == once
    assert allocator.questions == [], "it waits already"
    other, _ = stored(once, WAIT, uid="00000000-0000-0000-0000-000000000000")
    first, second = (resourceclaims.named_by(each["spec"]) for each in (once, other))
    assert first != second
    renamed = json.loads(json.dumps(other).replace(second, first))
    assert renamed == once


def test_a_pod_with_more_shares_than_a_claim_holds_names_none() -> None:
    many = pod(container(gpufraction_io__gpu_memory="1Gi", gpufraction_io__gpu_count="33"))
    after, _ = stored(many, WAIT)
    assert "resourceClaims" not in after["spec"]


def test_a_tenants_own_claims_stay() -> None:
    own = [{"name": "network", "resourceClaimName": "mine"}]
    after, _ = stored({**PLAIN, "spec": {**PLAIN["spec"], "resourceClaims": own}}, WAIT)
    assert after["spec"]["resourceClaims"][0] == own[0]
    assert len(after["spec"]["resourceClaims"]) == 2


def test_a_pod_without_a_share_is_left_alone() -> None:
    after, _ = stored(pod(container()), WAIT)
    assert after == pod(container())


def _with_claims() -> Any:
    _, allocator = stored(PLAIN, WAIT, Configuration())
    return allocator.questions[0].request
