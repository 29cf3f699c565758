"""Pods that name ResourceClaims: whose they are, what they count, and what happens if that is unknown."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from contract import names
from contract.encoding import codec
from contract.encoding.protocol import Answer, ClaimsAnswer, ClaimsQuestion, Never, Placed, Question, Wait
from contract.metrics import metrics_of
from contract.model import Allocation, ContainerAllocation, DeviceRequest, FractionRequest, GpuShare, PodRequest
from runtime.metrics import Metrics
from tests.unit.webhook.builders import patched, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer
from webhook.serving.health import Health

JSON = dict[str, Any]
GIB = 1 << 30
GPU = DeviceRequest("gpu", 1, 8 * GIB, 30)
REQUEST = PodRequest("resourceclaims", (FractionRequest("main", memory=8 * GIB, cores=30),))


def pod(**metadata: Any) -> JSON:
    return {
        "metadata": {"name": "p", **metadata},
        "spec": {
            "resourceClaims": [
                {"name": "gpu", "resourceClaimTemplateName": "t"},
                {"name": "nic", "resourceClaimName": "nic"},
            ],
            "containers": [
                {"name": "main", "image": "x", "resources": {"claims": [{"name": "gpu"}, {"name": "nic"}]}},
                {"name": "other", "image": "x"},
            ],
        },
    }


class Answering:
    """The allocator next to the webhook."""

    def __init__(self, read: ClaimsAnswer | None, placed: Answer | NoAnswer | None = None) -> None:
        self.read = read
        self.placed = placed or NoAnswer(UNREACHABLE)
        self.questions: list[Question] = []
        self.claims: list[ClaimsQuestion] = []

    def answered(self, made: JSON, path: str = "/mutate/claims", **request: Any) -> JSON:
        def place(question: Question, within: float) -> Answer | NoAnswer:
            self.questions.append(question)
            return self.placed

        def read(question: ClaimsQuestion, within: float) -> ClaimsAnswer | None:
            self.claims.append(question)
            return self.read

        app = create_app(
            lambda: Configuration(dra=True),
            Allocator(place, claims=read),
            Metrics(metrics_of("webhook")),
            health=Health(ready=lambda: None),
        )
        reply = app.test_client().post(path, data=json.dumps(review(made, **request)))
        assert reply.status_code == 200
        response: JSON = json.loads(reply.data)["response"]
        return response


def reading(**claims: tuple[DeviceRequest, ...]) -> ClaimsAnswer:
    return ClaimsAnswer({"gpu": (GPU,), "nic": (), **claims})


def share(memory: int = 8 * GIB) -> Placed:
    given = ContainerAllocation("main", (GpuShare("GPU-1", 0, memory, 30, 16 * GIB),))
    return Placed(Allocation("id", "a", (given,)), "nodeName")


def test_the_pod_waits_with_what_its_claims_count() -> None:
    beside = Answering(reading(), share())
    answer = beside.answered(pod())
    after = patched(pod(), answer)
    assert "warnings" not in answer
    assert after["spec"]["schedulingGates"] == [{"name": str(names.GATE)}]
    assert after["spec"]["resourceClaims"] == pod()["spec"]["resourceClaims"]
    assert after["spec"]["containers"][0]["resources"]["limits"] == {
        str(names.GPU_MEMORY): "8Gi",
        str(names.GPU_CORES): "30",
    }
    assert codec.request_from_text(after["metadata"]["annotations"][names.REQUEST]) == REQUEST
    assert names.ALLOCATION not in after["metadata"]["annotations"]
    (question,) = beside.questions
    assert (question.dry_run, question.request) == (True, REQUEST)
    assert question.pod["spec"]["resourceClaims"] == [{"name": "nic", "resourceClaimName": "nic"}]


def test_a_second_pass_changes_nothing_by_either_entry() -> None:
    beside = Answering(reading(), share())
    after = patched(pod(), beside.answered(pod()))
    for path in ("/mutate/claims", "/mutate"):
        assert "patch" not in beside.answered(after, path)


def test_whole_cards_count_what_the_smallest_card_has() -> None:
    beside = Answering(reading(gpu=(DeviceRequest("gpu", 2),)), Wait("NoRoom", "full", {"main": 30 * GIB}))
    after = patched(pod(), beside.answered(pod()))
    assert after["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEMORY] == "30Gi"
    silent = Answering(reading(gpu=(DeviceRequest("gpu", 2),)))
    assert "is unknown now" in silent.answered(pod())["status"]["message"]


DENIED: Mapping[str, tuple[Answering, Callable[[], JSON], str]] = {
    "nobody can say": (Answering(None), pod, "gpufraction's allocator does not answer"),
    "a claim that cannot be served": (Answering(ClaimsAnswer(refused="t: found x; give y")), pod, "t: found x; give y"),
    "no GPU could ever serve it": (
        Answering(reading(), Never("TooLarge", "no GPU has 8 GiB")),
        pod,
        "no GPU has 8 GiB",
    ),
}


@pytest.mark.parametrize(("beside", "made", "words"), DENIED.values(), ids=DENIED)
def test_why_a_pod_is_refused(beside: Answering, made: Callable[[], JSON], words: str) -> None:
    answer = beside.answered(made())
    assert not answer["allowed"]
    assert words in answer["status"]["message"]


def test_a_pod_with_claims_of_other_drivers_passes_as_it_is() -> None:
    beside = Answering(ClaimsAnswer({"gpu": (), "nic": ()}))
    assert "patch" not in beside.answered(pod())
    assert beside.questions == []


def test_a_pod_without_claims_is_not_asked_about() -> None:
    beside = Answering(None)
    made = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    assert beside.answered(made)["allowed"]
    assert beside.claims == []


def test_a_share_in_two_ways_is_refused() -> None:
    made = pod()
    made["spec"]["containers"][1]["resources"] = {"limits": {"nvidia.com/gpumem": "3000"}}
    message = Answering(reading()).answered(made)["status"]["message"]
    assert message == (
        "spec.resourceClaims: found GPU shares together with HAMi (nvidia.com/gpu); "
        "use only one dialect: remove one of the two"
    )


def test_a_pod_that_was_admitted_in_another_dialect_is_refused() -> None:
    native = PodRequest("native", (FractionRequest("main", memory=8 * GIB, cores=30),))
    made = pod(annotations={str(names.REQUEST): codec.request_to_text(native)})
    made["spec"]["containers"][0]["resources"]["limits"] = {
        "gpufraction.io/gpu-memory": "8Gi",
        "gpufraction.io/gpu-cores": "30",
    }
    assert "use only one dialect" in Answering(reading()).answered(made)["status"]["message"]


def test_what_an_author_wrote_as_our_annotation_is_replaced() -> None:
    forged = PodRequest("resourceclaims", (FractionRequest("main", memory=GIB),))
    made = pod(annotations={str(names.REQUEST): codec.request_to_text(forged)})
    made["spec"]["containers"][0]["resources"]["limits"] = {"gpufraction.io/gpu-memory": "1Gi"}
    after = patched(made, Answering(reading(), share()).answered(made))
    assert codec.request_from_text(after["metadata"]["annotations"][names.REQUEST]) == REQUEST
    assert after["spec"]["containers"][0]["resources"]["limits"][names.GPU_MEMORY] == "8Gi"


def test_the_isolation_of_a_claim_is_the_pods_unless_that_asks_itself() -> None:
    beside = Answering(reading(gpu=(DeviceRequest("gpu", 1, 8 * GIB, 30, 0, "mps"),)), share())
    after = patched(pod(), beside.answered(pod()))
    assert after["metadata"]["annotations"][names.ISOLATION] == "mps"
    assert beside.questions[0].pod["metadata"]["annotations"][names.ISOLATION] == "mps"
    own = pod(annotations={str(names.ISOLATION): "driver"})
    assert patched(own, beside.answered(own))["metadata"]["annotations"][names.ISOLATION] == "driver"


def test_the_claim_of_another_pod_cannot_be_named() -> None:
    made = pod()
    made["spec"]["resourceClaims"].append({"name": "stolen", "resourceClaimName": f"{names.CLAIM_PREFIX}{32 * 'a'}"})
    assert "delivers the share of another pod" in Answering(reading()).answered(made)["status"]["message"]


def test_a_pod_that_names_very_many_claims_is_refused() -> None:
    made = pod()
    made["spec"]["resourceClaims"] = [{"name": f"c{at}", "resourceClaimName": "x"} for at in range(65)]
    assert "found 65 claims; give at most 64" in Answering(None).answered(made)["status"]["message"]
