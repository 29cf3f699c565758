"""Pods with a share get the runtime class through which GPUs reach containers, if the administrator names one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from contract.encoding.protocol import Question
from contract.metrics import metrics_of
from contract.scheduling.needs import needs_of
from runtime.metrics import Metrics
from tests.unit.webhook.builders import container, patched, pod, review
from webhook.admission.admit import Configuration
from webhook.serving.application import create_app
from webhook.serving.asking import UNREACHABLE, Allocator, NoAnswer
from webhook.serving.health import Health

JSON = dict[str, Any]


def asks(runtime_class: str = "", *, share: bool = True) -> JSON:
    made = pod(container(gpufraction_io__gpu_memory="1Gi") if share else container())
    if runtime_class:
        made["spec"]["runtimeClassName"] = runtime_class
    return made


CASES = {
    "a pod with a share gets the class": (asks(), "nvidia", "nvidia"),
    "the tenant's own class stays": (asks("kata"), "nvidia", "kata"),
    "no class is given where none is set": (asks(), "", None),
    "a pod without a share is left alone": (asks(share=False), "nvidia", None),
}


@pytest.mark.parametrize(("made", "setting", "want"), CASES.values(), ids=CASES.keys())
def test_the_class_that_a_pod_goes_in_with(made: JSON, setting: str, want: str | None) -> None:
    questions: list[Question] = []

    def ask(question: Question, within: float) -> NoAnswer:
        questions.append(question)
        return NoAnswer(UNREACHABLE)

    app = create_app(
        lambda: Configuration(runtime_class=setting),
        Allocator(ask),
        Metrics(metrics_of("webhook")),
        health=Health(ready=lambda: None),
    )
    response = json.loads(app.test_client().post("/mutate", data=json.dumps(review(made))).data)["response"]
    after = patched(made, response) if "patch" in response else made
    assert after["spec"].get("runtimeClassName") == want
    assert [needs_of(question.pod).runtime_class for question in questions] == [want or ""] * len(questions)
