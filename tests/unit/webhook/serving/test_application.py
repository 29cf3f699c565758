"""The routes: status codes, what is counted, what is logged."""

from __future__ import annotations

import io
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from flask.testing import FlaskClient

from contract import names
from contract.encoding.protocol import Answer, Never, Question, Wait
from contract.metrics import metrics_of
from contract.reasons.pods import AnswerReason
from runtime.logs import TextLines
from runtime.metrics import Metrics
from tests.unit.webhook.builders import (
    GIB,
    NOW_NS,
    WAIT,
    admitted_pod,
    allocation,
    container,
    patched,
    placed,
    pod,
    review,
)
from webhook.admission.admit import Configuration
from webhook.serving.application import MAX_BODY, create_app
from webhook.serving.asking import Allocator, NoAnswer
from webhook.serving.health import Health
from webhook.serving.workers import ANSWER_BY

JSON = dict[str, Any]
GOLDEN = sorted((Path(__file__).parents[1] / "golden").glob("*.json"))


class Recorder:
    """Answers with what it was given, and keeps the questions."""

    def __init__(self, answer: Answer | NoAnswer) -> None:
        self.answer = answer
        self.questions: list[Question] = []

    def __call__(self, question: Question, within: float = 1.0) -> Answer | NoAnswer:
        self.questions.append(question)
        return self.answer


def client(ask: Any, *, ready: str | None = None, metrics: Metrics | None = None) -> FlaskClient:
    ticks = iter(range(1000))
    app = create_app(
        Configuration,
        Allocator(ask),
        metrics or Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: ready),
        clock=lambda: next(ticks) / 1000,
        now_ns=lambda: NOW_NS,
    )
    return app.test_client()


def post(ask: Any, made: JSON, **request: Any) -> JSON:
    response = client(ask).post("/mutate", data=json.dumps(review(made, **request)))
    assert response.status_code == 200
    assert response.content_type == "application/json"
    answered: JSON = response.get_json()["response"]
    return answered


ASKS = pod(container(gpufraction_io__gpu_memory="5Gi"))


def test_the_question_is_the_canonical_request_and_the_trimmed_pod() -> None:
    recorder = Recorder(WAIT)
    post(recorder, ASKS, dryRun=True)
    (question,) = recorder.questions
    assert (question.uid, question.namespace, question.dry_run, question.held) == (
        "705ab4f5-6393-11e8-b7cc-42010a800002",
        "team-a",
        True,
        "",
    )
    assert question.request.containers[0].memory == 5 * GIB
    assert "image" not in question.pod["spec"]["containers"][0]


def test_a_dry_run_is_patched_like_any_other() -> None:
    assert post(Recorder(placed()), ASKS, dryRun=True) == post(Recorder(placed()), ASKS)


def of_template(made: JSON) -> JSON:
    """A pod as Cluster Autoscaler tests the template of a CapacityBuffer."""
    return {**made, "metadata": {**made["metadata"], "generateName": "fake-pod-"}}


def test_a_template_that_an_autoscaler_tests_is_never_pinned_or_refused() -> None:
    """This holds whatever room there is now, because the template represents pods on future nodes."""
    made = of_template(ASKS)
    for answer in (placed("affinity"), WAIT, Never("Memory", "no GPU has as much")):
        recorder = Recorder(answer)
        after = patched(made, post(recorder, made, dryRun=True))
        assert after["spec"]["schedulingGates"] == [{"name": str(names.GATE)}]
        assert {"nodeName", "affinity"} & after["spec"].keys() == set()
        assert str(names.ALLOCATION) not in after["metadata"]["annotations"]
        assert recorder.questions == []


def test_a_percentage_in_a_template_counts_as_on_the_cards_that_there_are() -> None:
    made = of_template(pod(container(gpufraction_io__gpu_percent="50")))
    after = patched(made, post(Recorder(placed("affinity")), made, dryRun=True))
    assert after["spec"]["containers"][0]["resources"]["limits"][str(names.GPU_MEMORY)] == "5Gi"
    assert "affinity" not in after["spec"]


@pytest.mark.parametrize(
    ("made", "dry"), [(of_template(ASKS), False), (ASKS, True)], ids=["a pod", "a person's dry run"]
)
def test_a_pod_and_a_persons_dry_run_are_placed(made: JSON, dry: bool) -> None:
    after = patched(made, post(Recorder(placed("affinity")), made, dryRun=dry))
    assert "affinity" in after["spec"]
    assert str(names.ALLOCATION) in after["metadata"]["annotations"]


UNASKED = {
    "a pod that asks for nothing": (pod(container()), {}),
    "an update": (ASKS, {"operation": "UPDATE"}),
    "another kind": (ASKS, {"kind": {"group": "apps", "version": "v1", "kind": "ReplicaSet"}}),
    "a subresource": (ASKS, {"subResource": "eviction"}),
    "a pod that waits already": (None, {}),
}


@pytest.mark.parametrize(("made", "request_"), UNASKED.values(), ids=UNASKED.keys())
def test_what_is_let_in_untouched_without_a_question(made: JSON | None, request_: JSON) -> None:
    if made is None:
        made = patched(ASKS, post(Recorder(WAIT), ASKS))
    recorder = Recorder(WAIT)
    found = post(recorder, made, **request_)
    notes = found.pop("auditAnnotations", None)
    assert found == {"uid": "705ab4f5-6393-11e8-b7cc-42010a800002", "allowed": True}
    assert recorder.questions == []
    assert notes in (None, {"outcome": "gated", "dialect": "native"})


def test_a_held_allocation_is_named_in_the_question() -> None:
    recorder = Recorder(WAIT)
    post(recorder, admitted_pod(allocated=allocation("alloc-7")))
    assert [question.held for question in recorder.questions] == ["alloc-7"]


def test_a_users_mistake_is_denied_with_the_field() -> None:
    message = "spec.containers[0].resources.limits[nvidia.com/gpu]: found 'many'; give a whole number from 1 to 64"
    assert post(Recorder(WAIT), pod(container(nvidia_com__gpu="many"))) == {
        "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
        "allowed": False,
        "status": {
            "status": "Failure",
            "code": 422,
            "reason": "Invalid",
            "message": message,
        },
        "auditAnnotations": {"outcome": "denied", "reason": message},
    }


BAD_BODIES = {
    "no JSON": (b"{", 400, {"message": "the body is not JSON"}),
    "another object": (b"{}", 400, {"message": "the body is not an AdmissionReview of admission.k8s.io/v1"}),
    "nested deeper than we can copy": (
        json.dumps(review(ASKS)).replace('"app": "train"', '"app": ' + '{"a":' * 600 + "1" + "}" * 600).encode(),
        None,
        None,
    ),
    "over the limit": (b" " * (MAX_BODY + 1), 413, None),
}


@pytest.mark.parametrize(("raw", "status", "want"), BAD_BODIES.values(), ids=BAD_BODIES.keys())
def test_bad_bodies(raw: bytes, status: int | None, want: JSON | None) -> None:
    response = client(Recorder(WAIT)).post("/mutate", data=raw)
    if status is None:  # refused either for its structure or as too deep, but never a fault
        assert response.status_code in (200, 400)
        return
    assert response.status_code == status
    if want is not None:
        assert response.get_json() == want


def test_a_body_of_exactly_the_limit_is_read() -> None:
    raw = json.dumps(review(pod(container()))).encode()
    response = client(Recorder(WAIT)).post("/mutate", data=raw + b" " * (MAX_BODY - len(raw)))
    assert response.status_code == 200


@pytest.mark.parametrize(("filling", "status"), [("{},", 413), ("[],", 413), ("0,", 413), ('"' + 40 * "x" + '",', 200)])
def test_a_body_of_too_many_values_is_refused_before_it_is_read(filling: str, status: int) -> None:
    """Reading it would take up to a hundred times its bytes."""
    many = review(ASKS)
    many["request"]["options"] = {"x": "FILLING"}
    body = json.dumps(many).replace('"FILLING"', "[" + filling * ((MAX_BODY >> 1) // len(filling)) + "0]")
    assert client(Recorder(WAIT)).post("/mutate", data=body).status_code == status


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY, 200), (MAX_BODY + 1, 413), (2 * MAX_BODY, 413)])
def test_a_body_of_undeclared_length_has_the_same_limit(size: int, status: int) -> None:
    raw = json.dumps(review(pod(container()))).encode()
    stream = io.BytesIO(raw + b" " * (size - len(raw)))
    web = client(Recorder(WAIT))
    response = web.post("/mutate", input_stream=stream, environ_overrides={"wsgi.input_terminated": True})
    assert response.status_code == status


def test_other_routes_and_methods_are_refused_as_json() -> None:
    assert client(Recorder(WAIT)).get("/mutate").status_code == 405
    assert client(Recorder(WAIT)).get("/nothing").get_json().keys() == {"message"}


def test_our_own_fault_is_500_and_tells_the_log_but_not_the_pod(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2"

    def broken(question: Question, within: float) -> Answer:
        raise ValueError(f"cannot digest {secret}")

    with caplog.at_level(logging.INFO):
        response = client(broken).post("/mutate", data=json.dumps(review(ASKS)))
    assert response.status_code == 500
    fault = response.get_json()["message"].rsplit(" ", 1)[1]
    formatted = TextLines().format(caplog.records[-1])
    assert f"fault={fault} kind=ValueError" in formatted
    assert "in broken" in formatted
    assert secret not in formatted


def test_probes() -> None:
    assert client(Recorder(WAIT)).get("/healthz").status_code == 200
    assert client(Recorder(WAIT)).get("/readyz").status_code == 200
    unready = client(Recorder(WAIT), ready="the serving certificate ended")
    assert (unready.get("/readyz").status_code, unready.get("/readyz").text) == (503, "the serving certificate ended\n")
    assert unready.get("/healthz").status_code == 200


COUNTED = {
    "placed": (placed(), ASKS, "placed", "native", "placed"),
    "waiting": (Wait("NoRoom", "full"), ASKS, "gated", "native", "wait"),
    "nobody answers": (NoAnswer("unreachable"), ASKS, "gated", "native", "unreachable"),
    "denied by the allocator": (placed(), pod(container(nvidia_com__gpu="x")), "denied", "", None),
    "untouched": (placed(), pod(container()), "untouched", "", None),
}


@pytest.mark.parametrize(("answer", "made", "outcome", "dialect", "asked"), COUNTED.values(), ids=COUNTED.keys())
def test_reviews_and_questions_are_counted(
    answer: Answer | NoAnswer, made: JSON, outcome: str, dialect: str, asked: str | None
) -> None:
    metrics = Metrics(metrics_of("webhook"))
    web = client(Recorder(answer), metrics=metrics)
    web.post("/mutate", data=json.dumps(review(made)))
    page = metrics.render().decode()
    assert f'gpufraction_admission_requests_total{{dialect="{dialect}",outcome="{outcome}"}} 1.0' in page
    assert f'gpufraction_admission_duration_seconds_count{{outcome="{outcome}"}} 1.0' in page
    assert ("gpufraction_allocator_questions_total{" in page) == (asked is not None)
    if asked is not None:
        assert f'gpufraction_allocator_questions_total{{answer="{asked}"}} 1.0' in page


ELSEWHERE = "the leading allocator places the pod shortly"
REPORTED: dict[str, tuple[Answer | NoAnswer, str, list[str]]] = {
    "nobody there": (
        NoAnswer("unreachable"),
        "the allocator does not answer; the pod is placed as soon as it does",
        ["INFO"],
    ),
    "a replica that does not lead, as every other one": (Wait(AnswerReason.NOT_LEADING, ELSEWHERE), ELSEWHERE, []),
}


@pytest.mark.parametrize(("answer", "reported", "logged"), REPORTED.values(), ids=REPORTED.keys())
def test_a_missing_answer_is_reported_and_logged_as_what_it_is(
    answer: Answer | NoAnswer, reported: str, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="webhook.serving.application")
    answered = client(Recorder(answer)).post("/mutate", data=json.dumps(review(ASKS))).get_json()
    levels = [record.levelname for record in caplog.records if record.name == "webhook.serving.application"]
    assert (answered["response"]["warnings"], levels) == ([f"waiting: {reported}"], logged)


class Clock:
    """A clock that shows the time that it is set to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Slow(Recorder):
    """Takes this many seconds for an answer."""

    def __init__(self, clock: Clock, takes: float) -> None:
        super().__init__(WAIT)
        self._clock, self._takes = clock, takes
        self.within: list[float] = []

    def __call__(self, question: Question, within: float = 1.0) -> Answer | NoAnswer:
        self.within.append(within)
        self._clock.now += self._takes
        return super().__call__(question)


def late(answer_by: float, takes: float, body: bytes) -> tuple[int, str, list[float]]:
    """The status and the outcome of a review at the time 100, and how long the allocator had for its answer."""
    clock, metrics = Clock(), Metrics(metrics_of("webhook"))
    ask = Slow(clock, takes)
    app = create_app(Configuration, Allocator(ask), metrics, health=Health(ready=lambda: None), clock=clock)
    response = app.test_client().post("/mutate", data=body, environ_base={ANSWER_BY: answer_by})
    (outcome,) = re.findall(r'requests_total{dialect="[a-z]*",outcome="([a-z]+)"} 1.0', metrics.render().decode())
    return response.status_code, outcome, ask.within


LATE: dict[str, tuple[float, float, bytes, tuple[int, str, list[float]]]] = {
    "in time": (103.0, 0.5, json.dumps(review(ASKS)).encode(), (200, "gated", [3.0])),
    "before it is read, whatever it is": (100.0, 0.0, b"no JSON", (503, "late", [])),
    "while the allocator was asked": (100.5, 0.5, json.dumps(review(ASKS)).encode(), (503, "late", [0.5])),
}


@pytest.mark.parametrize(("answer_by", "takes", "body", "want"), LATE.values(), ids=LATE.keys())
def test_no_work_is_done_for_who_does_not_wait_any_more(
    answer_by: float, takes: float, body: bytes, want: tuple[int, str, list[float]]
) -> None:
    assert late(answer_by, takes, body) == want


def test_a_tenant_cannot_make_metric_labels() -> None:
    made = admitted_pod()
    text = made["metadata"]["annotations"]["gpufraction.io/request"]
    made["metadata"]["annotations"]["gpufraction.io/request"] = text.replace('"native"', '"made-up"')
    metrics = Metrics(metrics_of("webhook"))
    web = client(Recorder(WAIT), metrics=metrics)
    web.post("/mutate", data=json.dumps(review(made)))
    page = metrics.render().decode()
    assert 'dialect="unknown"' in page
    assert "made-up" not in page


@pytest.mark.parametrize("path", GOLDEN, ids=[path.stem for path in GOLDEN])
def test_golden_reviews(path: Path) -> None:
    """A whole review from file to answer. `want.pod` is the pod after the patch, `want.response` the rest."""
    from contract.encoding.protocol import answer_from_json

    golden = json.loads(path.read_text())
    answer = NoAnswer("unreachable") if golden["answer"] is None else answer_from_json(golden["answer"])
    response = client(Recorder(answer)).post("/mutate", data=json.dumps(golden["review"]))
    got = response.get_json()["response"]
    changed = patched(golden["review"]["request"]["object"], got)
    rest = {key: value for key, value in got.items() if key not in ("patch", "patchType")}
    assert {"pod": changed, "response": rest} == golden["want"]


def test_there_are_golden_reviews() -> None:
    assert len(GOLDEN) >= 6
